"""Every kernel configuration that the launch table can ask for, as compiler inputs. Data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recguide_core.kernels import launch
from recguide_core.kernels.round_state import STOP_IDS
from recguide_core.kernels.specimen import (
    CP_ASYNC,
    LOAD_128,
    Specimen,
    attention_merge,
    attention_tiles,
    plan_tiles,
)
from recguide_core.records import MAX_BLOCK

_EOS = dict.fromkeys(("eos_a", "eos_b", "eos_c", "eos_d"), "i32")


def _readout(dtype: str) -> list[Specimen]:
    scan = Specimen(
        name=f"readout_partials {dtype}",
        module="readout_triton",
        function="readout_partials",
        signature={
            "logits": f"*{dtype}",
            "part_f": "*fp32",
            "part_i": "*i32",
            "V": "i32",
            "stride": "i32",
            "chunk": "i32",
            "splits": "i32",
            "mask_id": "i32",
            **_EOS,
        },
        constants={"BLOCK": launch.READOUT.block},
        aligned=frozenset({"logits", "part_f", "part_i", "stride", "chunk", "V"}),
        warps=launch.READOUT.warps,
        wide_loads=LOAD_128,
    )
    join = Specimen(
        name=f"readout_merge {dtype}",
        module="readout_triton",
        function="readout_merge",
        signature={
            "logits": f"*{dtype}",
            "stride": "i32",
            "part_f": "*fp32",
            "part_i": "*i32",
            "ids": "*i32",
            "stats": "*fp32",
            "splits": "i32",
            **_EOS,
        },
        constants={"SPLITS2": launch.MAX_SPLITS},
        aligned=frozenset({"logits", "part_f", "part_i", "ids", "stats", "stride"}),
        warps=1,
    )
    return [scan, join]


def _sample() -> list[Specimen]:
    """The sampling read-out; its logits are those of the head, fp32."""
    drawn = {"heat": "*fp32", "key": "*i32", "noise": "*fp32"}
    part = {"part_f": "*fp32", "part_i": "*i32"}
    scan = Specimen(
        name="sample_partials fp32",
        module="sample_triton",
        function="sample_partials",
        signature={
            "logits": "*fp32",
            **drawn,
            **part,
            **dict.fromkeys(("V", "stride", "chunk", "splits", "mask_id"), "i32"),
            **_EOS,
        },
        constants={"BLOCK": launch.READOUT.block},
        aligned=frozenset({"logits", "part_f", "part_i", "stride", "chunk", "V"}),
        warps=launch.READOUT.warps,
        wide_loads=LOAD_128,
    )
    join = Specimen(
        name="sample_merge fp32",
        module="sample_triton",
        function="sample_merge",
        signature={
            "logits": "*fp32",
            "stride": "i32",
            **drawn,
            **part,
            "ids": "*i32",
            "stats": "*fp32",
            "splits": "i32",
            **_EOS,
        },
        constants={"SPLITS2": launch.MAX_SPLITS},
        aligned=frozenset({"logits", "part_f", "part_i", "ids", "stats", "stride"}),
        warps=1,
    )
    return [scan, join]


_STATE = (
    "live", "has_draft", "committed", "seed", "remaining", "room", "draft_block", "draft", "alt",
    "margin", "confidence", "e1", "e2", "prev_block", "prev_full", "rounds", "reused",
    "stop_ids", "ignore_eos",
)  # fmt: skip
_FLOATS = {"margin", "confidence", "e1", "e2", "stats", "out_entropy"}


def _pointers(*names: str) -> dict[str, str]:
    return {n: "*fp32" if n in _FLOATS else "*i32" for n in names}


def _round() -> list[Specimen]:
    plan = ("act", "block", "kind", "parent", "branch_alt", "branch_block")
    rows = ("ids", "pos", "vis", "adapter", "commit", "request", "q_ptr")
    outs = ("out_tokens", "out_count", "out_matched", "out_hit", "out_width", "out_finished",
            "out_entropy")  # fmt: skip
    settle = Specimen(
        name="settle_rounds",
        module="settle_triton",
        function="settle_rounds",
        signature={
            **_pointers(*_STATE, *plan, "q_ptr", "ids", "stats", *outs),
            **_EOS,
            "decisions": "i32",
            "K": "i32",
        },
        constants={"MAX_B": MAX_BLOCK, "STOPS": STOP_IDS},
        aligned=frozenset(),
        warps=1,
    )
    assemble = Specimen(
        name="assemble_rows",
        module="assemble_triton",
        function="assemble_rows",
        signature={
            **_pointers("live", "committed", "seed", "draft", "act", "block", "kind", "parent"),
            **_pointers("alt", "branch_block", *rows),
            **dict.fromkeys(("slots", "capacity", "mask_id", "K"), "i32"),
        },
        constants={"MAX_B": MAX_BLOCK, "N2": launch.MAX_REQUESTS, "STEP": 128},
        aligned=frozenset({"vis"}),
        warps=1,
    )
    choose = Specimen(
        name="choose_acts",
        module="choose_triton",
        function="choose_acts",
        signature={
            **_pointers("live", "has_draft", "draft_block", "remaining", "room", "margin", "alt"),
            **_pointers("target", *plan),
            "delta": "fp32",
            **dict.fromkeys(("corrections", "continuation", "tidar", "K"), "i32"),
        },
        constants={"MAX_B": MAX_BLOCK},
        aligned=frozenset(),
        warps=1,
    )
    return [settle, assemble, choose]


def _rope(D: int, page: int) -> Specimen:
    data = dict.fromkeys(("qkv", "k_pool", "v_pool"), "*bf16")
    floats = dict.fromkeys(("cos", "sin", "heat"), "*fp32")
    index = dict.fromkeys(("pos", "request", "commit", "pages", "page_ptr"), "*i32")
    strides = dict.fromkeys(("s_qkv", "s_cos", "skp_t", "skp_h", "svp_t", "svp_h"), "i32")
    return Specimen(
        name=f"rotate_and_store D{D} page{page}",
        module="rope_triton",
        function="rotate_and_store",
        signature={**data, **floats, **index, **strides, "heads": "i32", "kv_heads": "i32"},
        constants={"HALF": D // 2, "PAGE": page, "BLOCK_H": 8, "EXACT": False},
        aligned=frozenset({*data, *strides, "cos", "sin"}),
        warps=2,
        wide_loads=LOAD_128,
    )


def _lora(rank: int) -> list[Specimen]:
    config = launch.LORA
    shrink = Specimen(
        name=f"lora_shrink r{rank}",
        module="lora_triton",
        function="lora_shrink",
        signature={
            "x": "*bf16",
            "down": "*bf16",
            "adapter": "*i32",
            "part": "*fp32",
            "T": "i32",
            "K_part": "i32",
            "s_x": "i32",
            "s_down": "i32",
        },
        constants={
            "RANK": rank,
            "BLOCK_M": config.block_m,
            "BLOCK_K": config.block_k,
            "EXACT": False,
        },
        aligned=frozenset({"x", "down", "part", "K_part", "s_x", "s_down"}),
        warps=config.warps,
        stages=3,
        tensor_core=True,
        wide_loads=CP_ASYNC,
    )
    expand = Specimen(
        name=f"lora_expand r{rank}",
        module="lora_triton",
        function="lora_expand",
        signature={
            "out": "*bf16",
            "part": "*fp32",
            "up": "*bf16",
            "adapter": "*i32",
            "T": "i32",
            "splits": "i32",
            "s_out": "i32",
            "s_up": "i32",
        },
        constants={
            "RANK": rank,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "EXACT": False,
        },
        aligned=frozenset({"out", "part", "up", "s_out", "s_up"}),
        warps=config.warps,
        tensor_core=True,
        wide_loads=LOAD_128,
    )
    return [shrink, expand]


_ONES = {
    "attention_tiles": ("kv_heads",),
    "plan_tiles": ("requests", "kv_heads"),
    "assemble_rows": ("slots", "K"),
    "settle_rounds": ("K", "decisions"),
    "choose_acts": ("corrections", "continuation", "tidar", "K"),
    "readout_partials": ("splits",),
    "readout_merge": ("splits",),
    "sample_partials": ("splits",),
    "sample_merge": ("splits",),
    "lora_shrink": ("T",),
    "lora_expand": ("T", "splits"),
}


def specialised(specimen: Specimen) -> Specimen | None:
    """The variant that Triton makes at run time when integer arguments are 1, else None."""
    ones = _ONES.get(specimen.function)
    if ones is None:
        return None
    return replace(
        specimen,
        name=f"{specimen.name} (ones)",
        constants={**specimen.constants, **dict.fromkeys(ones, 1)},
        signature={k: v for k, v in specimen.signature.items() if k not in ones},
    )


def specimens() -> Iterator[Specimen]:
    """Everything that is compiled: the launch table, and one variant of each with ones."""
    seen = set()
    for specimen in table():
        yield specimen
        variant = specialised(specimen)
        if variant is not None and specimen.function not in seen:
            seen.add(specimen.function)
            yield variant


def table() -> Iterator[Specimen]:
    """Everything that the launch table can ask for, most demanding first."""
    for D, group in launch.SHAPES:
        for page in launch.PAGE_SIZES:
            for config in reversed(launch.ATTENTION_CONFIGS):
                yield attention_tiles(config, D, group, page)
        for config in launch.ATTENTION_CONFIGS:
            yield attention_merge(config, D, group)
            yield plan_tiles(config, group)
    for dtype in ("bf16", "fp32"):
        yield from _readout(dtype)
    yield from _sample()
    yield from _round()
    for D, _group in launch.SHAPES:
        for page in launch.PAGE_SIZES:
            yield _rope(D, page)
    for rank in launch.LORA_RANKS:
        yield from _lora(rank)
