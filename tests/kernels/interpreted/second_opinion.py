"""Our attention kernel beside FlashInfer's wrapper, as its documentation states it."""

from __future__ import annotations

from flashinfer_stand_in import flashinfer  # noqa: F401

from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.second_opinion import compare


def test_ours_equals_the_documented_wrapper(flashinfer) -> None:  # noqa: F811
    bench = Bench(True, 1e9, lambda record: None)
    compare(bench)
    assert flashinfer.planned == 2
    assert [r["draft"] for r in bench.records] == [False, True]
    assert all(r["ok"] for r in bench.records), bench.records
