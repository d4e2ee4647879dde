"""Runs in memory: their attempts and rows, merged from rank reports.

Merging is keyed, so lost, repeated and reordered reports change nothing. A rank report that contradicts earlier ones is
rejected with a reason; the other ranks of its push are accepted.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from msgspec.structs import fields, replace

from goodput.account import DECLARED, Attempt, EndMark, Row, Run
from goodput.account.collectives.operation_sums import NO_SUMS
from goodput.account.facts import Key
from goodput.aggregator.column_attempt import NO_ENTRIES, ColumnAttempt, row_of
from goodput.aggregator.ingest.checkpoint_times import CheckpointTimes, ProcessCheckpoints
from goodput.aggregator.ingest.hardware_sums import sum_hardware
from goodput.aggregator.ingest.operation_sums import SharedKeys, reported_rows
from goodput.aggregator.ingest.pushed_steps import PushedSteps, pushed, steps_of_rows
from goodput.aggregator.ingest.recent.phase_mixes import PhaseMixes
from goodput.aggregator.ingest.recent.recent_steps import RecentSteps
from goodput.aggregator.ingest.recent.step_trends import WINDOWS_NS
from goodput.aggregator.ingest.report_times import ahead_problem, start_problem
from goodput.aggregator.ingest.sampled_ranks import SampledRanks, reported
from goodput.aggregator.ingest.token_gpus import TokenGpus
from goodput.aggregator.records import BLOCK_ROWS_MAX, NewBlock, NewRecords, new_blocks, own_start_ns
from goodput.wire import connections, schema
from goodput.wire.collectives import Collectives
from goodput.wire.packed_rows import PackedRows, pack
from goodput.wire.ras import RasAnswer
from goodput.wire.sampled_stacks import NO_STACKS
from goodput.wire.step_blocks import END, NUMBER, TOTALS, VALUE_MAX

RUNS_MAX = 10_000
# Rank processes of all runs: each restart of a rank is one more.
PROCESSES_MAX = 1 << 20
# Restarts of one run, and world sizes that they have: an account goes through all restarts for each of the sizes.
ATTEMPTS_MAX, WORLDS_MAX = 4096, 256
# A process that reported within this time and did not end still owns its rank.
OWNED_SECONDS = 30.0
# A token for some runs may take each of the two bounds divided by this.
SCOPED_DIVISOR = 4
_TEXTS = [field.name for field in fields(schema.Identity) if field.type is str]


class ReportRejected(Exception):
    """A rank report that cannot be merged; `reason` is a label (schema.REJECTED_FOR)."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class Process:
    """One rank process. `sequence` is that of its newest live part."""

    attempt: ColumnAttempt
    identity: schema.Identity
    key: tuple  # in Store.processes
    sequence: int = -1
    last_row: bytes | None = None  # its last completed step, as columns
    checkpoints: ProcessCheckpoints = field(default_factory=ProcessCheckpoints)
    collectives: Collectives | None = None  # as last reported, not kept in the ledger
    connections: bytes | None = None  # likewise, packed
    # What NCCL's RAS said of its job, likewise: its steps by then, its host's time, and the answer.
    ras: tuple[int, int, RasAnswer] | None = None

    @property
    def last(self) -> Row | None:
        """Its last completed step."""
        return None if self.last_row is None else row_of(np.frombuffer(self.last_row, np.int64).tolist())

    def add_steps(self, steps: PushedSteps, block: NewBlock | None) -> PushedSteps:
        """Merge rows, which `block` has too if there is one; returns those that were new."""
        attempt, values = self.attempt, steps.values
        if not values.shape[1]:
            return steps
        if attempt.top_number + 1 == steps.first == steps.last - values.shape[1] + 1:
            rows = values if block is None else PackedRows(block.block, block.width, block.first, block.last)
            attempt.add_following(rows, steps.first, steps.last, steps.first_step, steps.end_ns)
        else:
            values = attempt.add_columns(values)
            if values.shape[1] < steps.values.shape[1]:
                steps = pushed(values)
        if self.last_row is None or steps.last > number_of(self.last_row):
            self.last_row = values[:, -1].tobytes()
        return steps


