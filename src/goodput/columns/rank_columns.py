"""The ranks of an account in columns: the same sums as account._rank_account has for each rank.

A rank takes some 350 bytes, and a RankAccount is made only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from goodput.account.account import DECLARED_KEPT, Restart, peak_of, typical
from goodput.account.attempts import Attempt
from goodput.account.collectives.operation_sums import STATES as EXPOSED_STATES
from goodput.account.collectives.operation_sums import Exposed, OperationSums
from goodput.account.facts import Facts, RankRange, gaps
from goodput.account.fold import PaidOnce
from goodput.account.hardware import energy_mj, idle_part
from goodput.account.ranks import RankAccount, RankColumns
from goodput.account.states import BEGINNING, INDEX, NOTHING, STATES
from goodput.columns.fold_table import FoldTable
from goodput.columns.peak_throughput import rates
from goodput.defaults import ESTIMATED_LOADER, ESTIMATED_OPTIMIZER
from goodput.slices import AT_A_TIME, Slices

_declared = attrgetter(*DECLARED_KEPT)
_EXPOSED = [INDEX[state] for state in EXPOSED_STATES]
_STRAGGLER, _ROLLOUT = INDEX["straggler"], INDEX["rollout"]
_PRODUCTIVE, _LAUNCH = INDEX["productive"], INDEX["launch"]
_HALF_BITS = 31


class _Same:
    """One value for all."""

    def __init__(self, value: object):
        self.value = value


# An array has nan for None.
_Column: TypeAlias = np.ndarray | list[Any] | _Same


class ColumnRanks(RankColumns):
    """See the module docstring. `columns` are by attribute of RankAccount, all but `states`, `metered` and `exposed`."""

    def __init__(
        self,
        columns: dict[str, _Column],
        states: np.ndarray,
        metered: np.ndarray | None,
        exposed: ExposedColumns,
    ):
        self._columns, self._states, self._metered, self._exposed = columns, states, metered, exposed

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        return next(iter(self.chosen([range(len(self))[at]])))

    def __iter__(self) -> Iterator[RankAccount]:
        names = RankAccount.__match_args__
        for fields in zip(*map(self.values, names), strict=True):
            yield RankAccount(*fields)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def values(self, name: str) -> list[Any]:
        if name == "states":
            return self._states.tolist()
        if name == "metered":
            return [NOTHING] * len(self) if self._metered is None else self._metered.tolist()
        if name == "exposed":
            return self._exposed.lists()
        if name == "has_operations":
            return self._exposed.recorded()
        if name == "productive_ns":
            return self._states[:, _PRODUCTIVE].tolist()
        if name == "all_devices":
            return [
                devices * count
                for devices, count in zip(self.values("devices"), self.values("count"), strict=True)
            ]
        if name == "role_name":
            return self._role_names()
        column = self._columns[name]
        if isinstance(column, _Same):
            return [column.value] * len(self)
        if isinstance(column, list):
            return column
        found = column.tolist()
        if column.dtype.kind == "f":
            return [None if value != value else value for value in found]
        return found

    def _role_names(self) -> list[str]:
        roles = self.values("role")
        if all(roles):
            return roles
        rollouts = self._states[:, _ROLLOUT].tolist()
        names = ("role", "observed", "kept_steps", "lost_steps")
        columns = zip(*map(self.values, names), rollouts, strict=True)
        return [
            role or ("generator" if rollout and kept + lost == 0 else "trainer")
            if seen
            else role or "unobserved"
            for role, seen, kept, lost, rollout in columns
        ]

    def chosen(self, at: Sequence[int]) -> ColumnRanks:
        places = np.array(at, np.int64)
        columns: dict[str, _Column] = {
            name: column
            if isinstance(column, _Same)
            else column[places]
            if isinstance(column, np.ndarray)
            else [column[one] for one in at]
            for name, column in self._columns.items()
        }
        metered = None if self._metered is None else self._metered[places]
        return ColumnRanks(columns, self._states[places], metered, self._exposed.chosen(at))

    def gpu_ns(self) -> list[int]:
        devices = np.array(self.values("all_devices"), np.int64)
        total = [0] * len(STATES)
        for each in set(devices.tolist()):
            for i, ns in enumerate(exact_sums(self._states[devices == each])):
                total[i] += ns * each
        return total


class ExposedColumns:
    """What the attempts of each rank have exposed; `begins` has the first attempt of each rank, `ends` the one after."""

    def __init__(
        self, begins: list[int], ends: list[int], sums: list[OperationSums], ns: np.ndarray, units: list[str]
    ):
        self._begins, self._ends, self._sums, self._ns, self._units = begins, ends, sums, ns, units

    def lists(self) -> list[list[Exposed]]:
        made = [
            Exposed(sums, ns, straggler_ns, unit)
            for sums, (ns, straggler_ns), unit in zip(self._sums, self._ns.tolist(), self._units, strict=True)
        ]
        return [made[begin:end] for begin, end in zip(self._begins, self._ends, strict=True)]

    def recorded(self) -> list[bool]:
        known = [bool(sums.keys) for sums in self._sums]
        if not any(known):
            return [False] * len(self._begins)
        return [any(known[begin:end]) for begin, end in zip(self._begins, self._ends, strict=True)]

    def chosen(self, at: Sequence[int]) -> ExposedColumns:
        """Those of the ranks in these places, without the others', which take as long to read as all."""
        own = [range(self._begins[one], self._ends[one]) for one in at]
        places = [place for one in own for place in one]
        ends = np.cumsum([len(one) for one in own], dtype=np.int64).tolist()
        sums, units = [self._sums[place] for place in places], [self._units[place] for place in places]
        return ExposedColumns([0, *ends][:-1], ends, sums, self._ns[np.array(places, np.int64)], units)


