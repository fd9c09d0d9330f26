"""The speculative algorithm `RECGUIDE`: what SGLang asks of it, and the hooks it needs.

Three methods that the scheduler and FutureMap call are missing from `CustomSpecAlgo` in 0.5.23;
the row table is too narrow for the decode reserve near the context limit; a step in which a
request only drafts would count as a verify call in SGLang's figures. Each is mended here.
"""

from __future__ import annotations

from typing import Any

from recguide_core.sglang_plugin import adapter as sgl
from recguide_core.sglang_plugin.admission import refusal, wants_rounds
from recguide_core.sglang_plugin.server_args import check_server, settle_server
from recguide_core.sglang_plugin.settings import PluginSettings

NAME = "RECGUIDE"
ROUNDS = "recguide_rounds"
"""Attribute of a step's result that carries `StepResult.rounds` to the hook behind it."""
INFO = "recguide"
"""Field of an answer's `meta_info` with the rounds of a request that asked for them."""


class RecGuideAlgorithm(sgl.CustomSpecAlgo):  # type: ignore[misc,unused-ignore]
    """RecGuide as SGLang's scheduler sees it: one model, no draft KV, a synchronous step."""

    plugin_settings: PluginSettings

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        return sgl.FutureMap(
            device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay
        )

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def has_draft_kv(self) -> bool:
        return False

    def handle_server_args(self, server_args: Any) -> None:
        check_server(server_args)
        settle_server(server_args, self.plugin_settings)


def register_algorithm(settings: PluginSettings) -> None:
    """Register `RECGUIDE` and its hooks; once a process."""
    RecGuideAlgorithm.plugin_settings = settings

    def worker_class(server_args: Any) -> type:
        del server_args
        from recguide_core.sglang_plugin.worker import RecGuideWorker

        return RecGuideWorker

    enter = sgl.SpeculativeAlgorithm.register(
        NAME, supports_overlap=False, spec_class=RecGuideAlgorithm
    )
    enter(worker_class)
    sgl.add_hook(sgl.ROW_WIDTH, widen_row, sgl.HookType.AFTER)
    sgl.add_hook(sgl.ADMISSION, refuse_unsupported, sgl.HookType.AROUND)
    counts = VerifyCounts()
    sgl.add_hook(sgl.RESOLVE, counts.resolve, sgl.HookType.AROUND)
    sgl.add_hook(sgl.REPORT, counts.report, sgl.HookType.AROUND)


def is_ours(algorithm: Any) -> bool:
    """The algorithm of a batch or scheduler is RecGuide's."""
    return isinstance(algorithm, RecGuideAlgorithm)


def widen_row(result: int, *args: Any, **kwargs: Any) -> int:
    """Room in a row for committed tokens and the whole reserve, also at the context limit."""
    del args, kwargs
    reserve = sgl.get_alloc_reserve_per_decode() + sgl.get_alloc_page_size() - 1
    return max(int(result), int(reserve))


def refuse_unsupported(original: Any, scheduler: Any, request: Any) -> str | None:
    """The only hook that every request passes before it is queued."""
    error = original(scheduler, request)
    if error is None and is_ours(scheduler.spec_algorithm):
        settings = RecGuideAlgorithm.plugin_settings
        return refusal(request, (settings.method, *settings.also))
    return error  # type: ignore[no-any-return]


def note_rounds(requests: Any, tokens: list[list[int]], rounds: Any) -> None:
    """Lay the rounds of requests that ask for them beside their tokens.

    SGLang cuts this field as it cuts the output, so it has one entry a token: the round
    (block, accepted, source, forwards) at its first token, None at the others.
    """
    for request, new, about in zip(requests, tokens, rounds.tolist(), strict=True):
        if request.is_retracted or request.finished() or not wants_rounds(request.sampling_params):
            continue
        if request.customized_info is None:
            request.customized_info = {}
        noted = request.customized_info.setdefault(INFO, [])
        noted += [None] * (len(request.output_ids) - len(noted))
        if new:
            noted += [about, *[None] * (len(new) - 1)]


class VerifyCounts:
    """Keeps requests that only drafted out of SGLang's accept figures.

    The worker reports every accepted token (`num_non_draft_tokens_per_req` 0, since a request may
    emit none). Here one token of every round becomes the bonus again, and requests without a
    round are taken out of the verify calls.
    """

    def __init__(self) -> None:
        self._verified: int | None = None

    def resolve(self, original: Any, processor: Any, result: Any, batch: Any) -> Any:
        tokens = original(processor, result, batch)
        if not is_ours(batch.spec_algorithm):
            return tokens
        lengths = result.accept_lens.tolist()
        self._verified = sum(length > 0 for length in lengths)
        note_rounds(batch.reqs, tokens, getattr(result, ROUNDS))
        for request, length in zip(batch.reqs, lengths, strict=True):
            if request.is_retracted or request.finished():
                continue
            histogram = request.spec_correct_drafts_histogram
            histogram[length] -= 1
            if length:
                request.spec_num_correct_drafts -= 1
                histogram[length - 1] += 1
            else:
                request.spec_verify_ct -= 1
            while histogram and not histogram[-1]:
                histogram.pop()
        return tokens

    def report(
        self,
        original: Any,
        reporter: Any,
        bs: int,
        num_correct_drafts: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if self._verified is not None:
            bs, self._verified = self._verified, None
            num_correct_drafts -= bs
        original(reporter, bs, num_correct_drafts, *args, **kwargs)
