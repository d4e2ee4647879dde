"""The steps that all ranks of a group have completed, so that ranks are compared over the same steps.

An account ends at one moment, at which some ranks are in a step of which the row is known already and counts in part,
and others, whose clocks or reports are a little behind, in the step before. In a window of few steps one long step more
is enough to make a rank slow. So the rows after the last step that all have completed are folded last, and each
rank's sums before them are kept as the ones to be compared. Cost: 5 us per rank and account.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from goodput.columns.engine import ColumnEngine
from goodput.columns.fold import counted, latest

# Rows of an attempt that wait for other ranks. One that makes no steps any more must not keep all others' in memory.
WAITING_ROWS_MAX = 64
# Rows may stand for several steps, other ones for each rank. Then a step is looked for at which all have one.
TRIES = 4
_NEVER = 1 << 62


class RowsBySide(Protocol):
    """See live.NewRows."""

    step: np.ndarray
    begins: np.ndarray

    def of_attempt(self, values: np.ndarray) -> np.ndarray: ...

    def first(self, counts: np.ndarray) -> np.ndarray: ...


def completed_by_all(
    engine: ColumnEngine, at: np.ndarray, rows: RowsBySide, within: np.ndarray
) -> np.ndarray:
    """How many of these rows, which are to be folded next, each attempt may fold: those up to its group's common step.

    `at` are the attempts' rows in the table, of which the first `within` rows may be folded at all.
    """
    table, facts, groups = engine.folds, engine.facts, engine.groups
    members = groups.rows_of_members()
    going = np.zeros(table.used, bool)
    # They may make more steps, and their reports reach the end of the account.
    going[members] = table.running[members] & (table.end_ns[members] >= facts.end_ns)
    members = members[going[members]]
    group, compared = groups.places(members), groups.places(at)
    enough = np.bincount(group, minlength=groups.count()) > 1
    is_held = going[at] & enough[compared]
    if not is_held.any():
        return within
    # A rank may repeat steps.
    steps = latest(rows.step, rows.begins, np.full(len(at), -1))
    is_within, last = rows.first(within), table.top_step.copy()
    counts = within
    common = np.full(groups.count(), _NEVER)
    for _ in range(1 + TRIES):
        some = np.flatnonzero(counts > 0)
        last[at] = table.top_step[at]
        last[at[some]] = steps[rows.begins[some] + counts[some] - 1]
        lowest = np.full_like(common, _NEVER)
        np.minimum.at(lowest, group, last[members])
        if (lowest >= common).all():
            break
        common = np.minimum(lowest, common)
        counts = counted(is_within & (steps <= rows.of_attempt(common[compared])), rows.begins)
    return np.where(is_held, np.maximum(counts, within - WAITING_ROWS_MAX), within)
