"""What the plugin takes for granted of SGLang 0.5.23, one assertion each.

When a new release is tried, this file says first what moved.
"""

import inspect
import os
import pkgutil

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from recguide_core.sglang_plugin.versions import KNOWN_GOOD, installed_version


@pytest.fixture(scope="module")
def sgl():
    import sys

    from engines import HERE

    sys.path.insert(0, str(HERE / "shims"))
    from recguide_core.sglang_plugin import adapter

    return adapter


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_installed_release_is_a_known_one():
    assert installed_version() in KNOWN_GOOD


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ADMISSION", ["self", "req"]),
        ("RESOLVE", ["self", "result", "batch"]),
        ("ROW_WIDTH", []),
    ],
)
def test_hooked_functions_have_the_arguments_that_hooks_expect(sgl, name, expected):
    assert parameters(pkgutil.resolve_name(getattr(sgl, name))) == expected


def test_the_reporter_takes_what_the_counts_hook_passes(sgl):
    names = parameters(pkgutil.resolve_name(sgl.REPORT))
    assert names[:4] == ["self", "bs", "num_correct_drafts", "num_accept_tokens"]


def test_the_scheduler_inherits_the_admission_hooks_target(sgl):
    from sglang.srt.managers.scheduler import Scheduler

    owner = pkgutil.resolve_name(sgl.ADMISSION.rsplit(".", 1)[0])
    assert issubclass(Scheduler, owner)
    assert "validate_dllm_request" not in vars(Scheduler)


def test_a_result_has_the_fields_that_the_worker_fills(sgl):
    names = parameters(sgl.GenerationBatchResult)
    for field in (
        "logits_output", "next_token_ids", "accept_lens", "new_seq_lens", "next_draft_input",
        "speculative_num_draft_tokens", "speculative_output_stride",
        "num_non_draft_tokens_per_req", "can_run_cuda_graph",
    ):  # fmt: skip
        assert field in names


def test_the_base_worker_has_the_hooks_that_ours_overrides(sgl):
    for name in ("init_attention_backends", "init_cuda_graphs", "note_request_finished"):
        assert callable(getattr(sgl.BaseSpecWorker, name))
    assert parameters(sgl.BaseSpecWorker.note_request_finished) == ["self", "rid", "natural_stop"]


def test_our_algorithm_defines_what_the_scheduler_calls(sgl):
    """Three methods that `CustomSpecAlgo` lacks; when it gains them, ours can go."""
    from recguide_core.sglang_plugin.algorithm import RecGuideAlgorithm

    for name in ("create_future_map", "need_topk", "carries_draft_hidden_states"):
        assert not hasattr(sgl.CustomSpecAlgo, name)
        assert hasattr(RecGuideAlgorithm, name)
    future_map = parameters(sgl.FutureMap)
    assert future_map[:3] == ["device", "spec_algo", "req_to_token_pool"]


def test_a_forward_batch_takes_the_arrays_of_a_padded_step(sgl):
    names = parameters(sgl.ForwardBatch)
    for field in (
        "batch_size", "input_ids", "req_pool_indices", "seq_lens", "seq_lens_cpu", "seq_lens_sum",
        "out_cache_loc", "positions", "spec_info", "forward_mode", "spec_algorithm",
        "capture_hidden_mode", "return_hidden_states_before_norm",
    ):  # fmt: skip
        assert field in names


def test_the_decode_reserve_is_twice_the_draft_tokens(sgl):
    source = inspect.getsource(sgl.get_alloc_reserve_per_decode)
    assert "2 * get_alloc_len_per_decode()" in source


def test_slot_zero_is_kept_for_padding():
    """Graphs write padding tokens there."""
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    source = inspect.getsource(TokenToKVPoolAllocator.clear)
    assert "slot 0 is used" in source or "arange(\n            1" in source


def test_hooks_can_still_be_registered_by_name(sgl):
    assert {"BEFORE", "AFTER", "AROUND", "REPLACE"} <= {kind.name for kind in sgl.HookType}


def test_the_plugin_is_announced_to_sglang():
    from importlib.metadata import entry_points

    (found,) = [e for e in entry_points(group="sglang.srt.plugins") if e.name == "recguide"]
    assert found.load().__name__ == "register"
