"""schemathesis against the server's own schema: whatever it sends, no answer is a 5xx."""

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (extra dev)")
GenerationMode = schemathesis.GenerationMode

EXAMPLES = 20
OPERATIONS = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/playground/stream", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{model}", "GET"),
    ("/health", "GET"),
    ("/ready", "GET"),
    ("/metrics", "GET"),
    ("/server_info", "GET"),
]


@pytest.fixture(scope="module")
def own_schema(shared):
    return schemathesis.openapi.from_url(f"{shared.url}/openapi.json")


def within_budget(case):
    """Bodies name the served model and ask for little, or the test would wait for long answers."""
    if isinstance(case.body, dict) and case.path.startswith(("/v1", "/playground")):
        if isinstance(case.body.get("model"), str):
            case.body["model"] = "nld-tiny"
        case.body.pop("max_completion_tokens", None)
        asked = case.body.get("max_tokens")
        if asked is None or (isinstance(asked, int) and asked > 4):
            case.body["max_tokens"] = 4
        if isinstance(case.body.get("n"), int) and case.body["n"] > 2:
            case.body["n"] = 2
    return case


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_no_server_errors(own_schema, live, path, method, mode):
    if mode is GenerationMode.NEGATIVE and method == "GET":
        return  # without parameters there is nothing to get wrong
    operation = own_schema[path][method]

    @settings(
        max_examples=EXAMPLES if method == "POST" else 5,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        response = within_budget(case).call()
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert set(response.json()) == {"error"}

    check()


def test_the_schema_describes_every_route(shared):
    schema = httpx.get(f"{shared.url}/openapi.json").json()
    assert {path for path, _ in OPERATIONS} == set(schema["paths"])
    assert "422" not in str(list(schema["paths"]["/v1/completions"]["post"]["responses"]))
