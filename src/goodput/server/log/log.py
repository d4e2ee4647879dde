"""What a log of pushes can do, whoever stores it.

Ingest appends each push as it came and answers when it is stored. An aggregator reads the pushes in the order of their
positions, and acknowledges them when its ledger holds what they said, together with the position up to which it does.
So a crash anywhere repeats pushes, which are idempotent, and loses none.

A partition is a share of the runs, by partition_of; a log on one machine has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from goodput.access.tokens import ALL


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A push, and what ingest found out about it.

    `runs` are the runs that it is about, of those that its envelope names the ones that its token may push; what the body
    says of others is to be left out. `token`, `token_id` and `patterns` are of the token: its name, its id, and the
    patterns of runs that it is for. `arrived_ns` is when it arrived, in unix ns of the machine of ingest.
    """

    node: str
    runs: tuple[str, ...]
    arrived_ns: int
    body: bytes
    token: str = ""
    token_id: str = ""
    patterns: tuple[str, ...] = ALL


class Stored(NamedTuple):
    """An entry as it is read; positions of a partition ascend, perhaps with gaps."""

    position: int
    entry: Entry


class Size(NamedTuple):
    """What a partition holds that is not acknowledged; `oldest_ns` is when the oldest arrived, 0 without any."""

    entries: int
    nbytes: int
    oldest_ns: int


class LogError(Exception):
    """The log cannot be reached or written; nothing of this append is stored, or it is not known whether it is. Push again."""


class LogFull(LogError):
    """It holds as many bytes as it may."""


class Log(Protocol):
    """All four raise LogError."""

    async def append(self, partition: int, entry: Entry) -> None:
        """Return when the entry is on disk. Entries that are appended at the same time share a commit."""
        ...

    async def read(self, partition: int, after: int, bytes_max: int, seconds: float) -> Sequence[Stored]:
        """Entries above a position, in order: one at least and `bytes_max` of bodies otherwise; none if none comes in time."""
        ...

    async def acknowledge(self, partition: int, position: int) -> None:
        """Forget the entries up to a position."""
        ...

    async def size(self, partition: int) -> Size: ...


class Answers(Protocol):
    """What aggregators tell a node about pushes that were answered before they were read; told with its next answer."""

    async def tell(self, node: str, answer: bytes) -> None: ...

    async def told(self, node: str) -> Sequence[bytes]:
        """Answers for a node, each once; they are forgotten after some minutes, and when there are too many."""
        ...
