"""How a step runs a mixed plan: all sizes at once, or one bucket. No torch.

Ragged is the row engine's own way. Bucketed is the paper's (Sec. 5.3): one kind and block size a
forward, at most `max_requests` of them; admission may exceed a batch so that buckets fill, and a
bucket that has waited `bucket_wait` forwards goes first.
"""

from __future__ import annotations

import numpy as np

from recguide_core.engine.settings import EngineSettings
from recguide_core.records import Act, IntArray, Plan


class Batching:
    """Chooses which entries of a plan run now; keeps how long each slot has waited."""

    def __init__(self, settings: EngineSettings) -> None:
        self.mode = settings.batching
        self.batch = settings.max_requests
        self.bound = settings.bucket_wait
        self.waited = np.zeros(settings.slots, np.int64)
        self._turn = np.zeros(settings.slots, np.int64)
        self._turns = 0

    def opened(self, slot: int) -> None:
        """A new request holds `slot`."""
        self.waited[slot] = 0

    def select(self, plan: Plan) -> Plan:
        """Idle those that must wait; the plan is changed in place and returned."""
        if self.mode == "bucketed":
            self._keep(plan, self._bucket(plan))
            return plan
        if len(plan.act) > self.batch:
            active = np.flatnonzero(plan.act != Act.IDLE)
            if len(active) > self.batch:
                self._keep(plan, self._least_recent(plan, active))
        return plan

    def _bucket(self, plan: Plan) -> IntArray:
        """Entries of the fullest bucket, unless one has waited too long."""
        active = np.flatnonzero(plan.act != Act.IDLE)
        if not len(active):
            return active
        label = plan.act[active] * 1000 + plan.block[active]
        waited = self.waited[plan.who[active]]
        if waited.max() >= self.bound:
            chosen = label[waited.argmax()]
        else:
            labels, counts = np.unique(label, return_counts=True)
            chosen = labels[counts.argmax()]
        return self._least_recent(plan, active[label == chosen])

    def _least_recent(self, plan: Plan, entries: IntArray) -> IntArray:
        """At most a batch of the entries, those that ran least recently."""
        order = np.argsort(self._turn[plan.who[entries]], kind="stable")[: self.batch]
        chosen = entries[order]
        # Turns are handed out one by one, so that ties of one step are settled in the next.
        self._turn[plan.who[chosen]] = self._turns + np.arange(1, len(chosen) + 1)
        self._turns += len(chosen)
        return np.asarray(np.sort(chosen))

    def _keep(self, plan: Plan, entries: IntArray) -> None:
        runs = np.zeros(len(plan.who), bool)
        runs[entries] = True
        self.waited[plan.who[runs]] = 0
        self.waited[plan.who[~runs]] += 1
        plan.act[~runs] = Act.IDLE


def join_plans(plans: list[Plan]) -> Plan:
    """One plan out of several planners' plans; branch grids are padded to the widest."""
    widest = max(p.branch_kind.shape[1] for p in plans)

    def grid(name: str, fill: int) -> IntArray:
        parts = []
        for p in plans:
            part = getattr(p, name)
            pad = ((0, 0), (0, widest - part.shape[1]))
            parts.append(np.pad(part, pad, constant_values=fill))
        return np.concatenate(parts)

    return Plan(
        who=np.concatenate([p.who for p in plans]),
        act=np.concatenate([p.act for p in plans]),
        block=np.concatenate([p.block for p in plans]),
        branch_kind=grid("branch_kind", -1),
        branch_parent=grid("branch_parent", 0),
        branch_alt=grid("branch_alt", -1),
        branch_block=grid("branch_block", 0),
    )
