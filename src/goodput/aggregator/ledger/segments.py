"""Segments: states of a run's fold as of some row, from which an account goes on without the rows before it.

Of each run the newest are kept, and of the older ones as many, evenly spaced, as COUNT_MAX and BYTES_MAX allow, so that
windows begin near one wherever they are. One that a late row makes wrong is deleted in the transaction that writes the
row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec
import sqlalchemy as sql

from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.migrations.versions import version_5, version_7
from goodput.aggregator.run_states import RunState, StateError, decode

Key = tuple[int, int]  # (rank, attempt number)
# Of one run.
BYTES_MAX, COUNT_MAX = 1 << 30, 8192
# Steps by which ranks may differ at a segment from which windows go on where the other steps are thinned.
SPAN_STEPS_MAX = 64

_segments, _bases = version_5.segments, version_7.bases
_encoder = msgspec.msgpack.Encoder()
_numbers_decoder = msgspec.msgpack.Decoder(dict[Key, int])


class Segment(NamedTuple):
    """`numbers` has the last row of each attempt that is in `body`; it takes the place of the one of `replaces` rows."""

    run: str
    numbers: Mapping[Key, int]
    body: bytes
    replaces: int | None = None

    def rows(self) -> int:
        return sum(self.numbers.values())


class Border(NamedTuple):
    """Where a segment ends: the last end of a row, its last numbers, and by attempt number the steps from the last one of the
    slowest rank up to the last one that any has. A window that begins or ends here needs their rows.
    """

    end_ns: int
    numbers: dict[Key, int]
    spans: dict[int, tuple[int, int]]


def border_of(state: RunState) -> Border:
    """Where the segment of this state ends. Of a rank that is SPAN_STEPS_MAX behind no rows are needed."""
    steps: dict[int, list[int]] = {}
    for key, rows in state.rows.items():
        if rows.top_step >= 0:
            steps.setdefault(key[1], []).append(rows.top_step)
    spans = {
        number: (min(step for step in own if step >= max(own) - SPAN_STEPS_MAX), max(own))
        for number, own in steps.items()
    }
    return Border(state.end_ns, state.numbers(), spans)


def drop(connection: sql.Connection, run: str, rows: Collection[int]) -> None:
    """Drop the segments of a run with so many rows each."""
    connection.execute(_segments.delete().where(_segments.c.run == run, _segments.c.rows.in_(rows)))


def put(connection: sql.Connection, segment: Segment) -> None:
    """Store a segment in place of one of as many rows, and drop older ones that are too close to each other."""
    of_run = _segments.c.run == segment.run
    found = connection.execute(sql.select(_segments.c.rows, _segments.c.bytes).where(of_run))
    stored, rows = {one.rows: one.bytes for one in found}, segment.rows()
    sizes = {**stored, rows: len(segment.body)}
    if segment.replaces is not None and segment.replaces != rows:
        sizes.pop(segment.replaces, None)
    found = connection.execute(sql.select(_bases.c.rows).where(_bases.c.run == segment.run)).scalars()
    gone = stored.keys() - kept(sizes, set(found)) | {rows}
    drop(connection, segment.run, gone)
    values = {"run": segment.run, "rows": rows, "bytes": len(segment.body)}
    values |= {"numbers": _encoder.encode(segment.numbers), "body": segment.body}
    connection.execute(insert(connection.dialect.name, _segments).on_conflict_do_nothing(), [values])


def kept(sizes: Mapping[int, int], bases: Collection[int] = ()) -> set[int]:
    """Which segments to keep, of these sizes by number of rows: all but those whose neighbours are closest together.

    The two newest, the oldest and `bases` are always kept.
    """
    found, size = sorted(sizes), sum(sizes.values())
    while len(found) > COUNT_MAX or size > BYTES_MAX:
        others = [at for at in range(1, len(found) - 2) if found[at] not in bases]
        if not others:
            break
        at = min(others, key=lambda at: found[at + 1] - found[at - 1])
        size -= sizes[found.pop(at)]
    while size > BYTES_MAX and (others := [rows for rows in found[:-1] if rows not in bases]):
        size -= sizes[others[0]]
        found.remove(others[0])
    return set(found)


def drop_wrong(connection: sql.Connection, run: str, late: Mapping[Key, int]) -> None:
    """Drop the segments that hold rows of an attempt from this number on, where `late` rows have come."""
    of_run = _segments.c.run == run
    for one in connection.execute(sql.select(_segments.c.rows, _segments.c.numbers).where(of_run)).all():
        numbers = _numbers_decoder.decode(one.numbers)
        if any(numbers.get(key, -1) >= number for key, number in late.items()):
            connection.execute(_segments.delete().where(of_run, _segments.c.rows == one.rows))


def listed(fetch, run: str) -> list[int]:
    """How many rows each of a run's segments has, ascending; `body` takes these."""
    return list(
        fetch(sql.select(_segments.c.rows).where(_segments.c.run == run).order_by(_segments.c.rows)).scalars()
    )


def body(fetch, run: str, rows: int) -> bytes | None:
    """The body of a segment, None if it was dropped meanwhile."""
    found = fetch(
        sql.select(_segments.c.body).where(_segments.c.run == run, _segments.c.rows == rows)
    ).scalar()
    return None if found is None else bytes(found)


def state(fetch, run: str, rows: int) -> RunState | None:
    """The state in a segment, None if it was dropped meanwhile or cannot be used."""
    stored = body(fetch, run, rows)
    try:
        return None if stored is None else decode(stored)
    except StateError:
        return None


def numbers(fetch, run: str, rows: int) -> dict[Key, int] | None:
    """The last row of each attempt that is in a segment, None if it was dropped meanwhile."""
    found = fetch(
        sql.select(_segments.c.numbers).where(_segments.c.run == run, _segments.c.rows == rows)
    ).scalar()
    return None if found is None else _numbers_decoder.decode(found)


def newest_first(fetch, run: str) -> Iterator[bytes]:
    """The bodies of a run's segments, each read when it is needed."""
    for rows in reversed(listed(fetch, run)):
        found = body(fetch, run, rows)
        if found is not None:
            yield found
