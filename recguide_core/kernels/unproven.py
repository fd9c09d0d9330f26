"""What only a GPU can prove, and what stands in for it until then: data for `doctor`.

No device run has been recorded: an entry leaves this list when `scripts/device_check.py` has
proved it and its results are committed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unproven:
    """One thing that no CPU test covers.

    Attributes:
        name: what; function: where it lives (module:attribute under `recguide_core`).
        proves: part of `scripts/device_check.py` that would prove it.
        input_test: CPU test of what goes into it (path::name under `tests/kernels`).
    """

    name: str
    function: str
    proves: str
    input_test: str


_ATTENTION = "interpreted/attention.py::test_drawn_rows"
_ROUND = "interpreted/rounds.py::test_a_round_equals_its_twin"

UNPROVEN = (
    Unproven("packed-row attention on tensor cores (bf16 rounding, races, alignment)",
             "kernels.ops_triton:TritonRoundOps.attend_rows", "attention", _ATTENTION),
    Unproven("device tile planner", "kernels.ops_triton:TritonRoundOps.prepare", "attention",
             "interpreted/attention.py::test_device_planner_equals_the_host_planner"),
    Unproven("read-out of the vocabulary", "kernels.ops_triton:TritonRoundOps.readout", "readout",
             "interpreted/readout.py::test_rules_and_ties"),
    Unproven("sampling read-out (looked-up noise, division as IEEE rounds it)",
             "kernels.ops_triton:TritonRoundOps.readout", "readout",
             "interpreted/sampling.py::test_sampled_rows_equal_the_twin"),
    Unproven("fp32 logits from a bf16 product", "kernels.head:OutputHead.run", "readout",
             "test_head.py::test_chunks_change_nothing"),
    Unproven("choose, assemble and settle", "kernels.ops_triton:TritonRoundOps.settle", "rounds",
             _ROUND),
    Unproven("RoPE and K/V write", "kernels.ops_triton:TritonRoundOps.rotate_and_store", "fused",
             "interpreted/fused.py::test_rotate_and_store"),
    Unproven("masked draft adapter", "kernels.ops_triton:TritonRoundOps.add_adapter", "fused",
             "interpreted/fused.py::test_masked_adapter"),
    Unproven("graph capture and replay", "kernels.cuda:CudaCapture", "rounds",
             "test_graphs.py::test_capture_is_lazy_and_keyed"),
    Unproven("memory in use of a device", "kernels.cuda:memory_in_use", "rounds",
             "test_graphs.py::test_the_cap_stops_capturing"),
    Unproven("multiprocessors of a device", "kernels.cuda:multiprocessors", "rounds",
             "interpreted/readout.py::test_splits_cover_the_vocabulary"),
    Unproven("device-resident rounds in one graph", "kernels.rounds:DeviceRounds.step", "rounds",
             "test_device_rounds.py::test_every_method_gives_the_tokens_of_ar"),
    Unproven("device-resident rounds that the host plans",
             "kernels.planned_rounds:PlannedRounds.step", "replay",
             "test_planned_rounds.py::test_every_planner_gives_the_tokens_of_ar"),
    Unproven("the engine's own loop over device-resident rounds (pinned records, two under way)",
             "kernels.resident_rounds:ResidentRounds.launch", "engine",
             "test_resident_loop.py::test_events_are_those_of_the_host_loop"),
    Unproven("self-test of resident rounds under replay",
             "kernels.resident_probe:self_test", "engine",
             "test_resident_faults.py::test_the_self_test_sees_a_wrong_replay"),
    Unproven("top-k, top-p and min-p inside a graph (a captured sort)",
             "kernels.filtered_rows:reread", "engine",
             "test_device_sampling.py::test_rows_read_again_are_those_of_the_oracle"),
    Unproven("sampling in device-resident rounds", "kernels.row_noise:NoiseSource.of", "rounds",
             "test_device_sampling.py::test_every_method_samples_the_tokens_of_the_engine"),
    Unproven("rows read out again beside a graph", "engine.wishes:Wishes.read", "rounds",
             "test_fused_runner.py::test_wishes_of_some_keep_all_in_the_graphs"),
    Unproven("engine steps in graphs", "engine.fused_runner:FusedRunner.execute", "rounds",
             "test_fused_runner.py::test_same_tokens_as_the_torch_runner"),
    Unproven("self-test under replay", "engine.fused_runner:FusedRunner.self_test", "rounds",
             "test_fused_runner.py::test_self_test_passes_and_fails_for_cause"),
    Unproven("FlashInfer back end", "kernels.flashinfer_ranges:FlashInferAttention.attend",
             "flashinfer", "test_flashinfer_runner.py::test_attention_equals_the_torch_twin"),
    Unproven("every speed of ours on a GPU", "kernels.roofline:forward_floor", "cost",
             "test_roofline.py::test_published_floor"),
)  # fmt: skip
