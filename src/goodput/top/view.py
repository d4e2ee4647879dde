"""What the user looks at: the list of runs, a run or a rank, with a selected row, an order and a filter.

view = View(); view.key("enter", frame)    # returns what the terminal has to do, or ""
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from goodput.top.model import Frame, RankRow, RunRow

RUNS, RUN, RANK = "runs", "run", "rank"
QUIT, OPEN, STACK = "quit", "open", "stack"
PAGE_ROWS = 10


class Order(NamedTuple):
    name: str
    key: Callable[[Any], Any]


# The runs are in the source's order already: those that are not over first.
_RUN_ORDERS = (
    Order("trouble", lambda row: not row.hang),
    Order("goodput", lambda row: (row.goodput is None, row.goodput or 0.0)),
    Order("ranks", lambda row: -row.ranks),
    Order("name", lambda row: row.run),
)
_RANK_ORDERS = (
    Order("trouble", lambda row: (-row.severity, -round(row.own_loss, 2), row.rank)),
    Order("rank", lambda row: row.rank),
    Order("step time", lambda row: (-(row.step_seconds or 0.0), row.rank)),
    Order("time in phase", lambda row: (-(row.phase_seconds or 0.0), row.rank)),
    Order("GPU", lambda row: (row.gpu is None, row.gpu or 0.0, row.rank)),
    Order("host", lambda row: (row.host, row.rank)),
)
_ORDERS = {RUNS: _RUN_ORDERS, RUN: _RANK_ORDERS}


class View:
    """`level` is RUNS, RUN or RANK; `run` and `rank` are the opened ones, `offset` the first shown line of a rank."""

    def __init__(self, run: str | None = None):
        self.level, self.run, self.rank = (RUN, run, None) if run else (RUNS, None, None)
        self.offset, self.is_typing, self.has_help = 0, False, False
        self.filters = {RUNS: "", RUN: ""}
        self._orders, self._reversed = {RUNS: 0, RUN: 0}, {RUNS: False, RUN: False}
        self._selected: dict[str, object] = {RUNS: None, RUN: None}
        self._is_fresh = run is None  # opens the only run by itself

    @property
    def order(self) -> str:
        table = self._table
        return _ORDERS[table][self._orders[table]].name + (" reversed" if self._reversed[table] else "")

    @property
    def filter(self) -> str:
        return self.filters[self._table]

    @property
    def _table(self) -> str:
        return RUNS if self.level == RUNS else RUN

    def seen(self, frame: Frame) -> str:
        """A new frame has come: if the first that has runs has one alone, it is shown, and OPEN returned."""
        is_opened = self._is_fresh and self.level == RUNS and frame.opened is not None
        if is_opened and frame.opened is not None:
            self.level, self.run = RUN, frame.opened.progress.run
        self._is_fresh = self._is_fresh and not frame.runs
        return OPEN if is_opened else ""

    def rows(self, frame: Frame | None) -> list[Any]:
        """The rows of the shown table, filtered and in order."""
        if frame is None:
            return []
        table = self._table
        rows = frame.runs if table == RUNS else self._ranks(frame)
        wanted = self.filters[table].casefold().strip()
        found = sorted(
            (row for row in rows if _matches(row, wanted)), key=_ORDERS[table][self._orders[table]].key
        )
        return found[::-1] if self._reversed[table] else found

    def _ranks(self, frame: Frame) -> list[RankRow]:
        opened = frame.opened
        return opened.ranks if opened is not None and opened.progress.run == self.run else []

    def opened_rank(self, frame: Frame | None) -> RankRow | None:
        return next((row for row in self._ranks(frame) if row.rank == self.rank), None) if frame else None

    def selected(self, rows: list[Any]) -> int:
        """The index of the selected row: the first until one is chosen, which then stays wherever it moves."""
        chosen = self._selected[self._table]
        return next((at for at, row in enumerate(rows) if _name(row) == chosen), 0)

    # -- keys

    def key(self, key: str, frame: Frame | None) -> str:
        """React to a key; returns QUIT, OPEN where another run is to be read, STACK, or ""."""
        if self.is_typing:
            self._type(key)
            return ""
        if self.has_help:
            self.has_help = False
            return QUIT if key == "q" else ""
        if key == "q":
            return QUIT
        if key in ("enter", "right"):
            return self._enter(frame)
        if key in ("escape", "left", "backspace"):
            return self._back()
        if key == "t" and self.level == RANK:
            return STACK
        if key in ("?", "h"):
            self.has_help = True
        elif self.level == RANK:
            self._scroll(key)
        else:
            self._table_key(key, frame)
        return ""

    def _table_key(self, key: str, frame: Frame | None) -> None:
        if key == "/":
            self.is_typing = True
        elif key == "s":
            self._orders[self._table] = (self._orders[self._table] + 1) % len(_ORDERS[self._table])
            self._selected[self._table] = None
        elif key == "r":
            self._reversed[self._table] = not self._reversed[self._table]
            self._selected[self._table] = None
        else:
            rows = self.rows(frame)
            at = _moved(key, self.selected(rows), len(rows) - 1)
            if at is not None and rows:
                self._selected[self._table] = _name(rows[at])

    def _scroll(self, key: str) -> None:
        at = _moved(key, self.offset, 1 << 20)
        self.offset = self.offset if at is None or key in ("end", "G") else at

    def _enter(self, frame: Frame | None) -> str:
        rows = self.rows(frame)
        if self.level == RANK or not rows:
            return ""
        row = rows[self.selected(rows)]
        self._selected[self._table] = _name(row)
        if self.level == RUN:
            self.level, self.rank, self.offset = RANK, row.rank, 0
            return ""
        if row.run != self.run:
            self.filters[RUN], self._selected[RUN] = "", None
        self.level, self.run = RUN, row.run
        return OPEN

    def _back(self) -> str:
        if self.level != RANK and self.filters[self._table]:
            self.filters[self._table] = ""
        elif self.level == RANK:
            self.level, self.rank = RUN, None
        else:
            self.level = RUNS
        return ""

    def _type(self, key: str) -> None:
        """Edit the filter: enter keeps it, escape drops it."""
        table = self._table
        if key in ("enter", "escape"):
            self.is_typing = False
            self.filters[table] = "" if key == "escape" else self.filters[table]
        elif key == "backspace":
            self.filters[table] = self.filters[table][:-1]
        elif len(key) == 1 and key.isprintable():
            self.filters[table] += key
        self._selected[table] = None


def _name(row: RunRow | RankRow) -> object:
    return row.run if isinstance(row, RunRow) else row.rank


def _matches(row: RunRow | RankRow, wanted: str) -> bool:
    """Whether a row contains the text; a number is a rank."""
    if isinstance(row, RunRow):
        return wanted in f"{row.run} {row.status}".casefold()
    if wanted.isdecimal() and wanted.isascii():
        return row.rank == int(wanted)
    return wanted in f"{row.host} {row.phase} {row.trouble}".casefold()


def _moved(key: str, at: int, last: int) -> int | None:
    """The place after a key, None for other keys."""
    steps = {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "pageup": -PAGE_ROWS,
        "pagedown": PAGE_ROWS,
        " ": PAGE_ROWS,
    }
    if key in ("home", "g"):
        return 0
    if key in ("end", "G"):
        return max(last, 0)
    return max(min(at + steps[key], last), 0) if key in steps else None
