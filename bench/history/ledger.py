"""Writes the ledger of a long run as an aggregator leaves it, without pushing the run: some 0.3 us of CPU a rank-step.

    write(Path("/tmp/ledgers"), ranks=128, steps=781_250, start_ns=start_ns)

Records, blocks and segments are made by the code that makes them in the aggregator. The steps of the first PERIODS
periods are merged and folded as there, and each push leaves a segment. From then on a state is that of a period before
and what it grew by since the one before that: all numbers of a state grow by the same from period to period, which is
verified in the last one that is folded.

`write_thinned` writes what compaction leaves of it: it compacts the rows of one rank of each kind, and the other ranks,
whose rows are the same, get a copy of what is left.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sql
from msgspec.structs import replace

from bench.aggregator.load import KINDS
from bench.history.run import PERIOD_STEPS, RUN, Pushes
from bench.processes import say
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.pushed_steps import PushedSteps, decode_steps
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.compaction import DAY_NS, SMALL_ROWS, Compaction
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_5
from goodput.aggregator.ledger.segments import Segment
from goodput.aggregator.records import NewBlock, NewRecords, new_blocks
from goodput.columns.snapshot import encode
from goodput.wire import schema
from goodput.wire.step_columns import decode

PERIODS = 4  # that are folded; in the first a run begins, which is not as the others
SHOWN_SECONDS = 10.0
# Of a segment's body: the check sum, and with it the layout.
_DIGEST_BYTES, _HEAD_BYTES = 16, 24


def write(directory: Path, ranks: int, steps: int, start_ns: int) -> None:
    """Write `directory`/ledger.db with every row of a run that goes on."""
    ledger = Ledger(f"sqlite:///{directory}/ledger.db")
    try:
        _write(ledger, ranks, steps, start_ns, ranks)
    finally:
        ledger.close()


def write_thinned(directory: Path, ranks: int, steps: int, start_ns: int) -> None:
    """Write `directory`/ledger.db of a run that is over, of which one row a minute is left; its end marks are to come.

    The steps must fill their pushes.
    """
    ledger = Ledger(f"sqlite:///{directory}/ledger.db")
    try:
        _write(ledger, ranks, steps, start_ns, KINDS)
        say("  compacting")
        newest_ns = closed_runs.newest_ns(ledger, RUN)
        closed_runs.close_run(ledger, RUN, closed_runs.state_of(ledger, RUN), newest_ns, {})
        for _ in Compaction(ledger).work(newest_ns + 8 * DAY_NS):
            pass
        _copy_blocks(ledger)
        ledger.vacuum()
    finally:
        ledger.close()


def _write(ledger: Ledger, ranks: int, steps: int, start_ns: int, with_rows: int) -> None:
    """All of a run but the rows of ranks from `with_rows` on."""
    pushes, shown = Pushes(ranks, steps, start_ns), time.monotonic()
    written = _Written(ledger, pushes.steps_a_push, with_rows)
    for reports in pushes.reports():
        written.take(reports)
        if time.monotonic() - shown > SHOWN_SECONDS:
            shown = time.monotonic()
            say(f"  {100 * written.done // steps} % of {steps} steps of each rank")
    if pushes.steps_a_push <= SMALL_ROWS:
        for _ in Compaction(ledger).work(0):
            pass


class _Written:
    """What the pushes of a run leave in a ledger."""

    def __init__(self, ledger: Ledger, steps_a_push: int, with_rows: int):
        self._ledger, self._steps_a_push, self._with_rows = ledger, steps_a_push, with_rows
        self._period = PERIOD_STEPS // steps_a_push  # in pushes
        self._store, self._live, self._layout = Store(), None, b""
        self._states: list[Any] = []  # of the last two periods
        self._pushes = self.done = 0

    def take(self, reports: Sequence[schema.RankReport]) -> None:
        """A report of each rank. One that is shorter than the others is the last, and no segment has it."""
        count, is_folded = reports[0].blocks[0].count, self._pushes < PERIODS * self._period
        self._pushes, self.done = self._pushes + 1, self.done + count
        records = self._merged(reports) if is_folded else _records(reports)
        segments = []
        if count == self._steps_a_push:
            state = self._folded(reports) if is_folded else self._next()
            self._states = [*self._states[-2 * self._period + 1 :], state]
            numbers = dict.fromkeys(((rank, 1) for rank in range(len(reports))), self.done)
            segments = [Segment(RUN, numbers, _body(self._layout, state))]
        for one in records[self._with_rows :]:
            one.blocks.clear()
        self._ledger.append(records, new_segments=segments)

    def _merged(self, reports: Sequence[schema.RankReport]) -> list[NewRecords]:
        merged = []
        for report, steps in zip(reports, decode_steps(reports), strict=True):
            assert isinstance(steps, PushedSteps)
            merged.append(self._store.merge(report, 0, "", steps))
        return merged

    def _folded(self, reports: Sequence[schema.RankReport]) -> Any:
        """The state of the run's account after these reports."""
        if self._live is None:
            self._live = IncrementalAccount(self._store.runs[RUN], stall_seconds=60.0, stale_seconds=30.0)
        self._live.account(reports[0].live.now_ns)
        copied = self._live.copy()
        if copied is None or self._live.rows() != len(reports) * self.done:
            raise RuntimeError(f"{self._live.rows()} of {len(reports) * self.done} rows are folded")
        body = encode(copied[0], copied[1])
        self._layout, state = body[_DIGEST_BYTES:_HEAD_BYTES], _numbers_of(body)
        if self._pushes > (PERIODS - 1) * self._period and self._next() != state:
            raise RuntimeError(
                f"after {self.done} steps the state is not as a period before and what it grew by"
            )
        return state

    def _next(self) -> Any:
        return _beyond(self._states[-2 * self._period], self._states[-self._period])


