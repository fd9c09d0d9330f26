"""Settings file, versions, server arguments, admission: everything that is decided beforehand."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import recguide_core.sglang_plugin as room
from recguide_core.errors import DataError, MismatchError, RecGuideError, UsageError
from recguide_core.model.published import published_config
from recguide_core.model.weights import tensor_shapes
from recguide_core.records import MAX_BLOCK, Sampling
from recguide_core.sglang_plugin import versions
from recguide_core.sglang_plugin.admission import refusal, sampling_of, wish_of
from recguide_core.sglang_plugin.server_args import UNSUPPORTED, check_server, settle_server
from recguide_core.sglang_plugin.settings import (
    PluginSettings,
    read_settings,
    settings_from,
    write_settings,
)
from recguide_core.sglang_plugin.weight_names import parts_of, place_of


def params(**changes):
    plain = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 1 << 30, "min_p": 0.0, "sampling_seed": None,
        "logit_bias": None, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, "min_new_tokens": 0, "json_schema": None, "regex": None,
        "ebnf": None, "structural_tag": None, "custom_params": None,
    }  # fmt: skip
    return SimpleNamespace(**(plain | changes))


def request(sampling=None, **changes):
    plain = {
        "return_logprob": False, "grammar": None, "custom_logit_processor": None, "lora_id": None,
    }  # fmt: skip
    return SimpleNamespace(sampling_params=sampling or params(), **(plain | changes))


def test_settings_survive_their_file(tmp_path):
    path = tmp_path / "s.json"
    settings = PluginSettings(method="overlap", block=8, also=("ar",), layout="flat", load=4)
    write_settings(path, settings)
    assert read_settings(path) == settings


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ({"metod": "ar"}, "metod"),
        ({"method": "lnear"}, "linear"),
        ({"layout": "flatt"}, "flat"),
        ({"block": 33}, "33"),
        ({"entropy_positions": 0}, "entropy_positions"),
        ({"method": "tidar", "layout": "uniform"}, "flat"),
        ({"also": ["nope"]}, "nope"),
        ({"method": "dflash"}, "--drafter"),
    ],
)
def test_wrong_settings_are_refused_by_name(raw, word):
    with pytest.raises(UsageError, match=word):
        settings_from(raw)


def test_a_missing_or_broken_settings_file_is_explained(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_settings(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_settings(tmp_path / "broken.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match="object"):
        read_settings(tmp_path / "list.json")


def test_only_known_good_releases_are_accepted():
    assert versions.check_version("0.5.23") == "0.5.23"
    with pytest.raises(MismatchError, match=r"0\.5\.24.*0\.5\.23"):
        versions.check_version("0.5.24")
    with pytest.raises(RecGuideError, match="not installed"):
        versions.check_version(None)


def test_one_module_names_sglang():
    """Whoever adapts the plugin to a new release reads one file."""
    guilty = []
    for path in Path(room.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(name.split(".")[0] == "sglang" for name in names):
                guilty.append(path.name)
    assert set(guilty) == {"adapter.py"}


@pytest.mark.parametrize(("name", "allowed", "title"), UNSUPPORTED)
def test_server_arguments_that_rows_cannot_serve_are_refused(name, allowed, title):
    check_server(SimpleNamespace(**{name: allowed}))
    other = {1: 2, False: True, None: True, "null": "prefill", "auto": "fp8_e4m3"}[allowed]
    with pytest.raises(UsageError, match=name):
        check_server(SimpleNamespace(**{name: other}))


def test_sglangs_own_graphs_must_be_off_on_cuda():
    check_server(SimpleNamespace(device="cuda", disable_cuda_graph=True))
    check_server(SimpleNamespace(device="cpu", disable_cuda_graph=False))
    with pytest.raises(UsageError, match="--disable-cuda-graph"):
        check_server(SimpleNamespace(device="cuda", disable_cuda_graph=False))


def test_a_flat_server_reserves_one_block_and_runs_synchronously():
    args = SimpleNamespace()
    settle_server(args, PluginSettings(method="recguide"))
    assert args.speculative_num_draft_tokens == MAX_BLOCK
    assert args.disable_overlap_schedule
    settle_server(args, PluginSettings(method="overlap", layout="uniform"))
    assert args.speculative_num_draft_tokens == 4 * MAX_BLOCK


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (request(return_logprob=True), "return_logprob"),
        (request(grammar=object()), "grammar"),
        (request(params(regex="a+")), "grammar"),
        (request(params(repetition_penalty=1.1)), "penalty"),
        (request(params(min_new_tokens=3)), "min_new_tokens"),
        (request(custom_logit_processor="x"), "logit processor"),
        (request(lora_id="a"), "LoRA"),
        (request(params(beam_width=4)), "beam"),
        (request(multimodal_inputs=object()), "multimodal"),
        (request(params(custom_params={"method": "nope"})), "nope"),
        (request(params(custom_params={"block_size": 99})), "99"),
        (request(params(custom_params={"block_size": "8"})), "block_size"),
    ],
)
def test_unsupported_requests_are_refused_with_the_reason(made, word):
    assert word in (refusal(made, ("linear",)) or "")


def test_supported_requests_pass():
    assert refusal(request()) is None
    asked = params(custom_params={"method": "linear", "block_size": 8}, temperature=0.5)
    assert refusal(request(asked), ("linear",)) is None
    assert wish_of(asked) == ("linear", 8)


def test_sglangs_spelling_of_greedy_is_understood():
    """SGLang turns temperature 0 into temperature 1 with top-k 1."""
    assert sampling_of(params(top_k=1)) == Sampling()
    drawn = sampling_of(params(temperature=0.7, top_p=0.9, sampling_seed=5))
    assert drawn == Sampling(temperature=0.7, top_p=0.9, top_k=0, seed=5)
    assert sampling_of(params(top_k=1, logit_bias={"7": 2})).logit_bias == ((7, 2.0),)


def test_published_names_find_their_fused_parameters():
    place = place_of("encoder.layers.3.self_attn.k_proj.weight")
    assert (place.parameter, place.shard) == ("encoder.layers.3.self_attn.qkv_proj.weight", "k")
    place = place_of("encoder.layers.3.mlp.up_proj.weight")
    assert (place.parameter, place.shard) == ("encoder.layers.3.mlp.gate_up_proj.weight", 1)
    assert place_of("diffusion_head.weight").parameter == "diffusion_head.weight"


def test_every_published_tensor_fills_exactly_one_part():
    names = tensor_shapes(published_config("nld-3b"))
    places = [(p.parameter, p.shard) for p in map(place_of, names)]
    assert len(set(places)) == len(places)
    parts = {part for parameter in {p for p, _ in places} for part in parts_of(parameter)}
    assert parts == set(places)
