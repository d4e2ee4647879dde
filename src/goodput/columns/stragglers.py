"""straggler.sum_stragglers for all attempts at once; what each one has stays in arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from goodput.account.facts import Key
from goodput.account.fold import COMMUNICATION
from goodput.account.slow_ranks.comparable import ComparableSums
from goodput.account.slow_ranks.slow_phase import NOT_OWN, PhaseTimes
from goodput.account.states import INDEX
from goodput.account.straggler import Straggler, Unit, add_caused, end_onsets
from goodput.columns.fold_table import UNKNOWN, FoldTable
from goodput.columns.groups import ColumnGroups
from goodput.slices import Slices

_STRAGGLER, _BUBBLE = INDEX["straggler"], INDEX["bubble"]
V = TypeVar("V")


class Rows(Mapping[Key, V]):
    """What attempts have, made of a row of arrays when it is asked for."""

    def __init__(self, places: Mapping[Key, int], make: Callable[[int], V]):
        self._places, self._make = places, make

    def __getitem__(self, key: Key) -> V:
        return self._make(self._places[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def phase_times(table: FoldTable, at: np.ndarray, places: Mapping[Key, int]) -> Rows[PhaseTimes]:
    """Fold.phase_times of these rows; `places` has the place of each key in `at`."""
    steps = table.number[at] - table.left_out_steps[at]
    ns = table.totals[at] - table.outside[at] - table.left_out[at]
    shared: dict[tuple, tuple] = {}  # ranks mostly have the same phases
    names = []
    for one, to_state in zip(table.of("attempt", at), table.of("to_state", at), strict=True):
        found = one.phases, one.phase_states, len(to_state)
        names.append(shared.setdefault((one.phases, id(one.phase_states), len(to_state)), found))

    def make(place: int) -> PhaseTimes:
        phases, states, width = names[place]
        return PhaseTimes(phases, states, steps.item(place), tuple(ns[place, :width].tolist()))

    return Rows(places, make)


def comparable_sums(table: FoldTable) -> ComparableSums:
    """What ranks are compared by: of the rows that were folded so far, without each attempt's first step."""
    keys = list(table)
    at = table.rows(keys)
    own = table.kept[at]
    own[:, list(NOT_OWN)] = 0
    places = {key: place for place, key in enumerate(keys)}
    columns = own.sum(axis=1), table.work[at], table.top_step[at]
    own_ns, steps, until = (Rows(places, column.item) for column in columns)
    return ComparableSums(own_ns, steps, until, phase_times(table, at, places))


def summing_stragglers(groups: ColumnGroups) -> Slices[Straggler]:
    """See straggler.sum_stragglers."""
    table: FoldTable = groups.folds  # type: ignore[assignment]
    keys = sorted(table)
    end_onsets(groups, keys)
    at = table.rows(keys)
    yield
    waited, bubble = table.straggler_ns[at], table.bubble_ns[at]
    kept = table.kept[at]
    kept[:, COMMUNICATION] -= waited + bubble
    kept[:, _STRAGGLER] += waited
    kept[:, _BUBBLE] += bubble
    table.kept[at] = kept
    work = table.work[at] - table.cut_work[at]
    places = {key: place for place, key in enumerate(keys)}
    for one, cut in table.rare["cut"].items():
        kept[at == one] -= cut
    kept[:, list(NOT_OWN)] = 0
    alone = (table.first_length[at] != UNKNOWN) & (table.steps[at] == 1) & (table.first_count[at] == 1)
    for place in np.flatnonzero(alone & (table.usual[at, 0] == UNKNOWN)).tolist():
        if table.row(int(at[place])).is_first_step_only():
            kept[place], work[place] = 0, 0.0
    yield
    result = Straggler(
        length_ns=sum(table.matched_ns[at].tolist()),
        waited_ns=sum(waited.tolist()),
        own_ns=Rows(places, lambda place: kept[place].tolist()),
        steps=dict(zip(keys, work.tolist(), strict=True)),
        phases=phase_times(table, at, places),
        onsets=groups.onsets,
        stage_caused_ns=dict(groups.stage_caused_ns),
        by_stage_ns=dict(groups.stage_caused_ns),
    )
    units: dict[Unit, Unit] = {}
    for (rank, number), attempt in zip(keys, table.of("attempt", at), strict=True):
        stage = attempt.stage if number in groups.pipelines else None
        unit = (attempt.group_name(), stage)
        result.units[rank, number] = units.setdefault(unit, unit)
        result.groups[rank] = unit[0]
        if stage is not None:
            result.stages[rank] = stage
    yield
    for (rank, _), one in zip(keys, at.tolist(), strict=True):
        if table.objects["caused_ns"][one]:
            add_caused(result, rank, table.row(one))
    return result
