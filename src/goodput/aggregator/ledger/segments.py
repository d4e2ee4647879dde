"""Segments: states of a run's fold as of some row, from which an account goes on without the rows before it.

Of each run the newest is kept, and of the older ones fewer the further back they are, within BYTES_MAX together. One that
a late row makes wrong is deleted in the transaction that writes the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import sqlalchemy as sql

from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.migrations.versions import version_5

Key = tuple[int, int]  # (rank, attempt number)
# Of one run.
BYTES_MAX = 256 << 20
# A segment is dropped where the next older one lacks no more than so many times the rows that the next newer one lacks.
SPACING = 4

_segments = version_5.segments
_encoder = msgspec.msgpack.Encoder()
_numbers_decoder = msgspec.msgpack.Decoder(dict[Key, int])


class Segment(NamedTuple):
    """`numbers` has the last row of each attempt that is in `body`."""

    run: str
    numbers: Mapping[Key, int]
    body: bytes

    def rows(self) -> int:
        return sum(self.numbers.values())


def put(connection: sql.Connection, segment: Segment) -> None:
    """Store a segment in place of one of as many rows, and drop older ones that are too close to each other."""
    of_run = _segments.c.run == segment.run
    stored = connection.execute(sql.select(_segments.c.rows, _segments.c.bytes).where(of_run))
    rows = segment.rows()
    sizes = {**{one.rows: one.bytes for one in stored}, rows: len(segment.body)}
    gone = [*sizes.keys() - kept(sizes), rows]
    connection.execute(_segments.delete().where(of_run, _segments.c.rows.in_(gone)))
    values = {"run": segment.run, "rows": rows, "bytes": len(segment.body)}
    values |= {"numbers": _encoder.encode(segment.numbers), "body": segment.body}
    connection.execute(insert(connection.dialect.name, _segments).on_conflict_do_nothing(), [values])


def kept(sizes: Mapping[int, int]) -> set[int]:
    """Which segments to keep, of these sizes by number of rows."""
    spacing, newest = SPACING, max(sizes)
    while True:
        found = [newest]
        ordered = sorted(sizes, reverse=True)[1:]
        for at, rows in enumerate(ordered):
            older = ordered[at + 1] if at + 1 < len(ordered) else None
            if older is None or newest - older > spacing * (newest - found[-1]) or len(found) == 1:
                found.append(rows)
        if sum(sizes[rows] for rows in found) <= BYTES_MAX:
            return set(found)
        if len(found) <= 2:
            return {newest}
        # The oldest is always kept above, so fewer of those between.
        sizes = {rows: sizes[rows] for rows in (*found[:-1:2], found[-1])}


def drop_wrong(connection: sql.Connection, run: str, late: Mapping[Key, int]) -> None:
    """Drop the segments that hold rows of an attempt from this number on, where `late` rows have come."""
    of_run = _segments.c.run == run
    for one in connection.execute(sql.select(_segments.c.rows, _segments.c.numbers).where(of_run)).all():
        numbers = _numbers_decoder.decode(one.numbers)
        if any(numbers.get(key, -1) >= number for key, number in late.items()):
            connection.execute(_segments.delete().where(of_run, _segments.c.rows == one.rows))


def newest_first(fetch, run: str) -> Iterator[bytes]:
    """The bodies of a run's segments, each read when it is asked for."""
    of_run = _segments.c.run == run
    listed = fetch(sql.select(_segments.c.rows).where(of_run).order_by(_segments.c.rows.desc())).scalars()
    for rows in listed.all():
        body = fetch(sql.select(_segments.c.body).where(of_run, _segments.c.rows == rows)).scalar()
        if body is not None:
            yield bytes(body)
