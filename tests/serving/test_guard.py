"""Bodies at the door, and how much gets through."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.serving.admission import Admission
from recguide_core.serving.errors import ApiError
from recguide_core.serving.guard import check_json


def nested(depth):
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1,}',
        b'{"a": "\xc3\x28"}',
        b"9" * 5000,
        nested(40),
        b'{"a":' * 40 + b"1" + b"}" * 40,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_malformed_bodies_are_refused_with_400(body):
    with pytest.raises(ApiError) as caught:
        check_json(body, 32)
    assert caught.value.status == 400
    assert caught.value.code == "malformed_json"


def test_brackets_in_strings_do_not_count():
    assert check_json(b'{"a": "' + b"[" * 100 + b'\\"[[["}', 4) == {"a": "[" * 100 + '"[[['}
    assert check_json(nested(32), 32) is not None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body):
    try:
        check_json(body, 8)
    except ApiError as error:
        assert error.status == 400


def test_a_hostile_string_is_scanned_once():
    body = b'"' + b'\\"' * 500_000
    began = time.process_time()
    with pytest.raises(ApiError):
        check_json(body, 32)
    # Quadratic scanning would take minutes; the bound only tells the two apart.
    assert time.process_time() - began < 20


def test_the_queue_is_bounded_and_says_when_to_come_back():
    admission = Admission(slots=2, queue=3)
    admission.enter(5)
    assert admission.waiting == 3
    with pytest.raises(ApiError) as caught:
        admission.enter(1)
    assert caught.value.status == 429
    assert caught.value.retry_after >= 1
    admission.leave(0.5)
    admission.enter(1)
    with pytest.raises(ApiError) as caught:
        admission.enter(6)
    assert caught.value.status == 400


def test_a_draining_server_lets_nobody_in():
    admission = Admission(slots=2, queue=3)
    admission.draining = True
    with pytest.raises(ApiError) as caught:
        admission.enter(1)
    assert caught.value.status == 503
