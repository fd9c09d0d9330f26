"""What a body wishes for its answers: method and block, sampling, biases, stop strings."""

from __future__ import annotations

from recguide_core.engine.planners import TAKES_BLOCK
from recguide_core.errors import nearest
from recguide_core.records import Sampling
from recguide_core.serving.errors import ApiError
from recguide_core.serving.runtime import Runtime
from recguide_core.serving.schema import INT64, GenerationBody, SpeculationOptions

LEAST_TEMPERATURE = 1e-3


def stop_strings(body: GenerationBody, most: int, longest: int) -> list[str]:
    """The stop strings of a body, checked."""
    stops = [body.stop] if isinstance(body.stop, str) else (body.stop or [])
    if len(stops) > most:
        raise ApiError(400, f"At most {most} stop strings are allowed.", param="stop")
    for stop in stops:
        if not stop:
            raise ApiError(400, "A stop string is empty.", param="stop")
        if len(stop) > longest:
            raise ApiError(400, f"Stop strings have at most {longest} characters.", param="stop")
    return stops


def choose_method(runtime: Runtime, wish: SpeculationOptions | None) -> tuple[str, int, int]:
    """(method, planner index, block size or 0) that a request is served with."""
    if wish is None:
        return runtime.default_method, runtime.methods[runtime.default_method], 0
    if wish.enabled is False:
        if wish.method not in (None, "ar"):
            raise ApiError(
                400,
                "speculation.enabled is false, yet a method is named.",
                param="speculation.method",
            )
        return "ar", runtime.methods["ar"], 0
    method = wish.method or runtime.default_method
    if method not in runtime.methods:
        raise ApiError(
            400,
            f"Unknown or unavailable method. {nearest(method, runtime.methods)}",
            param="speculation.method",
            code="invalid_value",
        )
    block = wish.block_size or 0
    if block and method not in TAKES_BLOCK:
        raise ApiError(
            400,
            f"The method '{method}' has no fixed block size.",
            param="speculation.block_size",
            code="invalid_value",
        )
    return method, runtime.methods[method], block


def sampling_of(runtime: Runtime, body: GenerationBody, seed: int) -> Sampling:
    """Sampling of one answer; choice i of a seeded request uses seed + i."""
    temperature = runtime.settings.temperature if body.temperature is None else body.temperature
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ApiError(
            400,
            f"temperature must be 0 (greedy) or at least {LEAST_TEMPERATURE:g}.",
            param="temperature",
        )
    return Sampling(
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=(seed + INT64) % (2 * INT64) - INT64,
        logit_bias=biases_of(body, runtime.model.config.vocab),
    )


def biases_of(body: GenerationBody, vocab: int) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs of a body, checked."""
    pairs = []
    for name, bias in (body.logit_bias or {}).items():
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < vocab):
            raise ApiError(400, f"Keys are token ids below {vocab}.", param="logit_bias")
        if not -100 <= bias <= 100:
            raise ApiError(400, "A bias lies between -100 and 100.", param="logit_bias")
        pairs.append((int(name), float(bias)))
    if len(pairs) > 1024:
        raise ApiError(400, "At most 1024 tokens can be biased.", param="logit_bias")
    return tuple(pairs)
