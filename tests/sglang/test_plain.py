"""SGLang alone, without the algorithm: the model class serves AR, for what rows do not serve."""

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import greedy, run_sglang

pytestmark = pytest.mark.slow
TOKENS = 24


def test_the_model_class_gives_the_tokens_of_ar(tmp_path, prompts, autoregressive):
    requests = [greedy(str(i), ids, TOKENS) for i, ids in enumerate(prompts)]
    penalised = greedy("penalty", prompts[0], TOKENS, repetition_penalty=1.3)
    record = run_sglang(
        tmp_path,
        [{"requests": requests}, {"requests": [penalised]}],
        engine={"speculative_algorithm": None},
    )
    for answer, expected in zip(record["waves"][0], autoregressive, strict=True):
        assert answer["tokens"] == expected[:TOKENS]
    # What rows refuse is served here, as the refusal says.
    (answer,) = record["waves"][1]
    assert "error" not in answer
    assert answer["finish"] == {"type": "length", "length": TOKENS}
