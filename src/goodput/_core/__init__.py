"""The account's core, a library in C: from the rows of rank processes to time in states. See core.h.

Loaded by ctypes, so it needs nothing of Python and a call lets other threads run.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol

ROW_STATES = (
    *("productive", "loader", "h2d", "communication", "launch", "checkpoint", "evaluation"),
    *("rollout", "compile", "startup", "restore", "stall", "unattributed"),
)
PLANNED_STATES = ("checkpoint", "evaluation", "rollout", "compile", "restore")
# Of a tail by state, then all compute and saving of checkpoints in it, whatever their states.
TAIL_STATES = (*ROW_STATES, "lost")
TAIL_COLUMNS = (*TAIL_STATES, "compute_ns", "saved_ns")
INDEX = {state: at for at, state in enumerate(ROW_STATES)}
# How a tail is taken: of a process that lives, that died, that ended otherwise.
RUNNING, DIED, ENDED = range(3)
FIRST_OTHERS = 15  # steps that an attempt's first one is compared with
STRETCHES_MAX = 8
# Columns of a row before the totals of its phases, which the parts outside steps follow.
ROW_COLUMNS = ("number", "step", "end_ns", "samples", "device_ns")
_VERSION = 1
_SUMS = (
    *("straggler_ns", "bubble_ns", "caused_ns", "caused_in_group_ns", "matched_ns", "compared_steps"),
    *(
        "last_steps",
        "compared_own_ns",
        "compared_count",
        "late_rows",
        "steps",
        "work",
        "compute_ns",
        "saved_ns",
    ),
    *("clamped", "rows", "number", "top_step", "end_ns", "pending_rows", "lost_ns", "lost_steps", "samples"),
    *("kept_samples", "device_ns", "threshold_ns", "lengths", "provisional", "slow", "first_compared"),
)
READ_COLUMNS = (
    *ROW_STATES,
    *(f"outside_{state}" for state in ROW_STATES),
    *_SUMS,
    *(f"longest_{state}" for state in PLANNED_STATES),
)
READ_INDEX = {name: at for at, name in enumerate(READ_COLUMNS)}

_int32, _int64 = ctypes.c_int32, ctypes.c_int64
_pointer64 = ctypes.POINTER(_int64)


class CoreError(Exception):
    """A call that the core refused; the text says which and why."""


class StepBlock(Protocol):
    """What fold_block reads of goodput.wire.step_blocks.StepBlock."""

    @property
    def count(self) -> int: ...
    @property
    def columns(self) -> bytes: ...
    @property
    def first(self) -> Sequence[int]: ...
    @property
    def least(self) -> Sequence[int]: ...
    @property
    def widths(self) -> bytes: ...
    @property
    def cells(self) -> bytes: ...


class Counts(NamedTuple):
    """Where rows went: folded, of a number that was folded before, out of range. The latter two are left out."""

    folded: int
    repeated: int
    wrong: int


class WatchedRow(NamedTuple):
    """A row as it was folded: `count` steps up to `step`; ns by ROW_STATES inside steps and before them, in the bound.

    A first step that is held (`is_first`) has its compute and unattributed time in `compile` until a WatchedFirst follows.
    """

    attempt: int
    step: int
    count: int
    end_ns: int
    inside: tuple[int, ...]
    outside: tuple[int, ...]
    is_first: bool


class WatchedFirst(NamedTuple):
    """How much of a held first step was compiling is known: its ns by ROW_STATES, inside its row until then and now."""

    attempt: int
    step: int
    before: tuple[int, ...]
    after: tuple[int, ...]


class WatchedMove(NamedTuple):
    """Steps `first` to `last` were compared: what of their communication is straggler and bubble, not both 0."""

    attempt: int
    first: int
    last: int
    straggler_ns: int
    bubble_ns: int


class _Facts(ctypes.Structure):
    _fields_ = (
        *(("rank", _int64), ("start_ns", _int64), ("before", _int32), ("group", _int32), ("unit", _int32)),
        *(("stage", _int32), ("phases", _int32), ("states", ctypes.c_char_p)),
    )


class _Counts(ctypes.Structure):
    _fields_ = (("folded", _int64), ("repeated", _int64), ("wrong", _int64))


class _Stretch(ctypes.Structure):
    _fields_ = (("first", _int64), ("last", _int64))


class _Block(ctypes.Structure):
    _fields_ = (
        *(("count", _int64), ("cell_bytes", _int64), ("used", _int32), ("columns", ctypes.c_char_p)),
        *(
            ("widths", ctypes.c_char_p),
            ("cells", ctypes.c_char_p),
            ("first", _pointer64),
            ("least", _pointer64),
        ),
    )


# The structs that a watcher is given, as the C compiler lays them out.
_ROW, _FIRST, _MOVE = (
    Struct(f"@iqqq{2 * len(ROW_STATES)}qi0q"),
    Struct(f"@iq{2 * len(ROW_STATES)}q"),
    Struct("@iqqqq"),
)
_WATCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Watcher(ctypes.Structure):
    _fields_ = (("row", _WATCH), ("first", _WATCH), ("moved", _WATCH), ("context", ctypes.c_void_p))


@lru_cache(1)
def library() -> ctypes.CDLL:
    """The compiled core. Raises CoreError where it was not built, or is of another version."""
    path = Path(__file__).with_name("_library.so")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise CoreError(
            f"goodput's compiled core cannot be loaded, install goodput again: {error}"
        ) from error
    if loaded.core_version() != _VERSION:
        raise CoreError(f"{path} has version {loaded.core_version()}, want {_VERSION}")
    run, text = ctypes.c_void_p, ctypes.c_char_p
    calls = {
        "core_run_new": (run, _int64),
        "core_run_free": (None, run),
        "core_group": (ctypes.c_int, run, _int32, _int64),
        "core_attempt": (ctypes.c_int, run, ctypes.POINTER(_Facts)),
        "core_attempts": (ctypes.c_int, run),
        "core_phases_of": (ctypes.c_int, run, _int32),
        "core_phases": (ctypes.c_int, run, _int32, _int32, text),
        "core_bound": (ctypes.c_int, run, _int32, _int64, _int64),
        "core_again": (ctypes.c_int, run, _int32, _int64),
        "core_read_rates": (ctypes.c_int, run, ctypes.POINTER(ctypes.c_double), _int64),
        "core_limit": (ctypes.c_int, run, _int32, _int64, _pointer64, _int32),
        "core_read_loss": (ctypes.c_int, run, _int32, _int32, _pointer64, _pointer64),
        "core_fold": (
            *(ctypes.c_int, run, ctypes.POINTER(_int32), _pointer64, _int64, _pointer64, _int64),
            ctypes.POINTER(_Counts),
        ),
        "core_watch": (ctypes.c_int, run, ctypes.POINTER(_Watcher)),
        "core_fold_block": (ctypes.c_int, run, _int32, ctypes.POINTER(_Block), ctypes.POINTER(_Counts)),
        "core_end": (ctypes.c_int, run, _int32),
        "core_absent": (ctypes.c_int, run, _int32),
        "core_read": (ctypes.c_int, run, _int32, _int32, _pointer64),
        "core_settled": (_int64, run, _int32),
        "core_read_stage": (ctypes.c_int, run, _int32, _int32, _pointer64, _pointer64),
        "core_read_stretches": (ctypes.c_int, run, _int32, ctypes.POINTER(_Stretch)),
        "core_read_phases": (ctypes.c_int, run, _int32, _pointer64, _int32, _pointer64),
        "core_tail": (ctypes.c_int, run, _int32, _pointer64, _int32, _int32, _int64, _int32, _pointer64),
        "core_saved_bytes": (_int64, run),
        "core_save": (ctypes.c_int, run, ctypes.c_char_p, _int64),
        "core_restore": (run, ctypes.c_char_p, _int64),
        "core_memory_bytes": (_int64, run),
    }
    for name, (result, *arguments) in calls.items():
        call = getattr(loaded, name)
        call.restype, call.argtypes = result, arguments
    return loaded


class CoreRun:
    """A run in the core. Attempts and groups are numbered in the order in which they are added; times are unix ns.

    Use it from one thread at a time. Every method raises CoreError for what the core refuses.
    """

    def __init__(self, least_threshold_ns: int = 60 * 10**9):
        self._use(library().core_run_new(least_threshold_ns))

    def _use(self, handle: int | None) -> None:
        self._handle = handle
        self._phases: dict[int, int] = {}  # of attempts that were asked for
        self._watcher = _Watcher()  # keeps the functions that the core calls
        if not handle:
            raise CoreError("no memory for a run, or a least stall out of range")

    def __del__(self):
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            library().core_run_free(handle)

    def group(self, stages: int = 0, microbatches: int = 0) -> int:
        """A group of attempts whose steps are compared; with two stages or more it is a pipeline."""
        return _checked("core_group", self._handle, stages, microbatches)

    def attempt(
        self,
        rank: int,
        start_ns: int,
        group: int,
        states: Sequence[str],
        *,
        before: int = -1,
        stage: int = 0,
        unit: int = 0,
    ) -> int:
        """One rank process; `states` has the state of each of its phases, `before` is the attempt of its rank before it."""
        phases = bytes(INDEX[state] for state in states)
        facts = _Facts(rank, start_ns, before, group, unit, stage, len(phases), phases)
        return _checked("core_attempt", self._handle, ctypes.byref(facts))

    def _attempts(self) -> int:
        return _checked("core_attempts", self._handle)

    def _phases_of(self, attempt: int) -> int:
        found = self._phases.get(attempt)
        if found is None:
            found = self._phases[attempt] = _checked("core_phases_of", self._handle, attempt)
        return found

    def phases(self, attempt: int, states: Sequence[str]) -> None:
        """The states of all its phases, more than before; those of known ones must not change once it has rows."""
        _checked("core_phases", self._handle, attempt, len(states), bytes(INDEX[state] for state in states))
        self._phases[attempt] = len(states)

    def bound(self, attempt: int, from_ns: int, to_ns: int) -> None:
        """From when to when its time is charged. Refused once a row outside this bound or the one before was folded."""
        _checked("core_bound", self._handle, attempt, from_ns, to_ns)

    def again(self, attempt: int, last: int | None) -> None:
        """Steps beyond `last` that follow are lost, since the attempt itself repeats them; None for none."""
        _checked("core_again", self._handle, attempt, (1 << 63) - 1 if last is None else last)

    def rates(self) -> list[float]:
        """Of each attempt, the samples per second of its fastest 32 consecutive steps; 0 where they are not known."""
        values = (ctypes.c_double * self._attempts())()
        _checked("core_read_rates", self._handle, values, len(values))
        return list(values)

    def limit(self, attempt: int, last: int | None, points: Iterable[int] = ()) -> None:
        """The last step that counts, None for all; `points` are the resume points of the restarts after it, in order.

        A lost step is lost by the first of them that resumed before it. Refused once a step beyond it was folded.
        """
        known = array("q", points)
        last = (1 << 63) - 1 if last is None else last
        _checked("core_limit", self._handle, attempt, last, _pointer_to(known), len(known))

    def loss(self, attempt: int, restart: int) -> tuple[int, int]:
        """(steps, ns) that a restart, by its place in `limit`, made lost."""
        steps, ns = _int64(), _int64()
        _checked("core_read_loss", self._handle, attempt, restart, ctypes.byref(steps), ctypes.byref(ns))
        return steps.value, ns.value

    def watch(
        self,
        row: Callable[[WatchedRow], object] | None = None,
        first: Callable[[WatchedFirst], object] | None = None,
        moved: Callable[[WatchedMove], object] | None = None,
    ) -> None:
        """Call these while rows are folded, attempts end or are absent, from now on; without any, nothing is called.

        Rows less what was moved, with first steps as they were fixed, sum to what `read` has at any time. They must not
        raise nor use this run, and are no part of a snapshot.
        """
        self.watch_bytes(
            row and (lambda event: row(_watched_row(event))),
            first and (lambda event: first(_watched_first(event))),
            moved and (lambda event: moved(WatchedMove(*_MOVE.unpack(event)))),
        )

    def watch_bytes(
        self,
        row: Callable[[bytes], object] | None,
        first: Callable[[bytes], object] | None,
        moved: Callable[[bytes], object] | None,
    ) -> None:
        """Like `watch`, but each is called with the bytes of its struct in core.h: faster where many are decoded at once."""
        calls = ((row, _ROW.size), (first, _FIRST.size), (moved, _MOVE.size))
        watcher = _Watcher(*(_WATCH() if call is None else _with_bytes(call, size) for call, size in calls))
        _checked("core_watch", self._handle, ctypes.byref(watcher))
        self._watcher = watcher

    def fold(self, attempt: int, rows: array) -> Counts:
        """Fold rows of an attempt: an array("q") of ROW_COLUMNS, the totals and the parts outside steps, row after row.

        Rows ascend in number; one that is more than one above that before stands for several steps.
        """
        width = len(ROW_COLUMNS) + 2 * self._phases_of(attempt)
        return self.fold_blocks(array("i", [attempt]), array("q", [len(rows) // width]), rows)

    def fold_blocks(self, attempts: array, rows: array, values: array) -> Counts:
        """The same of blocks of several attempts, one after the other.

        `attempts` is an array("i") of them, `rows` an array("q") of how many rows each block has, `values` the rows.
        """
        if (attempts.typecode, rows.typecode, values.typecode) != ("i", "q", "q") or len(attempts) != len(
            rows
        ):
            raise CoreError(
                f"{len(attempts)} attempts of type {attempts.typecode!r} with {len(rows)} numbers of rows"
            )
        counts, block = _Counts(), ctypes.cast(attempts.buffer_info()[0], ctypes.POINTER(_int32))
        numbers = (_pointer_to(rows), len(rows), _pointer_to(values), len(values), ctypes.byref(counts))
        _checked("core_fold", self._handle, block, *numbers)
        return Counts(counts.folded, counts.repeated, counts.wrong)

    def fold_block(self, attempt: int, block: StepBlock) -> Counts:
        """The rows of a step block (goodput.wire.step_blocks), whose phases are those of the attempt.

        Raises CoreError where it cannot be decoded; nothing of it is folded then.
        """
        used = len(block.columns)
        if not used == len(block.widths) == len(block.first) == len(block.least):
            raise CoreError(f"a block of {used} columns that are not described once each")
        try:
            first, least = array("q", block.first), array("q", block.least)
        except OverflowError:
            raise CoreError("a block with a value out of range") from None
        sizes, places = (block.count, len(block.cells), used), (block.columns, block.widths, block.cells)
        told, counts = _Block(*sizes, *places, _pointer_to(first), _pointer_to(least)), _Counts()
        _checked("core_fold_block", self._handle, attempt, ctypes.byref(told), ctypes.byref(counts))
        return Counts(counts.folded, counts.repeated, counts.wrong)

    def end(self, attempt: int) -> None:
        """No more rows will come."""
        _checked("core_end", self._handle, attempt)

    def absent(self, attempt: int) -> None:
        """It was not heard of: its group goes on without it until it has rows again."""
        _checked("core_absent", self._handle, attempt)

    def read(self, attempt: int) -> dict[str, int]:
        """What is known of an attempt, by READ_COLUMNS."""
        values = (_int64 * len(READ_COLUMNS))()
        _checked("core_read", self._handle, attempt, 1, values)
        return dict(zip(READ_COLUMNS, values, strict=True))

    def read_all(self) -> memoryview:
        """The same of all attempts: int64, of shape (attempts, len(READ_COLUMNS))."""
        count = self._attempts()
        values = (_int64 * (count * len(READ_COLUMNS)))()
        _checked("core_read", self._handle, 0, count, values)
        flat = memoryview(values).cast("B")
        return flat.cast("q", (count, len(READ_COLUMNS))) if count else flat.cast("q")

    def settled(self, group: int) -> int:
        """The last step of a group that was compared, -1 before the first."""
        found = library().core_settled(self._handle, group)
        if found < -1:
            raise CoreError(f"core_settled: group {group} is out of range")
        return found

    def read_stage(self, group: int, stage: int) -> tuple[int, int]:
        """The waiting for a stage of a pipeline in ns, and in how many steps there was some."""
        caused, steps = _int64(), _int64()
        _checked("core_read_stage", self._handle, group, stage, ctypes.byref(caused), ctypes.byref(steps))
        return caused.value, steps.value

    def stretches(self, attempt: int) -> list[tuple[int, int | None]]:
        """The stretches of steps in which the rank was slow: first and last, None while it lasts."""
        found = (_Stretch * STRETCHES_MAX)()
        count = _checked("core_read_stretches", self._handle, attempt, found)
        return [(one.first, None if one.last == -1 else one.last) for one in found[:count]]

    def phase_times(self, attempt: int) -> tuple[int, list[int]]:
        """(steps, own ns by phase) of whole steps without a stall, but for the first."""
        values, steps = (_int64 * self._phases_of(attempt))(), _int64()
        _checked("core_read_phases", self._handle, attempt, values, len(values), ctypes.byref(steps))
        return steps.value, list(values)

    def planned(self, attempt: int) -> list[int]:
        """The longest phase so far of the rank in each of PLANNED_STATES, in ns; shorter ones than 3 minutes may lack."""
        values = self.read(attempt)
        return [values[f"longest_{state}"] for state in PLANNED_STATES]

    def tail(
        self, attempt: int, totals: Iterable[int], open_state: str, end_ns: int, how: int
    ) -> dict[str, int]:
        """The time from the newest row to `end_ns` by TAIL_COLUMNS.

        `totals` are those of its phases then, or none; `open_state` that of the phase it was in; `how` is RUNNING, DIED or
        ENDED.
        """
        known, values = array("q", totals), (_int64 * len(TAIL_COLUMNS))()
        _checked(
            "core_tail",
            self._handle,
            attempt,
            _pointer_to(known),
            len(known),
            INDEX[open_state],
            end_ns,
            how,
            values,
        )
        return dict(zip(TAIL_COLUMNS, values, strict=True))

    def save(self) -> bytes:
        """A snapshot, which the same version of the core restores."""
        into = ctypes.create_string_buffer(_checked("core_saved_bytes", self._handle))
        _checked("core_save", self._handle, into, len(into))
        return into.raw

    @classmethod
    def restore(cls, snapshot: bytes) -> CoreRun:
        """The run of a snapshot."""
        run, handle = cls.__new__(cls), library().core_restore(snapshot, len(snapshot))
        if not handle:
            raise CoreError(f"{len(snapshot)} bytes that are no snapshot of version {_VERSION}")
        run._use(handle)
        return run

    def memory_bytes(self) -> int:
        return _checked("core_memory_bytes", self._handle)


def _checked(call: str, *arguments) -> int:
    found = getattr(library(), call)(*arguments)
    if found < 0:
        raise CoreError(f"{call}: {'no memory' if found == -1 else 'an argument out of range'}")
    return found


def _pointer_to(values: array):
    return ctypes.cast(values.buffer_info()[0], _pointer64)


def _with_bytes(call: Callable[[bytes], object], size: int):
    return _WATCH(lambda _, address: call(ctypes.string_at(address, size)))


def _watched_row(event: bytes) -> WatchedRow:
    attempt, step, count, end_ns, *states, is_first = _ROW.unpack(event)
    inside, outside = states[: len(ROW_STATES)], states[len(ROW_STATES) :]
    return WatchedRow(attempt, step, count, end_ns, tuple(inside), tuple(outside), bool(is_first))


def _watched_first(event: bytes) -> WatchedFirst:
    attempt, step, *states = _FIRST.unpack(event)
    return WatchedFirst(attempt, step, tuple(states[: len(ROW_STATES)]), tuple(states[len(ROW_STATES) :]))
