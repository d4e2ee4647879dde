"""Rows of many processes read a page at a time equal those read process by process, whatever the blocks."""

from __future__ import annotations

import random
import weakref

import numpy as np
import pytest
from support.account.account_history import Process, ns
from support.aggregator.ledgers import records_of
from support.aggregator.reports import rank_report
from support.seeds import cases

from goodput.aggregator.ledger import page_reader
from goodput.aggregator.ledger.compaction import Compaction
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.wire.step_blocks import END, NUMBER


def filled(ledger, rng: random.Random, count: int) -> list:
    """Reports of processes whose rows were written in parts of any size and order, some of them twice."""
    reports = []
    for rank in range(count):
        one = Process(rank, 1, 1000.0, world_size=count)
        one.steps(rng.randrange(60), forward=0.5, loader=0.25)
        report = rank_report(one, "r1", rows=[])
        ledger.append([records_of(report, [])])
        rows, parts = list(one.rows), []
        while rows:
            size = rng.choice([1, 3, 10, 40])
            # Some blocks fill each other's holes.
            apart = rng.choice([1, 1, 2])
            parts += [rows[:size][at::apart] for at in range(min(apart, len(rows[:size])))]
            rows = rows[size:]
        if rng.random() < 0.5:
            rng.shuffle(parts)
            parts += parts[:1]
        for part in parts:
            ledger.append([records_of(report, part)])
        reports.append(report)
    return reports


def numbers(pages) -> list[int]:
    found = [page[NUMBER] for page in pages]
    return np.concatenate(found).tolist() if found else []


@pytest.mark.parametrize("seed", cases(8))
def test_pages_have_every_row_once(ledger, seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(page_reader, "PROCESSES_AT_ONCE", rng.choice([1, 3, 128]))
    monkeypatch.setattr(page_reader, "LISTED_AT_ONCE", rng.choice([2, 512]))
    reports = filled(ledger, rng, 7)
    after = [rng.choice([0, 0, 20]) for _ in reports]
    pages = ledger.pages(reports, [PageBounds(number) for number in after], rng.choice([1, 7, 1000]))
    want = [
        [row.number for row in ledger.rows(one.identity) if row.number > number]
        for one, number in zip(reports, after, strict=True)
    ]
    if seed % 2:
        assert [numbers(own) for own in pages] == want
    else:
        # Round by round, with blocks merged in between.
        found: list[list[int]] = [[] for _ in reports]
        left = list(range(len(reports)))
        while left:
            for at in list(left):
                page = next(pages[at], None)
                if page is None:
                    left.remove(at)
                else:
                    found[at] += page[NUMBER].tolist()
            for _ in Compaction(ledger).work(0, merge_all=True):
                pass
        assert found == want


@pytest.mark.parametrize("backend", ["sqlite"])
def test_nothing_holds_a_page_that_was_read(ledger):
    """Of ten thousand ranks whose first page is read before the second of any, all would be in memory."""
    reports = filled(ledger, random.Random(3), 3)
    pages = ledger.pages(reports, [PageBounds()] * 3, 5)
    read = [weakref.ref(next(of)) for of in pages]
    assert all(page() is None for page in read)


@pytest.mark.parametrize("seed", cases(6))
def test_pages_begin_with_the_row_before(ledger, seed):
    """The first row that ends at a time or later, and the one before it, are there; of much earlier ones few are."""
    rng = random.Random(seed)
    reports = filled(ledger, rng, 5)
    at_ns = ns(1000 + rng.randrange(50))
    pages = ledger.pages(reports, [PageBounds(from_ns=at_ns)] * len(reports), 10)
    for report, own in zip(reports, pages, strict=True):
        rows = [(row.number, row.end_ns) for row in ledger.rows(report.identity)]
        first = next((at for at, (_, end_ns) in enumerate(rows) if end_ns >= at_ns), len(rows))
        found = list(own)
        read = [tuple(one) for page in found for one in page[[NUMBER, END]].T.tolist()]
        assert read[-len(rows[max(first - 1, 0) :]) :] == rows[max(first - 1, 0) :] if rows else not read


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("from_row", [3, 17, 20, 39])
def test_first_pages_are_read_together(ledger, from_row, monkeypatch):
    """Also where the window begins late in a block, of which a page has a part, or with the first row of one."""
    reports = []
    for rank in range(12):
        one = Process(rank, 1, 1000.0, world_size=12)
        one.steps(40, forward=1)
        reports.append(rank_report(one, "r1", rows=[]))
        for at in range(0, 40, 20):
            ledger.append([records_of(reports[-1], one.rows[at : at + 20])])
    reads, stored_blocks = [], page_reader.stored_blocks

    def counted(fetch, ids):
        reads.append(len(ids))
        return stored_blocks(fetch, ids)

    monkeypatch.setattr(page_reader, "stored_blocks", counted)
    pages = ledger.pages(reports, [PageBounds(from_ns=ns(1001 + from_row))] * len(reports), 4)
    first = [next(own)[NUMBER].tolist() for own in pages]
    assert first == [[*range(from_row, from_row + 4)][: 41 - from_row]] * len(reports)
    assert len(reads) == 1
