"""The method suite: the paper's Tables 1 to 6 on the real engine, time from a cost table.

Real tokens and real decisions of the model at hand; speed is charged from the clock's table, so
it says what the same decisions would cost on that device. Tables 1, 2, 3 and 5 run at C = 1 or
with one block size; Tables 4 and 6 sweep the load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recguide_core.bench.load import Job
from recguide_core.bench.suites.drive import Drive, drive
from recguide_core.engine.clock import Clock
from recguide_core.engine.guidance import PAPER_MENU, Guidance
from recguide_core.engine.methods import make_planner
from recguide_core.engine.outcomes import OutcomeCounter, table_three
from recguide_core.engine.planners import LinearPlanner, Planner
from recguide_core.engine.planners_adaptive import AdaptivePlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.policy.branches import DELTA, BranchRule
from recguide_core.records import MAX_BLOCK

if TYPE_CHECKING:
    from recguide_core.model.registry import LoadedModel

SCHEMA = "recguide.suite.method/1"
BLOCK = 16
LOADS = (2, 8, 32, 128)
ABLATION = (
    ("LinearSS", None),
    ("merged forward, no branch", BranchRule(DELTA, 0, False)),
    ("+ 1st correction", BranchRule(DELTA, 1, False)),
    ("+ 2nd correction", BranchRule(DELTA, 2, False)),
    ("+ continuation", BranchRule(DELTA, 2, True)),
)
Record = dict[str, Any]


@dataclass(slots=True)
class MethodSuite:
    """What the suite runs on.

    Attributes:
        jobs: prompts of all data sets; guidance: tables of the adaptive methods.
        clock: makes a fresh clock for each run; True = forwards are charged as if padded.
        progress: told what runs now.
        loads: concurrencies of Tables 4 and 6.
    """

    model: LoadedModel
    jobs: Sequence[Job]
    guidance: Guidance
    clock: Callable[[bool], Clock]
    progress: Callable[[str], None]
    loads: Sequence[int] = LOADS
    entropy_positions: int = MAX_BLOCK
    drafter: bool = True

    def run(self) -> Record:
        """All tables as one record."""
        plain = self._at_one("ar", make_planner("ar"))
        return {
            "schema": SCHEMA,
            "clock": self.clock(False).name,
            "prompts": len(self.jobs),
            "datasets": sorted({job.prompt.dataset for job in self.jobs}),
            "table1": self.transitions(),
            "table2": self.low_load(plain),
            "table3": self.outcomes(),
            "table4": self.block_shares(),
            "table5": self.branch_ablation(),
            "table6": self.adaptive_ablation(),
        }

    def transitions(self) -> Record:
        """Table 1: intervals of A_t to A_(t+1) at B = 32, in percent."""
        run = self._at_one("linear B=32", LinearPlanner(32))
        counts = np.zeros((3, 3))
        for request in run.requests.values():
            # The last round is cut by EOS or budget.
            band = [interval(a) for a in request.accepted[:-1]]
            for now, after in pairwise(band):
                counts[now, after] += 1
        total = counts.sum(1, keepdims=True)
        percent = 100 * counts / np.where(total == 0, np.nan, total)
        share = 100 * total[:, 0] / max(float(counts.sum()), 1.0)
        return {"percent": percent.tolist(), "share": share.tolist(), "rounds": int(counts.sum())}

    def low_load(self, plain: Drive) -> list[Record]:
        """Table 2: tau and speed-up over AR at C = 1, B = 16, by data set."""
        methods = ["linear", "dflash", "tidar", "overlap"]
        if not self.drafter:
            methods.remove("dflash")
        rows = []
        for name in methods:
            run = self._at_one(name, make_planner(name, BLOCK))
            same = all(run.requests[k].tokens == plain.requests[k].tokens for k in plain.requests)
            row: Record = {"method": name, "lossless": same, "tau": {}, "speedup": {}}
            for group in sorted({r.group for r in run.requests.values()}):
                row["tau"][group] = run.tau(group)
                row["speedup"][group] = run.group_tps(group) / plain.group_tps(group)
            for key in ("tau", "speedup"):
                row[key]["mean"] = float(np.mean(list(row[key].values())))
            rows.append(row)
        return rows

    def outcomes(self) -> Record:
        """Table 3: coverage and reuse by category, and each miss with its reason."""
        groups = {str(i): job.prompt.category for i, job in enumerate(self.jobs)}
        counter = OutcomeCounter(DELTA, self.model.eos_ids, groups)
        self._at_one("overlap, outcomes", OverlapPlanner(BLOCK), counter)
        total: Counter[str] = sum(counter.counts.values(), Counter())
        per = {**dict(counter.counts), "overall": total}
        return {
            group: {**table_three(c), "states": {str(k): n for k, n in sorted(c.items())}}
            for group, c in per.items()
        }

    def block_shares(self) -> list[Record]:
        """Table 4: share of rounds with B = 8 / 16 / 32 under adaptive drafting, by category."""
        rows = []
        for load in self.loads:
            run = self._loaded(f"adaptive C={load}", self._adaptive(), load)
            row: Record = {"concurrency": load, "share": {}}
            for category in sorted({r.category for r in run.requests.values()}):
                row["share"][category] = shares(run, category)
            row["share"]["overall"] = shares(run, None)
            rows.append(row)
        return rows

    def branch_ablation(self) -> list[Record]:
        """Table 5: TPS at C = 1 as branches are added; an empty merged forward comes first."""
        rows = []
        for label, rule in ABLATION:
            planner: Planner = LinearPlanner(BLOCK) if rule is None else OverlapPlanner(BLOCK, rule)
            run = self._at_one(f"ablation: {label}", planner)
            rows.append({"method": label, "tps": run.tps, "tau": run.tau()})
        return with_gain(rows)

    def adaptive_ablation(self) -> list[Record]:
        """Table 6: mean TPS over the loads as parts of adaptive drafting are added."""
        plans: list[tuple[str, Callable[[], Planner], dict[str, Any]]] = [
            ("Fixed block (recipe)", lambda: LinearPlanner(None), {}),
            ("+ s_t, padded", lambda: self._adaptive(ignore_outcome=True), {"padded": True}),
            ("+ z_t, padded", self._adaptive, {"padded": True}),
            ("+ bucketing", lambda: self._adaptive("bucketed"), {"batching": "bucketed"}),
            (
                "+ bucketing, 2C waiting",
                lambda: self._adaptive("bucketed"),
                {"batching": "bucketed", "waiting": 2},
            ),
            ("ragged instead", self._adaptive, {}),
            ("RecGuide, ragged", lambda: make_planner("recguide", None, self.guidance), {}),
        ]
        rows = []
        for label, make, options in plans:
            speed = {
                load: self._loaded(f"{label} C={load}", make(), load, **options).tps
                for load in self.loads
            }
            rows.append({"method": label, "tps": float(np.mean(list(speed.values()))), "at": speed})
        return with_gain(rows)

    def _adaptive(self, batching: str = "ragged", ignore_outcome: bool = False) -> AdaptivePlanner:
        return AdaptivePlanner(self.guidance, batching, PAPER_MENU, ignore_outcome=ignore_outcome)

    def _at_one(self, label: str, planner: Planner, *observers: OutcomeCounter) -> Drive:
        self.progress(label)
        return drive(
            self.model,
            planner,
            self.jobs,
            1,
            self.clock(False),
            observers=observers,
            entropy_positions=self.entropy_positions,
        )

    def _loaded(
        self,
        label: str,
        planner: Planner,
        load: int,
        *,
        padded: bool = False,
        batching: str = "ragged",
        waiting: int = 1,
    ) -> Drive:
        self.progress(label)
        repeats = -(-2 * load // len(self.jobs))
        return drive(
            self.model,
            planner,
            list(self.jobs) * repeats,
            load,
            self.clock(padded),
            in_flight=waiting * load,
            batching=batching,
            entropy_positions=self.entropy_positions,
        )


def interval(accepted: int) -> int:
    """0, 1, 2 for A <= 8, 8 < A <= 16, A > 16."""
    return 0 if accepted <= 8 else 1 if accepted <= 16 else 2


def shares(run: Drive, category: str | None) -> list[float]:
    """Percent of rounds with B = 8, 16, 32; rounds cut by the context count for neither."""
    blocks = Counter(
        b for r in run.requests.values() if category in (None, r.category) for b in r.block
    )
    total = sum(blocks[b] for b in PAPER_MENU)
    return [100 * blocks[b] / total if total else float("nan") for b in PAPER_MENU]


def with_gain(rows: list[Record]) -> list[Record]:
    """Add each row's gain over the first, in percent."""
    for row in rows:
        row["gain"] = 100 * (row["tps"] / rows[0]["tps"] - 1)
    return rows
