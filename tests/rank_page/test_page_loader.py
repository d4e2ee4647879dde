"""The loader's words of a page: read by name, summed for the main loader, refused where impossible."""

from __future__ import annotations

import pytest
from support.rank_page.page_maker import Rank

from goodput.rank_page import page
from goodput.rank_page.loader_words import FIGURES, LOADER, WAITS, WORKER, figures, parts_of, waits_of
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader
from goodput.wire import schema


@pytest.fixture
def rank(tmp_path):
    made = Rank(tmp_path)
    for i, value in enumerate(
        (9, 4, 5, 0, 1, 100, 0, 1000, 500, 100, 50, 25, 125, 100, 2, 2, 8, 1, 0, 16, 1)
    ):
        made.words[page.W_LOADER + i] = value
    for slot, place in ((0, 1 << 32 | 1), (5, 1 << 32 | 1 << 16), (9, 2 << 32 | 1)):
        at = page.W_WORKERS + slot * page.WORKER_WORDS
        for i, value in enumerate((place, 1, 10, 4, 20, 300, 100, 50, 60, 70 + slot, 1, 2, 3, 4, 5, 6)):
            made.words[at + i] = value
    return made


def test_a_snapshot_has_the_loader_and_its_workers(rank):
    with Reader(rank.path) as reader:
        found = reader.snapshot()
    assert found.loader["batches"] == 9 and found.loader["main"] == 1 and len(found.loader) == len(LOADER)
    assert [(w["loader"], w["worker"], w["delay_known"]) for w in found.workers] == [
        (1, 0, 1),
        (1, 1, 0),
        (2, 0, 1),
    ]
    waits = waits_of(found.loader)
    assert waits == {
        "storage": 500, "decode": 100, "collate": 50, "cpus": 25, "queue": 125, "startup": 100, "unknown": 100
    }  # fmt: skip
    assert sum(waits.values()) == found.loader["wait_ns"] and len(WAITS) == 6
    parts = parts_of(found.workers[0])
    assert parts == {"storage": 150, "decode": 100, "cpus": 50, "collate": 60, "idle": 20, "startup": 10}


def test_figures_are_of_the_main_loader_and_fit_a_report(rank):
    with Reader(rank.path) as reader:
        snapshot = reader.snapshot()
    found = figures(snapshot.loader, snapshot.workers)
    assert (
        found["worker_seen"] == 2 and found["worker_dataset_ns"] == 600 and found["worker_delay_known"] == 1
    )
    assert (found["worst_worker"], found["worst_waited_ns"]) == (1, 75)
    assert set(found) <= set(FIGURES) and 0 not in found.values() and len(FIGURES) <= schema.LOADER_MAX
    assert all(len(name) <= 32 for name in FIGURES)
    assert figures({}, ()) == {}


def test_a_page_without_a_loader_has_none(tmp_path):
    with Reader(Rank(tmp_path).path) as reader:
        assert (reader.snapshot().loader, reader.snapshot().workers) == ({}, ())


@pytest.mark.parametrize("word", [*range(len(LOADER)), *(-i for i in range(1, len(WORKER)))])
def test_an_impossible_value_is_refused_by_name(rank, word):
    at = page.W_LOADER + word if word >= 0 else page.W_WORKERS - word
    rank.words[at] = page.NS_MAX
    name = LOADER[word] if word >= 0 else WORKER[-word]
    with Reader(rank.path) as reader, pytest.raises(PageError, match=f"{name} is {page.NS_MAX}") as caught:
        reader.snapshot()
    assert caught.value.reason == "value"


def test_any_place_is_read(rank):
    rank.words[page.W_WORKERS] = (1 << 64) - 1
    with Reader(rank.path) as reader:
        worker = reader.snapshot().workers[0]
    assert (worker["loader"], worker["worker"]) == ((1 << 32) - 1, (1 << 16) - 1)
