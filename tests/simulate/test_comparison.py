"""The comparison with the truth passes where the stack is right, and fails for each figure that is wrong."""

from __future__ import annotations

import copy

import pytest

from goodput.simulate.check.comparison import compare, text, together
from goodput.simulate.check.simulation import Outcome, quiet_times
from goodput.simulate.check.stack import Observation

CULPRIT = {
    "kind": "backward",
    "rank": 3,
    "stage": None,
    "begin_seconds": 100.0,
    "end_seconds": 400.0,
    "slowdown": 1.3,
}
HANG = {"kind": "hang", "ranks": [5], "begin_seconds": 500.0, "end_seconds": 650.0}
RUN = {
    "run": "r",
    "begin_seconds": 0.0,
    "end_seconds": 900.0,
    "gpu_seconds": 7200.0,
    "stall_threshold_seconds": 60.0,
    "states": {"productive": 5000.0, "straggler": 1000.0, "stall": 1200.0, "down": 0.0},
    "culprits": [CULPRIT],
    "hangs": [HANG],
}


def right() -> Outcome:
    """What a stack says that is right throughout."""
    observations = []
    for now in range(0, 900, 10):
        hangs = 570 <= now < 650
        observations.append(
            Observation(now, 10.0 * hangs, 5 if hangs else None, 3 if 130 <= now <= 900 else None, None)
        )
    nobody = {"straggler": {"culprit": None, "culprit_stage": None}, "start": 0.0, "end": 90.0}
    named = {"straggler": {"culprit": 3, "culprit_stage": None, "because_phase": "backward"}}
    return Outcome(
        truth={"runs": [copy.deepcopy(RUN)], "health": [{"run": "r", "kind": "xid", "severity": "critical"}]},
        observations={"r": observations},
        accounts={"r": {"gpu_seconds": 7200.0, "states": {**RUN["states"], "launch": 0.0}}},
        windows={"r": [named]},
        quiet={"r": [nobody, copy.deepcopy(nobody)]},
        health={("r", "xid", "critical"): 1},
        pushes={"accepted": 90},
    )


def test_right_figures_pass():
    report = together([compare(right()), compare(right())])
    assert report.failures == [] and report.notes == []
    scores = report.document()["scores"]
    assert scores["hangs"]["recall"] == scores["culprits, in their time's account"]["precision"] == 1
    assert scores["culprits, as alerts see them"]["delay_seconds_median"] == 30
    assert scores["hangs"]["delay_seconds_max"] == 10
    assert "all within tolerance" in text(report)
    assert quiet_times(RUN) == [(0.0, 100.0), (400.0, 900.0)]


def _wrong_state(outcome):
    outcome.accounts["r"]["states"] |= {"productive": 4900.0, "straggler": 1100.0}


def _unknown_state(outcome):
    outcome.accounts["r"]["states"] |= {"launch": 100.0}


def _wrong_sum(outcome):
    outcome.accounts["r"]["gpu_seconds"] = 7300.0


def _wrong_culprit(outcome):
    outcome.windows["r"][0]["straggler"]["culprit"] = 4


def _wrong_phase(outcome):
    outcome.windows["r"][0]["straggler"]["because_phase"] = "forward"


def _blamed_when_quiet(outcome):
    outcome.quiet["r"][1]["straggler"]["culprit"] = 3


def _unseen_by_alerts(outcome):
    for one in outcome.observations["r"]:
        one.slow_rank = None


def _wrong_in_alerts(outcome):
    outcome.observations["r"][3].slow_stage = 1


def _wrong_hang(outcome):
    for one in outcome.observations["r"]:
        one.hang_rank = 6 if one.hang_rank else None


def _late_hang(outcome):
    for one in outcome.observations["r"]:
        if one.now < 600:
            one.hang_seconds, one.hang_rank = 0.0, None


def _false_hang(outcome):
    outcome.observations["r"][20].hang_seconds = 61.0


def _event_counted_twice(outcome):
    outcome.health["r", "xid", "critical"] = 2


def _rejected_report(outcome):
    outcome.refusals.append("r rank 3: claim: another process")


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (_wrong_state, "productive is 4900.0 GPU-seconds, 5000.0 in truth: 1.39% off"),
        (_unknown_state, "launch is 100.0"),
        (_wrong_sum, "7300.0 GPU-seconds in all"),
        (_wrong_culprit, "culprits, in their time's account: recall 0"),
        (_wrong_phase, "phases of culprits: recall 0"),
        (_blamed_when_quiet, "culprits, in their time's account: precision 0.5"),
        (_unseen_by_alerts, "culprits, as alerts see them: recall 0"),
        (_wrong_in_alerts, "culprits, as alerts see them: precision 0.5"),
        (_wrong_hang, "hang from 500 to 650 s, of [5]: named after ever"),
        (_late_hang, "named after 40 s"),
        (_false_hang, "a hang is reported at 200 s, and there is none"),
        (_event_counted_twice, "health events: precision 0.5"),
        (_rejected_report, "1 rank reports were rejected, first r rank 3: claim"),
    ],
)
def test_wrong_figures_fail(spoil, problem):
    outcome = right()
    spoil(outcome)
    report = together([compare(outcome)])
    assert any(problem in failure for failure in report.failures), report.failures
    assert "FAILED" in text(report)
