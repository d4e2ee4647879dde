"""Pages of earlier layout versions are still read."""

from array import array

from support.rank_page.page_maker import Rank

from goodput.rank_page import page
from goodput.rank_page.reader import Reader

ROLLOUT = page.PHASES.index("rollout")


def without_rollout(words: list[int]) -> list[int]:
    return words[:ROLLOUT] + words[ROLLOUT + 1 :]


def as_version_2(rank: Rank, path) -> None:
    """Write the page as before the phase `rollout`: 11 built-in phases, so 27 slots, and shorter step records."""
    words = array("Q", rank.head())
    for first in (page.W_TOTALS, page.W_OUTSIDE, page.W_BACKGROUND_TOTALS):
        words[first : first + 28] = array("Q", [*without_rollout([*words[first : first + 28]]), 0])
    for at in range(page.W_STEP_RING, page.W_DEVICE_RING, page.STEP_WORDS):
        totals, outside = [*words[at + 5 : at + 33]], [*words[at + 33 : at + 61]]
        words[at + 5 : at + 61] = array("Q", [*without_rollout(totals), *without_rollout(outside), 0, 0])
    with_short_events(words)
    size = 8 * page.W_HISTOGRAMS + 2 * 27 * page.HISTOGRAM_WORDS * 8
    words[page.W_VERSION], words[page.W_SIZE] = 2, size
    path.write_bytes(words.tobytes())
    with open(path, "r+b") as file:
        file.truncate(size)


def with_short_events(words: array) -> array:
    """The words of a page with 256 events of 16 words, which have 64 bytes of text."""
    events = words[page.W_EVENT_RING : page.W_STEP_RING]
    words[page.W_EVENT_RING : page.W_STEP_RING] = array("Q", [0] * len(events))
    for slot in range(page.EVENT_RING):
        event, at = events[slot * page.EVENT_WORDS :][: page.EVENT_WORDS], page.W_EVENT_RING + 16 * slot
        words[at : at + 16] = event[:12] + array("Q", [7, 7, 7]) + event[page.E_SEAL :]
    return words


def test_page_with_short_events_is_read(tmp_path):
    rank = Rank(tmp_path / "pages").train(5)
    for number in range(70):
        page.write_event(rank.words, "mark", 10**9, number, b"x" * 64)
    with Reader(str(rank.path)) as reader:
        new = reader.snapshot()
    words = with_short_events(array("Q", rank.head()))
    words[page.W_VERSION] = 4
    (tmp_path / "old.page").write_bytes(words.tobytes())
    with open(tmp_path / "old.page", "r+b") as file:
        file.truncate(page.FILE_BYTES)
    with Reader(str(tmp_path / "old.page")) as old:
        assert old.snapshot() == new and len(new.events) == 72


def test_page_without_collectives_is_read(tmp_path):
    rank = Rank(tmp_path / "pages").train(5)
    words = with_short_events(array("Q", rank.head()))
    size = page.FILE_BYTES - 8 * page.COLLECTIVES_WORDS
    words[page.W_VERSION], words[page.W_SIZE] = 3, size
    (tmp_path / "old.page").write_bytes(words.tobytes())
    with open(tmp_path / "old.page", "r+b") as file:
        file.truncate(size)
    with Reader(str(rank.path)) as new, Reader(str(tmp_path / "old.page")) as old:
        assert old.snapshot() == new.snapshot()
        assert old.collectives() is None


def test_page_without_rollouts_is_read(tmp_path):
    rank = Rank(tmp_path / "pages").train(5)
    as_version_2(rank, tmp_path / "old.page")
    with Reader(str(rank.path)) as reader:
        new = reader.snapshot()
    with Reader(str(tmp_path / "old.page")) as reader:
        old = reader.snapshot()
    assert old.phases == tuple(without_rollout([*new.phases])) and old.phases[-1] == "tokenize"
    assert old.events == new.events and old.events
    assert old.totals == tuple(without_rollout([*new.totals])) and old.totals[-1] > 0
    assert [step.number for step in old.steps] == [1, 2, 3, 4, 5]
    for before, after in zip(old.steps, new.steps, strict=True):
        assert before.totals == tuple(without_rollout([*after.totals]))
        assert before.outside == tuple(without_rollout([*after.outside])) and before.outside[-1] > 0
