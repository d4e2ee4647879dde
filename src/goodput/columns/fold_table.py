"""The folds of a run as rows of arrays, of some 1.1 KiB each.

A `RowFold` is a fold whose attributes are in its row, so that single steps are folded as everywhere, and what is done
for all attempts at once takes the arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

import numpy as np

from goodput.account.attempts import Attempt
from goodput.account.facts import Bound, Criteria, Key, Restarts
from goodput.account.fold import Fold, states_of_all
from goodput.account.peak_throughput import PeakThroughput
from goodput.account.stall_threshold import PlannedLimits
from goodput.account.states import NOTHING, STATES

# Attributes by how they are kept: as integers, flags and floats; by state; by phase; as objects, which ranks share or
# which may leave int64; and those that few attempts have, with what the others have.
INTEGERS = (
    *("limit", "number", "last_end_ns", "last_samples", "last_device_ns", "device_ns", "last_count"),
    *("left_out_steps", "steps", "clamped", "top_step", "calm_ns", "kept_steps", "lost_steps", "kept_ns"),
    *("saved_ns", "straggler_ns", "bubble_ns", "matched_ns", "compared_steps", "last_steps", "threshold_ns"),
)
FLAGS, FLOATS = ("exhausted", "final"), ("work", "cut_work", "kept_samples")
BY_STATE, BY_PHASE = ("kept", "rest"), ("totals", "outside", "left_out")
OBJECTS = (
    *("attempt", "restarts", "to_state"),
    *("samples", "compute_ns", "caused_ns", "caused_in_group_ns"),
)
# Of the bound.
_BOUND = tuple(Bound.__dataclass_fields__)
_NO_OTHERS = array("I"), array("I")
RARE: dict[str, Any] = {
    "lost_by": {},
    "stall_ns": inf,
    "_judged": [],
    "_others": _NO_OTHERS,
}
# Of the first step, without its time by state and its restarts; and of the best throughput.
_FIRST = ("first_step", "first_count", "first_end_ns", "first_length", "first_samples", "first_limit")
_PEAK = ("steps", "samples", "ns", "last_samples", "last_ns")
UNKNOWN = -1
_WHOLE_MAX = 1 << 62
# By state too, but no arrays until one attempt has any.
LATER = ("ending", "cut")
_MADE = ("bound", *LATER, "_first", "_usual", "throughput")
# Of these an array has what Fold has.
_SIMPLE = frozenset((*INTEGERS, *FLAGS, *FLOATS, *BY_STATE))
# Of a fold, but for what all folds of a table share.
_ATTRIBUTES = (*INTEGERS, *FLAGS, *FLOATS, *OBJECTS, *BY_STATE, *BY_PHASE, *RARE, *_MADE)
_ARRAYS = (
    *(*INTEGERS, *FLAGS, *FLOATS, *BY_STATE, *BY_PHASE, *_FIRST, *_BOUND),
    *("first_inside", "usual", "peak", "peak_best"),
)


class CriteriaColumns(NamedTuple):
    """What decides on attempts' steps, as Facts.criteria, by attempt; the first six are those of Bound."""

    from_ns: np.ndarray
    to_ns: np.ndarray
    end_ns: np.ndarray
    died: np.ndarray
    running: np.ndarray
    first: np.ndarray
    limit: np.ndarray
    restarts: Sequence[Restarts]

    def part(self, places: np.ndarray) -> CriteriaColumns:
        """Those of some attempts."""
        arrays = {name: getattr(self, name)[places] for name in self._fields[:-1]}
        return self._replace(**arrays, restarts=[self.restarts[at] for at in places.tolist()])

    def bound(self, at: int) -> Bound:
        """The bound of one attempt."""
        return Bound(*(one.item(at) for one in self[:6]))


