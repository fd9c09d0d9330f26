"""`recguide profile --roofline`: floors for any forward, without a device."""

import json

import pytest


def test_floor_of_a_small_forward_is_the_weights(recguide):
    result = recguide(
        *("profile", "--model", "nld-8b", "--roofline", "--gpu", "h200", "--json"),
        *("--requests", "1,8", "--block-size", "16", "--context", "800", "--branches", "3"),
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ridge_tokens"] == pytest.approx(183, abs=1)
    small, large = report["forwards"]
    whole = small["parts"][-1]
    assert whole["bound"] == "bytes"
    # 15.9 GB of weights at 4.3 TB/s are 3.70 ms; branches at C = 1 hardly add to that.
    assert 3.70 < whole["ms"] < 3.85
    assert large["parts"][-1]["bound"] == "FLOPs"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "nld-9b"), ("nld-9b", "nld-8b")),
        (("--model", "nld-8b", "--gpu", "h2000"), ("h2000", "h200")),
        (("--model", "nld-8b", "--gpu", "h200", "--branches", "-1"), ("-1", "0 or more")),
    ],
)
def test_what_has_no_floor(recguide, assert_refused, arguments, words):
    assert_refused(recguide("profile", "--roofline", *arguments), 2, *words)
