"""What the server says of itself: Prometheus text, server info, the log line, the dashboard."""

import json
import logging
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
MODEL = "nld-tiny"


def samples(live):
    """(name, labels) -> value of every sample."""
    text = httpx.get(f"{live.url}/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def gained(before, after, name, **labels):
    """How much the samples of a name with these labels grew."""
    wanted = set(labels.items())
    return sum(
        value - before.get(key, 0.0)
        for key, value in after.items()
        if key[0] == name and wanted <= set(key[1])
    )


def test_counters_agree_with_the_answers(live):
    before = samples(live)
    answers = [live.chat(max_tokens=24).json(), live.chat(max_tokens=16, n=2).json()]
    live.settled()
    after = samples(live)
    tokens = sum(a["usage"]["completion_tokens"] for a in answers)
    rounds = sum(a["usage"]["speculation"]["rounds"] for a in answers)
    forwards = sum(a["usage"]["speculation"]["forwards"] for a in answers)
    assert gained(before, after, "recguide_output_tokens_total") == tokens == 56
    assert gained(before, after, "recguide_answers_total", finish="length") == 3
    assert gained(before, after, "recguide_rounds_total", method="overlap") == rounds
    assert gained(before, after, "recguide_decode_forwards_total") == forwards
    assert gained(before, after, "recguide_round_tokens_total") == tokens - 3
    assert gained(before, after, "recguide_accepted_length_tokens_count") == rounds
    assert gained(before, after, "recguide_verified_drafts_total") == rounds
    for name in ("time_to_first_token_seconds", "request_seconds", "request_tau"):
        assert gained(before, after, f"recguide_{name}_count") == 3
    assert gained(before, after, "recguide_time_per_output_token_seconds_count") == 3
    assert gained(before, after, "recguide_chunk_tokens_sum") == tokens
    assert gained(before, after, "recguide_inter_token_seconds_count") == tokens - 3
    chunks = gained(before, after, "recguide_chunk_tokens_count")
    assert gained(before, after, "recguide_inter_chunk_seconds_count") == chunks - 3


def test_branch_outcomes_add_up(live):
    before = samples(live)
    # Some branches of this text are right and some are not.
    asked = [{"role": "user", "content": "Write a python function that adds two numbers."}]
    spec = live.chat(messages=asked, max_tokens=60).json()["usage"]["speculation"]
    live.settled()
    after = samples(live)
    hits = gained(before, after, "recguide_branches_total", outcome="hit")
    assert gained(before, after, "recguide_branches_total") > hits
    # A branch that the very last round hit is never verified.
    assert spec["branch_hits"] <= hits <= spec["branch_hits"] + 1


def test_gauges_come_back(live):
    live.chat(max_tokens=4)
    live.settled()
    now = samples(live)
    assert now["recguide_running", ()] == now["recguide_waiting", ()] == 0
    assert now["recguide_kv_free_tokens", ()] == now["recguide_kv_tokens", ()]


def test_server_info_says_what_is_in_force(live):
    info = httpx.get(f"{live.url}/server_info").json()
    assert info["lossless"]["level"] == "near-tie-equal"
    assert info["model"]["hash"] == live.runtime.model.hash
    assert info["default_method"] == "overlap"
    assert set(info["methods"]) == set(live.runtime.methods)
    assert info["engine"]["kv_free_tokens"] == info["engine"]["kv_tokens"]
    assert info["start_up"]["weight_bytes"] > 0
    server = next(k for k in samples(live) if k[0] == "recguide_server_info")
    assert dict(server[1])["lossless"] == "near-tie-equal"


@pytest.mark.parametrize("ends_well", [True, False])
def test_one_structured_line_a_request(live, caplog, ends_well):
    with caplog.at_level(logging.INFO, logger="recguide.request"):
        live.chat(max_tokens=8 if ends_well else -8)
        # The line is written once the answer is out.
        for _ in range(200):
            lines = [r.getMessage() for r in caplog.records if r.name == "recguide.request"]
            if lines:
                break
            time.sleep(0.02)
    assert len(lines) == 1
    line = json.loads(lines[0])
    assert line["path"] == "/v1/chat/completions"
    assert line["status"] == (200 if ends_well else 400)
    if ends_well:
        assert line["completion_tokens"] == 8 and line["ttft_ms"] > 0
        assert line["method_used"] == "overlap" and line["rounds"] > 0
    else:
        assert line["error"] == "invalid_value"


def test_a_clients_request_id_comes_back(live):
    named = httpx.get(f"{live.url}/v1/models", headers={"x-request-id": "abc-1"})
    assert named.headers["x-request-id"] == "abc-1"
    odd = httpx.get(f"{live.url}/v1/models", headers={"x-request-id": "a b\tc"})
    assert odd.headers["x-request-id"].startswith("req-")


def test_every_metric_of_the_dashboard_exists(live):
    import re

    live.chat(max_tokens=24)
    live.settled()
    exposed = {name for name, _ in samples(live)}
    board = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    queries = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    assert len(queries) >= 12
    asked = {name for query in queries for name in re.findall(r"recguide_\w+", query)}
    assert asked <= exposed


def test_usage_can_leave_speculation_out(start_server):
    quiet = start_server(speculation_usage=False)
    assert "speculation" not in quiet.chat(max_tokens=3).json()["usage"]
