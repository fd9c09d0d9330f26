"""What the SGLang engine needs a GPU to prove, and the CPU test of its inputs; for `doctor`.

Same form as `kernels.unproven`; `proves` names what to run on a machine with CUDA and SGLang.
"""

from __future__ import annotations

from recguide_core.kernels.unproven import Unproven

_SERVE = "recguide serve --model nld-8b --engine sglang"
_ROOM = "sglang_plugin"

UNPROVEN = (
    Unproven(
        "packed kernel on SGLang's row table (bf16, real slots)",
        f"{_ROOM}.row_attention:KernelRowAttention.attend",
        f"{_SERVE} --eager",
        "../sglang/interpreted/kernel_rows.py::test_the_kernel_reads_the_row_table_in_place",
    ),
    Unproven(
        "CUDA graphs of steps by token bucket",
        f"{_ROOM}.graphs:GraphExecutor.execute",
        _SERVE,
        "../sglang/test_driver.py::test_a_graphs_inputs_give_the_statistics_of_the_eager_step",
    ),
    Unproven(
        "writes of padding and uncommitted tokens to SGLang's slot 0 under replay",
        f"{_ROOM}.graphs:BufferAttention.attend",
        _SERVE,
        "../sglang/interpreted/kernel_rows.py::"
        "test_graph_buffers_give_the_same_attention_and_write_padding_to_slot_zero",
    ),
    Unproven(
        "SGLang's collectives inside our graphs (tensor parallel)",
        f"{_ROOM}.graphs:graphs_on_cuda",
        f"{_SERVE} -- --tp-size 2",
        "../sglang/test_checkpoints.py::test_a_published_layout_serves_the_tokens_of_ar",
    ),
    Unproven(
        "masked layouts through stock FlashInfer and compiled Triton attention",
        f"{_ROOM}.stock_bridge:PaddedForward.generate_attn_arg_prefill",
        f"{_SERVE} --layout uniform -- --attention-backend flashinfer",
        "../sglang/test_driver.py::test_uniform_masks_show_each_token_what_its_row_may_see",
    ),
    Unproven(
        "published weights (3B, 8B, 14B) through the module",
        f"{_ROOM}.models.nld:NemotronLabsDiffusionModel.load_weights",
        "recguide bench --model nld-8b --engine sglang",
        "../sglang/test_checkpoints.py::test_a_published_layout_serves_the_tokens_of_ar",
    ),
    Unproven(
        "SGLang's DFLASH with a drafter for NLD",
        f"{_ROOM}.launch:server_command",
        f"{_SERVE} --drafter PATH",
        "../sglang/test_launch.py::test_a_drafter_goes_through_sglangs_own_dflash",
    ),
    Unproven(
        "every speed of the SGLang engine",
        f"{_ROOM}.worker:RecGuideWorker.forward_batch_generation",
        "python -m sglang.bench_serving",
        "../sglang/test_server.py::test_sglangs_own_benchmark_completes_every_request",
    ),
)
