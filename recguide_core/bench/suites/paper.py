"""Suite `paper`: the paper's tables from the simulator, beside the paper's own figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recguide_core.acceptance import figures, tau_bounds
from recguide_core.bench.suites.paper_cells import PaperRuns, run_paper
from recguide_core.bench.suites.paper_loads import beyond, figure2b, figure5, table4, table6
from recguide_core.bench.suites.paper_tables import figure2, table2, table3, table5
from recguide_core.bench.suites.published import LOADS
from recguide_core.bench.suites.report import Cell, Row, SuiteReport, SuiteTable
from recguide_core.simulator.prices import priced
from recguide_core.simulator.run import acceptance_of
from recguide_core.simulator.settings import MODELS

TOKENS, REQUESTS = 512, 64


def paper_suite(
    models: Sequence[str] = MODELS,
    *,
    tokens: int = TOKENS,
    requests: int = REQUESTS,
    workers: int = 2,
    loads: tuple[int, ...] = LOADS,
    done: Callable[[str], None] = lambda line: None,
) -> SuiteReport:
    """Run the suite.

    Args:
        tokens: of each answer; requests: of a cell at least, and four times its load.
        loads: C of the tables over loads; done: called with a line per finished part.
    """
    tables: list[SuiteTable] = []
    about = {}
    for model in models:
        runs = run_paper(
            model, tokens=tokens, requests=requests, workers=workers, loads=loads, done=done
        )
        tables += [
            acceptance_table(model),
            figure2(runs),
            figure2b(model),
            table2(runs),
            table3(runs),
            table4(runs),
            table5(runs),
            table6(runs),
            figure5(runs),
            beyond(runs),
        ]
        about[model] = _about(runs)
    return SuiteReport("paper", tables, {"tokens": tokens, "requests": requests, **about})


def acceptance_table(model: str) -> SuiteTable:
    """Which figures the acceptance model was fitted to and which it predicts."""
    fitted = acceptance_of(model)[0]
    rows = [
        Row(f"{f.name} ({f.source})", [Cell(f.ours, f.published, f.fitted)])
        for f in figures(fitted)
        if not f.name.startswith("Table 1")
    ]
    plain, visited = tau_bounds(fitted)
    text = (
        f"Table 1 is met exactly by the chain. Its stationary shares bound tau(32): {plain:.1f} if "
        f"A = min(A_32, B) held on one set of states, {visited:.1f} on the states that B = 32 "
        f"visits. Both triples of the notes come from other histories than a fixed block of the "
        f"same size, so tau(8) and tau(32) are not the same quantity as theirs; mean A_B on B = 16 "
        f"histories is, and is predicted within a few percent."
    )
    return SuiteTable(f"Acceptance model, {model}", ["value"], rows, ".3f", text)


def _about(runs: PaperRuns) -> dict[str, object]:
    return {
        "host_step_ms": runs.host.step,
        "host_request_ms": runs.host.request,
        "cost_hash": priced("b200", runs.model).digest,
        "acceptance_hash": acceptance_of(runs.model)[1],
    }
