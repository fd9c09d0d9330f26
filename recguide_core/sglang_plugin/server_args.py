"""SGLang's server arguments under RecGuide: what is refused, and what is set. No SGLang."""

from __future__ import annotations

from typing import Any

from recguide_core.errors import UsageError
from recguide_core.records import MAX_BLOCK
from recguide_core.sglang_plugin.settings import PluginSettings

UNSUPPORTED: tuple[tuple[str, object, str], ...] = (
    ("pp_size", 1, "pipeline parallelism"),
    ("enable_dp_attention", False, "DP attention"),
    ("enable_lora", None, "LoRA serving"),
    ("enable_mixed_chunk", False, "mixed chunks (rows mix prompts and rounds already)"),
    ("enable_hierarchical_cache", False, "the hierarchical cache"),
    ("disaggregation_mode", "null", "prefill-decode disaggregation"),
    ("kv_cache_dtype", "auto", "a KV cache of another dtype than the model"),
    ("quantization", None, "quantised weights"),
)
"""(argument, the only value that works, its name)"""


def check_server(server_args: Any) -> None:
    """Refuse what rows cannot do.

    Raises:
        UsageError: naming the first such argument.
    """
    for name, allowed, title in UNSUPPORTED:
        value = getattr(server_args, name, allowed)
        if value != allowed and not (not value and not allowed):
            raise UsageError(
                f"RecGuide inside SGLang does not work with {title} ({name}={value}).",
                f"Leave --{name.replace('_', '-')} at its default.",
            )
    if getattr(server_args, "device", "") == "cuda" and not server_args.disable_cuda_graph:
        # Resolved before an algorithm is asked, so it cannot be set from here.
        raise UsageError(
            "SGLang's own CUDA graphs hold steps of one width; RecGuide captures its own.",
            "Start the server with --disable-cuda-graph, or through `recguide serve`.",
        )


def reserve_tokens(settings: PluginSettings, width: int) -> int:
    """KV slots a step may write behind a request's committed tokens.

    Flat steps write commit rows only; masked layouts through stock attention write every row of
    the step.

    Args:
        width: most in-flight tokens of a request under the method in use.
    """
    return MAX_BLOCK if settings.layout == "flat" else max(MAX_BLOCK, width)


def settle_server(server_args: Any, settings: PluginSettings) -> None:
    """Set what a synchronous single-model algorithm needs."""
    server_args.disable_overlap_schedule = True
    server_args.speculative_num_steps = 1
    server_args.speculative_eagle_topk = 1
    widest = 4 * MAX_BLOCK
    server_args.speculative_num_draft_tokens = reserve_tokens(settings, widest)
