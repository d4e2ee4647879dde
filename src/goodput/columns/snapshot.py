"""The state of a run's fold as bytes, from which the fold goes on with the rows after it, to the nanosecond.

    body = encode(engine, lengths)          # some 300 bytes a rank
    state = decode(body)                    # or SnapshotError
    engine, lengths = state.engine(run), state.lengths()

A body has a check sum and the version of this format; a damaged one, and one of another version, is refused.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from math import inf
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from goodput.account import Attempt, Run
from goodput.account.facts import Bound, Key
from goodput.account.fold import Fold, ascending
from goodput.account.peak_throughput import PeakThroughput
from goodput.account.slow_ranks.onset import Onset
from goodput.account.slow_ranks.pipeline import Pipeline
from goodput.account.stall_threshold import PlannedLimits, StepLengths
from goodput.columns.engine import ColumnEngine
from goodput.columns.fold_table import FoldTable
from goodput.columns.groups import ColumnGroups, Compared
from goodput.columns.onsets import OnsetColumns

# Raise it whenever a fold of the same rows has another result: then all rows are folded anew.
VERSION = 2
_DIGEST_BYTES = 16
_Group = tuple[int, str]
_Compared = tuple[int, int, int, int]
_Settled = tuple[int, int, int, int, list[int], int, int, list[tuple[int | None, int]]]

# What is stored of each class, by attribute; tests check that these and the derived ones are all.
FOLD: dict[str, Any] = {
    **dict.fromkeys(("limit", "threshold_ns", "number", "last_end_ns", "samples", "last_samples"), int),
    **dict.fromkeys(("compute_ns", "device_ns", "last_device_ns", "steps", "clamped", "last_count"), int),
    **dict.fromkeys(("top_step", "calm_ns", "kept_steps", "lost_steps", "kept_ns", "saved_ns"), int),
    "left_out_steps": int,
    **dict.fromkeys(("straggler_ns", "bubble_ns", "matched_ns", "caused_ns", "caused_in_group_ns"), int),
    **dict.fromkeys(("compared_steps", "last_steps"), int),
    **dict.fromkeys(("exhausted", "final"), bool),
    **dict.fromkeys(("work", "kept_samples", "cut_work"), float),
    **dict.fromkeys(("to_state", "totals", "outside", "left_out"), tuple[int, ...]),
    **dict.fromkeys(("kept", "rest", "ending", "cut"), list[int]),
    "bound": Bound,
    "restarts": list[tuple[int | None, int]],
    "stall_ns": int | float,  # inf for none
    "lost_by": dict[int, list[int]],
    "throughput": PeakThroughput,
    "_judged": list[tuple[int, int, int]],
    "_first": _Settled | None,
    "_others": tuple[list[int], list[int]],
    "_usual": tuple[int, int] | None,
}
GROUPS: dict[str, Any] = {
    "onsets": dict[Key, Onset],
    "settled": dict[_Group, int],
    "pipelines": dict[int, Pipeline],
    **dict.fromkeys(("stage_caused_ns", "stage_last_steps"), dict[int, int]),
    **dict.fromkeys(("_new", "_left"), int),
    "_passed": dict[Key, int],
    "_columns": list[tuple[list[Key], np.ndarray, Compared]],
    "_single": list[tuple[Key, int, int, int, int, int, int]],
}
LENGTHS: dict[str, Any] = {"count": int, "_least_ns": int, "_bins": dict[int, list[int]]}
FOLD_DERIVED = {"attempt", "planned"}
GROUPS_DERIVED = {
    *("folds", "members", "_group", "has_late", "_waiting", "_groups", "_place", "_keys", "_rank"),
    *("_row", "_rank_of", "_group_of", "_row_of_members", "_sizes", "_swept"),
    *("_several", "_passed_at"),  # put with `_single`, and as `_passed`
}

_Fold, _Groups, _Lengths = (
    msgspec.defstruct(name, list(fields.items()), array_like=True, forbid_unknown_fields=True)
    for name, fields in (("_Fold", FOLD), ("_Groups", GROUPS), ("_Lengths", LENGTHS))
)
_LAYOUT = hashlib.blake2b(
    repr([VERSION, FOLD, GROUPS, LENGTHS, PeakThroughput.__slots__]).encode(), digest_size=8
).digest()


class SnapshotError(ValueError):
    """Bytes that are no state of this version, or a state that cannot be stored."""


# The first attributes of a fold, up to those that `ends` takes.
_Ends = msgspec.defstruct(
    "_Ends", [*FOLD.items()][: max(map([*FOLD].index, ("last_end_ns", "steps"))) + 1], array_like=True
)


class RowFacts(Struct, array_like=True):
    """What an attempt knows of its rows up to the last one that was folded."""

    first_number: int
    first_step: int | None
    rows_end_ns: int
    holes: list[tuple[int, int]]


class FoldState(Struct, array_like=True):
    """A run's folds, the comparison of its ranks, its step lengths and planned phases, and what attempts know of rows."""

    folds: dict[Key, _Fold]  # type: ignore[valid-type]
    rows: dict[Key, RowFacts]
    groups: _Groups  # type: ignore[valid-type]
    planned: PlannedLimits
    step_lengths: _Lengths  # type: ignore[valid-type]

    def numbers(self) -> dict[Key, int]:
        """The number of each attempt's last row that was folded."""
        return {key: fold.number for key, fold in self.folds.items()}

    def engine(self, run: Run) -> ColumnEngine:
        """The engine as it was, for the attempts of `run`; `follow` must be called next. Raises SnapshotError."""
        if not self.folds.keys() <= run.attempts.keys():
            raise SnapshotError("it has attempts that the run has not")
        engine = ColumnEngine.__new__(ColumnEngine)
        engine.run, engine.planned, engine.folds = (
            run,
            self.planned,
            FoldTable(self.planned, rows=len(self.folds)),
        )
        states = list(self.folds.values())
        rows = engine.folds.add_all(list(self.folds))
        for name in FOLD:
            values = [getattr(state, name) for state in states]
            if name == "_others":
                values = [tuple(ascending(sorted(one), array("I")) for one in both) for both in values]
            engine.folds.set_column(name, rows, values)
        engine.folds.set_column("attempt", rows, [run.attempts[key] for key in self.folds])
        engine.groups = ColumnGroups(engine.folds)
        for name, value in zip(GROUPS, _values(self.groups, GROUPS), strict=True):
            setattr(engine.groups, name, value)
        engine.groups.onsets = OnsetColumns(engine.folds.places, self.groups.onsets)
        engine.groups._columns = [
            (engine.folds.rows(keys)[place], own) for keys, place, own in self.groups._columns
        ]
        return engine

    def is_judged_by(self, threshold_ns: int) -> bool:
        """Whether all its steps would be judged as they are by this stall threshold."""
        limit_ns = self.planned.limit_ns
        return all(
            fold.calm_ns <= threshold_ns < fold.stall_ns
            and all(max(limit_ns(rank, state, at), threshold_ns) == ns for state, at, ns in fold._judged)
            for (rank, _), fold in self.folds.items()
        )

    def lengths(self) -> StepLengths:
        return _step_lengths(self.step_lengths)

    def restore_rows(self, key: Key, attempt: Attempt) -> None:
        """Let an attempt without rows know those that were folded, as if they had been dropped."""
        fold, known = self.folds[key], self.rows[key]
        attempt.top_number = attempt.trimmed = fold.number
        attempt.first_number, attempt.first_step = known.first_number, known.first_step
        attempt.rows_end_ns, attempt.holes = known.rows_end_ns, list(known.holes)


