"""Rows that a database refuses for their values: they are left out, counted and logged, and all others are stored.

A text that its encoding lacks, a number beyond its type, a constraint that an administrator added: no repetition of the
write helps, and a transaction that has such a row would fail for ever, with the rows of all other runs in it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable

import sqlalchemy as sql
from sqlalchemy import exc

LOGGED_MAX = 1000
TABLES = ("processes", "blocks", "events", "health", "ends")  # that pushes and ends of runs write
# SQLite's driver raises the last two where it binds a value.
_SQLITE = (sqlite3.DataError, sqlite3.IntegrityError, OverflowError, UnicodeError)
# Classes of SQLSTATE: data exception, integrity constraint violation, program limit exceeded.
_OF_VALUES = ("22", "23", "54")
log = logging.getLogger("goodput.aggregator")


def is_of_values(error: BaseException) -> bool:
    """Whether a database, or its driver, refused a row for what it holds, and not for the state that it is in."""
    original = getattr(error, "orig", None) or error
    state = getattr(original, "sqlstate", None)
    if state:
        return state[:2] in _OF_VALUES
    return isinstance(original, _SQLITE) or isinstance(error, exc.DataError | exc.IntegrityError)


class RefusedRows:
    """`counts` has how many rows were left out, by table."""

    def __init__(self, shown: str):
        self._shown = shown
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def put_apart(
        self, connection: sql.Connection, table: str, rows: list[tuple], put: Callable[[list[tuple]], None]
    ) -> list[tuple]:
        """Write rows within an open transaction by `put`, in halves where some are refused; returns the refused ones."""
        if not rows:
            return []
        try:
            with connection.begin_nested():
                put(rows)
            return []
        except Exception as error:
            if not is_of_values(error):
                raise
            if len(rows) == 1:
                self._add(table, str(rows[0][0]), error)
                return rows
        middle = len(rows) // 2
        return [
            *self.put_apart(connection, table, rows[:middle], put),
            *self.put_apart(connection, table, rows[middle:], put),
        ]

    def count(self, table: str, rows: int) -> None:
        """Count rows that are left out since another one, on which they depend, was."""
        if rows:
            self.counts[table] += rows

    def _add(self, table: str, of: str, error: Exception) -> None:
        self.counts[table] += 1
        if (table, of) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((table, of))
            reason = str(getattr(error, "orig", None) or error).split("\n")[0]
            log.warning(
                "ledger %s refused a row of %s of %r, which is left out: %s", self._shown, table, of, reason
            )
