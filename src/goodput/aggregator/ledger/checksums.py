"""CRC-32 of a row's columns, by which a flipped bit in any of them is found.

An id that the database chooses, and the process of a block, which is one, are not in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
import sqlalchemy as sql

CHECKSUM = "checksum"
_encoder = msgspec.msgpack.Encoder()
_NOT_IN = ("id", "process", CHECKSUM)


def checksum(values: Iterable[Any]) -> int:
    """Of the values of `names(table)`."""
    return zlib.crc32(_encoder.encode(tuple(values)))


@cache
def names(table: sql.Table) -> tuple[str, ...]:
    """The columns of a table that are in its checksum, in order."""
    return tuple(column.name for column in table.columns if column.name not in _NOT_IN)


def columns(table: sql.Table) -> list[sql.Column]:
    """What `checked` takes: `names(table)` and the checksum."""
    return [table.columns[name] for name in (*names(table), CHECKSUM)]


def is_damaged(values: Iterable[Any], stored: int | None) -> bool:
    """Whether a row is not as it was written; one without a checksum is not known to be."""
    return stored is not None and checksum(values) != stored


def checked(table: sql.Table, rows: Iterable[Any]) -> list[Any]:
    """Rows of `columns(table)`. Raises ValueError where one is not as it was written."""
    found = list(rows)
    for *values, stored in found:
        if is_damaged(values, stored):
            raise ValueError(f"a row of its table {table.name} is damaged")
    return found