class _StateEnds(Struct, array_like=True):
    folds: dict[Key, _Ends]  # type: ignore[valid-type]


def encode(engine: ColumnEngine, lengths: StepLengths) -> bytes:
    """An engine with ColumnGroups, which nothing else uses meanwhile, as bytes.

    Raises SnapshotError where a number does not fit.
    """
    engine.groups.sweep()
    folds = zip(*map(engine.folds.column, FOLD), strict=True)
    state = FoldState(
        {key: _Fold(*values) for key, values in zip(engine.folds, folds, strict=True)},
        {key: _row_facts(fold) for key, fold in engine.folds.items()},
        _Groups(*_group_values(engine)),
        engine.planned,
        _Lengths(*_values(lengths, LENGTHS)),
    )
    return _body_of(state)


def _body_of(state: FoldState) -> bytes:
    try:
        body = _LAYOUT + zlib.compress(_encoder.encode(state), 1)
    except OverflowError as error:
        raise SnapshotError(str(error)) from None
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def decode(body: bytes) -> FoldState:
    """What `encode` was given. Raises SnapshotError."""
    return _decoded(_decoder, body)


def settled(body: bytes) -> bytes:
    """The same state, whose steps stay judged as they are whatever the stall threshold becomes. Raises SnapshotError."""
    state = decode(body)
    for fold in state.folds.values():
        fold.calm_ns, fold.stall_ns, fold._judged = 0, inf, []
    return _body_of(state)


