"""Healthy trainings over gloo with long evaluations and slow checkpoints get no verdict, and a rank that stops gets one.

`make healthy-collectives` judges 50 of them, from seed FIRST on.
"""

import json
import os

import pytest
from support.forks import server_with
from support.frameworks.script_process import SCRIPTS
from support.frameworks.two_ranks import environment
from support.installed import need

need("torch")
RUNS = int(os.environ.get("HEALTHY_RUNS", "2"))
FIRST = int(os.environ.get("HEALTHY_FIRST", "1"))
AT_ONCE = 2
STALL_SECONDS = 1.0  # as in the script


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[dict]:
    directory = tmp_path_factory.mktemp("healthy")
    command = [str(SCRIPTS / "collectives/healthy_collectives.py"), str(directory)]
    command += [*map(str, range(FIRST, FIRST + RUNS)), "--at-once", str(AT_ONCE)]
    (made,) = server_with("torch").run((command, environment(directory, None)), seconds=60 * RUNS)
    assert made.returncode == 0, made.stderr[-4000:]
    found = [json.loads(line) for line in made.stdout.splitlines()]
    assert sorted(one["seed"] for one in found) == list(range(FIRST, FIRST + RUNS))
    return found


def test_no_verdict_while_ranks_evaluate_or_save(runs):
    for one in runs:
        assert one["longest_seconds"] > 1.5 * STALL_SECONDS and one["looks"] > 20, one
        assert one["verdicts"] == [], one


def test_rank_that_stops_is_found_at_once(runs):
    """The same thresholds: what was excused before is no blindness."""
    for one in runs:
        assert one["found"] is not None, one
        assert one["found"]["culprit"] == one["last"]
        assert one["found"]["collective"]["kind"] == "missing"
