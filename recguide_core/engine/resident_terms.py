"""Whether the next round can run wholly on the device, and how; asked before every round."""

from __future__ import annotations

from recguide_core.engine.core import EngineCore
from recguide_core.engine.resident_state import DeviceChoice, device_choice
from recguide_core.kernels.round_state import BRANCHES
from recguide_core.kernels.row_noise import filters, why_not
from recguide_core.records import IntArray


class Terms:
    """What an engine's running requests ask of a round.

    Attributes:
        sampled: some have a temperature; filtering: slots that also filter. As of `note_sampling`.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._widest = max(planner.max_in_flight for planner in core.planners)
        self.sampled = False
        self.filtering: set[int] = set()

    def why_not(self) -> str | None:
        """Why the next round is the host's; None when it can run on the device."""
        needs = self._core.ledger.needs
        if self._core.scheduler.opening:
            return "prompts to commit"
        if needs.hidden:
            return "hidden states"
        if needs.logprobs:
            return "log-probabilities"
        return next(filter(None, map(why_not, needs.sampling.values())), None)

    def tight(self) -> bool:
        """Whether planning might have to preempt somebody, which needs all tokens handed out."""
        core, asked = self._core, int(self._core.table.fixed_block.max())
        widest = max(self._widest, asked * (1 + max(asked, BRANCHES)))
        pages, need = core.pages, 0
        for slot in core.scheduler.running:
            reach = pages.pages_for(int(core.table.committed[slot]) + widest)
            need += max(0, reach - pages.capacity(slot) // pages.page_size)
        return need > pages.free_pages

    def choice(self, who: IntArray) -> DeviceChoice | None:
        """How the device can choose for the requests [n], where it can."""
        core, asked = self._core, self._core.table.planner.take(who)
        alike = len(who) > 0 and bool((asked == asked[0]).all())
        if not alike or core.batching.mode != "ragged" or len(who) > core.batching.batch:
            return None
        return device_choice(core.planners[int(asked[0])], core.table, who)

    def note_sampling(self) -> None:
        """Look at how the running requests sample; requests only leave until the next look."""
        sampling = self._core.ledger.needs.sampling
        self.sampled = any(not one.greedy for one in sampling.values())
        self.filtering = {slot for slot, one in sampling.items() if filters(one)}
