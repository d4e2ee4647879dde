"""A rank with a device clock, as the agent follows it: rows that grow and close, and one series per clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.node.node_tree import samples

from goodput.metrics import Families
from goodput.rank_page import reader
from goodput.wire import schema


@pytest.fixture
def forge(settings, monkeypatch):
    from support.rank_page.page_forge import Forge
    from support.rank_page.page_maker import Rank

    made = Forge(Rank(settings.directory, start_unix_ns=10**18, world_size=1))
    monkeypatch.setattr(reader, "monotonic_ns", lambda: made.now)
    yield made
    made.rank.writer.close()


def clocks(families) -> dict[tuple[str, str], float]:
    """Phase seconds by (phase, clock)."""
    name = "goodput_phase_seconds_total"
    return {(of[1], of[0]): value for (one, of), value in samples(families).items() if one == name}


def test_rows_are_reported_when_the_device_has_answered(forge, ranks, settings):
    (path,) = Path(settings.directory).glob("*.page")
    for _ in range(4):
        forge.step()
    forge.settle(2)
    # This process holds the page's lock itself, which a test for a lock does not see: the page is taken as dead.
    (first,) = ranks.poll()
    assert [row.device_ns for row in first.steps] == [30, 60, 60, 60], "a dead rank's steps wait for nothing"
    forge.step()
    forge.settle(5)
    (second,) = ranks.poll()
    assert [(row.number, row.device_ns) for row in second.steps] == [(5, 90)]
    for report in (first, second):
        schema.check(report)
    assert sum(second.live.totals) == 150 and path.exists()


def test_steps_wait_while_the_rank_lives(forge, ranks, monkeypatch):
    monkeypatch.setattr(reader.Reader, "alive", lambda *_: True)
    for _ in range(4):
        forge.step()
    forge.settle(2)
    (first,) = ranks.poll()
    assert [row.number for row in first.steps] == [1, 2] and first.live.steps_done == 4
    forge.settle(4)
    (second,) = ranks.poll()
    assert [row.number for row in second.steps] == [3, 4]
    schema.check(second)
    loader = second.phases.index("loader")
    assert second.steps[-1].totals[loader] == second.live.totals[loader] == 0


def test_there_is_a_series_for_each_clock(forge, ranks):
    for _ in range(4):
        forge.step(10**9, 2 * 10**9, device=(1, 9))
    forge.settle(4)
    ranks.poll()
    families = Families("node")
    ranks.collect(families)
    found = clocks(families)
    assert found["loader", "host"] == 4 and found["forward", "host"] == 8
    assert found["loader", "device"] == pytest.approx(1.2) and found["forward", "device"] == pytest.approx(
        10.8
    )


def test_a_rank_without_one_has_the_hosts_alone(forge, ranks):
    forge.words[reader.page.W_DEVICE_STATE] = 0
    forge.step()
    ranks.poll()
    families = Families("node")
    ranks.collect(families)
    assert {clock for _, clock in clocks(families)} == {"host"}
