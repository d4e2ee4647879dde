"""Rows of a run from the ledger, folded by the core."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

import numpy as np

from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Key
from goodput.account.fold import OTHERS_MAX
from goodput.aggregator.accounts.past import Check
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.aggregator.ledger.stored_process import StoredProcess
from goodput.wire.step_blocks import DEVICE, END, NUMBER, SAMPLES, STEP, TOTALS
from goodput.wire.step_columns import widened

# Of an attempt. A rank that is so many rows ahead of the others of its group is far from what the core holds back.
PAGE_ROWS_LEAST, PAGE_ROWS_MAX = 32, 1024

Pages = Iterator[np.ndarray]  # rows of an attempt in order, (columns, rows) as in wire.step_blocks


def fold_rows(
    ledger: Ledger, engine: CoreEngine, from_ns: int, edges: Sequence[int] | None, check: Check
) -> None:
    """Fold the rows of the engine's attempts from the last one before `from_ns` on, in the order of time over all ranks.

    With `edges` an attempt's first row, those that touch one of these times, and its last ones.
    """
    by_rank: dict[int, list[Iterator[tuple[Key, np.ndarray]]]] = {}
    for key, process, pages in _readers(ledger, engine, from_ns, 1 if edges else 0):
        found = _within(engine, key, pages)
        if edges:
            found = _at_edges(engine, key, ledger, process, found, edges)
        by_rank.setdefault(key[0], []).append(_ended(engine, key, found))
    # An attempt's rows follow those of the one before of its rank, whatever the clocks say.
    sources = [chain.from_iterable(own) for own in by_rank.values()]
    waiting = [entry for at in range(len(sources)) if (entry := _next(sources, at))]
    heapify(waiting)
    while waiting:
        check()
        _, at, key, rows = heappop(waiting)
        _fold(engine, key, rows)
        del rows
        if entry := _next(sources, at):
            heappush(waiting, entry)


def _next(sources, at: int) -> tuple[int, int, Key, np.ndarray] | None:
    """The next rows of a rank behind when they begin."""
    for key, rows in sources[at]:
        return int(rows[END, 0]), at, key, rows
    return None


def _readers(
    ledger: Ledger, engine: CoreEngine, from_ns: int, page_rows: int
) -> list[tuple[Key, StoredProcess, Pages]]:
    """Of each attempt that has rows from then on to the end of its bound, in the order of their numbers."""
    run, bounds = engine.run, engine.facts.bounds
    processes = {(one.identity.rank, one.identity.attempt): one for one in ledger.sources(run.name)}
    if run.attempts and not processes:
        # Such as a ledger file that was replaced by a new one.
        raise LedgerError(f"ledger {ledger.url}: it has no data of run {run.name!r}")
    keys = [
        key
        for key in sorted(engine.places, key=lambda key: (key[1], key[0]))
        if key in processes
        and run.attempts[key].start_ns < bounds[key].to_ns
        and run.attempts[key].rows_end_ns > from_ns
    ]
    ranges = [
        PageBounds(0, from_ns if from_ns > run.attempts[key].start_ns else None, bounds[key].to_ns)
        for key in keys
    ]
    most = page_rows or min(max(ledger.rows_held // max(len(keys), 1), PAGE_ROWS_LEAST), PAGE_ROWS_MAX)
    pages = ledger.pages([processes[key] for key in keys], ranges, most)
    return [(key, processes[key], own) for key, own in zip(keys, pages, strict=True)]


def _within(engine: CoreEngine, key: Key, pages: Pages) -> Pages:
    """Up to the first row that ends beyond the bound, and of the first rows those that the first step is compared with."""
    to_ns, newest = engine.facts.bounds[key].to_ns, engine.run.attempts[key].top_number
    for page in pages:
        values = page[:, : int(np.searchsorted(page[NUMBER], newest, side="right"))]
        is_last = (values[END] >= to_ns) & (values[NUMBER] > OTHERS_MAX)
        if is_last.any():
            yield values[:, : int(is_last.argmax()) + 1]
            return
        if values.shape[1]:
            yield values


def _at_edges(
    engine: CoreEngine, key: Key, ledger: Ledger, process: StoredProcess, pages: Pages, edges: Sequence[int]
) -> Pages:
    page = next(pages, None)
    if page is None:
        return
    first, bound = page[:, :1].copy(), engine.facts.bounds[key]
    # Readers of many ranks wait at these lines: what they hold counts as often.
    del page, pages
    yield first
    places = [ns for ns in edges if bound.from_ns < ns < bound.to_ns]
    places.append(min(bound.to_ns, engine.run.attempts[key].rows_end_ns))
    rows = ledger.rows_at(process, sorted(places), after=int(first[NUMBER, 0]))
    if rows.shape[1]:
        yield rows


def _ended(engine: CoreEngine, key: Key, pages: Pages) -> Iterator[tuple[Key, np.ndarray]]:
    """The group of an attempt that is over does not wait for it."""
    for values in pages:
        yield key, values
    if not engine.facts.bounds[key].running:
        engine.core.end(engine.places[key])


def _fold(engine: CoreEngine, key: Key, columns: np.ndarray) -> None:
    width = len(engine.run.attempts[key].phases)
    phases = range(TOTALS, TOTALS + 2 * width)
    wanted = [NUMBER, STEP, END, SAMPLES, DEVICE, *phases[::2], *phases[1::2]]
    rows = widened(columns, width)[wanted].T
    rows[:, 2] -= engine._origin_ns
    values = array("q")
    values.frombytes(rows.tobytes())
    engine.wrong += engine.core.fold(engine.places[key], values).wrong
