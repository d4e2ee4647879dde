"""The state of a run's account as bytes, from which it goes on with the rows after it, to the nanosecond.

    body = encode(engine)
    state = decode(body)                    # or StateError
    engine = state.engine(run, facts, stall_seconds)

A body has a check sum and the version of this format; a damaged one, and one of another version, is refused.
"""

from __future__ import annotations

import hashlib
import zlib

import msgspec
from msgspec import Struct

from goodput._core import READ_INDEX, CoreError, CoreRun
from goodput.account import Attempt, Run
from goodput.account.by_core.engine import CoreEngine, Known
from goodput.account.facts import Facts, Key

# Raise it whenever an account of the same rows has another result: then all rows are folded anew.
VERSION = 3
_DIGEST_BYTES = 16
_VERSION_BYTES = VERSION.to_bytes(2, "little")
_NUMBER, _TOP_STEP, _END, _ROWS = (READ_INDEX[name] for name in ("number", "top_step", "end_ns", "rows"))


class StateError(ValueError):
    """Bytes that are no state of this version, or a state that cannot be stored."""


class RowFacts(Struct, array_like=True):
    """What an attempt knows of its rows up to the last one that was folded, which has `number`."""

    number: int
    top_step: int
    first_number: int
    first_step: int | None
    rows_end_ns: int
    holes: list[tuple[int, int]]


class RunState(Struct, array_like=True):
    """What an engine knows, of each attempt in the order of the core, and the core's own snapshot.

    `end_ns` is the last end of a row in unix ns, 0 without one.
    """

    end_ns: int
    rows: dict[Key, RowFacts]
    known: Known
    core: bytes

    def numbers(self) -> dict[Key, int]:
        """The number of each attempt's last row that was folded."""
        return {key: one.number for key, one in self.rows.items()}

    def engine(self, run: Run, facts: Facts, stall_seconds: float) -> CoreEngine | None:
        """The engine as it was, under these facts; None where its sums are not right under them. Raises StateError."""
        if not self.rows.keys() <= run.attempts.keys():
            raise StateError("it has attempts that the run has not")
        try:
            core = CoreRun.restore(self.core)
        except CoreError as error:
            raise StateError(str(error)) from None
        engine = CoreEngine.restored(run, core, self.known, stall_seconds)
        return engine if engine.follow(facts) else None

    def restore_rows(self, key: Key, attempt: Attempt) -> None:
        """Let an attempt without rows know those that were folded, as if they had been dropped."""
        known = self.rows[key]
        attempt.top_number = attempt.trimmed = known.number
        attempt.first_number, attempt.first_step = known.first_number, known.first_step
        attempt.rows_end_ns, attempt.holes = known.rows_end_ns, list(known.holes)


def encode(engine: CoreEngine) -> bytes:
    """An engine as bytes. Raises StateError where a number does not fit."""
    rows, end_ns = {}, 0
    values = engine.core.read_all()
    for key, at in engine.places.items():
        number, top_step = values[at, _NUMBER], values[at, _TOP_STEP]
        if values[at, _ROWS]:
            end_ns = max(end_ns, values[at, _END] + engine.origin_ns)
        rows[key] = _row_facts(engine.run.attempts[key], number, top_step)
    try:
        packed = _encoder.encode(RunState(end_ns, rows, engine.known(), engine.core.save()))
    except OverflowError as error:
        raise StateError(str(error)) from None
    body = _VERSION_BYTES + zlib.compress(packed, 1)
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def decode(body: bytes) -> RunState:
    """What `encode` was given. Raises StateError."""
    rest = body[_DIGEST_BYTES:]
    if hashlib.blake2b(rest, digest_size=_DIGEST_BYTES).digest() != body[:_DIGEST_BYTES]:
        raise StateError("it is damaged")
    if rest[: len(_VERSION_BYTES)] != _VERSION_BYTES:
        raise StateError("it is of another version")
    try:
        return _decoder.decode(zlib.decompress(rest[len(_VERSION_BYTES) :]))
    except (msgspec.DecodeError, zlib.error) as error:
        raise StateError(str(error)) from None


def _row_facts(attempt: Attempt, number: int, top_step: int) -> RowFacts:
    holes = [(low, min(high, number)) for low, high in attempt.holes if low <= number]
    known = attempt.first_number, attempt.first_step, attempt.rows_end_ns
    return RowFacts(number, top_step, *known, holes)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RunState)
