"""A calibration that is killed goes on where it was, and refuses another run's log."""

import pytest

from recguide_core.calibration.run import collect
from recguide_core.calibration.settings import ShadowSettings
from recguide_core.datasets import Prompt
from recguide_core.errors import DataError, MismatchError
from recguide_core.tables import read_rows

SETTINGS = ShadowSettings(requests=4, max_tokens=24, menu=(1, 4, 8), batch=2)
PROMPTS = [
    Prompt(f"demo/{i}", (("user", f"What is {i + 2} plus {i + 3}?"),), "demo") for i in range(4)
]
LOG = "cpu-nld-tiny.trace.jsonl"


class KilledError(Exception):
    """Stands in for a kill."""


def kill_after(requests):
    def watch(done, total):
        if done >= requests:
            raise KilledError

    return watch


def keys(table):
    columns = table.columns
    names = ("request", "round", "block_size", "chosen", "accepted", "verdict")
    return sorted(zip(*(columns[n].tolist() for n in names), strict=True))


def test_a_killed_run_resumes_to_the_same_trace(tmp_path):
    whole = collect(PROMPTS, SETTINGS, tmp_path / "whole")
    part = tmp_path / "part"
    with pytest.raises(KilledError):
        collect(PROMPTS, SETTINGS, part, on_request=kill_after(2))
    log = part / LOG
    kept = len(read_rows(log))
    # The kill may also cut a request's rows short, in the middle of a line.
    with log.open("ab") as stream:
        stream.write(b'{"data": "demo", "request": "x", "round": 0}\n{"data": "de')
    seen = []
    resumed = collect(PROMPTS, SETTINGS, part, on_request=lambda done, total: seen.append(done))
    assert kept > 1
    assert seen[0] == 2, "finished requests are not decoded again"
    assert keys(resumed) == keys(whole)
    assert not log.exists()


def test_another_runs_log_is_refused_until_overwritten(tmp_path):
    with pytest.raises(KilledError):
        collect(PROMPTS, SETTINGS, tmp_path, on_request=kill_after(1))
    other = ShadowSettings(requests=4, max_tokens=24, menu=(1, 4, 8), batch=2, seed=9)
    with pytest.raises(MismatchError, match="another seed: 0, not 9"):
        collect(PROMPTS, other, tmp_path)
    table = collect(PROMPTS, other, tmp_path, overwrite=True)
    assert table.provenance["seed"] == "9"


def test_prompts_without_rounds_are_an_error(tmp_path):
    with pytest.raises(DataError, match="No round came"):
        collect([], SETTINGS, tmp_path)
