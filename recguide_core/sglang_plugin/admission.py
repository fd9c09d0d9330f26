"""Which requests the plugin cannot serve, decided before they are queued. No SGLang."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from recguide_core.errors import nearest
from recguide_core.records import MAX_BLOCK, Sampling

_REMEDY = "Leave it out, or serve the model with SGLang alone: no --speculative-algorithm."


def refusal(request: Any, methods: Collection[str] = ()) -> str | None:
    """Why a request (SGLang's `Req`) is refused, or None.

    Looks at attributes only, so any object with them will do.

    Args:
        methods: those that requests may ask for.
    """
    params = request.sampling_params
    method, block = wish_of(params)
    if method and method not in methods:
        return f"This server has no method '{method}'. {nearest(method, methods)}"
    if not 0 <= block <= MAX_BLOCK:
        return f"block_size {block} is out of range. Choose from 1 to {MAX_BLOCK}."
    checks = {
        "return_logprob": request.return_logprob,
        "return_hidden_states": _wants_hidden(request),
        "a grammar": request.grammar is not None or _has_grammar(params),
        "a penalty": _has_penalty(params),
        "min_new_tokens": params.min_new_tokens > 0,
        "a custom logit processor": bool(request.custom_logit_processor),
        "a request LoRA": request.lora_id is not None,
        "beam search": (getattr(params, "beam_width", None) or 1) > 1,
        "multimodal input": getattr(request, "multimodal_inputs", None) is not None,
        "input embeddings": getattr(request, "input_embeds", None) is not None,
        "a watermark": getattr(params, "watermark", None) is not None,
    }
    wanted = [name for name, asked in checks.items() if asked]
    if not wanted:
        return None
    return f"RecGuide's rows do not serve {wanted[0]}. {_REMEDY}"


def wish_of(params: Any) -> tuple[str, int]:
    """Method and block size that a request asks for in `custom_params`; "" and 0 without."""
    wishes = getattr(params, "custom_params", None) or {}
    block = wishes.get("block_size", 0)
    return str(wishes.get("method", "")), block if isinstance(block, int) else -1


def wants_rounds(params: Any) -> bool:
    """The request asks for its rounds with `custom_params: {"rounds": true}`."""
    return bool((getattr(params, "custom_params", None) or {}).get("rounds", False))


def _wants_hidden(request: Any) -> bool:
    mode = getattr(request, "return_hidden_states_mode", None)
    return bool(mode is not None and mode.need_capture())


def _has_grammar(params: Any) -> bool:
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    return any(getattr(params, kind, None) is not None for kind in kinds)


def _has_penalty(params: Any) -> bool:
    return bool(
        params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or params.repetition_penalty != 1.0
    )


TOP_K_ALL = 1 << 30
"""SGLang's spelling of "no top-k"."""


def sampling_of(params: Any) -> Sampling:
    """Position-keyed sampling of a request; SGLang writes greedy as temperature 1, top-k 1."""
    bias = tuple((int(t), float(b)) for t, b in (params.logit_bias or {}).items())
    if params.top_k == 1 or params.temperature <= 0.0:
        return Sampling(logit_bias=bias)
    return Sampling(
        temperature=float(params.temperature),
        top_p=float(params.top_p),
        top_k=0 if params.top_k >= TOP_K_ALL else int(params.top_k),
        min_p=float(params.min_p),
        seed=int(params.sampling_seed or 0),
        logit_bias=bias,
    )
