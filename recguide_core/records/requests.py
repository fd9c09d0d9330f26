"""A request at the edges: what is asked for, how it is sampled, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from recguide_core.records.kinds import Finish, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; the default is greedy.

    With `temperature > 0` token t_i = argmax(z_i / T + g(seed, position)): position-keyed
    Gumbel-max, so every method emits the tokens of seeded AR sampling.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(slots=True)
class Request:
    """One generation job.

    Attributes:
        key: caller's name of the request, unique among live requests.
        prompt: token ids, int64 [n], n >= 1.
        max_tokens: at most this many tokens are emitted (>= 1).
        stop_ids: token ids that end the output (included in it), beside the model's EOS.
        ignore_eos: go on after EOS (benchmarks with a fixed output length).
        stop: called with each emitted token in order; True ends the output at that token.
        logprobs: None, or how many top alternatives to report beside each token's logprob.
        planner: index of the engine's planner that serves this request (0 = default).
    """

    key: str
    prompt: IntArray
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop: Callable[[int], bool] | None = None
    logprobs: int | None = None
    planner: int = 0


@dataclass(slots=True)
class Finished:
    """A request at its end.

    Attributes:
        tokens: emitted token ids, int64 [n]; the stopping token is included.
        origins: `Origin` per token, int64 [n].
        logprobs: of each token under the verifier, float32 [n], when asked for.
        rounds, forwards, reused: decode rounds; forwards that carried the request's decode rows;
            rounds whose draft came from a branch. The prefill counts for none of them.
        round_tokens: tokens that rounds emitted (the prefill's first token is none of them).
    """

    key: str
    tokens: IntArray
    origins: IntArray
    finish: Finish
    rounds: int
    forwards: int
    reused: int
    round_tokens: int
    logprobs: FloatArray | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    error: str | None = None
