"""Rank processes as their pages would hold them, and their accounts, from seconds written down in a test.

Whole nanoseconds throughout, so that sums can be compared exactly.

    one = Process(rank=0).between(none=2, restore=1).step(loader=0.5, forward=1).killed(after=3)
    account = account_of(one, now=60)
"""

from __future__ import annotations

from dataclasses import replace

from goodput.account import Account, Attempt, Event, Row, Run, compute
from goodput.account.account import RankAccount
from goodput.account.collectives.operation_sums import NO_SUMS, OperationSums
from goodput.account.states import PHASE_STATES, STATES

PHASES = tuple(PHASE_STATES)


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


class Process:
    """One rank process. Every call moves its clock; each returns the process, so calls can be chained."""

    def __init__(
        self,
        rank: int = 0,
        attempt: int = 1,
        start: float = 0,
        user: dict | None = None,
        sums: OperationSums = NO_SUMS,
        **identity,
    ):
        self.phases = (*PHASES, *(user or {}))
        self.user = dict(user or {})
        self.rank, self.number, self.identity = rank, attempt, identity
        self.start_ns = self.now_ns = self.last_ns = self.beat_ns = ns(start)
        self.totals, self.outside = [0] * len(self.phases), [0] * len(self.phases)
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.step_next = self.samples = self.device_ns = 0
        self.hardware: dict[str, int] = {}
        self.sums = sums  # of its collectives
        self.phase, self.alive, self.ended, self.end_ns = "none", True, "", 0

    def between(self, **parts: float) -> Process:
        """Time outside steps, after which it is in no phase."""
        for phase, seconds in parts.items():
            self._spend(phase, ns(seconds))
            self.outside[self.phases.index(phase)] += ns(seconds)
        self.phase = "none"
        return self

    def step(
        self, index: int | None = None, samples: int = 0, device: bool = False, **parts: float
    ) -> Process:
        """A completed step; with `device` its phases are on a device's clock."""
        self.step_next = self.step_next if index is None else index
        began_ns = self.now_ns
        self.begun(**parts)
        self.samples += samples
        numbers = (len(self.rows) + 1, self.step_next, began_ns, self.now_ns, self.samples)
        self.device_ns += (self.now_ns - began_ns) * device
        self.rows.append(Row(*numbers, tuple(self.totals), tuple(self.outside), self.device_ns))
        self.step_next += 1
        self.phase = "none"
        return self

    def steps(self, count: int, **parts: float) -> Process:
        for _ in range(count):
            self.step(**parts)
        return self

    def begun(self, **parts: float) -> Process:
        """Time in a step that is not completed; the process stays in the phase that comes last."""
        for phase, seconds in parts.items():
            self._spend(phase, ns(seconds))
        return self

    def resumed(self, step: int) -> Process:
        self.step_next = step + 1
        return self.event("resumed", step)

    def saved(self, step: int | None = None, committed: bool = True) -> Process:
        """A checkpoint of the last completed step, or of `step`."""
        step = self.step_next - 1 if step is None else step
        self.event("checkpoint_begun", step)
        return self.event("checkpoint_committed", step) if committed else self

    def event(self, kind: str, step: int, text: str = "") -> Process:
        self.events.append(Event(len(self.events) + 1, kind, self.now_ns, step, text))
        return self

    def finished(self) -> Process:
        return self._over("finished")

    def failed(self, text: str | None = None) -> Process:
        """With a text its exception was recorded, in the step that was running or next."""
        return self._over("failed") if text is None else self.event("failed", self.step_next, text).failed()

    def killed(self, after: float = 0) -> Process:
        """Dead; it was last seen alive so long after its last boundary."""
        self.now_ns += ns(after)
        self.alive, self.end_ns = False, self.now_ns
        return self

    def silent(self, after: float = 0) -> Process:
        """Last reported so long after its last boundary, without an end."""
        self.now_ns += ns(after)
        return self

    def attempt(self, rows=None) -> Attempt:
        """What an agent that looks now knows; `rows` picks those that arrived."""
        attempt = Attempt(
            rank=self.rank,
            attempt=self.number,
            start_ns=self.start_ns,
            phases=self.phases,
            phase_states=self.user,
            seen_ns=self.now_ns,
            last_ns=self.last_ns,
            phase=self.phase,
            totals=tuple(self.totals),
            alive=self.alive,
            ended=self.ended,
            end_ns=self.end_ns,
            hardware=dict(self.hardware),
            collectives=self.sums,
            **{"host": f"n{self.rank}", **self.identity},
        )
        attempt.add_rows(self.rows if rows is None else rows)
        attempt.add_events(self.events)
        return attempt

    def _spend(self, phase: str, spent_ns: int) -> None:
        self.totals[self.phases.index(phase)] += spent_ns
        self.now_ns += spent_ns
        self.last_ns, self.phase = self.now_ns, phase

    def _over(self, reason: str) -> Process:
        self.ended, self.end_ns, self.phase = reason, self.now_ns, "none"
        return self


def in_step(*own: float, communication: float = 0.5, steps: int = 3, **identity) -> list[Process]:
    """Ranks in lock step: each has `own` seconds of compute per step and waits for the slowest in a collective."""
    ranks = [Process(r, **identity) for r in range(len(own))]
    for one, busy in zip(ranks, own, strict=True):
        one.steps(steps, forward=busy, communication=communication + max(own) - busy).finished()
    return ranks


def run_of(*processes: Process, **given) -> Run:
    """A run of these processes. Unless a process declares a world size it is the number of ranks here."""
    world = 1 + max(one.rank for one in processes)
    run = Run("r1", **given)
    for one in processes:
        one.identity.setdefault("world_size", world)
        run.attempts[one.rank, one.number] = one.attempt()
    return run


def account_of(*processes: Process, now=1000.0, elastic=False, run: dict | None = None, **options) -> Account:
    """The account at `now` seconds of a run of these processes, with the fields `run`; it is checked to close."""
    account = compute(run_of(*processes, **run or {}), ns(now), **options)
    assert_closes(account, elastic)
    return account


def seconds(states: list[int]) -> dict[str, float]:
    """States that have time, in seconds."""
    return {state: value / 1e9 for state, value in zip(STATES, states, strict=True) if value}


def each_rank(account: Account) -> list[RankAccount]:
    """An account for each rank, also of those that a range stands for."""
    return [replace(one, rank=one.rank + at, count=1) for one in account.ranks for at in range(one.count)]


def of_rank(account: Account, rank: int = 0) -> dict[str, float]:
    return seconds(each_rank(account)[rank].states)


def assert_closes(account: Account, elastic: bool = False) -> None:
    """Every rank's states are whole, not negative, and sum to its wall time exactly.

    with `elastic` a rank may be expected for a part of the run only.
    """
    wall_ns = account.end_ns - account.start_ns
    assert wall_ns >= 0
    for rank in account.ranks:
        assert rank.wall_ns == wall_ns or (elastic and 0 <= rank.wall_ns <= wall_ns)
        assert all(type(value) is int and value >= 0 for value in rank.states), (
            rank.rank,
            seconds(rank.states),
        )
        assert sum(rank.states) == rank.wall_ns, (rank.rank, seconds(rank.states), rank.wall_ns)
