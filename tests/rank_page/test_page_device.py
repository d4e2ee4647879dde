"""A page's steps on the device clock, as a reader gives them: whole, growing, closed, and late only while they may be."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_page.page_forge import FORWARD, GAVE_UP, LOADER, Forge
from support.rank_page.page_maker import Rank

from goodput.rank_page import page
from goodput.rank_page import reader as page_reader
from goodput.rank_page.device_steps import SILENT_NS, apportion
from goodput.rank_page.records import device_record


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**12), min_size=1, max_size=page.PHASE_SLOTS))
def test_parts_are_the_nearest_whole_numbers(length, weights):
    parts = apportion(length, weights)
    total = sum(weights)
    if not total:
        assert parts == [0] * len(weights)
        return
    assert sum(parts) == length and min(parts) >= 0
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * total - length * weight) < total
        assert part <= weight or length > total


@pytest.fixture
def forge(tmp_path, monkeypatch) -> Forge:
    made = Forge(Rank(tmp_path))
    monkeypatch.setattr(page_reader, "monotonic_ns", lambda: made.now)
    yield made
    made.rank.writer.close()


def closed(snapshot, before=None):
    """Rows follow each other, grow in every phase and sum to the wall time; so do the totals of now."""
    zero = (0,) * len(snapshot.phases)
    totals, outside, end, device_ns = before or (zero, zero, snapshot.identity["start_mono_ns"], 0)
    for row in snapshot.steps:
        assert all(map(int.__ge__, row.totals, totals)) and row.device_ns >= device_ns
        assert sum(row.totals) - sum(totals) == row.end_ns - end
        inside = [
            t - u - (o - p) for t, u, o, p in zip(row.totals, totals, row.outside, outside, strict=True)
        ]
        assert min(inside) >= 0 and row.device_ns - device_ns <= sum(inside)
        totals, outside, end, device_ns = row.totals, row.outside, row.end_ns, row.device_ns
    assert all(map(int.__ge__, snapshot.totals, totals))
    assert sum(snapshot.totals) == snapshot.last_ns - snapshot.identity["start_mono_ns"]
    assert sum(snapshot.host_totals) == sum(snapshot.totals)
    return totals, outside, end, device_ns


def loaders(snapshot) -> list[int]:
    totals = [0, *(row.totals[LOADER] for row in snapshot.steps)]
    return [now - then for now, then in zip(totals[1:], totals, strict=False)]


def test_without_a_device_clock_the_host_clock_counts(forge):
    forge.words[page.W_DEVICE_STATE] = page.DEVICE_STATES.index("host")
    forge.words[page.W_DEVICE_WHY] = page.DEVICE_WHYS.index("no device")
    forge.step()
    with forge.reader() as reader:
        snapshot = reader.snapshot()
    assert loaders(snapshot) == [10] and snapshot.device_totals == () and snapshot.device_ns == 0
    assert (snapshot.device_state, snapshot.device_why) == ("host", "no device")


def test_a_step_waits_for_its_device_record(forge):
    for _ in range(5):
        forge.step()
    forge.settle(3)
    forge.spend(LOADER, 7)
    with forge.reader() as reader:
        first = reader.snapshot(alive=True)
        assert loaders(first) == [0, 0, 0] and first.steps_done == 5 and first.device_ns == 90
        # What follows the last step is the host's: two steps and 7 of a third.
        assert first.totals[LOADER] == 27 and first.totals[FORWARD] == 90 + 40
        before = closed(first)
        forge.settle(5)
        second = reader.snapshot(first.steps[-1].number, alive=True)
        assert [row.number for row in second.steps] == [4, 5] and second.totals[LOADER] == 7
        closed(second, before)
        assert second.device_totals[FORWARD] == 150 and second.host_totals[LOADER] == 57
        # For a scrape: no steps, and the totals go on from the last look.
        forge.step()
        forge.settle(6)
        scrape = reader.snapshot(page.NS_MAX, page.NS_MAX)
        assert scrape.steps == [] and scrape.device_totals == second.device_totals
        assert scrape.totals[LOADER] == 17
        assert [row.number for row in reader.snapshot(5, alive=True).steps] == [6]


@pytest.mark.parametrize("over", ["dead", "ended", "gave up", "silent", "far behind"])
def test_a_step_does_not_wait_for_ever(forge, monkeypatch, over):
    for _ in range(5):
        forge.step()
    forge.settle(3)
    want = [0, 0, 0, 10, 10]
    if over == "ended":
        forge.words[page.W_ENDED] = 1
    elif over == "gave up":
        forge.words[page.W_DEVICE_STATE] = GAVE_UP
    elif over == "silent":
        monkeypatch.setattr(page_reader, "monotonic_ns", lambda: forge.now + SILENT_NS + 1)
    elif over == "far behind":
        for _ in range(page.DEVICE_WAIT_STEPS - 1):
            forge.step()
        want = want[:4]
    with forge.reader() as reader:
        snapshot = reader.snapshot(alive=over != "dead")
        assert loaders(snapshot) == want
        before = closed(snapshot)
        # If the records come after all, nothing is taken back.
        forge.settle(forge.steps)
        forge.step()
        forge.settle(forge.steps)
        later = reader.snapshot(snapshot.steps[-1].number, alive=True)
        closed(later, before)
        assert later.steps[-1].number == forge.steps
        assert later.steps[-1].totals[LOADER] == before[0][LOADER]


def test_steps_before_the_device_clock_are_the_hosts(forge):
    for _ in range(4):
        forge.step(device=None)
    forge.words[page.W_DEVICE_BASE] = forge.words[page.W_DEVICE_DONE] = 4
    for _ in range(4):
        forge.step()
    forge.settle(8)
    with forge.reader() as reader:
        snapshot = reader.snapshot()
        assert loaders(snapshot) == [10] * 4 + [0] * 4
        closed(snapshot)


def test_overwritten_device_records_are_interpolated(forge):
    """1000 steps at once, of which the device ring holds the last 256."""
    rng = random.Random(1)
    for number in range(1, 1001):
        forge.step(10 + rng.randrange(9), 20, between=number % 3, device=(1, 9) if number % 2 else None)
        forge.settle(number)
    with forge.reader() as reader:
        snapshot = reader.snapshot()
        closed(snapshot)
    assert [row.number for row in snapshot.steps] == list(range(1, 1001))
    assert [(row.totals, row.device_ns) for row in snapshot.steps[744:]] == [
        (forge.truth[n][0][: len(snapshot.phases)], forge.truth[n][1]) for n in range(745, 1001)
    ]
    # In between, every step has its part of what they all had.
    for number in (200, 400, 600):
        row = snapshot.steps[number - 1]
        assert row.totals[LOADER] == pytest.approx(forge.truth[number][0][LOADER], rel=0.02)
        assert row.device_ns == pytest.approx(forge.truth[number][1], rel=0.02)


def test_reader_after_both_rings_are_overwritten(forge):
    for number in range(1, 3001):
        forge.step(device=(1, 5))
        forge.settle(number)
    with forge.reader() as reader:
        snapshot = reader.snapshot()
    assert len(snapshot.steps) == page.STEP_RING
    assert snapshot.steps[0].totals[LOADER] == 5 * snapshot.steps[0].number
    assert sum(snapshot.totals) == 3000 * 30 and snapshot.device_ns == 90_000


def test_failed_snapshot_is_repeated(forge):
    """The caller asks for the same steps again: it gets the same."""
    for _ in range(5):
        forge.step()
    forge.settle(5)
    with forge.reader() as reader:
        first = reader.snapshot(0, alive=True)
        again = reader.snapshot(0, alive=True)
        assert first.steps == again.steps
        forge.step()
        forge.settle(6)
        one = reader.snapshot(5, alive=True)
        assert reader.snapshot(5, alive=True).steps == one.steps
        assert reader.snapshot(2, alive=True).steps == [*first.steps[2:], *one.steps]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_snapshots_in_any_order_sum_to_wall_time(tmp_path_factory, data):
    """Random steps, records late, missing or of the host's; a reader that follows and one that comes anew agree."""
    draw = data.draw
    forge = Forge(Rank(tmp_path_factory.mktemp("page")))
    followed, before, rows = forge.reader(), None, []
    for _ in range(draw(st.integers(1, 8))):
        for _ in range(draw(st.integers(0, 90))):
            device = draw(st.sampled_from([None, (0, 30), (3, 1), (1, 0)]))
            forge.step(
                draw(st.integers(0, 40)), draw(st.integers(0, 40)), draw(st.sampled_from([0, 0, 5])), device
            )
        forge.settle(max(forge.words[page.W_DEVICE_DONE], forge.steps - draw(st.integers(0, 70))))
        if draw(st.booleans()):
            forge.spend(FORWARD, 11)
        page_reader_now = forge.now
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page_reader, "monotonic_ns", lambda now=page_reader_now: now)
            snapshot = followed.snapshot(rows[-1].number if rows else 0, alive=True)
        before = closed(snapshot, before)
        rows += snapshot.steps
    followed.close()
    with forge.reader() as reader:
        fresh = reader.snapshot(alive=False)
        closed(fresh)
        assert len(fresh.steps) == forge.steps
    forge.rank.writer.close()


