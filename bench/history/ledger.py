"""Writes the ledger of a long run as an aggregator leaves it, without pushing the run.

    write(Path("/tmp/ledgers"), ranks=128, steps=781_250, start_ns=start_ns)

Records, blocks and segments are made by the code that makes them in the aggregator: all steps are merged and folded as
there, and each push leaves a segment.

`write_thinned` writes what compaction leaves of it: it compacts the rows of one rank of each kind, and the other ranks,
whose rows are the same, get a copy of what is left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sql

from bench.aggregator.load import KINDS
from bench.history.run import RUN, Pushes
from bench.processes import say
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.pushed_steps import PushedSteps, decode_steps
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.compaction import DAY_NS, SMALL_ROWS, Compaction
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_5
from goodput.aggregator.ledger.segments import Segment
from goodput.aggregator.run_states import encode
from goodput.wire import schema

SHOWN_SECONDS = 10.0


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
        self._store = Store()
        self._live: IncrementalAccount | None = None
        self.done = 0

    def take(self, reports: Sequence[schema.RankReport]) -> None:
        """A report of each rank. One that is shorter than the others is the last, and no segment has it."""
        count = reports[0].blocks[0].count
        self.done += count
        records = []
        for report, steps in zip(reports, decode_steps(reports), strict=True):
            assert isinstance(steps, PushedSteps)
            records.append(self._store.merge(report, 0, "", steps))
        segments = []
        if count == self._steps_a_push:
            numbers = dict.fromkeys(((rank, 1) for rank in range(len(reports))), self.done)
            segments = [Segment(RUN, numbers, self._state(reports))]
        for one in records[self._with_rows :]:
            one.blocks.clear()
        self._ledger.append(records, new_segments=segments)

    def _state(self, reports: Sequence[schema.RankReport]) -> bytes:
        """The state of the run's account after these reports."""
        if self._live is None:
            self._live = IncrementalAccount(self._store.runs[RUN], stall_seconds=60.0, stale_seconds=30.0)
        self._live.account(reports[0].live.now_ns)
        copied = self._live.copy()
        if copied is None or self._live.rows() != len(reports) * self.done:
            raise RuntimeError(f"{self._live.rows()} of {len(reports) * self.done} rows are folded")
        self._live.drop_rows()
        return encode(copied[0])


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