def _records(reports: Sequence[schema.RankReport]) -> list[NewRecords]:
    """As Store.merge returns them."""
    made: dict[int, list[NewBlock]] = {}
    records = []
    for report in reports:
        (block,) = report.blocks
        if id(block) not in made:
            made[id(block)] = new_blocks(decode([block], len(report.phases)).values)
        bare = replace(report, blocks=[], events=[])
        records.append(NewRecords(bare, list(made[id(block)]), report.events))
    return records


def _numbers_of(body: bytes) -> Any:
    """A segment as lists and numbers."""
    return msgspec.msgpack.decode(zlib.decompress(body[_HEAD_BYTES:]))


def _body(layout: bytes, state: Any) -> bytes:
    """As snapshot.encode has it."""
    rest = layout + zlib.compress(msgspec.msgpack.encode(state), 1)
    return hashlib.blake2b(rest, digest_size=_DIGEST_BYTES).digest() + rest


def _beyond(first: Any, second: Any) -> Any:
    """What follows two states if each of their numbers grows by the same as from the first to the second."""
    if first == second:
        return second
    if type(second) in (int, float):
        return 2 * second - first
    if type(second) is bytes:
        older, newer = np.frombuffer(first, "<i8"), np.frombuffer(second, "<i8")
        return (2 * newer - older).tobytes()
    if len(first) != len(second) or (isinstance(second, dict) and first.keys() != second.keys()):
        raise RuntimeError("the states of two periods are not alike")
    if isinstance(second, dict):
        return {key: _beyond(first[key], value) for key, value in second.items()}
    return list(map(_beyond, first, second))


def _copy_blocks(ledger: Ledger) -> None:
    """Give each rank without blocks those of its kind."""
    processes, blocks = version_5.processes, version_5.blocks
    ids = dict(
        tuple(row)
        for row in ledger.fetch(sql.select(processes.c.rank, processes.c.id).where(processes.c.run == RUN))
    )
    others = [column for column in blocks.columns if column.name not in ("id", "process")]
    for rank in range(KINDS, len(ids)):
        own = sql.select(sql.literal(ids[rank]), *others).where(blocks.c.process == ids[rank % KINDS])
        with ledger.transaction({RUN}) as connection:
            connection.execute(
                blocks.insert().from_select(
                    ["process", *(one.name for one in others)], own.order_by(blocks.c.first)
                )
            )
