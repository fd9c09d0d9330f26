"""A tuning run: search offline, correct rho on-policy, measure the gain on other prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recguide_core.calibration.recording import Recorded
from recguide_core.calibration.traces import States, states_of
from recguide_core.engine.guidance import Guidance
from recguide_core.errors import DataError, MismatchError
from recguide_core.policy.allocate import bucketed_prices
from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.cost import CostModel
from recguide_core.policy.signals import decision_limit
from recguide_core.policy.tune import dinkelbach
from recguide_core.policy.value import ValueTable
from recguide_core.tables import write_policy
from recguide_core.tuning.costs import check_loads, cost_model
from recguide_core.tuning.expected_overlap import expect_overlap, keep_overlap
from recguide_core.tuning.measure import FIXED, Runner
from recguide_core.tuning.offline import Offline, tune_offline
from recguide_core.tuning.overlap import priced_overlap, round_prices
from recguide_core.tuning.report import Inputs, make_provenance, make_report
from recguide_core.tuning.settings import LOADS, TuneSettings

if TYPE_CHECKING:
    from recguide_core.calibration.shadow import ShadowPrompt


@dataclass(frozen=True, slots=True)
class Result:
    """Settings of the policy, its provenance, and the record that `--json` prints.

    Attributes:
        judging: names of the prompts that measured the gain.
    """

    settings: dict[str, Any]
    provenance: dict[str, Any]
    report: dict[str, Any]
    judging: frozenset[str] = frozenset()


def check_inputs(inputs: Inputs, model_hash: str | None) -> None:
    """Refuse tables that do not belong together.

    Raises:
        MismatchError: value or branch table of another trace, or of another model.
    """
    for kind, table in (("value", inputs.value), ("branch", inputs.branch)):
        if table.provenance.get("trace_hash") != inputs.trace.digest:
            raise MismatchError(
                f"The {kind} table was fitted to another trace than {inputs.trace.path}.",
                f"Fit it again: recguide calibrate --traces {inputs.trace.path or 'TRACE'}",
            )
    expected = model_hash or inputs.trace.provenance["model_hash"]
    tables = [("trace", inputs.trace)]
    if not inputs.clock:
        tables.append(("cost", inputs.cost))
    for kind, table in tables:
        made_with = table.provenance["model_hash"]
        if made_with != expected:
            remake = {"cost": "profile", "trace": "calibrate"}[kind]
            raise MismatchError(
                f"The {kind} table was made with model {table.provenance['model']} "
                f"({made_with[:12]}), not with the one in use ({expected[:12]}).",
                f"Make it again with `recguide {remake}`.",
            )


def tune(
    settings: TuneSettings,
    inputs: Inputs,
    model_hash: str,
    prompts: Sequence[ShadowPrompt],
    record: Callable[[Sequence[ShadowPrompt], Sequence[int]], Recorded],
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Find the policy and measure what it gains.

    Args:
        prompts: candidates for the on-policy runs; those behind the trace are used only when
            there are not enough others, and the report says so.
        record: makes recordings of prompts for drafting block sizes.

    Raises:
        DataError: a load outside the cost table, or no prompt.
        MismatchError: tables of another model or trace.
    """
    check_inputs(inputs, model_hash)
    check_loads(inputs.cost, settings.concurrency)
    most = int(np.max(inputs.cost.columns["requests"]))
    loads = sorted({c for c in LOADS if c <= most} | set(settings.concurrency))
    cost = cost_model(inputs.cost)
    entropy = inputs.value.provenance.get("entropy_positions", "all")
    bins = int(inputs.value.provenance.get("bins", "24"))
    blocks = sorted(np.unique(np.asarray(inputs.trace.columns["block_size"])).tolist())
    positions = decision_limit("all" if entropy == "all" else int(entropy), blocks)
    states = states_of(inputs.trace.columns, positions)
    progress("searching delta, block and branches; rho out of fold")
    offline = tune_offline(
        inputs.trace.columns,
        states,
        cost,
        settings.menu,
        loads,
        folds=settings.folds,
        bins=bins,
    )
    tuning, judging, held_out = split_prompts(prompts, states, settings)
    recorded = record([*judging, *tuning], sorted({*settings.menu, *FIXED} - {1}))
    to_tune = recorded.take(p.name for p in tuning)
    to_judge = recorded.take(p.name for p in judging)
    runner = Runner(cost, positions, progress)
    low = min(settings.concurrency)
    guidance, rules = runner.choose_rule(
        _guidances(inputs, offline, states, cost, settings), to_tune, low
    )
    guidance = expect_overlap(runner, guidance, to_tune, settings.concurrency)
    guidance, overlap = keep_overlap(runner, guidance, to_tune, settings.concurrency)
    guidance, history = runner.correct(guidance, to_tune, settings.concurrency, settings.iterations)
    measured = [runner.measure(guidance, to_judge, c) for c in settings.concurrency]
    chosen = {
        "delta": guidance.rule.delta,
        "corrections": guidance.rule.corrections,
        "continuation": guidance.rule.continuation,
        "block": guidance.block,
        "menu": list(settings.menu),
        "entropy_positions": entropy,
        "rho": {str(c): guidance.rho[c] for c in sorted(guidance.rho)},
        "rate": {str(c): guidance.rate[c] for c in sorted(guidance.rate)},
        "overlap": {
            str(c): {str(b): list(pair) for b, pair in at.items()}
            for c, at in guidance.overlap.items()
        },
    }
    used = sorted({p.name for p in tuning} | set(states.requests))
    report = make_report(
        settings, inputs, offline, measured, [*rules, *history, *overlap], held_out, chosen
    )
    about = make_provenance(settings, inputs, model_hash, blocks, used, report)
    return Result(chosen, about, report, frozenset(p.name for p in judging))


