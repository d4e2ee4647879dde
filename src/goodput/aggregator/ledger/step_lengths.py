"""The lengths of a run's steps, kept beside them once they are thinned: of thinned rows more long ones are left than short
ones, so the stall threshold of a fold of them would be too high.

They stay where a late row makes all segments wrong.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping

from goodput.account.stall_threshold import StepLengths
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.segments import Key
from goodput.columns.snapshot import FoldState, SnapshotError, decode_lengths, encode_lengths

log = logging.getLogger("goodput.aggregator")
LENGTHS = "lengths"  # the kind of bytes beside those of closed runs

# Of the steps up to those of these numbers.
KnownLengths = tuple[StepLengths, Mapping[Key, int]]


def store(ledger: Ledger, run: str, state: FoldState) -> None:
    """Keep the lengths of the steps that are folded in a state, before they are thinned; not where those of more steps are."""
    before = _stored(ledger, run)
    if before is None or sum(before[1].values()) < sum(state.numbers().values()):
        with ledger.transaction() as connection:
            closed_runs.put_bodies(connection, run, {LENGTHS: encode_lengths(state)})


def of_thinned(ledger: Ledger, run: str) -> KnownLengths | None:
    """The lengths that were kept, None for a run of which no step is thinned."""
    return _stored(ledger, run) if closed_runs.thinned_seconds(ledger, run) else None


def _stored(ledger: Ledger, run: str) -> KnownLengths | None:
    try:
        body = closed_runs.stored_body(ledger, run, LENGTHS)
        return None if body is None else decode_lengths(body)
    except (SnapshotError, zlib.error) as error:
        log.warning("run %r: its stored step lengths are not used: %s", run, error)
        return None
