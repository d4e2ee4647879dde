"""Background work on step blocks: merges small ones, and thins those of closed runs to minutes, later to hours.

A run is closed when its account was stored (closed_runs.py), so thinning changes no figure of it. Of a run that is not
over the steps up to its bases are thinned, from which its account goes on (bases.py). Blocks are read and
encoded without a transaction; then one short transaction replaces them, and does nothing if one of them
is gone. So ingest hardly waits, readers see each row once, and several programs may compact at once.

Every step around the end of a segment is kept, so that an account of a window is the difference of two segments and the
few thinned rows beside them. Segments that are closer to each other than SEGMENT_ROWS of these rows are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, fields
from itertools import chain, groupby, islice

import sqlalchemy as sql

from goodput.aggregator import records
from goodput.aggregator.ledger import bases, blocks, closed_runs, segments
from goodput.aggregator.ledger.block_reader import KEY, PROCESS_ID, listed_ids, stored_blocks
from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_4, version_5

SMALL_ROWS = records.BLOCK_ROWS_MAX // 2  # a block with fewer is merged with its neighbours
BLOCKS_MAX = 512  # merged into one
# Blocks of ranks that are pushed together lie in the same pages, which are written once where one transaction merges all.
MERGED_AT_ONCE = 8
# A larger process is thinned in parts of some 6 MB.
THIN_ROWS = 32 * records.BLOCK_ROWS_MAX
DAY_NS = 86_400 * 10**9
SEGMENT_ROWS = 32
# Processes whose blocks are looked through for small ones at a time.
SEARCHED_MAX = 1000
# Processes whose appended rows are counted.
APPENDED_MAX = 1 << 17

Spans = dict[int, list[tuple[int, int]]]  # steps that are kept, first and last, by attempt number
_processes, _blocks, _closed = version_5.processes, version_5.blocks, version_5.closed_runs
_events = version_4.events
(_INDEX,) = _blocks.indexes
# Built once: building a statement takes longer than SQLite takes to execute it.
_LISTED = sql.select(
    *(_blocks.c[name] for name in ("process", "id", "first", "last", "end_ns_last", "rows", "tier"))
)
_LISTED = _LISTED.order_by(*list(_INDEX.columns)[1:])
_OF_ID, _OF_KEY = (_LISTED.where(_blocks.c.process == of) for of in (sql.bindparam("of"), PROCESS_ID))


@dataclass
class Keep:
    """For how many days the steps of a run are kept, and then its minutes."""

    steps_days: float = 7.0
    minutes_days: float = 90.0


@dataclass
class Counts:
    """What compaction has done since the program started."""

    blocks_merged: int = 0  # that were merged into larger ones
    blocks_thinned: int = 0
    rows_thinned: int = 0  # for which the last of their minute or hour stands now
    bytes_freed: int = 0  # of blocks; the file of SQLite keeps them as free pages

    def add(self, other: Counts) -> None:
        for one in fields(Counts):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass
class Compaction:
    """Compacts a ledger. Its methods yield after each transaction, block between, and raise LedgerError."""

    ledger: Ledger
    keep: Keep = field(default_factory=Keep)
    counts: Counts = field(default_factory=Counts)
    _thinned: set[bases.Base] = field(default_factory=set)  # up to which all is thinned

    def work(self, now_ns: int, merge_all: bool = False, search: bool = True) -> Iterator[None]:
        """Do all that is due. With `merge_all` also blocks of recent pushes are merged that do not fill one yet.

        Without `search` only blocks are merged that this ledger object appended: the search reads the index of all.
        """
        listed = self._searched(merge_all) if search else self._appended()
        for _ in chain(self._thin_due(now_ns), self._merge_small(listed, merge_all)):
            yield

    # ---- Merging

    def _appended(self) -> Iterator[list[sql.Row]]:
        """The blocks of each process of which this ledger object appended enough rows to fill one."""
        appended = self.ledger.appended
        for key in [key for key, rows in list(appended.items()) if rows >= SMALL_ROWS]:
            del appended[key]
            yield list(self.ledger.fetch(_OF_KEY, dict(zip(KEY, key, strict=True))))
        if len(appended) > APPENDED_MAX:
            appended.clear()  # the next search finds them

    def _searched(self, merge_all: bool) -> Iterator[list[sql.Row]]:
        """The blocks of each process whose small ones fill one together."""
        of, at = _blocks.c.process, 0
        newest = self.ledger.fetch(sql.select(sql.func.max(_processes.c.id))).scalar() or 0
        enough = sql.func.count() > 1 if merge_all else sql.func.sum(_blocks.c.rows) >= SMALL_ROWS
        small = sql.select(of).where(_blocks.c.rows < SMALL_ROWS).group_by(of).having(enough)
        while at < newest:
            found = self.ledger.fetch(small.where(of > at, of <= at + SEARCHED_MAX)).scalars().all()
            yield from map(self._listed, found)
            at += SEARCHED_MAX

    def _merge_small(self, listed: Iterator[list[sql.Row]], merge_all: bool) -> Iterator[None]:
        every = (group for of_process in listed for group in small_groups(of_process, merge_all))
        while some := list(islice(every, MERGED_AT_ONCE)):
            self._merge(some)
            yield

    def _merge(self, groups: list[list[sql.Row]]) -> None:
        """Merge the blocks of each group, which are of one process."""
        ids = [one.id for group in groups for one in group]
        with self.ledger.errors():
            stored = stored_blocks(self.ledger.fetch, ids)
        if len(stored) < len(ids):
            return
        columns, rest = [], iter(stored)
        for group in groups:
            with self.ledger.errors():
                values = blocks.decode(list(islice(rest, len(group))))
            merged = blocks.block_columns(values, group[0].tier)
            columns += [{"process": group[0].process, **one} for one in merged]
        self._replace(ids, columns, Counts(blocks_merged=len(ids), bytes_freed=_freed(stored, columns)))

    # ---- Thinning

    def _thin_due(self, now_ns: int) -> Iterator[None]:
        for tier, days in ((blocks.HOURS, self.keep.minutes_days), (blocks.MINUTES, self.keep.steps_days)):
            is_due = _closed.c.newest_ns <= now_ns - int(days * DAY_NS)
            columns = _closed.c.run, _closed.c.state, _closed.c.newest_ns
            due = sql.select(*columns).where(_closed.c.tier < tier, is_due)
            for run, state, newest_ns in self.ledger.fetch(due).all():
                yield from self._thin_run(run, state, newest_ns, tier)
        found = bases.stored(self.ledger.fetch)
        self._thinned.intersection_update(found)
        for base in found:
            if base not in self._thinned:
                yield from self._thin_before(base)
                self._thinned.add(base)

    def _thin_run(self, run: str, state: bytes, newest_ns: int, tier: int) -> Iterator[None]:
        if not closed_runs.is_closed(self.ledger, run):
            return
        spans = yield from self._thin_segments(run, tier)
        # A run may go on meanwhile, with rows that end later.
        yield from self._thin_blocks(run, tier, spans, lambda _, one: one.end_ns_last <= newest_ns)
        with self.ledger.transaction() as connection:
            done = _closed.update().where(_closed.c.run == run, _closed.c.state == state)
            connection.execute(done.values(tier=tier))

    def _thin_before(self, base: bases.Base) -> Iterator[None]:
        """Thin blocks that have no row beyond a base."""
        with self.ledger.errors():
            last = segments.numbers(self.ledger.fetch, base.run, base.rows)
        if last is not None:
            spans = yield from self._spans_before(base)
            yield from self._thin_blocks(
                base.run, base.tier, spans, lambda key, one: one.last <= last.get(key, -1)
            )

    def _spans_before(self, base: bases.Base) -> Generator[None, None, Spans]:
        """By attempt number the steps around the ends of a base and of the segments before it, back to the first block that is
        not thinned yet."""
        of_run = sql.select(_processes.c.id).where(_processes.c.run == base.run)
        oldest = sql.select(sql.func.min(_blocks.c.start_ns_first))
        oldest = oldest.where(_blocks.c.process.in_(of_run), _blocks.c.tier < base.tier)
        oldest_ns = self.ledger.fetch(oldest).scalar() or 0
        spans: Spans = {}
        for rows in reversed([rows for rows in self.ledger.segment_rows(base.run) if rows <= base.rows]):
            state = segments.state(self.ledger.fetch, base.run, rows)
            yield
            if state is None:
                continue
            border = segments.border_of(state)
            for number, span in border.spans.items():
                spans.setdefault(number, []).append(span)
            if border.end_ns < oldest_ns:
                break
        return spans

    def _thin_blocks(
        self, run: str, tier: int, spans: Spans, is_old: Callable[[segments.Key, sql.Row], bool]
    ) -> Iterator[None]:
        """Thin the blocks of a run that are old, by the key of their attempt and themselves."""
        named = self._checkpoint_steps(run)
        for process, key in self.ledger.attempt_keys(run).items():
            due = [one for one in self._listed(process) if one.tier < tier and is_old(key, one)]
            if due:
                ends = (min(one.first for one in due), max(one.last for one in due))
                for part in _parts(due):
                    self._thin(process, part, tier, named, ends, spans.get(key[1], []))
                    yield

    def _thin_segments(self, run: str, tier: int) -> Generator[None, None, Spans]:
        """Drop segments that are closer to a later one than SEGMENT_ROWS rows of a tier. Returns by attempt number the steps
        around the ends of the others."""
        spans: Spans = {}
        dropped: list[int] = []
        before_ns = None
        for rows in reversed(self.ledger.segment_rows(run)):
            state = segments.state(self.ledger.fetch, run, rows)
            yield
            if state is None:
                continue
            border = segments.border_of(state)
            if before_ns is not None and border.end_ns > before_ns - SEGMENT_ROWS * tier * 10**9:
                dropped.append(rows)
                continue
            for number, span in border.spans.items():
                spans.setdefault(number, []).append(span)
            before_ns = border.end_ns
        if dropped:
            with self.ledger.transaction() as connection:
                segments.drop(connection, run, dropped)
        return spans

    def _thin(
        self,
        process: int,
        part: list[sql.Row],
        tier: int,
        named: list[int],
        ends: tuple[int, int],
        spans: list[tuple[int, int]],
    ) -> None:
        with self.ledger.errors():
            stored = stored_blocks(self.ledger.fetch, [one.id for one in part])
        if len(stored) == len(part):
            with self.ledger.errors():
                values = blocks.in_order(blocks.decode(stored))
            kept = blocks.thinned(values, tier, named, ends, spans)
            columns = blocks.block_columns(kept, tier)
            thinned = values.shape[1] - kept.shape[1]
            counts = Counts(0, len(part), thinned, _freed(stored, columns))
            new = [{"process": process, **one} for one in columns]
            self._replace([one.id for one in part], new, counts)

    def _checkpoint_steps(self, run: str) -> list[int]:
        """Steps that a checkpoint or a resume of any process of the run names: all ranks keep the same."""
        query = sql.select(_events.c.step).where(_events.c.run == run, _events.c.kind != "mark").distinct()
        return [int(step) for step in self.ledger.fetch(query).scalars()]

    # ---- Access to the ledger

    def _listed(self, process: int) -> list[sql.Row]:
        return list(self.ledger.fetch(_OF_ID, {"of": process}))

    def _replace(self, ids: list[int], columns: list[dict], counts: Counts) -> None:
        """Write blocks in place of others in one transaction, unless one of these is gone."""
        try:
            with self.ledger.transaction() as connection:
                gone = sql.text(f"DELETE FROM blocks WHERE id IN ({listed_ids(ids)})")
                if connection.execute(gone).rowcount < len(ids):
                    raise _Gone
                statement = insert(connection.dialect.name, _blocks).on_conflict_do_nothing()
                connection.execute(statement, columns)
        except _Gone:
            return
        self.counts.add(counts)


class _Gone(Exception):
    """A block was replaced by another program."""


def small_groups(listed: list[sql.Row], merge_all: bool) -> Iterator[list[sql.Row]]:
    """Neighbouring small blocks of one tier that fill a block together; with `merge_all` also those that do not."""
    for (_, is_small), alike in groupby(listed, lambda one: (one.tier, one.rows < SMALL_ROWS)):
        group, rows = [], 0
        for one in alike if is_small else ():
            if rows + one.rows > records.BLOCK_ROWS_MAX or len(group) == BLOCKS_MAX:
                yield group
                group, rows = [], 0
            group.append(one)
            rows += one.rows
        if len(group) > 1 and (merge_all or rows >= SMALL_ROWS):
            yield group


def _parts(due: list[sql.Row]) -> Iterator[list[sql.Row]]:
    """Blocks in order of their first number, some THIN_ROWS rows at a time."""
    part, rows = [], 0
    for one in due:
        if part and rows + one.rows > THIN_ROWS:
            yield part
            part, rows = [], 0
        part.append(one)
        rows += one.rows
    yield part


def _freed(stored: list[blocks.StoredBlock], columns: list[dict]) -> int:
    return sum(len(one.block) for one in stored) - sum(len(one["block"]) for one in columns)
