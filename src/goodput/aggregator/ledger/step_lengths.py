"""The lengths of a run's steps, kept beside them once they are thinned: of thinned rows more long ones are left than short
ones, so the stall threshold of a fold of them would be too high.

They stay where a late row makes all segments wrong.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sql

from goodput.account.stall_threshold import StepLengths
from goodput.aggregator.ledger import closed_runs, segments
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_5
from goodput.aggregator.ledger.segments import Key
from goodput.columns.snapshot import FoldState, SnapshotError, decode_lengths, encode_lengths

log = logging.getLogger("goodput.aggregator")
_processes = version_5.processes
LENGTHS = "lengths"  # the kind of bytes beside those of closed runs

# Of the steps up to those of these numbers.
KnownLengths = tuple[StepLengths, Mapping[Key, int]]


def store(ledger: Ledger, run: str, state: FoldState) -> None:
    """Keep the lengths of the steps that are folded in a state, before they are thinned; not where those of more steps are, or the
    run was deleted meanwhile."""
    is_known = sql.select(_processes.c.id).where(_processes.c.run == run).limit(1)
    with ledger.transaction() as connection:
        before = _stored(connection.execute, run)
        is_more = before is None or sum(before[1].values()) < sum(state.numbers().values())
        if is_more and connection.execute(is_known).first() is not None:
            closed_runs.put_bodies(connection, run, {LENGTHS: encode_lengths(state)})


def stored(ledger: Ledger, run: str) -> KnownLengths | None:
    """The lengths that were kept, None where none were."""
    return _stored(ledger.fetch, run)


def of_thinned(ledger: Ledger, run: str, live: KnownLengths | None = None) -> KnownLengths | None:
    """The lengths that were kept; where a run was thinned by an earlier version, which kept none, those of its newest state,
    else `live`; None for a run of which no step is thinned."""
    found = stored(ledger, run)
    if found is not None or not closed_runs.thinned_seconds(ledger, run):
        return found
    for rows in reversed(ledger.segment_rows(run)):
        state = segments.state(ledger.fetch, run, rows)
        if state is not None:
            return state.lengths(), state.numbers()
    return live


def _stored(fetch: Callable[..., Any], run: str) -> KnownLengths | None:
    body = closed_runs.body_of(fetch, run, LENGTHS)
    try:
        return None if body is None else decode_lengths(zlib.decompress(body))
    except (SnapshotError, zlib.error) as error:
        log.warning("run %r: its stored step lengths are not used: %s", run, error)
        return None
