"""What planning a step costs: `python benchmarks/planning.py [--requests 128]`.

Prints the median time of one plan of every method, and beside it the forward that the plan is
for, priced from the policy's own cost table: the share is what counts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from recguide_core.engine.methods import make_planner
from recguide_core.policy.cost import Shapes
from recguide_core.records import MAX_BLOCK, Act, Plan, RequestTable, Source, StepShape
from recguide_core.tuning.guidance import load_tuned

METHODS = ("ar", "linear", "overlap", "tidar", "adaptive", "recguide")


def busy_table(requests: int, seed: int) -> RequestTable:
    """Requests in the middle of their answers, half of them with a draft to verify."""
    rng = np.random.default_rng(seed)
    table = RequestTable.sized(requests)
    table.live[:] = table.decoding[:] = True
    table.committed[:] = rng.integers(100, 1500, requests)
    table.room[:] = 4096 - table.committed
    table.remaining[:] = rng.integers(50, 400, requests)
    table.has_draft[:] = rng.random(requests) < 0.5
    table.draft_block[:] = rng.choice([4, 8, 16, 32], requests)
    table.draft_source[:] = Source.DRAFT
    table.alt[:] = 7
    table.margin[:] = rng.beta(4, 0.6, (requests, MAX_BLOCK))
    table.e1[:], table.e2[:] = rng.exponential(0.4, (2, requests))
    table.prev_block[:] = rng.choice([8, 16, 32], requests)
    table.prev_full[:] = rng.random(requests) < 0.3
    table.rounds[:] = rng.integers(1, 40, requests)
    return table


def advance(table: RequestTable, plan: Plan, rng: np.random.Generator) -> None:
    """What an engine makes of a plan, roughly: half the blocks pass, drafts appear."""
    verified, drafted = plan.who[plan.act == Act.VERIFY], plan.who[plan.act == Act.DRAFT]
    width = plan.block[plan.act == Act.VERIFY]
    accepted = np.where(rng.random(len(width)) < 0.5, width, rng.integers(1, width + 1))
    table.committed[verified] += accepted
    table.rounds[verified] += 1
    table.prev_block[verified], table.prev_full[verified] = width, accepted == width
    table.e2[verified] = table.e1[verified]
    table.e1[verified] = rng.exponential(0.4, len(verified))
    # Half of the requests that sent a branch reuse it.
    sent = (plan.branch_kind >= 0).any(axis=1)[plan.act == Act.VERIFY]
    table.has_draft[verified] = sent & (rng.random(len(width)) < 0.5)
    table.draft_source[verified] = Source.CONTINUATION
    table.has_draft[drafted], table.draft_source[drafted] = True, Source.DRAFT
    table.draft_block[drafted] = plan.block[plan.act == Act.DRAFT]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--device", default="cpu", help="whose policy, e.g. cpu or b200")
    parser.add_argument("--model", default="nld-tiny", help="whose policy, e.g. nld-8b on b200")
    options = parser.parse_args()
    tuned = load_tuned(options.model, "", options.device, force=True)
    who = np.arange(options.requests)
    print(f"{options.requests} requests; forwards are priced by the {options.device} cost table")
    methods = dict.fromkeys(METHODS, tuned.guidance)
    # What a load costs where branches are to be priced.
    methods["recguide, branches priced"] = replace(tuned.guidance, overlap={})
    for title, guidance in methods.items():
        planner = make_planner(title.split(",")[0], None, guidance)
        table = busy_table(options.requests, 0)
        rng, times = np.random.default_rng(0), []
        for _ in range(options.repeats):
            began = time.perf_counter()
            plan = planner.plan(table, who, options.requests)
            times.append(time.perf_counter() - began)
            advance(table, plan, rng)
        tokens = int(plan.block.sum() + np.where(plan.branch_kind >= 0, plan.branch_block, 0).sum())
        kv = int(table.committed.sum())
        shape = StepShape("mixed", options.requests, tokens, kv, MAX_BLOCK, 0)
        forward = 1e3 * float(tuned.guidance.cost.ms(Shapes.of([shape]))[0])
        median = 1e6 * float(np.median(times))
        print(
            f"{title:29s} plan {median:7.1f} us   forward {forward:9.0f} us ({tokens} tokens)   "
            f"share {100 * median / forward:.2f} %"
        )


if __name__ == "__main__":
    main()
