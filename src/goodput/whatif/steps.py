"""The steps of a run as arrays: how long each rank worked in each step, and how long it waited for the others.

Ranks that wait for each other are one team. All ranks of a role are, unless their groups (of the run log) make steps of
different lengths, which shows that nothing binds these groups together; workers without ranks each are one alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from goodput.account import Attempt, Row
from goodput.account.attempts import padded
from goodput.account.states import INDEX, state_of, vector
from goodput.runlog.replay import Step

OWN = ("productive", "loader", "h2d", "checkpoint", "evaluation", "rollout", "unattributed", "other")
PLANNED = ("checkpoint", "evaluation", "rollout")
ROWS_MAX = 1_000_000  # of all ranks together, of longer runs the newest; they take some 800 MB
STEPS_MIN = 20
NS_MAX = 1 << 58  # of one state in a step: nine years
# Groups whose mean steps differ by more than this do not wait for each other.
APART_SHARE = 0.02
# A state counts in the next step if that takes this part of the variance away.
MOVED_SHARE_MIN = 0.02
_COMMUNICATION = INDEX["communication"]
_COLUMN = {INDEX[state]: OWN.index(state) for state in OWN[:-1]}
_WIDTH = 3 + len(OWN)  # step, count, communication, own times


@dataclass
class Team:
    """Steps that these ranks made together, without attempts' first ones.

    Times that follow the exchange in a step, such as a checkpoint's, count in the next step, whose exchange they delay.

    `own` is (steps, ranks, states of OWN) and `communication` (steps, ranks), in ns per step; row i stands for `counts[i]`
    steps. `steps` are all that the ranks made, also those that are not among the rows.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    devices: int
    own: np.ndarray
    communication: np.ndarray
    counts: np.ndarray
    steps: int
    stages: tuple[int, ...] = ()  # of each rank, empty without a pipeline
    microbatches: int | None = None
    host_devices: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.own)

    @cached_property
    def work(self) -> np.ndarray:
        """How long each rank worked until it met the others, per step and rank in ns.

        A step here lasts from exchange to exchange, so this is its length less the communication. In a pipeline ranks meet
        several times a step: there it is the sum of their own times.
        """
        own = self.own.sum(axis=2)
        if self.stages or len(self.ranks) == 1:
            return own
        return (own + self.communication).mean(axis=1, keepdims=True) - self.communication

    def state(self, name: str) -> np.ndarray:
        """Time of each step and rank in one state of OWN, in ns."""
        return self.own[:, :, OWN.index(name)]


def steps_in(run: str, attempt: Attempt) -> Iterator[Step]:
    """The steps of an attempt whose rows are at hand, from rank pages or the ledger."""
    states = [state_of(name, attempt.phase_states) for name in attempt.phases]
    nothing = (0,) * len(states)
    before = Row(0, -1, 0, attempt.start_ns, 0, nothing, nothing)
    for row in attempt.ordered_rows():
        spent = vector()
        totals = zip(states, padded(row.totals, len(states)), padded(before.totals, len(states)), strict=True)
        for state, now, then in totals:
            spent[state] += max(now - then, 0)
        count, samples = max(row.number - before.number, 1), row.samples - before.samples
        yield Step(run, attempt, row.step, count, row.end_ns, spent, samples)
        before = row