@dataclass
class Store:
    """All runs. `new` and `repeated` count rows and events."""

    runs: dict[str, Run] = field(default_factory=dict)
    processes: dict[tuple, Process] = field(default_factory=dict)
    # All by run:
    revisions: Counter[str] = field(default_factory=Counter)  # grows with every merge
    recent: dict[str, RecentSteps] = field(default_factory=dict)
    newest: dict[str, dict[int, Process]] = field(default_factory=dict)  # by rank
    progress_ns: Counter[str] = field(default_factory=Counter)  # our unix ns of the last completed step
    checkpoints: dict[str, CheckpointTimes] = field(default_factory=dict)  # if it reported one
    starts: dict[str, int] = field(default_factory=dict)  # unix ns of the first process's start
    reported_ns: dict[str, int] = field(default_factory=dict)  # our unix ns of the last report
    numbers: dict[str, set[int]] = field(default_factory=dict)  # of its attempts
    highest: dict[str, dict[int, int]] = field(default_factory=dict)  # by rank, see `_highest_numbers`
    worlds: dict[str, set[int]] = field(default_factory=dict)  # the world sizes that its attempts reported
    # Of processes whose times are moved (moved_times.py), by the key that their agent reports: by how many ns.
    moved: dict[str, dict[tuple, int]] = field(default_factory=dict)
    # Runs that are in the ledger alone, with their starts in unix ns. A report of one may not be merged before its run
    # is in memory again (adopt).
    stored: dict[str, int] = field(default_factory=dict)
    # Called with the id of a token for some runs, or "", when its bounds are full: takes old runs out of memory.
    make_room: Callable[[str], object] = lambda token: None
    # How long ago a process may have begun that is not known yet.
    start_age_ns_max: int | None = None
    token_gpus: TokenGpus = field(default_factory=TokenGpus)
    sampled: SampledRanks = field(default_factory=SampledRanks)
    mixes: PhaseMixes = field(default_factory=PhaseMixes)
    _operation_keys: SharedKeys = field(default_factory=SharedKeys)
    # What tokens for some runs take of the bounds, by run and then by (token, what).
    taken: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    taken_sum: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By run and attempt, the lowest number from which a fold of its rows is wrong now: see `take_late`.
    late_from: dict[str, dict[Key, int]] = field(default_factory=dict)
    new: int = 0
    repeated: int = 0
    _adopted: int = 0

    def merge(
        self,
        report: schema.RankReport,
        now_ns: int,
        token: str = "",
        steps: PushedSteps | None = None,
        read_ns: int | None = None,
    ) -> NewRecords:
        """Merge a checked rank report received at `now_ns` (our unix ns; 0 skips checks of time). Raises ReportRejected.

        `read_ns` is when its page was read, on our clock; by default `now_ns`. `token` is the id of a token for some runs,
        whose share of the bounds is limited. `steps` has the rows of `report.blocks`, decoded and checked; without,
        `report.steps` has them.
        """
        steps = steps_of_rows(report.steps) if steps is None else steps
        read_ns = now_ns if read_ns is None else read_ns
        if now_ns:
            _raise_if("time", ahead_problem(report, steps.end_ns, now_ns))
            self._check_world(report.identity)
            _raise_if("ranks", self.token_gpus.add(token, report.identity, now_ns) if token else None)
        process = self._process(report.identity, now_ns, token)
        attempt, run, count = process.attempt, report.identity.run, steps.values.shape[1]
        self.worlds.setdefault(run, set()).add(report.identity.world_size)
        self.reported_ns[run] = now_ns or max(report.live.now_ns, self.reported_ns.get(run, 0))
        _extend_phases(attempt, report)
        before, late = process.last_row, attempt.late_count
        block = _block_of(report, steps)
        steps = process.add_steps(steps, block)
        if attempt.late_count != late:
            self._note_late(run, (attempt.rank, attempt.attempt), steps.first)
        events = self._add_events(process, report, read_ns)
        rows = steps.values.shape[1]
        if rows:
            self.mixes.add(run, attempt.rank, before, process.last_row)
            self._add_recent(run, attempt, steps, before, read_ns - report.live.now_ns if now_ns else None)
            # Its age by the host's clock when the agent read it, by ours since: a late report is no new progress.
            since_ns = read_ns - max(report.live.now_ns - steps.end_ns, 0)
            if since_ns > self.progress_ns[run]:
                self.progress_ns[run] = since_ns
        self.new += rows + len(events)
        self.repeated += count - rows + len(report.events) - len(events)
        attempt.received_ns = max(attempt.received_ns, now_ns)
        late, is_newest = attempt.late_count, report.sequence > process.sequence
        bare = self.add_live(process, report)
        if attempt.late_count != late:
            # Its group is another one: no step of it was compared with the right ones.
            self._note_late(run, (attempt.rank, attempt.attempt), 0)
        is_open = process is self.newest[run][attempt.rank] and attempt.known_end_ns() is None
        if rows or events or is_newest or is_open:
            # Otherwise it repeats what a process reported that has ended, and changes nothing.
            self.revisions[run] += 1
        blocks = [block] if block is not None and rows == count else new_blocks(steps.values)
        return NewRecords(bare, blocks, events)

    def _add_events(self, process: Process, report: schema.RankReport, read_ns: int) -> list[schema.EventRow]:
        """Merge a report's events; returns those that were new."""
        if not report.events:
            return []
        attempt, run = process.attempt, report.identity.run
        events = [event for event in report.events if event.number not in attempt.events]
        attempt.add_events(events)
        if events:
            ahead_ns = report.live.now_ns - read_ns if read_ns else 0
            times = self.checkpoints.setdefault(run, CheckpointTimes())
            times.add(process.checkpoints, attempt.attempt, events, ahead_ns)
        return events

    def _add_recent(
        self,
        run: str,
        attempt: ColumnAttempt,
        steps: PushedSteps,
        before: bytes | None,
        shift_ns: int | None,
    ) -> None:
        before = None if steps.first == 1 else before
        values = np.ascontiguousarray(steps.values)
        self.recent[run].add(attempt.phases, values, values.shape[1], before, shift_ns)

    def add_live(self, process: Process, report: schema.RankReport) -> schema.RankReport:
        """Set the live part if it is the newest; returns the report as the ledger keeps it, without steps and events."""
        attempt, identity, live = process.attempt, report.identity, report.live
        if report.sequence > process.sequence:
            process.sequence = report.sequence
            if identity != process.identity:
                process.identity = identity = _interned(identity)
                _set_declared(attempt, identity)
            _set_live(attempt, live)
            if process.ras is not None and process.ras[0] != live.steps_done:
                process.ras = None  # The rank goes on.
            if _has_more(live):
                self._add_more(process, live)
                live = replace(live, collectives=None, connections=None, ras=None)
            if live.stacks or attempt.stacks is not NO_STACKS:
                # Samples of reports before this one.
                live = replace(live, stacks=reported(attempt))
            if live.operations is None and attempt.collectives is not NO_SUMS:
                live = replace(live, operations=reported_rows(attempt.collectives))
            if live.hardware != attempt.hardware:
                # The figures summed over restarts of the agent.
                live = replace(live, hardware=attempt.hardware)
        elif _has_more(live):
            live = replace(live, collectives=None, connections=None, ras=None)
        if identity.attempt != attempt.attempt:
            identity = replace(identity, attempt=attempt.attempt)
        return schema.RankReport(identity, report.sequence, report.phases, live, report.phase_states)

    def _add_more(self, process: Process, live: schema.Live) -> None:
        """Set what only some live parts have."""
        process.collectives = live.collectives or process.collectives
        if live.connections is not None:
            has_any = bool(live.connections.rows)
            process.connections = connections.pack(live.connections) if has_any else None
        if live.ras is not None:
            process.ras = live.steps_done, live.now_ns, live.ras
        self.sampled.take(process.identity.run, process.attempt, live.stacks)
        if live.operations is not None:
            process.attempt.collectives = self._operation_keys.sums(live.operations)

    def has_accepted(self, report: schema.RankReport) -> bool:
        """Whether a report of the same process with this identity and these phases was merged before."""
        return self.accepted(report) is not None

    def accepted(self, report: schema.RankReport) -> Process | None:
        """The process of a report, where it has this identity and these phases."""
        process = self.processes.get(key_of(report.identity))
        is_same = (
            process is not None
            and process.identity == report.identity
            and process.attempt.phases == report.phases
            and process.attempt.phase_states == report.phase_states
        )
        return process if is_same else None

    def _note_late(self, run: str, key: Key, number: int) -> None:
        numbers = self.late_from.setdefault(run, {})
        numbers[key] = min(number, numbers.get(key, number))

    def late_rows(self, run: str) -> int:
        """How often a row of the run came late, or an attempt changed its group."""
        if run not in self.runs:
            return -1
        return sum(attempt.late_count for attempt in self.runs[run].attempts.values())

    def put_back_late(self, late: dict[str, dict[Key, int]]) -> None:
        for run, numbers in late.items():
            for key, number in numbers.items():
                self._note_late(run, key, number)

    def take_late(self) -> dict[str, dict[Key, int]]:
        """What came late since the last call."""
        late, self.late_from = self.late_from, {}
        return late

    def attempt(self, identity: schema.Identity) -> ColumnAttempt:
        """The attempt of a process that is in the store."""
        return self.processes[key_of(identity)].attempt

    def restore_steps(self, identity: schema.Identity, values: np.ndarray) -> None:
        """Add rows of the ledger to a process that is in the store. Phases that its report does not name are left out."""
        process = self.processes[key_of(identity)]
        values = values[: TOTALS + 2 * len(process.attempt.phases)]
        if process.last_row is None and values[NUMBER, 0] == process.attempt.top_number:
            # The last of those that are folded already.
            process.last_row, values = values[:, 0].tobytes(), values[:, 1:]
        for at in range(0, values.shape[1], BLOCK_ROWS_MAX):
            self._restore_block(process, values[:, at : at + BLOCK_ROWS_MAX])

    def _restore_block(self, process: Process, values: np.ndarray) -> None:
        # As a block, which takes a tenth of the columns: a large run has a million of them until they are folded. Where the
        # ledger is damaged a block may not have them.
        is_right = values.min() >= 0 and values.max() <= VALUE_MAX
        before, block = process.last_row, new_blocks(values)[0] if is_right else None
        steps = process.add_steps(pushed(values), block)
        is_recent = steps.values[END] > process.attempt.seen_ns - WINDOWS_NS
        if is_recent.any():
            at = int(is_recent.argmax())
            before = steps.values[:, at - 1].tobytes() if at else before
            recent = pushed(steps.values[:, at:])
            self._add_recent(process.identity.run, process.attempt, recent, before, None)

    def drop_steps(self, run: str, is_thinned: bool = False) -> None:
        """Drop the rows of a run, which the ledger has; of a thinned run all that were ever reported count as known."""
        for attempt in self.runs[run].attempts.values():
            assert isinstance(attempt, ColumnAttempt)
            attempt.trim(attempt.top_number)
            if is_thinned:
                attempt.holes.clear()

    def end(self, identity: schema.Identity, mark: EndMark | None) -> None:
        """Set the end mark of a process that is in the store."""
        self.processes[key_of(identity)].attempt.end_mark = mark
        self.revisions[identity.run] += 1

    def forget(self, *runs: str) -> None:
        """Drop runs; reports of them from now on begin new ones."""
        self.processes = {key: one for key, one in self.processes.items() if one.identity.run not in runs}
        self.sampled.forget(runs)
        for run in runs:
            self.taken_sum.subtract(self.taken.pop(run, {}))
            for held in self._by_run():
                held.pop(run, None)
            self.mixes.forget(run)
            self.stored.pop(run, None)

    def store_away(self, *runs: str) -> None:
        """Drop runs that the ledger has whole; they come back by `adopt`."""
        starts = {run: self.starts[run] for run in runs}
        self.forget(*runs)
        self.stored |= starts

    def adopt(self, other: Store) -> None:
        """Take over the runs of another store, which is not used any more."""
        self.processes |= other.processes
        self._adopted += 1
        for own, theirs in zip(self._by_run(), other._by_run(), strict=True):
            own.update(theirs)
        for run in other.runs:
            self.stored.pop(run, None)
            # Results that were cached before it left are not those of a revision of the same number.
            self.revisions[run] += self._adopted << 32
            for attempt in other.runs[run].attempts.values():
                self.sampled.take(run, attempt, reported(attempt))

    def move(self, step_ns: int) -> None:
        """Our clock was set forward by so much: what was received by it keeps its age."""
        for run in self.runs.values():
            for attempt in run.attempts.values():
                attempt.received_ns += step_ns if attempt.received_ns else 0
        for times in (self.progress_ns, self.reported_ns):
            for run in times:
                times[run] += step_ns
        for checkpoints in self.checkpoints.values():
            checkpoints.committed_ns += step_ns

    def _by_run(self) -> tuple[dict, ...]:
        return (
            *(self.runs, self.revisions, self.recent, self.newest),
            *(self.progress_ns, self.checkpoints, self.starts, self.reported_ns),
            *(self.numbers, self.highest, self.worlds, self.moved),
        )

    def _check_share(self, identity: schema.Identity, token: str, what: str, bound: int) -> None:
        """Refuse what would exceed the token's share of a bound, also without the runs that can be stored away."""
        most = bound // SCOPED_DIVISOR
        if token and self.taken_sum[token, what] >= most:
            self.make_room(token)
            if self.taken_sum[token, what] >= most:
                raise ReportRejected(
                    "runs" if what == "runs" else "ranks",
                    f"run {identity.run!r}: with 1 more {what} the token {token} would exceed its share of {most} of "
                    "runs that report; use a token for all runs",
                )

    def _check_world(self, identity: schema.Identity) -> None:
        worlds = self.worlds.get(identity.run, ())
        if len(worlds) >= WORLDS_MAX and identity.world_size not in worlds:
            raise ReportRejected(
                "ranks", f"run {identity.run!r}: it has had {WORLDS_MAX} world sizes, and may have no other"
            )

    def _check_room(self, identity: schema.Identity, what: str, count: Callable[[], int], bound: int) -> None:
        """Refuse what would exceed a bound, also without the runs that can be stored away."""
        if count() >= bound:
            self.make_room("")
            if count() >= bound:
                raise ReportRejected(
                    "runs" if what == "runs" else "ranks",
                    f"run {identity.run!r}: the limit of {bound} {what} is reached by runs that report now",
                )

    def used_shares(self) -> dict[str, float]:
        """The used part of each bound, by name; of tokens for some runs, of the one that uses most of its share."""
        bounds = {"runs": RUNS_MAX, "rank processes": PROCESSES_MAX}
        used = {"runs": len(self.runs), "rank processes": len(self.processes)}
        found = {what: used[what] / most for what, most in bounds.items()}
        for what, most in bounds.items():
            largest = max((count for (_, of), count in self.taken_sum.items() if of == what), default=0)
            found[f"token {what}"] = largest / (most // SCOPED_DIVISOR)
        return found

    def _take_share(self, run: str, token: str, what: str, more: int) -> None:
        if token and more > 0:
            self.taken.setdefault(run, Counter())[token, what] += more
            self.taken_sum[token, what] += more

    def _process(self, identity: schema.Identity, now_ns: int, token: str) -> Process:
        key = key_of(identity)
        process = self.processes.get(key)
        if process is None:
            if now_ns and self.start_age_ns_max is not None:
                start_ns = self.starts.get(identity.run)
                _raise_if("time", start_problem(identity, start_ns, now_ns, self.start_age_ns_max))
            identity = _interned(identity)
            key = key_of(identity)
            process = self.processes[key] = Process(self._place(identity, now_ns, token), identity, key)
            if identity.clock_moved_seconds is not None:
                own = own_start_ns(identity)
                ns = identity.start_ns - own
                self.moved.setdefault(identity.run, {})[key_of(replace(identity, start_ns=own))] = ns
            self._take_share(identity.run, token, "rank processes", 1)
            ranks = self.newest.setdefault(identity.run, {})
            before = ranks.get(identity.rank)
            if before is None or _order(process.attempt) >= _order(before.attempt):
                ranks[identity.rank] = process
            start_ns = self.starts.get(identity.run, identity.start_ns)
            self.starts[identity.run] = min(identity.start_ns, start_ns)
        return process

    def _place(self, identity: schema.Identity, now_ns: int, token: str) -> ColumnAttempt:
        """The attempt of a new process, under its own attempt number or the next free one."""
        self._check_share(identity, token, "rank processes", PROCESSES_MAX)
        self._check_room(identity, "rank processes", lambda: len(self.processes), PROCESSES_MAX)
        run = self.runs.get(identity.run)
        if run is None:
            self._check_room(identity, "runs", lambda: len(self.runs), RUNS_MAX)
            self._check_share(identity, token, "runs", RUNS_MAX)
            self._take_share(identity.run, token, "runs", 1)
            run = self.runs[identity.run] = Run(identity.run)
            self.recent[identity.run] = RecentSteps()
        number, numbers = identity.attempt, self.numbers.setdefault(identity.run, set())
        holder = run.attempts.get((identity.rank, number))
        if holder is not None:
            if holder.known_end_ns() is None and now_ns - holder.received_ns < OWNED_SECONDS * 1e9:
                raise ReportRejected(
                    "claim",
                    f"run {identity.run!r} rank {identity.rank} attempt {number} is already reported from "
                    f"{holder.host}; {identity.host} pid {identity.pid} claims it too",
                )
            number = 1 + self._highest_numbers(run)[identity.rank]
        if now_ns and number not in numbers and len(numbers) >= ATTEMPTS_MAX:
            raise ReportRejected(
                "ranks",
                f"run {identity.run!r}: it was started {ATTEMPTS_MAX} times; give a new run a new name",
            )
        numbers.add(number)
        attempt = _attempt(identity, number)
        run.attempts[identity.rank, number] = attempt
        if run.name in self.highest:
            self.highest[run.name][identity.rank] = max(number, self.highest[run.name].get(identity.rank, 0))
        return attempt

    def _highest_numbers(self, run: Run) -> dict[int, int]:
        """The highest attempt number of each rank, known from the first time that one is repeated."""
        found = self.highest.get(run.name)
        if found is None:
            found = self.highest[run.name] = {}
            for rank, number in run.attempts:
                found[rank] = max(number, found.get(rank, 0))
        return found


def _raise_if(reason: str, problem: str | None) -> None:
    if problem is not None:
        raise ReportRejected(reason, problem)


def _block_of(report: schema.RankReport, steps: PushedSteps) -> NewBlock | None:
    """The block that has all rows of a report, None where there is none that can be stored as it is."""
    count, packed = steps.values.shape[1], steps.packed
    if not 0 < count <= BLOCK_ROWS_MAX or not (packed or len(report.blocks) == 1):
        return None
    times = steps.start_ns, steps.end_ns
    return NewBlock(
        packed or pack(report.blocks[0]), len(report.phases), count, steps.first, steps.last, *times
    )


def number_of(row: bytes) -> int:
    """The number of a row, which is its first column."""
    return int.from_bytes(row[:8], sys.byteorder)


def _order(attempt: Attempt) -> tuple[int, int]:
    """The order of a rank's attempts in Run.by_rank."""
    return attempt.start_ns, attempt.attempt


def key_of(identity: schema.Identity) -> tuple:
    """The key of a process in Store.processes."""
    return (identity.run, identity.rank, identity.host, identity.pid, identity.start_ns)


def _interned(identity: schema.Identity) -> schema.Identity:
    """The same with texts that ranks share: of its own each rank would have 300 bytes of them."""
    texts = {name: sys.intern(getattr(identity, name)) for name in _TEXTS}
    return replace(identity, **texts)


def _attempt(identity: schema.Identity, number: int) -> ColumnAttempt:
    declared = {name: getattr(identity, name) for name in DECLARED}
    attempt = ColumnAttempt(identity.rank, number, identity.start_ns, **declared)
    attempt.rows = attempt.phase_states = attempt.loader = NO_ENTRIES
    return attempt


def _set_declared(attempt: Attempt, identity: schema.Identity) -> None:
    """The newest declared values apply to the whole attempt, including earlier steps.

    Prices, peaks, FLOPs and devices only weigh sums; a changed group invalidates comparisons of steps (`late_count`).
    """
    if (identity.group or identity.role) != attempt.group_name() and attempt.top_number:
        attempt.late_count += 1
    attempt.declared_changes += 1
    for name in DECLARED:
        setattr(attempt, name, getattr(identity, name))


@lru_cache(maxsize=1024)
def _shared_phases(phases: tuple[str, ...]) -> tuple[str, ...]:
    """The same for all ranks whose phases are alike."""
    return tuple(map(sys.intern, phases))


_shared_states = lru_cache(maxsize=1024)(dict)  # likewise, of phases named by the user


def _extend_phases(attempt: Attempt, report: schema.RankReport) -> None:
    """Phases are only ever appended; a report may have more of them than the attempt, or fewer."""
    if attempt.phases == report.phases and attempt.phase_states == report.phase_states:
        return
    shared = min(len(attempt.phases), len(report.phases))
    if attempt.phases[:shared] != report.phases[:shared]:
        raise ReportRejected(
            "phases",
            f"run {report.identity.run!r} rank {report.identity.rank}: phases {report.phases[:shared]} "
            f"contradict {attempt.phases[:shared]} reported before",
        )
    if len(report.phases) > shared:
        attempt.phases = _shared_phases(report.phases)
    states = {**attempt.phase_states, **report.phase_states}
    if states != attempt.phase_states:
        attempt.phase_states = _shared_states(tuple(states.items()))


def _set_live(attempt: Attempt, live: schema.Live) -> None:
    attempt.seen_ns, attempt.last_ns, attempt.phase = live.now_ns, live.last_ns, sys.intern(live.phase)
    # As a tuple they take 300 bytes more.
    attempt.totals, attempt.alive, attempt.ended = array("q", live.totals), live.alive, live.ended
    attempt.end_ns, attempt.unmeasured = live.end_ns, live.unmeasured
    attempt.loader = live.loader or NO_ENTRIES
    attempt.hardware = sum_hardware(attempt.hardware, live.hardware)


def _has_more(live: schema.Live) -> bool:
    """Whether it has what only some live parts have."""
    return (
        live.operations is not None
        or live.stacks is not None
        or live.collectives is not None
        or live.connections is not None
        or live.ras is not None
    )