class FoldTable(MutableMapping[Key, "RowFold"]):
    """The folds by key, each made when it is asked for. The arrays are by row, those of `kept`, `totals` and the like as
    (rows, columns).

    Rows from `used` on are free. Of a fold without a first step `first_length` is UNKNOWN, and so is `usual` of one that
    does not know it.
    """

    number: np.ndarray
    last_end_ns: np.ndarray
    last_samples: np.ndarray
    last_device_ns: np.ndarray
    device_ns: np.ndarray
    last_count: np.ndarray
    left_out_steps: np.ndarray
    steps: np.ndarray
    top_step: np.ndarray
    calm_ns: np.ndarray
    kept_steps: np.ndarray
    lost_steps: np.ndarray
    kept_ns: np.ndarray
    saved_ns: np.ndarray
    straggler_ns: np.ndarray
    bubble_ns: np.ndarray
    matched_ns: np.ndarray
    compared_steps: np.ndarray
    last_steps: np.ndarray
    limit: np.ndarray
    threshold_ns: np.ndarray
    from_ns: np.ndarray  # this and the next five are those of account.facts.Bound
    to_ns: np.ndarray
    end_ns: np.ndarray
    died: np.ndarray
    running: np.ndarray
    first: np.ndarray
    clamped: np.ndarray
    exhausted: np.ndarray
    final: np.ndarray
    work: np.ndarray
    cut_work: np.ndarray
    kept_samples: np.ndarray
    kept: np.ndarray
    rest: np.ndarray
    totals: np.ndarray
    outside: np.ndarray
    left_out: np.ndarray
    first_step: np.ndarray
    first_count: np.ndarray
    first_end_ns: np.ndarray
    first_length: np.ndarray
    first_samples: np.ndarray
    first_limit: np.ndarray
    first_inside: np.ndarray
    usual: np.ndarray  # (rows, 2): the median length and work of the steps after the first
    peak: np.ndarray  # (rows, 5): the numbers of PeakThroughput
    peak_best: np.ndarray  # (rows, 2): samples and ns of the fastest stretch, or UNKNOWN
    ending: np.ndarray | None = None  # (rows, states), once one has an ending
    cut: np.ndarray | None = None  # likewise, of steps that its bound cuts

    def __init__(
        self, planned: PlannedLimits, row_type: type[RowFold] | None = None, rows: int = 0, width: int = 0
    ):
        """For `rows` attempts of `width` phases, and more of them if need be."""
        self.planned, self.row_type, self.used = planned, row_type or RowFold, 0
        self.places: dict[Key, int] = {}  # the row of each key; copies share it until one has another key
        self._is_shared = False
        self._plain: dict[Key, Any] = {}
        for name in _ARRAYS:
            wide = {
                **dict.fromkeys((*BY_STATE, "first_inside"), (len(STATES),)),
                **dict.fromkeys(BY_PHASE, (width,)),
                "usual": (2,),
                "peak": (len(_PEAK),),
                "peak_best": (2,),
            }.get(name, ())
            kind = (
                bool
                if name in (*FLAGS, "died", "running", "first")
                else float
                if name in FLOATS
                else np.int64
            )
            setattr(self, name, np.zeros((rows, *wide), kind))
        self.objects: dict[str, list[Any]] = {name: [] for name in (*OBJECTS, "first_restarts")}
        self.rare: dict[str, dict[int, Any]] = {name: {} for name in RARE}
        self.attributes: dict[int, dict[str, Any]] = {}  # those that a row type keeps beside the arrays
        self.odd_peaks: dict[int, PeakThroughput] = {}  # those whose numbers are no integers

    def begin(self, keys: Sequence[Key], attempts: Sequence[Attempt]) -> None:
        """Add the folds of attempts, as Fold begins them; `follow` must be called next. A row that was never used is all
        zero."""
        rows = self.add_all(keys)
        self.last_end_ns[rows], self.last_count[rows] = [one.start_ns for one in attempts], 1
        self.top_step[rows], self.final[rows] = -1, True
        for unknown in (self.first_length, self.usual, self.peak_best):
            unknown[rows] = UNKNOWN
        for name in ("samples", "compute_ns", "caused_ns", "caused_in_group_ns"):
            self.objects[name][rows] = [0] * len(attempts)
        self.objects["attempt"][rows] = attempts
        self.objects["to_state"][rows] = states_of_all(attempts)

    def add(self, key: Key) -> RowFold:
        """A fold whose attributes are to be set."""
        self.add_all([key])
        return self[key]

    def add_all(self, keys: Sequence[Key]) -> slice:
        """Rows for these folds, whose attributes are to be set."""
        rows = slice(self.used, self.used + len(keys))
        if rows.stop > len(self.number):
            self._enlarge(max(self.used // 4, 16, rows.stop - len(self.number)), 0)
        if self._is_shared:
            self.places, self._is_shared = dict(self.places), False
        self.places.update(zip(keys, range(rows.start, rows.stop), strict=True))
        self.used = rows.stop
        for values in self.objects.values():
            values += [None] * len(keys)
        return rows

    def rows(self, keys: Sequence[Key]) -> np.ndarray:
        """The rows of these folds."""
        return np.array([self.places[key] for key in keys], np.int64)

    def numbers(self) -> dict[Key, int]:
        """The number of each attempt's last row that was folded."""
        numbers = self.number.tolist()
        return {key: numbers[at] for key, at in self.places.items()}

    def count_rows(self) -> int:
        """How many rows were folded of all attempts."""
        return int(self.number[: self.used].sum())

    def count_going(self) -> int:
        """How many attempts may go on."""
        return len(self) - int(self.exhausted[: self.used].sum())

    def row(self, at: int) -> RowFold:
        """The fold of a row."""
        return self.row_type(self, at)

    def of(self, name: str, at: np.ndarray) -> list[Any]:
        """An attribute that is kept as objects, of these rows."""
        return list(map(self.objects[name].__getitem__, at.tolist()))

    def column(self, name: str) -> list[Any]:
        """An attribute of all folds in the order of their rows, as Fold has it."""
        if name in _SIMPLE:
            return getattr(self, name)[: self.used].tolist()
        if name in OBJECTS:
            return list(self.objects[name])
        return [getattr(self.row(at), name) for at in range(self.used)]

    def set_column(self, name: str, rows: slice, values: Sequence[Any]) -> None:
        """Set an attribute of these folds."""
        if name in _SIMPLE and values:
            getattr(self, name)[rows] = values
        elif name in OBJECTS:
            self.objects[name][rows] = values
        elif name in BY_PHASE and len({len(one) for one in values}) == 1:
            width = len(values[0])
            self.widen(width)
            own = getattr(self, name)[rows]
            own[:, :width], own[:, width:] = values, 0
        else:
            for at, value in zip(range(rows.start, rows.stop), values, strict=True):
                setattr(self.row(at), name, value)

    def add_cut(self, at: np.ndarray, states: np.ndarray) -> None:
        """Add to `cut` of these rows, each once: (rows, states)."""
        if self.cut is None:
            self.cut = np.zeros_like(self.kept)
        self.cut[at] += states

    def add_to(self, name: str, at: np.ndarray, more: np.ndarray) -> None:
        """Add to numbers that are kept as objects."""
        numbers, some = self.objects[name], np.flatnonzero(more)
        for one, number in zip(at[some].tolist(), more[some].tolist(), strict=True):
            numbers[one] += number

    def follow(
        self, at: np.ndarray, criteria: CriteriaColumns, threshold_ns: int, exact: Callable[[int], Criteria]
    ) -> bool:
        """Fold.fits and Fold.follow of these rows; False where one does not fit, and then none follows.

        `exact` has the criteria of one of them by its place.
        """
        states, now = self.of("to_state", at), states_of_all(self.of("attempt", at))
        top, limit, before = self.top_step[at], criteria.limit, self.limit[at]
        is_plain = (limit == before) | (np.minimum(limit, before) >= top)
        is_plain &= (top <= before) & (self.calm_ns[at] <= threshold_ns)
        is_plain &= (criteria.from_ns == self.from_ns[at]) & (criteria.first == self.first[at])
        is_plain &= self.last_end_ns[at] <= criteria.to_ns
        if now != states:
            is_plain &= np.array([one is other for one, other in zip(now, states, strict=True)])
        for rare in (self.rare["stall_ns"], self.rare["_judged"]):
            if rare:
                is_plain &= ~np.isin(at, list(rare))
        others = np.flatnonzero(~is_plain & (self.steps[at] > 0)).tolist()
        if not all(self.row(int(at[place])).fits(*exact(place)) for place in others):
            return False
        self.limit[at], self.threshold_ns[at] = limit, threshold_ns
        for name in _BOUND:
            getattr(self, name)[at] = getattr(criteria, name)
        for name, values in (("restarts", criteria.restarts), ("to_state", now)):
            objects = self.objects[name]
            for one, value in zip(at.tolist(), values, strict=True):
                objects[one] = value
        self.widen(max(map(len, now), default=0))
        return True

    def __getitem__(self, key: Key) -> RowFold:
        return self._plain[key] if key in self._plain else self.row_type(self, self.places[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def __delitem__(self, key: Key) -> None:
        raise TypeError("a fold cannot be taken out of a table")

    def __setitem__(self, key: Key, fold: Fold) -> None:
        """Take over the attributes of a fold of another table."""
        own = self[key] if key in self.places else self.add(key)
        for name in _ATTRIBUTES:
            setattr(own, name, getattr(fold, name))

    @contextmanager
    def as_plain_fold(self, key: Key) -> Iterator[None]:
        """Within the context the fold is a plain Fold, in which a step takes a third of the time; then it is written back."""
        row = self[key]
        if type(row) is not RowFold:
            yield
            return
        plain = self._plain[key] = Fold.__new__(Fold)
        for name in ("planned", *_ATTRIBUTES):
            setattr(plain, name, getattr(row, name))
        try:
            yield
        finally:
            del self._plain[key]
            self[key] = plain

    def widen(self, width: int) -> None:
        """Make place for so many phases."""
        if width > self.totals.shape[1]:
            self._enlarge(0, width - self.totals.shape[1])

    def _enlarge(self, rows: int, phases: int) -> None:
        for name in _ARRAYS:
            values = getattr(self, name)
            more = [(0, rows), (0, phases if name in BY_PHASE else 0)][: values.ndim]
            setattr(self, name, np.pad(values, more))
        for name in LATER:
            if getattr(self, name) is not None:
                setattr(self, name, np.pad(getattr(self, name), [(0, rows), (0, 0)]))

    def copy(self) -> FoldTable:
        """A table that goes on independently."""
        other = FoldTable.__new__(FoldTable)
        other.planned, other.row_type, other.used = self.planned, self.row_type, self.used
        for name in _ARRAYS:
            setattr(other, name, getattr(self, name).copy())
        other.objects = {name: list(values) for name, values in self.objects.items()}
        other.rare = {name: dict(values) for name, values in self.rare.items()}
        for name in LATER:
            values = getattr(self, name)
            setattr(other, name, None if values is None else values.copy())
        other.attributes = {at: dict(own) for at, own in self.attributes.items()}
        other.odd_peaks = {at: peak.copy() for at, peak in self.odd_peaks.items()}
        other.places, other._plain = self.places, {}
        self._is_shared = other._is_shared = True
        return other


# The attributes of a RowFold: properties, which stand in for those that Fold sets.


def _number(name: str) -> Any:
    def set_value(fold: RowFold, value: float) -> None:
        getattr(fold.table, name)[fold.at] = value

    return property(lambda fold: getattr(fold.table, name).item(fold.at), set_value)


def _by_state(name: str) -> Any:
    def set_value(fold: RowFold, value: list[int]) -> None:
        getattr(fold.table, name)[fold.at] = value

    return property(lambda fold: getattr(fold.table, name)[fold.at].tolist(), set_value)


def _later(name: str) -> Any:
    def get_value(fold: RowFold) -> list[int]:
        values = getattr(fold.table, name)
        return NOTHING if values is None else values[fold.at].tolist()

    def set_value(fold: RowFold, value: list[int]) -> None:
        if getattr(fold.table, name) is None and any(value):
            setattr(fold.table, name, np.zeros_like(fold.table.kept))
        values = getattr(fold.table, name)
        if values is not None:
            values[fold.at] = value

    return property(get_value, set_value)


def _by_phase(name: str) -> Any:
    def get_value(fold: RowFold) -> tuple[int, ...]:
        return tuple(getattr(fold.table, name)[fold.at, : len(fold.to_state)].tolist())

    def set_value(fold: RowFold, value: tuple[int, ...]) -> None:
        fold.table.widen(len(value))
        row = getattr(fold.table, name)[fold.at]
        row[: len(value)], row[len(value) :] = value, 0

    return property(get_value, set_value)


def _object(name: str) -> Any:
    def set_value(fold: RowFold, value: Any) -> None:
        fold.table.objects[name][fold.at] = value

    return property(lambda fold: fold.table.objects[name][fold.at], set_value)


def _rare(name: str) -> Any:
    usual = RARE[name]

    def set_value(fold: RowFold, value: Any) -> None:
        if value == usual:
            fold.table.rare[name].pop(fold.at, None)
        else:
            fold.table.rare[name][fold.at] = value

    return property(lambda fold: fold.table.rare[name].get(fold.at, usual), set_value)


class RowFold(Fold):
    """A fold in a table."""

    __slots__ = ("at", "table")

    limit = _number("limit")
    number = _number("number")
    last_end_ns = _number("last_end_ns")
    last_samples = _number("last_samples")
    last_device_ns = _number("last_device_ns")
    device_ns = _number("device_ns")
    last_count = _number("last_count")
    left_out_steps = _number("left_out_steps")
    steps = _number("steps")
    clamped = _number("clamped")
    top_step = _number("top_step")
    calm_ns = _number("calm_ns")
    kept_steps = _number("kept_steps")
    lost_steps = _number("lost_steps")
    kept_ns = _number("kept_ns")
    saved_ns = _number("saved_ns")
    straggler_ns = _number("straggler_ns")
    bubble_ns = _number("bubble_ns")
    matched_ns = _number("matched_ns")
    compared_steps = _number("compared_steps")
    last_steps = _number("last_steps")
    threshold_ns = _number("threshold_ns")
    exhausted = _number("exhausted")
    final = _number("final")
    work = _number("work")
    cut_work = _number("cut_work")
    kept_samples = _number("kept_samples")
    kept = _by_state("kept")
    rest = _by_state("rest")
    ending = _later("ending")
    cut = _later("cut")
    totals = _by_phase("totals")
    outside = _by_phase("outside")
    left_out = _by_phase("left_out")
    attempt = _object("attempt")
    restarts = _object("restarts")
    to_state = _object("to_state")
    samples = _object("samples")
    compute_ns = _object("compute_ns")
    caused_ns = _object("caused_ns")
    caused_in_group_ns = _object("caused_in_group_ns")
    lost_by = _rare("lost_by")
    stall_ns = _rare("stall_ns")
    _judged = _rare("_judged")
    _others = _rare("_others")

    def __init__(self, table: FoldTable, at: int):  # type: ignore[override]
        self.table, self.at = table, at

    @property
    def planned(self) -> PlannedLimits:
        return self.table.planned

    @planned.setter
    def planned(self, planned: PlannedLimits) -> None:
        self.table.planned = planned

    @property
    def bound(self) -> Bound:
        """A copy: it counts once it is set again."""
        # One by one, since it is read a dozen times for each rank of a window.
        table, at = self.table, self.at
        return Bound(
            *(table.from_ns.item(at), table.to_ns.item(at), table.end_ns.item(at)),
            *(table.died.item(at), table.running.item(at), table.first.item(at)),
        )

    @bound.setter
    def bound(self, bound: Bound) -> None:
        for name in _BOUND:
            getattr(self.table, name)[self.at] = getattr(bound, name)

    @property
    def _first(self) -> tuple | None:
        table, at = self.table, self.at
        if table.first_length[at] == UNKNOWN:
            return None
        step, count, end_ns, length, samples, limit = [getattr(table, name).item(at) for name in _FIRST]
        restarts = table.objects["first_restarts"][at]
        return (step, count, end_ns, length, table.first_inside[at].tolist(), samples, limit, restarts)

    @_first.setter
    def _first(self, first: tuple | None) -> None:
        table, at = self.table, self.at
        if first is None:
            table.first_length[at] = UNKNOWN
            return
        step, count, end_ns, length, inside, samples, limit, restarts = first
        for name, value in zip(_FIRST, (step, count, end_ns, length, samples, limit), strict=True):
            getattr(table, name)[at] = value
        table.first_inside[at], table.objects["first_restarts"][at] = inside, restarts

    def held_back(self) -> tuple[int, int]:
        table, at = self.table, self.at
        length = table.first_length.item(at)
        if length == UNKNOWN or table.first_end_ns.item(at) - bool(length) < table.from_ns.item(at):
            return (-1, 0)
        return table.first_step.item(at), table.first_count.item(at)

    @property
    def _usual(self) -> tuple[int, int] | None:
        length, work = self.table.usual[self.at].tolist()
        return None if length == UNKNOWN else (length, work)

    @_usual.setter
    def _usual(self, usual: tuple[int, int] | None) -> None:
        self.table.usual[self.at] = UNKNOWN if usual is None else usual

    @property
    def throughput(self) -> PeakThroughput:
        """A copy: it counts once it is set again."""
        table, at = self.table, self.at
        if at in table.odd_peaks:
            return table.odd_peaks[at].copy()
        found, best = PeakThroughput(), table.peak_best[at].tolist()
        found.best = None if best[1] == UNKNOWN else (best[0], best[1])
        for name, value in zip(_PEAK, table.peak[at].tolist(), strict=True):
            setattr(found, name, value)
        return found

    @throughput.setter
    def throughput(self, peak: PeakThroughput) -> None:
        table, at = self.table, self.at
        numbers, best = [getattr(peak, name) for name in _PEAK], peak.best or (UNKNOWN, UNKNOWN)
        if any(number != int(number) or number >= _WHOLE_MAX for number in (*numbers, *best)):
            table.odd_peaks[at] = peak.copy()
            return
        table.odd_peaks.pop(at, None)
        table.peak[at], table.peak_best[at] = numbers, best