class Recorder:
    """Takes the steps of one run; `add` is called with each, then `teams` once."""

    def __init__(self, rows_max: int = ROWS_MAX, weight: float = 1.0) -> None:
        """Where only some ranks are recorded, each stands for `weight` ranks."""
        self._rows_max, self._weight = rows_max, weight
        self._rows: dict[tuple[int, int], array] = {}
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._made: dict[tuple[int, int], int] = {}  # steps without the first, also those that were dropped
        self._count = 0

    @property
    def is_sample(self) -> bool:
        """Whether only some ranks are recorded."""
        return self._weight != 1

    def add(self, step: Step) -> None:
        key = step.attempt.attempt, step.attempt.rank
        if key not in self._rows:
            # The first step has the attempt's start in it.
            self._rows[key], self._attempts[key] = array("q"), step.attempt
            return
        self._made[key] = self._made.get(key, 0) + step.count
        own = [0] * len(OWN)
        for state, ns in enumerate(step.states):
            if ns and state != _COMMUNICATION:
                own[_COLUMN.get(state, len(OWN) - 1)] += ns
        own = [min(ns, NS_MAX) for ns in own]
        self._rows[key].extend((step.step, step.count, min(step.states[_COMMUNICATION], NS_MAX), *own))
        self._count += 1
        if self._count > self._rows_max:
            self._halve()

    def add_columns(
        self, attempt: Attempt, steps: np.ndarray, counts: np.ndarray, states: np.ndarray
    ) -> None:
        """As runlog.replay.TakesSteps."""
        key = attempt.attempt, attempt.rank
        if len(steps) and key not in self._rows:
            self._rows[key], self._attempts[key] = array("q"), attempt
            steps, counts, states = steps[1:], counts[1:], states[:, 1:]
        if not len(steps):
            return
        rows = np.zeros((len(steps), _WIDTH), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = steps, counts, states[_COMMUNICATION]
        for state, ns in enumerate(states):
            if state != _COMMUNICATION:
                rows[:, 3 + _COLUMN.get(state, len(OWN) - 1)] += ns
        self._made[key] = self._made.get(key, 0) + int(counts.sum())
        self._rows[key].frombytes(rows.tobytes())
        self._count += len(steps)
        if self._count > self._rows_max:
            self._halve()

    def add_made(self, attempt: Attempt, steps: int) -> None:
        """Count steps that the rank has made before the recorded ones of this attempt."""
        key = attempt.attempt, attempt.rank
        self._made[key] = self._made.get(key, 0) + steps

    def _halve(self) -> None:
        for rows in self._rows.values():
            gone = len(rows) // _WIDTH // 2
            del rows[: gone * _WIDTH]
            self._count -= gone

    def teams(self, alone: bool, threshold_ns: int) -> list[Team]:
        """Teams with at least STEPS_MIN rows; `alone`: no rank waits for another. Stalled steps are no rows.

        The recorded rows are given up one team after the other, as each of them takes much memory.
        """
        found: dict[tuple, list[Team]] = {}
        for number in sorted({number for number, _ in self._rows}):
            keys = [key for key in self._rows if key[0] == number]
            members = {key[1]: rows for key in keys if (rows := self._rows.pop(key))}
            for ranks in list(self._bound(number, members, alone)):
                team = self._team(number, {rank: members.pop(rank) for rank in sorted(ranks)}, threshold_ns)
                if team is not None:
                    found.setdefault((team.ranks, team.hosts, team.stages, team.microbatches), []).append(
                        team
                    )
        joined = [_joined(teams) for teams in found.values()]
        return [team for team in joined if len(team) >= STEPS_MIN]

    def _bound(self, number: int, members: dict[int, array], alone: bool) -> Iterable[list[int]]:
        """The ranks of each team of one attempt number."""
        if alone:
            return [[rank] for rank in members]
        roles: dict[str, dict[str, list[int]]] = {}
        for rank in members:
            attempt = self._attempts[number, rank]
            roles.setdefault(attempt.role, {}).setdefault(attempt.group, []).append(rank)
        teams: list[list[int]] = []
        for groups in roles.values():
            together = [rank for ranks in groups.values() for rank in ranks]
            lengths = [_mean_ns([members[rank] for rank in ranks]) for ranks in groups.values()]
            piped = all(self._attempts[number, rank].stage is not None for rank in together)
            bound = piped or max(lengths) <= (1 + APART_SHARE) * min(lengths)
            teams += [together] if bound else groups.values()
        return teams

    def _team(self, number: int, members: dict[int, array], threshold_ns: int) -> Team | None:
        ranks = list(members)
        rows = _side_by_side([_unique(members.pop(rank)) for rank in ranks])
        # Ranks are compared where they stand for the same steps.
        rows = _chosen(rows, (rows[:, :, 1] == rows[:, :1, 1]).all(axis=1))
        counts = rows[:, 0, 1].copy()
        per_step = rows[:, :, 2:] / counts[:, None, None]
        del rows
        unplanned = per_step.sum(axis=2) - sum(per_step[:, :, 1 + OWN.index(state)] for state in PLANNED)
        usual = (unplanned.max(axis=1) <= threshold_ns) | (counts > 1)
        measured = (per_step.sum(axis=2) > per_step[:, :, 1 + OWN.index("unattributed")]).all(axis=1)
        kept = usual & measured
        per_step = _chosen(per_step, kept)
        attempts = [self._attempts[number, rank] for rank in ranks]
        stages = [one.stage for one in attempts]
        piped = None not in stages and len(set(stages)) > 1
        host_devices: dict[str, int] = {}
        for one in attempts:
            host_devices[one.host] = host_devices.get(one.host, 0) + one.devices
        micro = {one.microbatches for one in attempts}
        own, communication = per_step[:, :, 1:], per_step[:, :, 0]
        if not piped:
            align(own, communication)
        return Team(
            ranks=tuple(ranks),
            hosts=tuple(one.host for one in attempts),
            devices=round(self._weight * sum(one.devices for one in attempts)),
            own=own,
            communication=communication,
            counts=counts[kept],
            steps=max(self._made[number, rank] for rank in ranks),
            stages=tuple(stage or 0 for stage in stages) if piped else (),
            microbatches=micro.pop() if piped and len(micro) == 1 else None,
            host_devices=host_devices,
        )


def align(own: np.ndarray, communication: np.ndarray) -> None:
    """Move each state's own times (steps, ranks, states) into the step whose waiting it explains, this or the next.

    Ranks leave an exchange together, so what they do until the end of the next one takes all of them equally long. Of
    the two places of a state the one counts for which that is so more nearly.
    """
    if own.shape[1] < 2:
        return
    late = own.sum(axis=2) + communication
    late -= late.mean(axis=1, keepdims=True)
    for state in range(own.shape[2]):
        times = own[:, :, state] - own[:, :, state].mean(axis=1, keepdims=True)
        moved = late - times + np.roll(times, 1, axis=0)
        if (moved**2).sum() < (1 - MOVED_SHARE_MIN) * (late**2).sum():
            late, own[:, :, state] = moved, np.roll(own[:, :, state], 1, axis=0)


def _side_by_side(tables: list[np.ndarray]) -> np.ndarray:
    """(steps, ranks, columns) of the steps that all tables have, which are given up."""
    common = tables[0][:, 0]
    for table in tables:
        if not np.array_equal(common, table[:, 0]):
            common = np.intersect1d(common, table[:, 0], assume_unique=True)
    found = np.empty((len(common), len(tables), _WIDTH), np.int64)
    for at, table in enumerate(tables):
        found[:, at] = _chosen(table, np.isin(table[:, 0], common))
    tables.clear()
    return found


def _chosen(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Some rows, without a copy where they are all."""
    return rows if chosen.all() else rows[chosen]


def _rows(values: array) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int64).reshape(-1, _WIDTH)


def _unique(values: array) -> np.ndarray:
    """One row per step, in the order of steps; of a step that the attempt repeats the last."""
    rows = _rows(values)
    if (np.diff(rows[:, 0]) > 0).all():
        return rows
    order = np.argsort(rows[:, 0], kind="stable")
    rows = rows[order]
    return rows[np.append(rows[1:, 0] != rows[:-1, 0], True)]


def _mean_ns(members: list[array]) -> float:
    tables = [_rows(values) for values in members]
    return sum(table[:, 2:].sum() for table in tables) / sum(table[:, 1].sum() for table in tables)


def _joined(teams: list[Team]) -> Team:
    """Several attempts of the same ranks as one team."""
    first = teams[0]
    first.own = np.concatenate([team.own for team in teams])
    first.communication = np.concatenate([team.communication for team in teams])
    first.counts = np.concatenate([team.counts for team in teams])
    first.steps = sum(team.steps for team in teams)
    return first
