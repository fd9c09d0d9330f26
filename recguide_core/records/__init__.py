"""The vocabulary: requests, rows, plans and round outcomes.

Everything here is data (numpy at most). Per-request Python objects exist only at the edges
(`Request`, `Finished`); inside a step all requests live in struct-of-arrays records, so a step's
host work does not grow with tokens and policy decides for a whole batch at once.

Symbols of the paper: P committed length, B block size, d_i draft token, M_i top-2 margin,
e_t mean verifier entropy of round t, A accepted length, F full-block flag.
"""

from recguide_core.records.kinds import (
    MAX_BLOCK,
    Act,
    BoolArray,
    BranchKind,
    Finish,
    FloatArray,
    IntArray,
    Origin,
    Readout,
    RowKind,
    Source,
)
from recguide_core.records.plan import Outcome, Plan
from recguide_core.records.requests import Finished, Request, Sampling
from recguide_core.records.rows import Row, Rows, StepShape
from recguide_core.records.table import RequestTable

__all__ = [
    "MAX_BLOCK",
    "Act",
    "BoolArray",
    "BranchKind",
    "Finish",
    "Finished",
    "FloatArray",
    "IntArray",
    "Origin",
    "Outcome",
    "Plan",
    "Readout",
    "Request",
    "RequestTable",
    "Row",
    "RowKind",
    "Rows",
    "Sampling",
    "Source",
    "StepShape",
]
