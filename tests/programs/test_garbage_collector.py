"""What the servers change in the garbage collector, so that no collection walks all objects of a large run."""

import gc

from goodput import cli


def test_survivors_of_full_collections_are_frozen_for_a_time(monkeypatch):
    collecting, full, young = cli._FreezeSurvivors(), {"generation": 2}, {"generation": 1}
    gc.unfreeze()
    try:
        for phase in ("start", "stop"):
            collecting(phase, young)
        assert gc.get_freeze_count() == 0
        collecting("stop", full)
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        collecting("start", full)
        assert gc.get_freeze_count() >= frozen - 100, "the time is not over"
        monkeypatch.setattr(cli, "FULL_COLLECTION_SECONDS", 0.0)
        collecting("start", full)
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
