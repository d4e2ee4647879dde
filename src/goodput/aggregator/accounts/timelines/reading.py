"""Rows of a run for its timeline, from the ledger, folded by the core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from goodput.account.by_core.engine import CoreEngine
from goodput.account.facts import Key
from goodput.aggregator.accounts.new_rows import fold_parts
from goodput.aggregator.accounts.past import Check, fold_until, pages_of, processes_of
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.wire.step_blocks import NUMBER


def fold_from(ledger: Ledger, engine: CoreEngine, begin_ns: int, check: Check) -> None:
    """Fold the rows of each attempt, beginning with the last one before `begin_ns`, which stands for all steps until then."""
    attempts = engine.run.attempts
    begun = [key for key in engine.places if attempts[key].start_ns < begin_ns]
    for key, row in _first_rows(ledger, engine, begun, begin_ns):
        fold_parts(engine, {key: row})
    fold_until(ledger, engine, check)


def fold_at(ledger: Ledger, engine: CoreEngine, edges: Sequence[int], check: Check) -> None:
    """Fold only those rows of each attempt that touch one of these times, its first and its last ones.

    An attempt that began before the first edge begins with its last row before it.
    """
    processes = processes_of(ledger, engine.run)
    for key, row in _first_rows(ledger, engine, list(engine.places), edges[0]):
        check()
        bound, attempt = engine.facts.bounds[key], engine.run.attempts[key]
        fold_parts(engine, {key: row})
        places = [ns for ns in edges if bound.from_ns < ns < bound.to_ns]
        places.append(min(bound.to_ns, attempt.rows_end_ns))
        fold_parts(engine, {key: ledger.rows_at(processes[key], sorted(places), after=int(row[NUMBER, 0]))})


def _first_rows(
    ledger: Ledger, engine: CoreEngine, keys: Sequence[Key], begin_ns: int
) -> Iterator[tuple[Key, np.ndarray]]:
    """The last row before then of each of these attempts, or the first row of one that begins later."""
    processes, bounds = processes_of(ledger, engine.run), dict[Key, PageBounds]()
    for key in keys:
        if key in processes and engine.facts.bounds[key].to_ns > engine.run.attempts[key].start_ns:
            from_ns = begin_ns if engine.run.attempts[key].start_ns < begin_ns else None
            bounds[key] = PageBounds(0, from_ns, engine.facts.bounds[key].to_ns)
    for key, pages in pages_of(ledger, processes, bounds, len(bounds), 1).items():
        page = next(pages, None)
        if page is not None:
            yield key, page[:, :1]