class _KnownLengths(Struct, array_like=True, forbid_unknown_fields=True):
    step_lengths: _Lengths  # type: ignore[valid-type]
    numbers: dict[Key, int]


def encode_lengths(state: FoldState) -> bytes:
    """The step lengths of a state, with the number of each attempt's last row that is in them."""
    return _encoder.encode(_KnownLengths(state.step_lengths, state.numbers()))


def decode_lengths(body: bytes) -> tuple[StepLengths, dict[Key, int]]:
    """What `encode_lengths` was given. Raises SnapshotError."""
    try:
        known = _lengths_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise SnapshotError(str(error)) from None
    return _step_lengths(known.step_lengths), known.numbers


def _step_lengths(stored: object) -> StepLengths:
    found = StepLengths.__new__(StepLengths)
    found.__dict__.update(zip(LENGTHS, _values(stored, LENGTHS), strict=True))
    return found


def ends(body: bytes) -> dict[Key, int]:
    """The end of the last row of each attempt that has any in a body, in a twentieth of the time. Raises SnapshotError."""
    folds = _decoded(_ends_decoder, body).folds
    return {key: fold.last_end_ns for key, fold in folds.items() if fold.steps}


def _decoded(decoder: msgspec.msgpack.Decoder, body: bytes) -> Any:
    digest, layout, rest = (
        body[:_DIGEST_BYTES],
        body[_DIGEST_BYTES:][: len(_LAYOUT)],
        body[_DIGEST_BYTES:][len(_LAYOUT) :],
    )
    if hashlib.blake2b(body[_DIGEST_BYTES:], digest_size=_DIGEST_BYTES).digest() != digest:
        raise SnapshotError("it is damaged")
    if layout != _LAYOUT:
        raise SnapshotError("it is of another version")
    try:
        return decoder.decode(zlib.decompress(rest))
    except (msgspec.DecodeError, zlib.error, ValueError) as error:
        raise SnapshotError(str(error)) from None


def _values(of: object, fields: dict[str, Any]) -> list[Any]:
    return [getattr(of, name) for name in fields]


def _group_values(engine: ColumnEngine) -> list[Any]:
    """Those of GROUPS, with the keys of the rows of entries."""
    keys, columns = list(engine.folds), []
    for rows, own in engine.groups._columns:
        used, place = np.unique(rows, return_inverse=True)
        columns.append(([keys[row] for row in used.tolist()], place, own))
    return [columns if name == "_columns" else getattr(engine.groups, name) for name in GROUPS]


def _row_facts(fold: Fold) -> RowFacts:
    attempt = fold.attempt
    holes = [(low, min(high, fold.number)) for low, high in attempt.holes if low <= fold.number]
    return RowFacts(attempt.first_number, attempt.first_step, attempt.rows_end_ns, holes)


def _encode_other(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.astype("<i8").tobytes()
    if isinstance(value, OnsetColumns):
        return dict(value)
    if isinstance(value, PeakThroughput):
        return [getattr(value, name) for name in PeakThroughput.__slots__]
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, np.integer):
        return int(value)
    raise NotImplementedError(type(value))


def _decode_other(kind: type, value: Any) -> object:
    if kind is np.ndarray:
        return np.frombuffer(value, "<i8").astype(np.int64)
    found = PeakThroughput()
    best, *rest = value
    for name, one in zip(PeakThroughput.__slots__, (best and tuple(best), *rest), strict=True):
        setattr(found, name, one)
    return found


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_decoder = msgspec.msgpack.Decoder(FoldState, dec_hook=_decode_other)
_ends_decoder = msgspec.msgpack.Decoder(_StateEnds)
_lengths_decoder = msgspec.msgpack.Decoder(_KnownLengths)
