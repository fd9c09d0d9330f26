"""How far drafts get: a model of NLD's acceptance, fitted to the published figures. Pure NumPy."""

from recguide_core.acceptance.fit import AcceptanceModel, CategoryLaw, fit_model
from recguide_core.acceptance.report import Figure, figures, tau_bounds
from recguide_core.acceptance.runs import RunLaw
from recguide_core.acceptance.store import load_model, save_model

__all__ = [
    "AcceptanceModel",
    "CategoryLaw",
    "Figure",
    "RunLaw",
    "figures",
    "fit_model",
    "load_model",
    "save_model",
    "tau_bounds",
]
