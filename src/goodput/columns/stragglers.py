"""straggler.sum_stragglers for all attempts at once; what each one has stays in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from goodput.account.derived import Derived
from goodput.account.facts import Key
from goodput.account.slow_ranks.comparable import ComparableSums
from goodput.account.slow_ranks.slow_phase import NOT_OWN, PhaseTimes
from goodput.account.states import COMMUNICATION, INDEX
from goodput.account.straggler import Straggler, Unit, add_caused, add_steps, end_onsets
from goodput.columns.fold_table import UNKNOWN, FoldTable
from goodput.columns.groups import ColumnGroups
from goodput.slices import Slices

_STRAGGLER, _BUBBLE = INDEX["straggler"], INDEX["bubble"]


def phase_times(table: FoldTable) -> Derived[Key, PhaseTimes]:
    """Fold.phase_times of all folds."""
    used = slice(table.used)
    steps = table.number[used] - table.left_out_steps[used]
    ns = table.totals[used] - table.outside[used] - table.left_out[used]
    shared: dict[tuple, tuple] = {}  # ranks mostly have the same phases
    names = []
    for one, to_state in zip(table.objects["attempt"], table.objects["to_state"], strict=True):
        found = one.phases, one.phase_states, len(to_state)
        states = tuple(one.phase_states.items())
        names.append(shared.setdefault((one.phases, states, len(to_state)), found))

    def make(_: Key, at: int) -> PhaseTimes:
        phases, states, width = names[at]
        return PhaseTimes(phases, states, steps.item(at), tuple(ns[at, :width].tolist()))

    return Derived(table.places, make)


def _items(table: FoldTable, column: np.ndarray) -> Derived[Key, Any]:
    return Derived(table.places, lambda _, at: column.item(at))


def comparable_sums(table: FoldTable) -> ComparableSums:
    """What ranks are compared by: of the rows that were folded so far, without each attempt's first step."""
    own = table.kept[: table.used].copy()
    own[:, list(NOT_OWN)] = 0
    columns = own.sum(axis=1), table.work[: table.used].copy(), table.top_step[: table.used].copy()
    own_ns, steps, until = (_items(table, column) for column in columns)
    return ComparableSums(own_ns, steps, until, phase_times(table))


def summing_stragglers(groups: ColumnGroups) -> Slices[Straggler]:
    """As account.straggler.sum_stragglers, from the arrays of a table, in slices."""
    table: FoldTable = groups.folds  # type: ignore[assignment]
    keys = sorted(table)
    end_onsets(groups, keys)
    yield
    waited, bubble = table.straggler_ns, table.bubble_ns
    table.kept[:, COMMUNICATION] -= waited + bubble
    table.kept[:, _STRAGGLER] += waited
    table.kept[:, _BUBBLE] += bubble
    kept, work = table.kept[: table.used].copy(), (table.work - table.cut_work)[: table.used]
    if table.cut is not None:
        kept -= table.cut[: table.used]
    kept[:, list(NOT_OWN)] = 0
    alone = (table.first_length != UNKNOWN) & (table.steps == 1) & (table.first_count == 1)
    for at in np.flatnonzero((alone & (table.usual[:, 0] == UNKNOWN))[: table.used]).tolist():
        if table.row(at).is_first_step_only():
            kept[at], work[at] = 0, 0.0
    yield
    works, rows = work.tolist(), table.rows(keys)
    places, attempts = rows.tolist(), table.of("attempt", rows)
    result = Straggler(
        length_ns=sum(table.matched_ns.tolist()),
        all_ns=int(table.kept[table.rows(groups.with_peers())].sum()),
        waited_ns=sum(waited.tolist()),
        own_ns=Derived(table.places, lambda _, at: kept[at].tolist()),
        steps={key: works[at] for key, at in zip(keys, places, strict=True)},
        phases=phase_times(table),
        onsets=groups.onsets,
        stage_caused_ns=dict(groups.stage_caused_ns),
        stage_last_steps=dict(groups.stage_last_steps),
        by_stage_ns=dict(groups.stage_caused_ns),
    )
    units: dict[tuple[str, int | None], Unit] = {}
    pipelines, caused = groups.pipelines, table.objects["caused_ns"]
    in_group = table.objects["caused_in_group_ns"]
    compared, last = table.compared_steps.tolist(), table.last_steps.tolist()
    for key, at, one in zip(keys, places, attempts, strict=True):
        rank, number = key
        name, stage = one.group or one.role, one.stage if number in pipelines else None
        result.units[key] = units.get((name, stage)) or units.setdefault((name, stage), (name, stage))
        result.groups[rank] = name
        if stage is not None:
            result.stages[rank] = stage
        if caused[at]:
            add_caused(result, rank, one, caused[at], in_group[at])
        if compared[at]:
            add_steps(result, rank, compared[at], last[at])
    return result
