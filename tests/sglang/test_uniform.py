"""The padded fallback through SGLang's stock Triton attention, in Triton's interpreter."""

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import greedy, run_sglang

from recguide_core.sglang_plugin.settings import PluginSettings

pytestmark = pytest.mark.slow
TOKENS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory, prompts):
    def by(method, i):
        wish = {"method": method, "block_size": 6}
        return greedy(f"{method}-{i}", prompts[i], TOKENS, custom_params=wish)

    waves = [
        [by("overlap", 0)],
        [by("linear", 1), by("overlap", 2), by("overlap", 3)],
    ]
    return run_sglang(
        tmp_path_factory.mktemp("uniform"),
        [{"requests": wave} for wave in waves],
        PluginSettings(method="auto", also=("linear", "overlap"), layout="uniform"),
        {"attention_backend": "triton", "max_total_tokens": 2048},
        environment={"TRITON_INTERPRET": "1"},
    )


def test_padded_rows_give_the_tokens_of_ar(run, autoregressive):
    answers = [a for wave in run["waves"] for a in wave]
    for i, answer in enumerate(answers):
        assert answer["tokens"] == autoregressive[i][:TOKENS], i


def test_the_fallback_is_reported_with_its_method(run):
    assert "layout uniform" in run["log"]
    assert "auto: " in run["log"] and "uniform layout" in run["log"]