def exact_sums(rows: np.ndarray) -> list[int]:
    """The sum of each column of int64, which may leave int64."""
    high, low = (rows >> _HALF_BITS).sum(axis=0), (rows & ((1 << _HALF_BITS) - 1)).sum(axis=0)
    return [(one << _HALF_BITS) + other for one, other in zip(high.tolist(), low.tolist(), strict=True)]


def summing_ranks(engine, restarts: dict[int, Restart], once: PaidOnce) -> Slices[ColumnRanks]:
    """The ranks of an engine whose folds are finished, in slices; adds to `restarts` and `once` what they cost."""
    facts, sums = engine.facts, _Sums(engine)
    yield
    columns = sums.declared(typical(engine.run))
    yield
    states = sums.states_by_attempt()
    sums.add_costs(states, columns["devices"], restarts, once)
    yield
    exposed, metered = sums.exposed(states), sums.add_energy(columns, states)
    by_rank = np.zeros((len(sums.ranges), len(STATES)), np.int64)
    np.add.at(by_rank, sums.of, states)
    yield
    columns |= sums.by_rank()
    yield
    for done, at in enumerate(sums.with_gaps(facts)):
        if done % AT_A_TIME == 0:
            yield
        for start, end, state, attempt in gaps(facts, sums.ranges[at].first):
            by_rank[at, state] += end - start
            once.add_gap(attempt, state, (end - start) * columns["devices"][at])
            if attempt is not None and attempt.attempt in restarts:
                restarts[attempt.attempt].add_gap(state, (end - start) * columns["devices"][at])
    yield
    return ColumnRanks({name: _column(values) for name, values in columns.items()}, by_rank, metered, exposed)


