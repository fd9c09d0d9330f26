"""The fitted cost law: held-out errors, order of prices, labels, and models nobody profiled."""

import numpy as np
import pytest

from recguide_core.errors import DataError, UsageError
from recguide_core.policy.cost import AR, DRAFT, FUSED, MIXED, VERIFY, Shapes
from recguide_core.policy.cost_check import held_out, shapes_of
from recguide_core.policy.cost_fit import IDEAL, FittedCost, roofline
from recguide_core.policy.devices import GPUS, MODELS, gpu, model_size
from recguide_core.tables import read_table, shipped_path

PROFILED = ("nld-8b", "nld-14b")


@pytest.fixture(scope="module")
def tables():
    return {m: read_table(shipped_path(f"b200/{m}", "cost"), "cost") for m in PROFILED}


@pytest.fixture(scope="module")
def fits(tables):
    return {m: FittedCost.fit(t.columns, gpu("b200"), model_size(m)) for m, t in tables.items()}


def one(kind, requests, tokens, kv=0, block=16, branches=0):
    return Shapes(*(np.array([v]) for v in (kind, requests, tokens, kv, block, branches)))


@pytest.mark.parametrize("model", PROFILED)
def test_held_out_rows_are_within_the_bounds(tables, model):
    checks = held_out(tables[model].columns, gpu("b200"), model_size(model))
    assert [c.name for c in checks] == ["B = 16", "C = 40..60"]
    for check in checks:
        assert check.median <= 0.06 and check.worst <= 0.15, check
        assert check.median <= check.plain_median, check


@pytest.mark.parametrize("model", PROFILED)
def test_measured_points_are_reproduced(tables, fits, model):
    columns = tables[model].columns
    error = np.abs(fits[model].ms(shapes_of(columns)) / columns["mean_ms"] - 1)
    assert np.median(error) < 0.01 and error.max() < 0.06


@pytest.mark.parametrize("model", PROFILED)
def test_order_beyond_the_measured_widths(fits, model):
    cost = fits[model]
    for n in (1, 2, 3, 8, 32, 128):
        kv = 800 * n
        ar = cost.ms(one(AR, n, n, kv, 1))[0]
        four = cost.ms(one(VERIFY, n, 4 * n, kv, 4))[0]
        eight = cost.ms(one(VERIFY, n, 8 * n, kv, 8))[0]
        widest = cost.ms(one(VERIFY, n, 32 * n, kv, 32))[0]
        fused = cost.ms(one(FUSED, n, 64 * n, kv, 16, 3 * n))[0]
        assert ar <= four * 1.001 and four <= eight * 1.001 < widest < fused


def test_labels_say_how_a_price_is_known(fits):
    cost = fits["nld-8b"]
    cases = {
        "measured": [one(VERIFY, 4, 64), one(DRAFT, 128, 4096)],
        "interpolated": [one(VERIFY, 4, 48), one(MIXED, 4, 70), one(VERIFY, 2, 40)],
        "modelled": [
            one(AR, 4, 4), one(VERIFY, 4, 16, block=4), one(FUSED, 4, 64, branches=1),
            one(MIXED, 4, 400), one(VERIFY, 200, 1600),
        ],
    }  # fmt: skip
    for label, shapes in cases.items():
        assert [cost.origin(s)[0] for s in shapes] == [label] * len(shapes)


def test_terms_add_up_to_the_price(fits):
    shapes = one(MIXED, 16, 300, 16 * 900)
    fixed, per_kv = fits["nld-8b"].terms(shapes)
    assert fits["nld-8b"].ms(shapes) == pytest.approx(fixed + per_kv * 16 * 900)
    assert per_kv[0] > 0


@pytest.mark.parametrize("model", PROFILED)
def test_a_slower_device_never_gets_cheaper(model):
    size = model_size(model)
    shapes = [one(VERIFY, n, n * b, 800 * n, b) for n in (1, 8, 128) for b in (1, 8, 32)]
    order = ["gb200", "b200", "h200", "h100", "l40s"]
    for shape in shapes:
        prices = [roofline(gpu(name), size).ms(shape)[0] for name in order]
        assert prices == sorted(prices)


def test_ideal_roofline_is_the_two_roofs():
    size, device = model_size("nld-8b"), gpu("b200")
    small = roofline(device, size, IDEAL).ms(one(AR, 1, 1))[0]
    assert small == pytest.approx(size.weight_bytes / (0.85 * device.bandwidth) * 1e3, rel=1e-6)
    large = roofline(device, size, IDEAL).ms(one(VERIFY, 128, 4096))[0]
    assert large == pytest.approx(size.token_flops * 4096 / device.flops * 1e3, rel=1e-3)


def test_roofline_labels_everything_modelled():
    for name in GPUS:
        for model in MODELS.values():
            assert roofline(gpu(name), model).origin(one(VERIFY, 4, 64)) == ["modelled"]


def test_published_sizes():
    assert model_size("nld-8b").weight_bytes == pytest.approx(15.90e9, rel=1e-3)
    assert model_size("nld-14b").weight_bytes == pytest.approx(25.67e9, rel=1e-3)
    assert model_size("nld-8b").kv_bytes == 139264
    assert model_size("nld-14b").kv_bytes == 163840


def test_unknown_names_and_thin_tables_are_refused(tables):
    with pytest.raises(UsageError, match="No GPU 'b20'"):
        gpu("b20")
    with pytest.raises(UsageError, match="nld-9b"):
        model_size("nld-9b")
    few = {k: np.asarray(v)[:6] for k, v in tables["nld-8b"].columns.items()}
    with pytest.raises(DataError, match="cannot carry a fit"):
        FittedCost.fit(few, gpu("b200"), model_size("nld-8b"))
