"""Which proposed branches pay at the present load: P(hit) x saved forward > marginal cost.

Joins hit rates and the cost model; knows no engine. A hit saves its request one step, which is
worth that request's share of a step. A branch costs what its tokens add to this forward. As the
batch grows the share shrinks and the tokens do not, so overlap fades instead of switching off.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import Proposal
from recguide_core.policy.cost import FUSED, CostModel, Shapes
from recguide_core.records import BoolArray, IntArray


def worthwhile(
    proposal: Proposal,
    block: IntArray,
    table: BranchTable,
    model: CostModel,
    requests: int,
    tokens: int,
    kv_tokens: int,
) -> Proposal:
    """The proposal without the branches that are not expected to pay.

    Branches enter best first (saving per token), and the set ends where summed saving exceeds
    summed cost by most. The cost curve need not be convex: a forward that is flat up to a tile
    edge is filled up to it and no further.

    Args:
        block: B of the verify rows, int64 [n].
        requests, tokens, kv_tokens: the forward without branches, of all requests in it.
    """
    row, column = np.nonzero(proposal.used)
    if not len(row):
        return proposal
    chance = table.chance(
        block[row],
        proposal.kind[row, column],
        proposal.rank[row, column],
        proposal.margin[row, column],
    )
    added = proposal.block[row, column]
    order = np.argsort(-chance / added, kind="stable")
    cost = _cumulative_cost(model, requests, tokens, kv_tokens, added[order], int(block.max()))
    keep = np.zeros(len(row), bool)
    keep[order] = best_prefix(chance[order] * (cost[0] / max(requests, 1)), cost[1:] - cost[0])
    mask = np.zeros(proposal.kind.shape, bool)
    mask[row, column] = keep
    return proposal.keep(mask)


def best_prefix(gain: npt.NDArray[np.float64], cost: npt.NDArray[np.float64]) -> BoolArray:
    """The prefix whose summed gain exceeds its cumulative cost by most, bool [k].

    Args:
        gain: of each item; cost: of the first 1..k items together, same unit.
    """
    net = np.cumsum(gain) - cost
    end = int(net.argmax()) if len(net) and net.max() > 0 else -1
    return np.arange(len(net)) <= end


def _cumulative_cost(
    model: CostModel, requests: int, tokens: int, kv_tokens: int, added: IntArray, block: int
) -> npt.NDArray[np.float64]:
    """T of the forward with the first 0..k branches, in ms, float64 [k + 1]."""
    count = np.arange(len(added) + 1)
    query = np.full(len(count), tokens)
    query[1:] += np.cumsum(added)
    return model.ms(
        Shapes(
            kind=np.full(len(count), FUSED),
            requests=np.full(len(count), max(requests, 1)),
            query_tokens=query,
            kv_tokens=np.full(len(count), kv_tokens),
            block_size=np.full(len(count), block),
            branches=count,
        )
    )
