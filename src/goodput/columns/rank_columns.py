"""The ranks of an account in columns: the same sums as account.rank_account has for each rank.

A rank takes some 350 bytes, and a RankAccount is made only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from goodput.account.account import DECLARED_KEPT, PaidOnce, peak_of, typical
from goodput.account.collectives.operation_sums import STATES as EXPOSED_STATES
from goodput.account.collectives.operation_sums import Exposed, OperationSums
from goodput.account.facts import Facts, gaps
from goodput.account.hardware import energy_mj, idle_part
from goodput.account.ranks import RankAccount, RankColumns
from goodput.account.resume import Restart
from goodput.account.states import BEGINNING, INDEX, NOTHING, STATES
from goodput.columns.fold_table import FoldTable
from goodput.columns.peak_throughput import rates
from goodput.columns.run_columns import RunColumns
from goodput.defaults import ESTIMATED_LOADER, ESTIMATED_OPTIMIZER
from goodput.slices import AT_A_TIME, Slices

_FLOPS = {"flops": "flops_per_step", "hardware_flops": "hardware_flops_per_step"}
_FIELDS = (*DECLARED_KEPT, "device", "peak_flops_per_second", "group", *_FLOPS.values())
_DEVICES = DECLARED_KEPT.index("devices")
_declared, _declared_kept = attrgetter(*_FIELDS), attrgetter(*DECLARED_KEPT)
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
            some = devices == each
            for i, ns in enumerate(exact_sums(self._states if some.all() else self._states[some])):
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
            Exposed(sums, ns, straggler_ns, unit, device_ns > 0)
            for sums, (ns, straggler_ns, device_ns), unit in zip(
                self._sums, self._ns.tolist(), self._units, strict=True
            )
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
    facts = engine.facts
    known = yield from _declaring(facts.attempts)
    sums = _Sums(engine, known)
    yield
    columns = sums.declared()
    yield
    states = sums.states_by_attempt()
    sums.add_costs(states, restarts, once)
    yield
    exposed, metered = sums.exposed(states), sums.add_energy(columns, states)
    by_rank = np.zeros((len(sums.first), len(STATES)), np.int64)
    np.add.at(by_rank, sums.of, states)
    yield
    columns |= {name: _column(values) for name, values in sums.by_rank().items()}
    yield
    for done, at in enumerate(sums.with_gaps(facts)):
        if done % AT_A_TIME == 0:
            yield
        devices = int(sums.devices[at])
        for start, end, state, attempt in gaps(facts, int(sums.first[at])):
            by_rank[at, state] += end - start
            once.add_gap(attempt, state, (end - start) * devices)
            if attempt is not None and attempt.attempt in restarts:
                restarts[attempt.attempt].add_gap(state, (end - start) * devices)
    yield
    return ColumnRanks(columns, by_rank, metered, exposed)


def _declaring(attempts: RunColumns) -> Slices[Declared]:
    """What these attempts declare, kept with them until one declares something else."""
    found, changes = attempts.declared, attempts.changes()
    yield
    if not isinstance(found, Declared) or found.changes != changes:
        values = yield from attempts.reading(_declared)
        found = attempts.declared = Declared(attempts, values, changes)
    return found


class Declared:
    """What the attempts of a run declare, and what follows from it alone; by attempt but for `columns`."""

    def __init__(self, attempts: RunColumns, values: list[tuple], changes: int):
        shared: dict[tuple, tuple] = {}  # most ranks declare the same, but for their hosts
        self._values, self.changes = [shared.setdefault(one, one) for one in values], changes
        of = dict(zip(_FIELDS, zip(*values, strict=True), strict=True)) if values else {}
        peaks: dict[tuple, float | None] = {}
        for one, attempt in zip(self._values, attempts.attempts, strict=True):
            if one not in peaks:
                peaks[one] = peak_of(attempt)
        self._peaks = [peaks[one] for one in self._values]
        self.devices = np.array(of.get("devices", ()), np.int64)
        self.typical = typical(attempts.run())
        self.flops = {
            name: np.array([np.nan if each is None else each for each in of.get(field, ())], float)
            for name, field in _FLOPS.items()
        }
        names: dict[tuple, str] = {}
        self.units: list[str] = []
        for number, stage, group, role in zip(
            attempts.number.tolist(), *(of.get(name, ()) for name in ("stage", "group", "role")), strict=True
        ):
            key = number, stage, group or role
            self.units.append(names.get(key) or names.setdefault(key, " ".join(map(str, key))))
        self._newest = np.flatnonzero(attempts.is_last)
        self._of_newest: dict[str, _Column] = {}
        self._of_newest = self.columns(self._newest)

    def columns(self, newest: np.ndarray) -> dict[str, _Column]:
        """What ranks declare whose newest attempts have these places, -1 of a rank without one, as account._describe has it."""
        if self._of_newest and np.array_equal(newest, self._newest):
            return dict(self._of_newest)
        nothing = _declared_kept(RankAccount(-1))
        width, places = len(nothing), newest.tolist()
        found = [nothing if at < 0 else self._values[at][:width] for at in places]
        kept = zip(*found, strict=True) if found else ()
        columns: dict[str, Iterable[Any]] = dict(zip(DECLARED_KEPT, kept, strict=bool(found)))
        devices, peak = self.typical
        columns["devices"] = [devices if at < 0 else self._values[at][_DEVICES] for at in places]
        columns["peak"] = [peak if at < 0 else self._peaks[at] for at in places]
        columns["observed"] = [at >= 0 for at in places]
        return {name: _column(list(values)) for name, values in columns.items()}


class _Sums:
    """The attempts of all expected ranks, in the order of ranks and of their starts; `of` has the place of each's rank.

    A rank without a report may stand for so many from `first` on.
    """

    def __init__(self, engine, known: Declared):
        facts, attempts = engine.facts, engine.facts.attempts
        ranks, parts = attempts.rank[attempts.turn == 0], []
        for first, count, spans in facts.expected.ranges:
            inside = ranks[(ranks >= first) & (ranks < first + count)]
            edges = np.unique(np.concatenate(([first, first + count], inside, inside + 1)))
            # The first and the last moment at which each is expected.
            span = (spans[0][0], spans[-1][1]) if spans else (0, 0)
            about = np.array([[sum(end - start for start, end in spans), *span]]).T
            parts.append(np.vstack((edges[:-1], np.diff(edges), np.repeat(about, len(edges) - 1, axis=1))))
        both = np.concatenate(parts, axis=1) if parts else np.zeros((5, 0), np.int64)
        self.first, self.count, self.wall_ns, self._begin, self._end = both
        of = np.searchsorted(self.first, attempts.rank, side="right") - 1
        self.places = np.flatnonzero(of >= 0)
        self.places = self.places[self.first[of[self.places]] == attempts.rank[self.places]]
        self.of = of[self.places]
        self.attempts = [attempts.attempts[at] for at in self.places.tolist()]
        self.table: FoldTable = engine.folds
        self.at = attempts.rows(self.table)[self.places]
        self._numbers, self._known = attempts.number[self.places], known
        self._newest = np.full(len(self.first), -1)
        self._newest[self.of] = self.places
        self.devices = np.full(len(self.first), known.typical[0])
        self.devices[self._newest >= 0] = known.devices[self._newest[self._newest >= 0]]

    def with_gaps(self, facts: Facts) -> list[int]:
        """The places of ranks that may be expected while they have no attempt."""
        alone = np.bincount(self.of, minlength=len(self.first)) == 1
        begin, end = np.zeros((2, len(self.first)), np.int64)
        begin[self.of], end[self.of] = self.table.from_ns[self.at], self.table.to_ns[self.at]
        is_whole = alone & (begin <= self._begin) & (end >= np.minimum(self._end, facts.end_ns))
        return np.flatnonzero(~is_whole).tolist()

    def _summed(self, values: np.ndarray) -> np.ndarray:
        """By rank the sum of what its attempts have."""
        found = np.zeros(len(self.first), values.dtype)
        np.add.at(found, self.of, values)
        return found

    def _any(self, places: list[int]) -> np.ndarray:
        """By rank whether one of its attempts is among these."""
        found = np.zeros(len(self.first), bool)
        found[self.of[np.array(places, np.int64)]] = True
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

    def declared(self) -> dict[str, _Column]:
        """What each rank declares, which it is, and how long it is expected."""
        own = {"rank": self.first, "count": self.count, "wall_ns": self.wall_ns}
        return self._known.columns(self._newest) | {name: _column(values) for name, values in own.items()}

    def add_costs(self, states: np.ndarray, restarts: dict[int, Restart], once: PaidOnce) -> None:
        """What starts, lost steps and the end cost, in GPU-ns."""
        devices = self.devices[self.of]
        for number in np.unique(self._numbers).tolist():
            of_number = self._numbers == number
            for each in np.unique(devices[of_number]).tolist():
                some = of_number & (devices == each)
                spent = [ns * each for ns in exact_sums(states if some.all() else states[some])]
                once.add(number, spent, self._endings(some, each))
                if number in restarts:
                    restarts[number].devices += int(some.sum()) * each
                    restarts[number].startup_gpu_ns += sum(spent[i] for i in BEGINNING)
        lost = self.table.rare["lost_by"]
        for at, each in zip(self.at.tolist() if lost else (), devices.tolist(), strict=False):
            for number, (steps, ns) in lost.get(at, {}).items():
                restarts[number].lost_steps += steps
                restarts[number].lost_gpu_ns += ns * each

    def _endings(self, some: np.ndarray, devices: int) -> list[int]:
        ending = self.table.ending
        return NOTHING if ending is None else [ns * devices for ns in exact_sums(ending[self.at[some]])]

    def add_energy(self, columns: dict[str, _Column], states: np.ndarray) -> np.ndarray | None:
        """The energy of each rank, and by state the time that it covers."""
        energies, metered = [0] * len(self.first), None
        for at, attempt in enumerate(self.attempts):
            energy = energy_mj(attempt, int(states[at].sum())) if attempt.hardware.get("energy_mj") else None
            if energy is not None:
                metered = np.zeros((len(self.first), len(STATES)), np.int64) if metered is None else metered
                energies[self.of[at]] += energy
                metered[self.of[at]] += states[at]
        columns["energy_mj"] = _Same(0) if metered is None else _column(energies)
        return metered

    def exposed(self, states: np.ndarray) -> ExposedColumns:
        on_device = self.table.device_ns[self.at]
        ns = np.stack((states[:, _EXPOSED].sum(axis=1), states[:, _STRAGGLER], on_device), axis=1)
        units = [self._known.units[at] for at in self.places.tolist()]
        counts = np.bincount(self.of, minlength=len(self.first))
        ends = np.cumsum(counts)
        sums = [one.collectives for one in self.attempts]
        return ExposedColumns((ends - counts).tolist(), ends.tolist(), sums, ns, units)

    def by_rank(self) -> dict[str, np.ndarray]:
        """What each rank's attempts have in sum."""
        attempts, table = self.attempts, self.table
        names = ("kept_steps", "lost_steps", "kept_ns", "saved_ns", "device_ns", "kept_samples")
        found = {name: self._summed(getattr(table, name)[self.at]) for name in names}
        for name, per_step in self._known.flops.items():
            # A rank of which one attempt lacks them has none.
            found[name] = self._summed(table.work[self.at] * per_step[self.places])
        own = [(at, one) for at, one in enumerate(attempts) if one.phase_states]
        for name, phase in (("guessed_loader", ESTIMATED_LOADER), ("guessed_update", ESTIMATED_OPTIMIZER)):
            found[name] = self._any([
                at for at, one in own
                if phase in one.phase_states and table.row(int(self.at[at])).has_time(one, phase)
            ])  # fmt: skip
        sampled = [at for at, one in enumerate(attempts) if one.hardware.get("compute_ns", 0) > 0]
        found["sampled"] = self._any(sampled)
        best = np.full(len(self.first), np.nan)
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
