"""Which kernel configuration serves which shape: data, not autotuning.

A configuration stands here only if the compile check (`aot`) has seen it: no spills, at most
227 KiB of shared memory, tensor-core instructions and 16-byte loads on sm_90 and sm_100. Shapes
outside the table are served by the torch twins, and `backends` says why.
"""

from __future__ import annotations

from dataclasses import dataclass

SHAPES = ((128, 4), (64, 2))
"""(head size, query heads per KV head): every published NLD size, and nld-tiny."""
PAGE_SIZES = (1, 16)

MAX_EOS = 4
"""EOS ids that the read-out and settle kernels take; the published models have one."""
MAX_REQUESTS = 256
"""Requests in one forward; the device planner sums over this many in one program."""

PROGRAMS_PER_SM = 2
FIXED_RANGE = 256
"""Keys per range when rounding must not depend on the batch."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Tile shape of `attention_triton.attention_tiles` and of its merge.

    Attributes:
        block_m: (token, query head) pairs a program; block_n: keys per loop step.
        warps, stages: Triton's num_warps and the prefetch depth of the prefix loop.
        merge_rows: M rows per program of the merge.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    merge_rows: int = 16

    @property
    def name(self) -> str:
        return f"{self.block_m}x{self.block_n}w{self.warps}s{self.stages}"


NARROW = AttentionConfig(16, 64, 4, 2)
SMALL = AttentionConfig(32, 64, 8, 2)
DEFAULT = AttentionConfig(64, 64, 4, 3)
WIDE = AttentionConfig(128, 64, 8, 3)
ATTENTION_CONFIGS = (NARROW, SMALL, DEFAULT, WIDE)


def attention_config(
    tokens: int, requests: int, group: int, head_size: int, page: int
) -> AttentionConfig | None:
    """The configuration for a forward of `tokens` query tokens in `requests` requests.

    The mean number of M rows a request decides: a short request must not pay for an empty tile,
    a long one halves its L2 reads with a wide one. None: no compiled configuration serves it.
    """
    known = (head_size, group) in SHAPES and page in PAGE_SIZES
    if not known or requests > MAX_REQUESTS or tokens < 1:
        return None
    rows = -(-tokens // max(1, requests)) * group
    for config in (NARROW, SMALL, DEFAULT):
        if rows <= config.block_m:
            return config
    return WIDE if rows > 2 * DEFAULT.block_m else DEFAULT


@dataclass(frozen=True, slots=True)
class ReadoutConfig:
    """Vocabulary pass: elements per loop step and warps of a program."""

    block: int
    warps: int


READOUT = ReadoutConfig(block=1024, warps=4)
MAX_SPLITS = 32


def readout_splits(rows: int, vocab: int, multiprocessors: int) -> int:
    """Programs per row, so that rows x splits covers the device twice and no split is empty."""
    wanted = -(-PROGRAMS_PER_SM * multiprocessors // max(1, rows))
    return max(1, min(wanted, MAX_SPLITS, -(-vocab // READOUT.block)))


READOUT_PARTIAL_BYTES = MAX_SPLITS * 8 * 4
"""Partial results of the vocabulary pass, per row."""
HEAD_EXTRA_BYTES = 256 * 2**20
"""Peak memory that the output head may take beside its weights."""


def head_chunk_rows(vocab: int, bytes_per_logit: int, budget: int = HEAD_EXTRA_BYTES) -> int:
    """Rows whose logits are alive at once; partial results of the vocabulary pass included."""
    return max(1, budget // (vocab * bytes_per_logit + READOUT_PARTIAL_BYTES))


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Tiles of the draft adapter: tokens, reduction step, output columns, K splits, warps."""

    block_m: int = 16
    block_k: int = 64
    block_n: int = 128
    splits: int = 8
    warps: int = 4


LORA = LoraConfig()
LORA_RANKS = (16, 32, 64, 128)


def lora_splits(columns: int) -> int:
    """Parts of the reduction axis: the most, up to the configured, that divide it evenly."""
    splits = LORA.splits
    while splits > 1 and columns % (splits * LORA.block_k):
        splits -= 1
    return splits


TOKEN_BUCKETS = (
    *range(1, 9), *range(16, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
    *range(1152, 2049, 128), *range(2304, 4097, 256),
)  # fmt: skip
REQUEST_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def bucket(value: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds `value`; None when none does."""
    for size in buckets:
        if value <= size:
            return size
    return None