class _Sums:
    """The attempts of all expected ranks, in the order of ranks and of their starts; `of` has the place of each's rank."""

    def __init__(self, engine):
        by_rank = engine.facts.by_rank
        self.ranges: list[RankRange] = list(engine.facts.expected.apart(by_rank))
        self.own: list[list[Attempt]] = [by_rank.get(some.first, []) for some in self.ranges]
        self.attempts = [attempt for own in self.own for attempt in own]
        self.table: FoldTable = engine.folds
        self.at = self.table.rows([(one.rank, one.attempt) for one in self.attempts])
        self.of = np.repeat(np.arange(len(self.own)), list(map(len, self.own)))

    def with_gaps(self, facts: Facts) -> list[int]:
        """The places of ranks that may be expected while they have no attempt."""
        bounds = np.stack((self.table.from_ns[self.at], self.table.to_ns[self.at]), axis=1)
        alone = self._summed(np.ones(len(self.at), np.int64)) == 1
        only = np.zeros((len(self.own), 2), np.int64)
        only[self.of] = bounds
        # The first and the last moment at which each is expected.
        spans = [(one.spans[0][0], one.spans[-1][1]) if one.spans else (0, 0) for one in self.ranges]
        begin, end = np.array(spans, np.int64).reshape(-1, 2).T
        is_whole = alone & (only[:, 0] <= begin) & (only[:, 1] >= np.minimum(end, facts.end_ns))
        return np.flatnonzero(~is_whole).tolist()

    def _summed(self, values: np.ndarray) -> np.ndarray:
        """By rank the sum of what its attempts have."""
        found = np.zeros(len(self.own), values.dtype)
        np.add.at(found, self.of, values)
        return found

    def _any(self, values: list[bool]) -> np.ndarray:
        """By rank whether one of its attempts has it."""
        found = np.zeros(len(self.own), bool)
        found[self.of[np.array(values, bool)]] = True
        return found

    def states_by_attempt(self) -> np.ndarray:
        """ns by attempt and state."""
        states = self.table.kept[self.at] + self.table.rest[self.at]
        found = [at for at, one in enumerate(self.attempts) if one.hardware and one.hardware.get("idle_ns")]
        if found:
            own = [self.attempts[at] for at in found]
            compute_ns = self.table.of("compute_ns", self.at[found])
            moved = list(map(idle_part, own, compute_ns, states[found, _PRODUCTIVE].tolist()))
            states[found, _PRODUCTIVE] -= moved
            states[found, _LAUNCH] += moved
        return states

    def declared(self, typical: tuple[int, float | None]) -> dict[str, list]:
        """What the newest attempt of each rank declares, as account._describe has it."""
        nothing = _declared(RankAccount(-1))
        found = [_declared(own[-1]) if own else nothing for own in self.own]
        columns = dict(zip(DECLARED_KEPT, map(list, zip(*found, strict=True)), strict=True))
        columns |= {
            "rank": [some.first for some in self.ranges],
            "count": [some.count for some in self.ranges],
            "wall_ns": [sum(end - start for start, end in some.spans) for some in self.ranges],
            "observed": [bool(own) for own in self.own],
            "peak": [peak_of(own[-1]) if own else typical[1] for own in self.own],
        }
        columns["devices"] = [
            devices if own else typical[0] for devices, own in zip(columns["devices"], self.own, strict=True)
        ]
        return columns

    def add_costs(
        self, states: np.ndarray, devices: list[int], restarts: dict[int, Restart], once: PaidOnce
    ) -> None:
        """What starts, lost steps and the end cost, in GPU-ns."""
        alike: dict[tuple[int, int], list[int]] = {}
        for at, (attempt, rank) in enumerate(zip(self.attempts, self.of.tolist(), strict=True)):
            alike.setdefault((attempt.attempt, devices[rank]), []).append(at)
        for (number, each), places in alike.items():
            spent = [ns * each for ns in exact_sums(states[places])]
            once.add(number, spent, self._endings(places, each))
            if number in restarts:
                restarts[number].devices += len(places) * each
                restarts[number].startup_gpu_ns += sum(spent[i] for i in BEGINNING)
        lost = self.table.rare["lost_by"]
        for at, rank in zip(self.at.tolist() if lost else (), self.of.tolist(), strict=False):
            for number, (steps, ns) in lost.get(at, {}).items():
                restarts[number].lost_steps += steps
                restarts[number].lost_gpu_ns += ns * devices[rank]

    def _endings(self, places: list[int], devices: int) -> list[int]:
        ending = self.table.ending
        return (
            NOTHING
            if ending is None
            else [ns * devices for ns in exact_sums(ending[self.at[np.array(places)]])]
        )

    def add_energy(self, columns: dict[str, list], states: np.ndarray) -> np.ndarray | None:
        """The energy of each rank, and by state the time that it covers."""
        columns["energy_mj"], metered = [0] * len(self.own), None
        for at, attempt in enumerate(self.attempts):
            energy = energy_mj(attempt, int(states[at].sum())) if attempt.hardware.get("energy_mj") else None
            if energy is not None:
                metered = np.zeros((len(self.own), len(STATES)), np.int64) if metered is None else metered
                columns["energy_mj"][self.of[at]] += energy
                metered[self.of[at]] += states[at]
        return metered

    def exposed(self, states: np.ndarray) -> ExposedColumns:
        ns = np.stack((states[:, _EXPOSED].sum(axis=1), states[:, _STRAGGLER]), axis=1)
        names: dict[tuple, str] = {}
        units = []
        for one in self.attempts:
            key = one.attempt, one.stage, one.group_name()
            units.append(names.get(key) or names.setdefault(key, " ".join(map(str, key))))
        ends = list(accumulate(map(len, self.own)))
        begins = [end - len(own) for end, own in zip(ends, self.own, strict=True)]
        return ExposedColumns(begins, ends, [one.collectives for one in self.attempts], ns, units)

    def by_rank(self) -> dict[str, list | np.ndarray]:
        """What each rank's attempts have in sum."""
        attempts, table = self.attempts, self.table
        names = ("kept_steps", "lost_steps", "kept_ns", "saved_ns", "device_ns", "kept_samples")
        found: dict[str, list | np.ndarray] = {
            name: self._summed(getattr(table, name)[self.at]) for name in names
        }
        work = table.work[self.at]
        for name, per_step in (("flops", "flops_per_step"), ("hardware_flops", "hardware_flops_per_step")):
            declared = [getattr(one, per_step) for one in attempts]
            sums = self._summed(work * np.array([each or 0.0 for each in declared], float)).tolist()
            for at, each in zip(self.of.tolist(), declared, strict=True):
                sums[at] = None if each is None else sums[at]
            found[name] = sums
        for name, phase in (("guessed_loader", ESTIMATED_LOADER), ("guessed_update", ESTIMATED_OPTIMIZER)):
            found[name] = self._any([
                phase in one.phase_states and table.row(at).has_time(one, phase)
                for at, one in zip(self.at.tolist(), attempts, strict=True)
            ])  # fmt: skip
        found["sampled"] = self._any([one.hardware.get("compute_ns", 0) > 0 for one in attempts])
        best = np.full(len(self.own), np.nan)
        np.fmax.at(best, self.of, rates(table, self.at))
        found["best_samples_per_second"] = best
        return found


def _column(values: list[Any] | np.ndarray) -> _Column:
    """The values in the least room."""
    if isinstance(values, np.ndarray):
        is_same = len(values) and (values == values[0]).all()
        return _Same(values[0].item()) if is_same else values
    first = values[0] if values else None
    if values.count(first) == len(values):
        return _Same(first)
    kinds = set(map(type, values))
    if kinds == {float, type(None)}:
        return np.array([np.nan if value is None else value for value in values])
    if kinds <= {bool} or kinds <= {int} or kinds <= {float}:
        return np.array(values)
    return values
