"""Settings of a run: what they expand to, and what is refused."""

import pytest

from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.errors import UsageError


def test_block_sizes_multiply_only_methods_that_take_one():
    config = BenchConfig(
        methods=("ar", "linear", "recguide"), block_sizes=(4, 16), concurrency=(1,)
    )
    assert config.cells() == [
        Cell("ar", None, 1),
        Cell("linear", 4, 1),
        Cell("linear", 16, 1),
        Cell("recguide", None, 1),
    ]


def test_cell_keys_are_unique():
    config = BenchConfig(
        methods=("ar", "linear", "linear:recipe"), block_sizes=(8, 16), concurrency=(1, 2)
    )
    keys = [cell.key for cell in config.cells()]
    assert len(set(keys)) == len(keys) == 8


def test_rates_and_ramps_are_loads_of_their_own():
    rates = BenchConfig(methods=("ar",), concurrency=(4,), rates=(0.5, 2.0)).cells()
    assert [cell.key for cell in rates] == ["ar@4,0.5/s", "ar@4,2/s"]
    ramp = BenchConfig(methods=("ar",), concurrency=(1, 8), ramp="1:32:1").cells()
    assert [(cell.key, cell.concurrency) for cell in ramp] == [("ar@1:32:1", 32)]
    trace = BenchConfig(
        methods=("ar",), concurrency=(4,), replay="t.jsonl", speeds=(1, 0.5)
    ).cells()
    assert [cell.key for cell in trace] == ["ar@4,x1", "ar@4,x0.5"]
    loads = [cell.load for cell in (*rates, *ramp, *trace)]
    assert loads == ["4, 0.5/s", "4, 2/s", "1:32:1", "4, trace x1", "4, trace x0.5"]
    assert [cell.open_loop for cell in (*rates, *ramp, *trace)] == [True, True, False, True, True]


def test_requests_grow_with_the_load():
    config = BenchConfig()
    assert config.requests_for(Cell("ar", None, 1)) == 32
    assert config.requests_for(Cell("ar", None, 48)) == 96
    assert config.requests_for(Cell("ar", None, 128)) == 128
    assert config.requests_for(Cell("ar", None, 300)) == 300
    assert BenchConfig(requests=5).requests_for(Cell("ar", None, 128)) == 5


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"methods": ("linaer",)}, "linaer"),
        ({"methods": ()}, "--methods is empty"),
        ({"methods": ("ar", "ar")}, "names ar twice"),
        ({"block_sizes": (0,)}, "--block-size 0"),
        ({"block_sizes": (33,)}, "--block-size 33"),
        ({"block_sizes": (-4,)}, "--block-size -4"),
        ({"concurrency": (0,)}, "--concurrency is 0"),
        ({"concurrency": (2, 2)}, "names 2 twice"),
        ({"requests": 0}, "--requests is 0"),
        ({"max_tokens": -1}, "--max-tokens is -1"),
        ({"kv_tokens": 0}, "--kv-tokens is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"warmup": -1}, "--warmup is -1"),
        ({"cooldown": -1}, "--cooldown is -1"),
        ({"replay": "t.jsonl", "speeds": ()}, "--speed is empty"),
        ({"replay": "t.jsonl", "speeds": (-1.0,)}, "--speed has -1"),
        ({"replay": "t.jsonl", "ramp": "1:2"}, "--ramp and --replay are given"),
        ({"bitwise": True, "device": "cuda"}, "--device does not go with --bitwise"),
        ({"bitwise": True, "engine": "sglang"}, "--engine does not go with --bitwise"),
        ({"prefill_chunk": 0}, "--prefill-chunk is 0"),
        ({"template": "fancy"}, "fancy"),
        ({"rates": (0.0,)}, "--rate has 0"),
        ({"rates": (-1.0,)}, "--rate has -1"),
        ({"arrivals": "burst"}, "burst"),
        ({"ramp": "1:x"}, "'1:x'"),
        ({"ramp": "8"}, "'8'"),
        ({"ramp": "1:0:1"}, "'1:0:1'"),
        ({"ramp": "1:4", "rates": (1.0,)}, "--ramp and --rate"),
        ({"ttft_limit_ms": 0.0}, "--slo-ttft is 0"),
        ({"tpot_limit_ms": -2.0}, "--slo-tpot is -2"),
    ],
)
def test_impossible_settings_are_refused(change, cause):
    with pytest.raises(UsageError) as caught:
        BenchConfig(**change)
    assert cause in caught.value.cause
    assert caught.value.remedy
