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

    def select(self, plan: Plan) -> Plan:
        """Idle those that must wait; the plan is changed in place and returned."""
        if self.mode == "bucketed":
            self._keep(plan, self._bucket(plan))
            return plan
        active = np.flatnonzero(plan.act != Act.IDLE)
        if len(active) > self.batch:
            self._keep(plan, self._longest_waiting(plan, active))
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
        return self._longest_waiting(plan, active[label == chosen])

    def _longest_waiting(self, plan: Plan, entries: IntArray) -> IntArray:
        if len(entries) <= self.batch:
            return entries
        order = np.argsort(-self.waited[plan.who[entries]], kind="stable")
        return np.asarray(np.sort(entries[order[: self.batch]]))

    def _keep(self, plan: Plan, entries: IntArray) -> None:
        runs = np.zeros(len(plan.who), bool)
        runs[entries] = True
        self.waited[plan.who[runs]] = 0
        self.waited[plan.who[~runs]] += 1
        plan.act[~runs] = Act.IDLE
