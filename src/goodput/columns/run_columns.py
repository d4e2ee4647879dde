"""The attempts of a run side by side: what the facts need of each, read at once instead of one by one.

An attempt's place is that among all attempts in the order of ranks and, of each rank, of their starts.
What attempts declare changes rarely, so what follows from it is kept while it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from goodput.account.attempts import Attempt, Run
from goodput.account.facts import Key
from goodput.columns.fold_table import FoldTable
from goodput.slices import Slices

# So many attempts are read between two turns.
READ_AT_A_TIME = 2048


class RunColumns:
    """The attempts that a run has when it is made, and what only depends on which they are."""

    def __init__(self, run: Run, only: Mapping[Key, object] | None = None):
        """Those of `only` if it is given."""
        items = [(key, one) for key, one in run.attempts.items() if only is None or key in only]
        items.sort(key=lambda item: (item[1].rank, item[1].start_ns, item[1].attempt))
        self._run, self.keys, self.attempts = run, [key for key, _ in items], [one for _, one in items]
        self.rank, self.number = np.array(self.keys, np.int64).reshape(-1, 2).T
        self.start_ns = np.array([one.start_ns for one in self.attempts], np.int64)
        _, firsts, self.of, counts = np.unique(self.rank, True, True, True)
        # By attempt its rank's place among all, how many of the rank came before it, and whether it is the last.
        self.turn = np.arange(len(self.keys)) - firsts[self.of]
        self.is_last = self.turn == counts[self.of] - 1
        self.declared: object = None  # see rank_columns.Declared
        self._in_table: tuple[Mapping[Key, int], int, np.ndarray] = ({}, 0, np.zeros(0, np.int64))

    def run(self) -> Run:
        """The run with these attempts."""
        return replace(self._run, attempts=dict(zip(self.keys, self.attempts, strict=True)))

    def by_rank(self) -> dict[int, list[Attempt]]:
        """As Run.by_rank."""
        ranks: dict[int, list[Attempt]] = {}
        for attempt in self.attempts:
            ranks.setdefault(attempt.rank, []).append(attempt)
        return ranks

    @cached_property
    def places(self) -> dict[Key, int]:
        return {key: at for at, key in enumerate(self.keys)}

    def forget_places(self) -> None:
        """Let them leave memory until they are asked for again."""
        self.__dict__.pop("places", None)

    def __len__(self) -> int:
        return len(self.keys)

    def changes(self) -> int:
        """A number that grows when one of them declares something else."""
        return sum([one.declared_changes for one in self.attempts])

    def reading(self, fields: attrgetter) -> Slices[list[tuple]]:
        """These attributes of each attempt, in slices."""
        found: list[tuple] = []
        for at in range(0, len(self.attempts), READ_AT_A_TIME):
            found += map(fields, self.attempts[at : at + READ_AT_A_TIME])
            yield
        return found

    def rows(self, table: FoldTable) -> np.ndarray:
        """The rows of the attempts in a table, -1 of one without a fold."""
        places, many, found = self._in_table
        if places is not table.places or many != len(places):
            found = np.array([table.places.get(key, -1) for key in self.keys], np.int64)
            self._in_table = table.places, len(table.places), found
        return found


def columns_of(values: Sequence[tuple], kinds: Sequence[Any]) -> list[Any]:
    """The columns of tuples, those of a kind as arrays, the others as tuples."""
    columns = zip(*values, strict=True) if values else [()] * len(kinds)
    return [one if kind is None else np.array(one, kind) for one, kind in zip(columns, kinds, strict=True)]
