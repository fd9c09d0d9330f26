"""Which figures the acceptance model was fitted to and which it predicts, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from recguide_core.acceptance import published
from recguide_core.acceptance.fit import BLOCK, AcceptanceModel, worse_tau
from recguide_core.acceptance.runs import stationary
from recguide_core.acceptance.signals import FITTED, Explored, round_correlation


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: ours, the published one, and whether ours was fitted to it.

    Attributes:
        published: None where no figure of the same kind is public.
    """

    name: str
    ours: float
    published: float | None
    fitted: bool
    source: str

    @property
    def deviation(self) -> float | None:
        """(ours - published) / published."""
        return None if self.published is None else self.ours / self.published - 1.0

    def as_record(self) -> dict[str, object]:
        """As JSON writes it."""
        return {
            "name": self.name,
            "ours": round(self.ours, 4),
            "published": self.published,
            "deviation": None if self.deviation is None else round(self.deviation, 4),
            "kind": "fitted" if self.fitted else "predicted",
            "source": self.source,
        }


def tau_bounds(model: AcceptanceModel) -> tuple[float, float]:
    """Largest tau(32) that Table 1 allows: when A = min(A_32, B) on one set of states, tau(16)
    plus 16 for each long round; and the same with the states that B = 32 really visits."""
    long_share = float(stationary(published.TABLE1 / published.TABLE1.sum(1, keepdims=True))[2])
    at_32 = model.overall.accepted(32, 16)
    return model.overall.tau(16) + 16.0 * long_share, at_32 + 16.0 * long_share


def figures(model: AcceptanceModel) -> list[Figure]:
    """Every figure of the model that has a published counterpart, fitted ones first."""
    found = [*_tau_figures(model), *_state_figures(model), *_signal_figures(model)]
    found += _category_figures(model)
    return sorted(found, key=lambda f: not f.fitted)


def _tau_figures(model: AcceptanceModel) -> list[Figure]:
    law, paper = model.overall, published.PUBLISHED[model.name]
    out = [
        Figure("tau(16)", law.tau(16), paper.tau16["all"], True, "Table 2"),
        Figure("tau, TiDAR", 2 * worse_tau(law, model.mask_hazard), paper.tau_tidar, True,
               "Table 2"),
        Figure("tau, DFlash", worse_tau(law, model.drafter_hazard), paper.tau_dflash, True,
               "Table 2"),
    ]  # fmt: skip
    triples = {"notes, B = 16 histories": published.SHADOW, "notes, nine sets": published.NINE_SETS}
    if model.name == "nld-14b":
        triples = {"serving table": published.SERVING_14B}
    for source, triple in triples.items():
        for block in (8, 32):
            out.append(Figure(f"tau({block})", law.tau(block), triple[block], False, source))
    return out


def _state_figures(model: AcceptanceModel) -> list[Figure]:
    law, notes = model.overall, "notes, B = 16 histories"
    ratio = law.reach(BLOCK, 32) / law.reach(BLOCK, 17)
    out = [Figure("P(full 32 | A > 16)", ratio, published.FULL32_GIVEN_OVER16, True, notes)]
    rows = law.transitions()
    names = ("[1,8]", "(8,16]", "(16,32]")
    for i, before in enumerate(names):
        for j, after in enumerate(names):
            value = float(rows[i, j])
            paper = float(published.TABLE1[i, j])
            out.append(Figure(f"Table 1 {before} to {after}", value, paper, True, "Table 1"))
    for block, mean in published.SHADOW.items():
        out.append(Figure(f"mean A_{block}", law.accepted(BLOCK, block), mean, False, notes))
    for block, share in published.SHADOW_FULL.items():
        out.append(Figure(f"P(full), B = {block}", law.reach(BLOCK, block), share, False, notes))
    out.append(Figure("P(A_32 > 16)", law.reach(BLOCK, 17), published.SHADOW_OVER16, False, notes))
    return out


def _signal_figures(model: AcceptanceModel) -> list[Figure]:
    explored = Explored(model.overall)
    out = [
        Figure(
            f"AUROC of s, {label}",
            explored.auroc(label, model.noise),
            target,
            label == FITTED,
            "notes, exploration",
        )
        for label, target in published.AUROC.items()
    ]
    for block, target in published.ACCEPT_CORRELATION.items():
        ours = round_correlation(model.overall, block)
        out.append(Figure(f"corr(A_t, A_t+1), B = {block}", ours, target, False, "notes"))
    return out


def _category_figures(model: AcceptanceModel) -> list[Figure]:
    paper, out = published.PUBLISHED[model.name], []
    for law in model.categories:
        target = paper.tau16[law.name]
        out.append(Figure(f"tau(16), {law.name}", law.runs.tau(16), target, True, "Table 2"))
    return out