def test_torn_device_record_is_ignored():
    words = memoryview(array("Q", [7, 30, *range(page.PHASE_SLOTS), 0, 7]))
    assert device_record(words, 11) == (7, tuple(range(11)), 30)
    for at, value in ((page.D_SEAL, 6), (page.D_NUMBER, 8), (page.D_TOTALS + 10, 1 << 62), (1, 1 << 62)):
        before, words[at] = words[at], value
        assert device_record(words, 11) is None
        words[at] = before
    words[page.D_NUMBER] = words[page.D_SEAL] = 0
    assert device_record(words, 11) is None, "a slot that was never written"


HOSTILE = {
    "another number": lambda words, at: words.__setitem__(at + page.D_NUMBER, 999),
    "no seal": lambda words, at: words.__setitem__(at + page.D_SEAL, 0),
    "another sum": lambda words, at: words.__setitem__(at + page.D_TOTALS + LOADER, 5000),
    "impossible": lambda words, at: words.__setitem__(at + page.D_TOTALS, 1 << 63),
    "less outside": lambda words, at: (
        words.__setitem__(at + page.D_TOTALS, 0),
        words.__setitem__(at + page.D_TOTALS + FORWARD, words[at + page.D_TOTALS + FORWARD] + 15),
    ),
    "device ns": lambda words, at: words.__setitem__(at + page.D_DEVICE_NS, 1 << 61),
    "device ns back": lambda words, at: words.__setitem__(at + page.D_DEVICE_NS, 0),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_contradicting_device_record_is_ignored(forge, what):
    for _ in range(6):
        forge.step(between=5)
    forge.settle(6)
    HOSTILE[what](forge.words, page.W_DEVICE_RING + 2 * page.DEVICE_WORDS)
    with forge.reader() as reader:
        snapshot = reader.snapshot(alive=True)
    closed(snapshot)
    assert [row.number for row in snapshot.steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("word", ["W_DEVICE_STATE", "W_DEVICE_WHY", "W_DEVICE_BASE", "W_DEVICE_DONE"])
def test_random_device_words(forge, word):
    for _ in range(6):
        forge.step()
    forge.settle(6)
    for value in (7, 1 << 40, (1 << 64) - 1):
        forge.words[getattr(page, word)] = value
        with forge.reader() as reader:
            try:
                closed(reader.snapshot())
            except page.PageError as error:
                assert error.reason == "value" and str(forge.rank.path) in str(error)
                continue
        assert word in ("W_DEVICE_BASE", "W_DEVICE_DONE")
