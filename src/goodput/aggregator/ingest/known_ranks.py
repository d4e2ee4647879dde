"""Pushes of ranks that are known, decoded and checked in one compiled pass (wire/_reports.c), and merged in one loop.

From one push to the next an agent's reports differ in their live parts and steps; identities and phases are the same, byte
for byte. So these are decoded and checked once and found by their bytes from then on, in some 450 bytes a rank. A push in
which anything is unusual, unknown or wrong is left to the schema, which names what is wrong. So both accept the same.

Of most ranks a push has the steps that follow the last one, and a newer live part. What `Store.merge` does with such a report
is done here without its checks, which `_follows` makes; any other report is left to it. So both leave the same in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from goodput.aggregator.ingest.pushed_steps import PushedSteps
from goodput.aggregator.ingest.recent.recent_steps import RecentSteps
from goodput.aggregator.ingest.report_times import AHEAD_NS_MAX
from goodput.aggregator.ingest.store import Process, Store
from goodput.aggregator.ingest.waiting_pushes import RANK_ROWS, Push
from goodput.aggregator.records import BLOCK_ROWS_MAX, NewBlock, NewRecords
from goodput.wire import compiled, schema
from goodput.wire.packed_rows import PackedRows
from goodput.wire.step_blocks import TOTALS

_ENDS = ("", "finished", "failed", "resumed")
# More than so many identities for each process, and some, are those of processes that have gone.
STALE_TIMES, STALE_MORE = 2, 1024


_live_decoder = msgspec.msgpack.Decoder(schema.Live)


class KnownRank(NamedTuple):
    """What was decoded from the bytes of an identity, with the bytes of the phases and their states beside it.

    The objects are the store's own, so that they take hardly more memory.
    """

    phases_bytes: bytes
    states_bytes: bytes
    phases: tuple[str, ...]
    phase_states: dict[str, str]
    identity: schema.Identity
    key: tuple  # of its process


class Rank(NamedTuple):
    """A report of a known rank, as the compiled pass returns it: of its steps the number, the first and the last row's
    number, the first row's index, the least start, the greatest end, all columns, those of the last row, and the block
    in MessagePack; the last three are None without rows."""

    known: KnownRank
    sequence: int
    live: schema.Live
    rows: int
    first: int
    last: int
    first_step: int
    start_ns: int
    end_ns: int
    values: bytes | None
    last_row: bytes | None
    block: bytes | None

    def report(self) -> schema.RankReport:
        """Without its steps."""
        known = self.known
        return schema.RankReport(known.identity, self.sequence, known.phases, self.live, known.phase_states)

    def steps(self) -> PushedSteps:
        if self.values is None or self.block is None:
            return PushedSteps(np.zeros((TOTALS + 2 * len(self.known.phases), 0), np.int64))
        values = np.frombuffer(self.values, np.int64).reshape(-1, self.rows)
        return PushedSteps(values, *self[4:9], self.block)


class KnownPart(NamedTuple):
    """The ranks of a push, as tuples like Rank; their steps, and the bytes that these take as columns."""

    ranks: list[tuple]
    rows: int
    nbytes: int

    @property
    def weight(self) -> int:
        """As of waiting_pushes.Part."""
        return self.rows + RANK_ROWS * len(self.ranks)

    def runs(self) -> set[str]:
        return {rank[0].identity.run for rank in self.ranks}


class KnownPush(NamedTuple):
    """What a schema.NodeReport has, with the reports of its ranks as one part to be merged."""

    node: str
    sent_ns: int
    ranks: list[KnownRank]
    previous_sent_ns: int
    previous_took_ns: int
    agent: str
    part: KnownPart
    stacks: Sequence[schema.Stack] = ()
    health: Sequence[schema.Health] = ()


AnyReport = schema.NodeReport | KnownPush


class KnownRanks:
    """The identities and phases that a store has accepted, by their bytes."""

    def __init__(self, store: Store):
        self._store = store
        self._known: dict[bytes, KnownRank] = {}
        self._shared: dict[bytes, bytes] = {}

    def decode(self, body: bytes, rows_max: int) -> KnownPush | None:
        """A push of known ranks with `rows_max` steps at most; None for any other push."""
        found = self._pass(body, rows_max)
        if found is None:
            return None
        node, sent_ns, ranks, previous_sent_ns, previous_took_ns, agent, unknown, rows, nbytes = found
        if unknown:
            return None
        known = []
        for at, rank in enumerate(ranks):
            known.append(rank[0])
            if type(rank[2]) is bytes:
                live = _decode_live(rank[2], rank[0].phases)
                if live is None:
                    return None
                ranks[at] = (*rank[:2], live, *rank[3:])
        previous = previous_sent_ns or 0, previous_took_ns or 0
        return KnownPush(node, sent_ns, known, *previous, agent or "", KnownPart(ranks, rows, nbytes))

    def note(self, body: bytes, ranks: Sequence[schema.RankReport], rows_max: int) -> None:
        """Know the ranks of a push that was merged."""
        found = self._pass(body, rows_max)
        if found is None:
            return
        if len(self._known) > STALE_TIMES * len(self._store.processes) + STALE_MORE:
            self._known.clear()
            self._shared.clear()
        for report, rank in zip(ranks, found[2], strict=True):
            process = self._store.accepted(report) if len(rank) == 1 else None
            if process is not None:
                key, *texts = rank[0]
                phases, states = (self._shared.setdefault(text, text) for text in texts)
                attempt = process.attempt
                self._known[key] = KnownRank(
                    phases, states, attempt.phases, attempt.phase_states, process.identity, process.key
                )

    def _pass(self, body: bytes, rows_max: int) -> tuple | None:
        if compiled.steps is None:
            return None
        return compiled.steps.known_ranks(body, self._known, schema.Live, _ENDS, rows_max)

    def merge(
        self,
        push: Push,
        part: KnownPart,
        now_ns: int,
        reject: Callable[[schema.RankReport, Exception], object],
        move: Callable[[Push, schema.RankReport, PushedSteps], tuple[schema.RankReport, PushedSteps]],
    ) -> list[NewRecords]:
        """Merge the ranks of a push at `now_ns` (our unix ns) into the store; `reject` is called with those that raise.

        `move` moves the times of one whose process is not in the store any more.
        """
        store, found, merged = self._store, [], {}
        for rank in part.ranks:
            process = store.processes.get(rank[0].key)
            read_ns = push.read_ns(rank[1], now_ns)
            try:
                if (
                    process is not None
                    and not push.refused
                    and _follows(rank, process, now_ns + AHEAD_NS_MAX)
                ):
                    found.append(_add_following(store, merged, rank, process, now_ns, read_ns))
                elif rank[0].identity not in push.refused:
                    own = Rank(*rank)
                    report, steps = move(push, own.report(), own.steps())
                    found.append(store.merge(report, now_ns, push.token, steps, read_ns))
            except Exception as error:
                push.refused.add(rank[0].identity)
                reject(Rank(*rank).report(), error)
        for run, of_run in merged.items():
            store.revisions[run] += of_run.reports
            store.reported_ns[run] = now_ns
            store.new += of_run.rows
            if of_run.since_ns > store.progress_ns[run]:
                store.progress_ns[run] = of_run.since_ns
        return found


class _OfRun:
    """What a push adds to a run."""

    __slots__ = ("recent", "reports", "rows", "since_ns")

    def __init__(self, recent: RecentSteps):
        self.recent, self.reports, self.rows, self.since_ns = recent, 0, 0, 0


def _follows(rank: tuple, process: Process, ahead_ns: int) -> bool:
    """Whether a report is newer than all before, and its steps follow the last one; none of its times is beyond `ahead_ns`."""
    known, sequence, live, rows, first, last, _, _, end_ns, *_ = rank
    attempt, identity = process.attempt, known.identity
    return (
        process.identity is identity
        and sequence > process.sequence
        and attempt.phases is known.phases
        and attempt.phase_states is known.phase_states
        and (
            rows == 0 or (first == attempt.top_number + 1 and last - rows < first and rows <= BLOCK_ROWS_MAX)
        )
        and live.now_ns <= ahead_ns
        and live.last_ns <= ahead_ns
        and live.end_ns <= ahead_ns
        and end_ns <= ahead_ns
        and identity.start_ns <= ahead_ns
    )


def _add_following(
    store: Store, merged: dict[str, _OfRun], rank: tuple, process: Process, now_ns: int, read_ns: int
) -> NewRecords:
    """What `Store.merge` does with such a report, but for what is noted in `merged`."""
    known, sequence, live, rows, first, last, first_step, start_ns, end_ns, values, last_row, block = rank
    attempt, identity, blocks = process.attempt, known.identity, []
    of_run = merged.get(identity.run)
    if of_run is None:
        of_run = merged[identity.run] = _OfRun(store.recent[identity.run])
    of_run.reports += 1
    if rows:
        of_run.rows += rows
        width, before, process.last_row = len(known.phases), process.last_row, last_row
        attempt.add_following(PackedRows(block, width, first, last), first, last, first_step, end_ns)
        store.mixes.add(identity.run, attempt.rank, before, last_row)
        of_run.recent.add(known.phases, values, rows, before, read_ns - live.now_ns)
        since_ns = read_ns if live.now_ns <= end_ns else read_ns - live.now_ns + end_ns
        if since_ns > of_run.since_ns:
            of_run.since_ns = since_ns
        blocks.append(NewBlock(block, width, rows, first, last, start_ns, end_ns))
    if now_ns > attempt.received_ns:
        attempt.received_ns = now_ns
    report = schema.RankReport(identity, sequence, known.phases, live, known.phase_states)
    return NewRecords(store.add_live(process, report), blocks, [])


def _decode_live(live: bytes, phases: tuple[str, ...]) -> schema.Live | None:
    """A live part with more than every report has, such as operations of process groups; None if it is wrong."""
    try:
        found = _live_decoder.decode(live)
        schema.check_live(found, phases, "")
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return found
