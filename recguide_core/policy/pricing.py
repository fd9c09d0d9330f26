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
from recguide_core.policy.cost import FUSED
from recguide_core.policy.packed import PackedPrices
from recguide_core.records import IntArray


def worthwhile(
    proposal: Proposal,
    block: IntArray,
    table: BranchTable,
    prices: PackedPrices,
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
    used = proposal.used.ravel().nonzero()[0]
    if not len(used):
        return proposal
    chance = table.chances(block, proposal.risky, proposal.margin).take(used)
    added = proposal.block.take(used)
    order = (-chance / added).argsort(kind="stable")
    query = np.empty(len(used) + 1, np.int64)
    query[0] = tokens
    query[1:] = added.take(order)
    cost = prices.ms(FUSED, requests, query.cumsum(), kv_tokens)
    first = float(cost[0])
    kept = best_prefix(chance.take(order) * (first / max(requests, 1)), cost[1:] - first)
    mask = np.zeros(proposal.used.size, bool)
    mask[used.take(order[:kept])] = True
    return Proposal(
        proposal.parent,
        proposal.alt,
        proposal.block,
        proposal.margin,
        mask.reshape(proposal.used.shape),
        proposal.risky,
    )


def best_prefix(gain: npt.NDArray[np.float64], cost: npt.NDArray[np.float64]) -> int:
    """Length of the prefix whose summed gain exceeds its cumulative cost by most, 0 for none.

    Args:
        gain: of each item; cost: of the first 1..k items together, same unit.
    """
    net = gain.cumsum() - cost
    best = int(net.argmax())
    return best + 1 if net[best] > 0 else 0
