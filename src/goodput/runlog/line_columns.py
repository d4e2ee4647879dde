"""Ordinary lines as NumPy columns: those of a block are decoded at once, at a fifth of the cost of `json.loads`.

Ordinary are steps and phases without foreign fields, and checkpoints, beats and ends. A block with any other line has
no columns; it is parsed line by line.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Raw

from goodput.runlog.lines import (
    AttemptNumber,
    Count,
    KnownLine,
    Line,
    LineError,
    Name,
    Rank,
    Samples,
    Seconds,
    parse,
    to_ns,
)

_TIME_CHARACTERS_MAX, _WHOLE_DIGITS_MAX = 32, 10
_OPEN, _CLOSE, _NEWLINE, _POINT, _ZERO = b"{}\n.0"


class _Placed(msgspec.Struct, tag_field="kind", gc=False):
    time: Raw
    rank: Rank = 0
    attempt: AttemptNumber | None = None
    run: Name | None = None


class StepLine(_Placed, tag="step", forbid_unknown_fields=True, kw_only=True, gc=False):
    step: Annotated[int, Meta(ge=0, le=1 << 61)]
    seconds: Seconds
    phases: dict[str, float] = {}
    samples: Samples = 0
    count: Count = 1
    device_seconds: Seconds = 0.0
    cut: bool = False


class PhaseLine(_Placed, tag="phase", forbid_unknown_fields=True, kw_only=True, gc=False):
    phase: Name
    seconds: Seconds


class _Checkpoint(_Placed, tag="checkpoint", gc=False):
    pass


class _Beat(_Placed, tag="beat", gc=False):
    pass


class _End(_Placed, tag="end", gc=False):
    pass


_KINDS = {kind: at for at, kind in enumerate((StepLine, PhaseLine, _Checkpoint, _Beat, _End))}
_decode = msgspec.json.Decoder(StepLine | PhaseLine | _Checkpoint | _Beat | _End).decode_lines


class Lines(NamedTuple):
    """Steps and phases, of which each has the attributes of StepLine or PhaseLine: arrays by line.

    `numbers` are those in the file, `attempt` says whose a line is.
    """

    lines: list
    numbers: np.ndarray
    time_ns: np.ndarray
    length: np.ndarray
    is_step: np.ndarray
    attempt: np.ndarray

    def chosen(self, rows: np.ndarray) -> Lines:
        """Those in these rows."""
        return Lines([self.lines[row] for row in rows.tolist()], *(values[rows] for values in self[1:]))


class LineColumns:
    """The lines of a block: arrays by line, and those of `StepColumns` by step.

    `others` are neither steps nor phases: (row, line).
    """

    def __init__(self, number: int, lines: list, time_ns: np.ndarray, others: list[tuple[int, Line]]):
        self.number, self.lines, self.time_ns, self.others = number, lines, time_ns, others
        self.rank = _integers([line.rank for line in lines])
        self.attempts: list[int | None] = [line.attempt for line in lines]
        self.runs: list[str | None] = [line.run for line in lines]
        kinds = np.array(list(map(_KINDS.__getitem__, map(type, lines))), np.int8)
        self.step_rows = np.flatnonzero(kinds == _KINDS[StepLine])
        self.phase_rows = np.flatnonzero(kinds == _KINDS[PhaseLine]).tolist()
        self.length = np.zeros(len(lines), np.int64)
        for rows in (self.step_rows, self.phase_rows):
            if len(rows):
                self.length[rows] = nanoseconds([lines[row].seconds for row in rows])

    def steps(self, rows: np.ndarray) -> StepColumns:
        """The steps in these rows."""
        return StepColumns([self.lines[row] for row in rows.tolist()], self.time_ns[rows], self.length[rows])


class StepColumns:
    """Steps: arrays by step."""

    def __init__(self, lines: list, end: np.ndarray, length: np.ndarray):
        self.lines, self.end, self.length = lines, end, length
        self.step = _integers([line.step for line in lines])
        self.count = _integers([line.count for line in lines])


def columns_of(number: int, block: bytes) -> LineColumns | None:
    """The columns of a block whose first line has this number; None if not all of its lines are ordinary."""
    if b"\\" in block or not block.isascii():
        return None  # Texts that may have to be cleaned.
    try:
        lines = _decode(block)
    except (msgspec.DecodeError, RecursionError):
        return None
    ends = _line_ends(block, len(lines))
    time_ns = None if ends is None else times_ns([line.time for line in lines])
    if ends is None or time_ns is None:
        return None
    others = []
    for row, line in enumerate(lines):
        if type(line) is not StepLine and type(line) is not PhaseLine:
            whole = _whole_line(block[ends[row] : ends[row + 1]])
            if whole is None:
                return None
            others.append((row, whole))
    return LineColumns(number, lines, time_ns, others)


def _line_ends(block: bytes, count: int) -> np.ndarray | None:
    """Where the lines of a block begin and, last, end; None unless each has exactly one of `count` objects."""
    characters = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(characters == _NEWLINE)
    # Between two braces a newline can only be between two objects, as no text has one.
    is_plain = len(ends) == count > 0 and ends[-1] == len(block) - 1
    is_plain = is_plain and characters[0] == _OPEN and (characters[ends - 1] == _CLOSE).all()
    if not is_plain or not (characters[ends[:-1] + 1] == _OPEN).all():
        return None
    return np.concatenate(([0], ends + 1))


def _whole_line(raw: bytes) -> Line | None:
    try:
        line = parse(raw)
    except LineError:
        return None
    return line if type(line) is KnownLine and line.seconds is None else None


def times_ns(texts: list[Raw]) -> np.ndarray | None:
    """As `lines.to_ns` of each; None if one is no time."""
    raws = list(map(bytes, texts))
    found = _ns_of_digits(raws)
    if found is None:
        try:
            found = np.array([to_ns(raw) for raw in raws], np.int64)
        except LineError:
            return None
    return found


def _ns_of_digits(raws: list[bytes]) -> np.ndarray | None:
    """None unless all are digits with one point at the same place."""
    given, point = np.array(raws), raws[0].find(b".")
    if not 0 < point <= _WHOLE_DIGITS_MAX or given.dtype.itemsize > _TIME_CHARACTERS_MAX:
        return None
    characters = given.view(np.uint8).reshape(len(raws), -1)
    digits = np.where(characters == 0, 0, characters - _ZERO)  # unsigned: what is no digit is larger
    digits[:, point] = 0
    is_far = point == _WHOLE_DIGITS_MAX and digits[:, 0].max() > 3
    if is_far or digits.max() > 9 or not (characters[:, point] == _POINT).all():
        return None
    powers = [point - column - (column < point) for column in range(characters.shape[1])]
    return digits @ np.array([10 ** (9 + power) if power > -10 else 0 for power in powers])


def only_names(phases: list[dict[str, float]]) -> tuple[str, ...] | None:
    """The names of phases, in their order, if all have the same."""
    names = tuple(phases[0]) if phases else ()
    return names if list(chain.from_iterable(phases)) == list(names) * len(phases) else None


def _integers(values: list[int]) -> np.ndarray:
    return np.fromiter(values, np.int64, len(values))


def nanoseconds(seconds: list[float]) -> np.ndarray:
    """As round(seconds * 1e9) of each."""
    return np.rint(np.fromiter(seconds, np.float64, len(seconds)) * 1e9).astype(np.int64)
