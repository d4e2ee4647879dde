"""What one state of a run's folds has more than an earlier one, added to folds of a window that begins before both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from goodput.account.facts import Key
from goodput.columns.fold_table import OBJECTS, UNKNOWN, FoldTable

_SUMS = (
    *("samples", "compute_ns", "device_ns", "steps", "clamped", "kept_steps", "lost_steps", "kept_ns"),
    *("saved_ns", "left_out_steps", "work", "cut_work", "kept_samples", "straggler_ns", "bubble_ns"),
    *("matched_ns", "caused_ns", "caused_in_group_ns", "compared_steps", "last_steps"),
    *("kept", "rest", "left_out"),
)
_LATEST = (
    *("number", "last_end_ns", "last_samples", "last_device_ns", "totals", "outside", "last_count"),
    *("top_step", "calm_ns", "peak", "peak_best"),
)


def add_difference(folds: FoldTable, keys: Sequence[Key], earlier: FoldTable, later: FoldTable) -> None:
    """Add to the folds of these attempts, which are in all tables, the sums that `later` has more of than `earlier`, and let
    them go on from `later`."""
    tables = folds, earlier, later
    for table in tables:
        table.widen(max(other.totals.shape[1] for other in tables))
    mine, first, last = (table.rows(keys) for table in tables)
    for name in _SUMS:
        if name in OBJECTS:
            for at, less, more in zip(
                mine.tolist(), earlier.of(name, first), later.of(name, last), strict=True
            ):
                folds.objects[name][at] += more - less
        else:
            own = getattr(folds, name)
            own[mine] = own[mine] + getattr(later, name)[last] - getattr(earlier, name)[first]
    for table, at, sign in ((later, last, 1), (earlier, first, -1)):
        if table.cut is not None:
            folds.add_cut(mine, sign * table.cut[at])
    for name in _LATEST:
        getattr(folds, name)[mine] = getattr(later, name)[last]
    _add_rare(folds, keys, earlier, later)
    _go_on_with_others(folds, keys, later)


def _add_rare(folds: FoldTable, keys: Sequence[Key], earlier: FoldTable, later: FoldTable) -> None:
    """The same for what few attempts have."""
    for key in keys:
        at, last = folds.places[key], later.places[key]
        own, more = folds.row(at), later.row(last)
        for restart, (steps, ns) in more.lost_by.items() if last in later.rare["lost_by"] else ():
            before = earlier[key].lost_by.get(restart, (0, 0))
            own.add_cost(restart, steps - before[0], ns - before[1])
        if at in folds.rare["stall_ns"] or last in later.rare["stall_ns"]:
            own.stall_ns = more.stall_ns
        if at in folds.odd_peaks or last in later.odd_peaks:
            own.throughput = more.throughput


def _go_on_with_others(folds: FoldTable, keys: Sequence[Key], later: FoldTable) -> None:
    """Of those whose first step is held back, which lies in the window, so do the steps with which that is compared."""
    at = folds.rows(keys)
    length = folds.first_length[at]
    is_held = (length != UNKNOWN) & (folds.first_end_ns[at] - (length > 0) >= folds.from_ns[at])
    for place in np.flatnonzero(is_held).tolist():
        folds[keys[place]].go_on_with_others_of(later[keys[place]])