def _guidances(
    inputs: Inputs, offline: Offline, states: States, cost: CostModel, settings: TuneSettings
) -> list[Guidance]:
    """The best fixed setting of each delta, as a start for the rule of the whole policy.

    The paper's rule is always among them.
    """
    rules = [BranchRule()]
    for trial in offline.trials:
        rule = BranchRule(trial.delta, *trial.branches)
        if any(trial.branches) and rule.delta not in {r.delta for r in rules[1:]}:
            rules.append(rule)
    value = ValueTable.from_columns(inputs.value.columns)
    out = []
    for rule in dict.fromkeys(rules):
        branches = BranchTable.from_columns(inputs.branch.columns, rule.delta)
        expected, rho = {}, {}
        for load in offline.rho:
            trials = priced_overlap(
                inputs.trace.columns,
                states,
                offline.weight,
                rule,
                branches,
                cost,
                load,
                offline.kv,
            )
            expected[load] = {b: (t.reuse, t.rows) for b, t in trials.items()}
            serial = bucketed_prices(cost, load, offline.menu, offline.kv)
            prices = round_prices(trials, serial, offline.menu, cost, load, offline.kv)
            rho[load] = dinkelbach(offline.values, prices, offline.weight)
        out.append(
            Guidance(
                value=value,
                cost=cost,
                rho=rho,
                branches=branches,
                menu=settings.menu,
                rule=rule,
                block=offline.best.block,
                overlap=expected,
            )
        )
    return out


def split_prompts(
    prompts: Sequence[ShadowPrompt], states: States, settings: TuneSettings
) -> tuple[list[ShadowPrompt], list[ShadowPrompt], bool]:
    """Prompts that correct rho, prompts that measure the gain, and whether these are held out.

    Raises:
        DataError: fewer than two prompts.
    """
    seen = set(states.requests)
    unique = list({p.name: p for p in prompts}.values())
    fresh = [p for p in unique if p.name not in seen]
    known = [p for p in unique if p.name in seen]
    if len(unique) < 2:
        raise DataError(
            f"{len(unique)} prompt(s) cannot both tune and judge a policy.", "Give more data."
        )
    judging = (fresh + known)[: settings.requests]
    # The first ones judge, so that the gain is held out even where fresh prompts are few.
    taken = {p.name for p in judging}
    rest = [p for p in [*fresh, *known] if p.name not in taken]
    tuning = (rest or judging)[: settings.requests]
    names = {p.name for p in tuning} | seen
    return tuning, judging, not any(p.name in names for p in judging)


def write(result: Result, path: Path) -> str:
    """Write the policy file; returns its content hash."""
    return write_policy(path, result.settings, result.provenance)
