"""One kernel at one configuration, as the compiler takes it; those of attention. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recguide_core.kernels import launch


@dataclass(frozen=True, slots=True)
class Specimen:
    """One kernel at one configuration.

    Attributes:
        name: unique, as the resource tables print it.
        module, function: where the kernel lives.
        signature: Triton types of the run-time arguments.
        constants: values of the compile-time ones.
        aligned: arguments that are multiples of 16 at run time.
        tensor_core: must contain tensor-core instructions.
        wide_loads: PTX pattern that must occur: the 16-byte loads of the bulk data.
    """

    name: str
    module: str
    function: str
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: frozenset[str]
    warps: int
    stages: int = 2
    tensor_core: bool = False
    wide_loads: str | None = None


CP_ASYNC = r"cp\.async\.c[ag]\.shared\.global[^;]*0x10"
LOAD_128 = r"ld\.global(?:\.\w+(?:::\w+)*)*\.(?:v4\.(?:b32|u32|f32)|v2\.b64)"


def attention_tiles(config: launch.AttentionConfig, D: int, group: int, page: int) -> Specimen:
    data = dict.fromkeys(("q", "k_new", "v_new", "k_pool", "v_pool", "out"), "*bf16")
    index = dict.fromkeys(("pages", "page_ptr", "vis", "items", "n_items"), "*i32")
    strides = dict.fromkeys(
        ("sq_t", "sq_h", "skn_t", "skn_h", "svn_t", "svn_h", "skp_t", "skp_h", "svp_t", "svp_h",
         "so_t", "so_h"), "i32",
    )  # fmt: skip
    parts = {"part": "*fp32", "part_lse": "*fp32"}
    rest = {"log2_scale": "fp32", "kv_heads": "i32"}
    return Specimen(
        name=f"attention_tiles D{D} G{group} page{page} {config.name}",
        module="attention_triton",
        function="attention_tiles",
        signature={**data, **index, **strides, **parts, **rest},
        constants={
            "G": group,
            "D": D,
            "PAGE": page,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "STAGES": config.stages,
            "EXACT": False,
        },
        aligned=frozenset({*data, *strides, *parts, "pages", "vis", "items"}),
        warps=config.warps,
        stages=config.stages,
        tensor_core=True,
        wide_loads=CP_ASYNC,
    )


def attention_merge(config: launch.AttentionConfig, D: int, group: int) -> Specimen:
    return Specimen(
        name=f"attention_merge D{D} G{group} M{config.block_m}",
        module="attention_triton",
        function="attention_merge",
        signature={
            "part": "*fp32",
            "part_lse": "*fp32",
            "groups": "*i32",
            "n_groups": "*i32",
            "out": "*bf16",
            "so_t": "i32",
            "so_h": "i32",
            "kv_heads": "i32",
        },
        constants={
            "G": group,
            "D": D,
            "BLOCK_M": config.block_m,
            "ROWS": config.merge_rows,
            "EXACT": False,
        },
        aligned=frozenset({"part", "part_lse", "groups", "out", "so_t", "so_h"}),
        warps=4,
        wide_loads=LOAD_128,
    )


def plan_tiles(config: launch.AttentionConfig, group: int) -> Specimen:
    pointers = ("q_ptr", "prefix", "items", "n_items", "groups", "n_groups")
    numbers = ("requests", "slots", "kv_heads", "fixed_range", "cap_items", "cap_groups")
    return Specimen(
        name=f"plan_tiles G{group} M{config.block_m}",
        module="tiles_triton",
        function="plan_tiles",
        signature={**dict.fromkeys(pointers, "*i32"), **dict.fromkeys(numbers, "i32")},
        constants={
            "G": group,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "R2": launch.MAX_REQUESTS,
            "STEP": 32,
        },
        aligned=frozenset({"items", "groups"}),
        warps=1,
    )
