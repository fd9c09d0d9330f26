"""Ownership of KV pages: every page is free or belongs to one request. No tensors.

Within a request's pages, positions [0, P) are committed and [P, P + n) are reserved by the rows
of the step in flight; nothing behind a committed prefix is ever read by a later forward.

    position   0 ........... P ........ P + n ........ capacity
               | committed   | in flight | not used yet |

Pages of a request are kept adjacent where the pool allows it, because an adjacent run is read
through a view; a request without one still works, by gathering.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from recguide_core.records import IntArray

_FREE = -1


@dataclass(slots=True)
class _Holding:
    pages: list[int] = field(default_factory=list)
    run: bool = True
    committed: int = 0
    in_flight: int = 0
    touched: int = 0


class PageTable:
    """Book-keeping of a pool; the simulator uses it without one.

    Args:
        pages: number of pages; page_size: tokens of one page.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.owner = np.full(pages, _FREE, np.int64)
        self._wanted = np.full(pages, _FREE, np.int64)
        self._held: dict[int, _Holding] = {}
        self.free_pages = pages

    @property
    def pages(self) -> int:
        return len(self.owner)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def capacity(self, request: int) -> int:
        """Tokens that the request's pages can hold."""
        held = self._held.get(request)
        return 0 if held is None else len(held.pages) * self.page_size

    def reserve(self, request: int, tokens: int, expected: int = 0) -> bool:
        """Make room for positions [0, tokens) of a request; False when pages are short.

        Args:
            expected: tokens the request may grow to; the neighbourhood is kept free for it as
                long as others can be placed elsewhere.
        """
        held = self._held.get(request)
        have = 0 if held is None else len(held.pages)
        need = self.pages_for(tokens) - have
        if need <= 0:
            return True
        if need > self.free_pages:
            return False
        if held is None:
            held = self._held[request] = _Holding()
            start = self._place(max(need, self.pages_for(expected)), need)
            if start >= 0:
                span = slice(start, start + max(need, self.pages_for(expected)))
                room = self.owner[span] == _FREE
                self._wanted[span][room] = request
                self._take(request, held, range(start, start + need))
                return True
        for _ in range(need):
            self._take(request, held, [self._next_page(request, held)])
        return True

    def release(self, request: int) -> None:
        """Give all pages of a request back."""
        held = self._held.pop(request, None)
        if held is not None:
            self.owner[held.pages] = _FREE
            self.free_pages += len(held.pages)
            self._wanted[self._wanted == request] = _FREE

    def run_start(self, request: int) -> int:
        """First slot of the request's adjacent run, or -1 when its pages are scattered."""
        held = self._held[request]
        return held.pages[0] * self.page_size if held.run else -1

    def page_list(self, request: int) -> list[int]:
        return self._held[request].pages

    def slots(self, request: int, first: int, count: int) -> IntArray:
        """Pool slots of positions first..first+count-1, int64 [count]."""
        start = self.run_start(request)
        positions = np.arange(first, first + count)
        if start >= 0:
            return positions + start
        pages = np.asarray(self._held[request].pages)
        return np.asarray(
            pages[positions // self.page_size] * self.page_size + positions % self.page_size
        )

    def begin(self, request: int, in_flight: int) -> None:
        """Name the slots behind the committed prefix that this step's rows write."""
        held = self._held[request]
        held.in_flight = in_flight
        held.touched = max(held.touched, held.committed + in_flight)
        assert held.committed + in_flight <= len(held.pages) * self.page_size

    def commit(self, request: int, tokens: int) -> None:
        """Move P forward by `tokens` of the in-flight ones; the rest is dropped."""
        held = self._held[request]
        assert 0 <= tokens <= held.in_flight
        held.committed += tokens
        held.in_flight = 0

    def committed(self, request: int) -> int:
        return self._held[request].committed

    def check_integrity(self, idle: bool = True) -> None:
        """Assert that every page is free or owned once, and nothing is in flight when idle."""
        seen = np.full(self.pages, _FREE, np.int64)
        for request, held in self._held.items():
            for page in held.pages:
                assert seen[page] == _FREE, f"page {page} owned twice"
                seen[page] = request
            assert held.committed + held.in_flight <= len(held.pages) * self.page_size
            assert not idle or held.in_flight == 0, f"request {request} left rows in flight"
            adjacent = held.pages == list(range(held.pages[0], held.pages[0] + len(held.pages)))
            assert held.run == adjacent
        assert np.array_equal(seen, self.owner)
        assert self.free_pages == int((self.owner == _FREE).sum())
        assert set(self._wanted[self._wanted >= 0]) <= set(self._held)

    def _place(self, wanted: int, need: int) -> int:
        """Start of a free run: one with the whole expected growth, else the longest that does."""
        unclaimed = (self.owner == _FREE) & (self._wanted == _FREE)
        start, length = _longest_first_fit(unclaimed, wanted)
        if length >= wanted:
            return start
        start, length = _longest_first_fit(self.owner == _FREE, wanted)
        return start if length >= need else -1

    def _next_page(self, request: int, held: _Holding) -> int:
        if held.pages:
            follower = held.pages[-1] + 1
            if follower < self.pages and self.owner[follower] == _FREE:
                return follower
        free = np.flatnonzero((self.owner == _FREE) & (self._wanted == _FREE))
        if len(free):
            return int(free[0])
        return int(np.flatnonzero(self.owner == _FREE)[0])

    def _take(self, request: int, held: _Holding, pages: range | list[int]) -> None:
        for page in pages:
            if held.pages and page != held.pages[-1] + 1:
                held.run = False
            held.pages.append(page)
        self.owner[list(pages)] = request
        self.free_pages -= len(pages)


def _longest_first_fit(free: np.ndarray, wanted: int) -> tuple[int, int]:
    """(start, length) of the first run of True of at least `wanted`, else of the longest run."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return -1, 0
    lengths = ends - starts
    fits = np.flatnonzero(lengths >= wanted)
    best = int(fits[0]) if len(fits) else int(lengths.argmax())
    return int(starts[best]), int(lengths[best])
