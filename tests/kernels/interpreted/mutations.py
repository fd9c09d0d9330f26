"""Every planted fault of the list is caught by a test of this folder.

A mutant is the kernel's source with one substitution, loaded under another name and put in place
of the original; its killer must fail on it (and passes on the original, or the check proves
nothing).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from interpreted import attention, fused, readout, rounds, sampling

from recguide_core.kernels import ops_triton

KERNELS = Path(ops_triton.__file__).parent


def branches_from_empty() -> None:
    attention.check(attention.build([("overlap", 0, 8, (2, 8)), ("overlap", 9, 8, (3, 5))]))


def split_prefix() -> None:
    case = attention.build([("overlap", 70, 8, (3,))], group=4, kv_heads=2, D=64)
    attention.check(case, block_m=16)


def ties() -> None:
    readout.test_rules_and_ties(5000, torch.float32, 1)
    readout.test_rules_and_ties(5000, torch.float32, 132)


def noise() -> None:
    # Flat logits and EOS ids that often win.
    sampling.test_drawn_rows.hypothesis.inner_test(5, 130, 4)
    sampling.test_drawn_rows.hypothesis.inner_test(6, 130, 4)


def a_round() -> None:
    for seed in range(6):
        rounds.test_a_round_equals_its_twin.hypothesis.inner_test(seed, 3, rounds.RULES[1], 32)


def rope() -> None:
    fused.test_rotate_and_store(16, 4, 2, 64, torch.float32)


def adapter() -> None:
    fused.test_masked_adapter(16, torch.float32)


class Mutant(NamedTuple):
    """A planted fault: where, what, and the check that must notice."""

    name: str
    module: str
    functions: tuple[str, ...]
    old: str
    new: str
    killer: Callable[[], None]


ATTENTION = ("attention_tiles", "attention_merge")
PARENT = "(j[None, :] < b1[:, None])"
MUTANTS = (
    Mutant("parent_len + 1", "attention_triton", ATTENTION, PARENT,
           "(j[None, :] < b1[:, None] + 1)", branches_from_empty),
    Mutant("parent_len - 1", "attention_triton", ATTENTION, PARENT,
           "(j[None, :] < b1[:, None] - 1)", branches_from_empty),
    Mutant("siblings visible", "attention_triton", ATTENTION, "(j[None, :] >= a0[:, None]) & ",
           "", branches_from_empty),
    Mutant("causal row sees ahead", "attention_triton", ATTENTION, "(j[None, :] < a1[:, None])",
           "(j[None, :] <= a1[:, None])", branches_from_empty),
    Mutant("no NaN guard at P = 0", "attention_triton", ("attention_tiles",),
           "            shift = tl.where(new_top == float(\"-inf\"), 0.0, new_top)",
           "            shift = new_top", attention.test_dead_key_block),
    Mutant("dropped split", "attention_triton", ATTENTION, "in range(splits):",
           "in range(splits - 1):", split_prefix),
    Mutant("GQA head map", "attention_triton", ATTENTION, "head = kv_head * G + m % G",
           "head = (m % G) * kv_heads + kv_head", split_prefix),
    Mutant("tail of the prefix", "attention_triton", ATTENTION, "live = j < key_hi",
           "live = j < key_hi - 1", split_prefix),
    Mutant("in-flight keys lost", "tiles_triton", ("plan_tiles",), "(s == my_splits - 1)",
           "(s == my_splits)", split_prefix),
    Mutant("draft row without adapter", "assemble_triton", ("assemble_rows",),
           "head, a1, 0, 0, 1 - keep, keep, r", "head, a1, 0, 0, 0, keep, r", a_round),
    Mutant("branch without adapter", "assemble_triton", ("assemble_rows",),
           "head, head + sees, 1, 0, r", "head, head + sees, 0, 0, r", a_round),
    Mutant("branch commits", "assemble_triton", ("assemble_rows",),
           "head, head + sees, 1, 0, r", "head, head + sees, 1, 1, r", a_round),
    Mutant("branch start + 1", "assemble_triton", ("assemble_rows",), "P + sees + i",
           "P + sees + i + 1", a_round),
    Mutant("branch start - 1", "assemble_triton", ("assemble_rows",), "P + sees + i",
           "P + sees + i - 1", a_round),
    Mutant("branch sees one more", "assemble_triton", ("assemble_rows",), "head + sees, 1",
           "head + sees + 1, 1", a_round),
    Mutant("verify row bidirectional", "assemble_triton", ("assemble_rows",),
           "tl.where(verify, at + 1, head + B)", "head + B", a_round),
    Mutant("tie to the highest id", "readout_triton", ("readout_partials", "readout_merge"),
           "up = z > v1", "up = z >= v1", ties),
    Mutant("tie across splits", "readout_triton", ("readout_partials", "readout_merge"),
           "first_id = tl.min(tl.where(v1 == first, i1, far), 0)",
           "first_id = tl.max(tl.where(v1 == first, i1, -1), 0)", ties),
    Mutant("EOS wins every tie", "readout_triton", ("readout_partials", "readout_merge"),
           "(eos < token)", "(eos != token)", ties),
    Mutant("MASK may win", "readout_triton", ("readout_partials", "readout_merge"),
           "(i == mask_id) | ", "", ties),
    Mutant("EOS as replacement", "readout_triton", ("readout_partials", "readout_merge"),
           "tl.where(token == first, other, first)", "other", ties),
    Mutant("noise of another value", "sample_triton", ("sample_partials", "sample_merge"),
           "(mix(code ^ key) >> 9)", "(mix(code ^ key) >> 10)", noise),
    Mutant("EOS without noise", "sample_triton", ("sample_partials", "sample_merge"),
           "y = score(z, eos, T, bits, noise, eos >= 0)", "y = z", noise),
    Mutant("accept one more", "settle_triton", ("settle_rounds",),
           "tl.min(tl.where(wrong, i, B - 1), 0)",
           "tl.minimum(tl.min(tl.where(wrong, i, B - 1), 0) + 1, B - 1)", a_round),
    Mutant("EOS ends a request that ignores it", "settle_triton", ("settle_rounds",),
           "ends & (tl.load(ignore_eos + r) == 0)", "ends",
           lambda: rounds.test_a_stop_id_ends_the_output_at_its_token(0, 1)),
    Mutant("last stop id not looked at", "settle_triton", ("settle_rounds",),
           "in tl.static_range(STOPS):", "in tl.static_range(STOPS - 1):",
           lambda: rounds.test_a_stop_id_ends_the_output_at_its_token(7, 1)),
    Mutant("branch one place off", "settle_triton", ("settle_rounds",),
           "tl.load(parent + r * K + k) == matched + 1", "tl.load(parent + r * K + k) == matched",
           lambda: rounds.test_only_the_right_branch_is_reused("correction", 0)),
    Mutant("entropy counts the bonus", "settle_triton", ("settle_rounds",),
           "tl.maximum(B - 1, 1)", "B", a_round),
    Mutant("margin rule not strict", "choose_triton", ("choose_acts",), "(m < delta)",
           "(m <= delta)", lambda: rounds.test_a_margin_of_delta_is_not_risky()),
    Mutant("rotation turned round", "rope_triton", ("rotate_and_store",), "a * c - b * s",
           "a * c + b * s", rope),
    Mutant("branch K/V in the pool", "rope_triton", ("rotate_and_store",),
           "(tl.load(commit + token) != 0) & ", "", rope),
    Mutant("adapter for every row", "lora_triton", ("lora_shrink", "lora_expand"),
           "store_as(to, before + delta, on[:, None], EXACT)",
           "store_as(to, before + delta, inside[:, None], EXACT)", adapter),
)  # fmt: skip


def test_the_killers_pass_on_the_originals() -> None:
    for killer in {m.killer for m in MUTANTS}:
        killer()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(mutant: Mutant, tmp_path: Path, monkeypatch) -> None:
    source = (KERNELS / f"{mutant.module}.py").read_text()
    assert mutant.old in source, "the fault no longer fits the source"
    name = f"mutant_{mutant.module}"
    file = tmp_path / f"{name}.py"
    file.write_text(source.replace(mutant.old, mutant.new))
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    for function in mutant.functions:
        monkeypatch.setattr(ops_triton, function, getattr(module, function))
    with pytest.raises(AssertionError):
        mutant.killer()
