"""Planted faults are in the stories, and innocent days blame nothing: a short form of `make replay-stories`."""

import pytest
from bench.alert_replay.innocent import innocent
from bench.alert_replay.planted import planted
from bench.detection import story as worlds

UNTIL = 112 * worlds.MINUTE
LATER = ("burns",)  # whose fault begins after that
JOBS = "job-"  # those that change on every node have no fault of their own


@pytest.fixture(scope="module")
def morning() -> worlds.Stories:
    scenario, _ = planted(60)
    scenario.runs = [one for one in scenario.runs if one.run not in LATER and not one.run.startswith(JOBS)]
    early = tuple(one.at for one in worlds.EXPECTED if one.at is not None)
    return worlds.stories(scenario, 30, early, UNTIL)


def test_planted_faults_are_in_the_stories(morning):
    over = [one for one in worlds.EXPECTED if one.end * worlds.MINUTE <= UNTIL]
    assert len(over) == 18 and sum(at <= UNTIL for at, *_ in morning.hardware) == 11
    assert worlds.lacking(morning, UNTIL) == []


def test_nothing_else_is_blamed(morning):
    assert worlds.unplanned(morning) == []
    assert worlds.as_causes(morning) == []


def test_innocent_days_blame_nothing():
    found = worlds.stories(innocent(2, 1, days=1.6), 240)
    kinds = {event["kind"] for story in found.final.values() for event in story["events"]}
    assert {"restart", "hardware"} <= kinds
    assert worlds.false_blames(found) == []
    assert worlds.as_causes(found) == []
