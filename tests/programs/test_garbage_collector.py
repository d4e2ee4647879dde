"""What the servers change in the garbage collector, so that hardly any collection walks all objects of a large run."""

import gc

import pytest

from goodput import cli

FULL, YOUNG = {"generation": 2}, {"generation": 0}


class Clocks:
    """The clocks of a thread in which a collection takes `took` of its CPU time."""

    def __init__(self):
        self.now = self.cpu = 0.0

    def collect(self, collecting, info, took: float, later: float = 0.0) -> None:
        self.now += later
        collecting("start", info)
        self.cpu += took
        self.now += took
        collecting("stop", info)


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(cli.time, "monotonic", lambda: clocks.now)
    monkeypatch.setattr(cli.time, "thread_time", lambda: clocks.cpu)
    before = gc.get_threshold()
    gc.unfreeze()
    yield clocks
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.parametrize("info", [YOUNG, FULL])
def test_survivors_of_any_collection_are_frozen(clocks, info):
    collecting = cli._FreezeSurvivors(700)
    clocks.collect(collecting, info, 0.001)
    assert gc.get_freeze_count() > 1000


def test_all_are_unfrozen_for_a_seldom_full_collection(clocks):
    collecting, unfrozen = cli._FreezeSurvivors(700), []

    def collect(info, took: float = 0.0, later: float = 0.0) -> None:
        clocks.now += later
        collecting("start", info)
        unfrozen.append(gc.get_freeze_count() == 0)
        clocks.collect(lambda *_: None, info, took)
        collecting("stop", info)

    gc.freeze()
    collect(FULL)
    collect(YOUNG, later=cli.FULL_COLLECTION_SECONDS)
    collect(FULL, took=2.0)
    collect(FULL, later=cli.FULL_TIMES * 2.0 - 3)
    collect(FULL, later=3)
    assert unfrozen == [False, False, True, False, True], "one that took 2 s is not done every hour"


def test_costly_collections_of_young_objects_are_done_more_seldom(clocks):
    gc.set_threshold(700, 5, 200)
    collecting = cli._FreezeSurvivors(700)

    def threshold(share: float) -> int:
        """After ten seconds of which collections take this part."""
        clocks.collect(collecting, YOUNG, share * cli.YOUNG_SECONDS, later=(1 - share) * cli.YOUNG_SECONDS)
        assert gc.get_threshold()[1:] == (5, 200)
        return gc.get_threshold()[0]

    assert [threshold(0.005) for _ in range(2)] == [700, 700]
    assert [threshold(0.02) for _ in range(3)] == [1400, 2800, 2800], "a pause of many objects is long"
    assert threshold(0.005) == 2800
    assert [threshold(0.0001) for _ in range(3)] == [1400, 700, 700]
