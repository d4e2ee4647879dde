"""A rank process as those need it who read its rows: of 0.3 KiB, where its last report takes 3 as objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from goodput.wire import schema


class ProcessKey(msgspec.Struct, frozen=True, gc=False):
    """The part of an identity that names a process."""

    run: str
    rank: int
    attempt: int
    host: str
    pid: int
    start_ns: int


class StoredProcess(msgspec.Struct, gc=False):
    """What of a report in the ledger has to do with its rows."""

    identity: ProcessKey
    phases: tuple[str, ...]
    phase_states: dict[str, str] = {}


AnyProcess = TypeVar("AnyProcess", bound=schema.RankReport | StoredProcess)

_decoder = msgspec.msgpack.Decoder(StoredProcess)


def decoded(reports: Iterable[bytes]) -> list[StoredProcess]:
    """The processes of these reports; those whose phases are alike share them."""
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    found = []
    for report in reports:
        process = _decoder.decode(report)
        process.phases = shared.setdefault(process.phases, process.phases)
        found.append(process)
    return found
