"""The steps of pushes as columns: the blocks of all their ranks decoded and checked at once, as NumPy costs per call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from goodput.aggregator.column_attempt import columns_of
from goodput.wire import compiled, schema
from goodput.wire.step_blocks import END, NUMBER, START, STEP, TOTALS
from goodput.wire.step_columns import StepColumns, decode, in_order, step_rows, wrong_rows


class PushedSteps(NamedTuple):
    """Rows of one rank in ascending number, (columns, rows), and what is known of them without looking.

    `first` and `last` are the first and the last row's numbers, `first_step` is the first row's index; `start_ns` is the
    least start, `end_ns` the greatest end. Without rows all are 0. `packed` is a step block of exactly these rows in
    MessagePack, where that is at hand.
    """

    values: np.ndarray
    first: int = 0
    last: int = 0
    first_step: int = 0
    start_ns: int = 0
    end_ns: int = 0
    packed: bytes = b""


def pushed(values: np.ndarray) -> PushedSteps:
    """Rows in ascending number, described."""
    if not values.shape[1]:
        return PushedSteps(values)
    numbers, ends = values[NUMBER], values[END]
    first, last, step = int(numbers[0]), int(numbers[-1]), int(values[STEP, 0])
    return PushedSteps(values, first, last, step, int(values[START].min()), int(ends.max()))


def steps_of_rows(rows: Sequence[schema.StepRow]) -> PushedSteps:
    """Rows in any order, each number once."""
    return pushed(columns_of(rows) if rows else np.zeros((TOTALS, 0), np.int64))


def in_version_2(report: schema.RankReport) -> schema.RankReport:
    """A checked report with its steps in blocks, also one of version 1, whose rows may be in any order and repeated."""
    if not report.steps:
        return report
    rows = {row.number: row for row in reversed(report.steps)}
    return schema.in_blocks(replace(report, steps=[rows[number] for number in sorted(rows)]))


def decode_steps(reports: Sequence[schema.RankReport]) -> list[PushedSteps | schema.SchemaError]:
    """The steps of each report, which `schema.check` has accepted, or why they are refused."""
    if compiled.steps is not None:
        return [_decoded(report, compiled.steps.decode) for report in reports]
    blocks = [block for report in reports for block in report.blocks]
    width = max((len(report.phases) for report in reports), default=1)
    return _described(reports, decode(blocks, width))


def _decoded(report: schema.RankReport, decode_into: Callable) -> PushedSteps | schema.SchemaError:
    """As `decode_steps` of one report, compiled: there is no cost per call that several would share."""
    blocks = report.blocks
    counts = [block.count for block in blocks]
    values = np.empty((TOTALS + 2 * len(report.phases), sum(counts)), np.int64)
    if not blocks:
        return PushedSteps(values)
    heads, is_wrong = decode_into(blocks, values)
    if is_wrong:
        columns = StepColumns(values, np.cumsum([0, *counts]))
        return _error_of(report, columns, wrong_rows(columns))
    return PushedSteps(values, *heads) if len(blocks) == 1 else pushed(in_order(values))


def _described(
    reports: Sequence[schema.RankReport], columns: StepColumns
) -> list[PushedSteps | schema.SchemaError]:
    """The rows of each report, whose blocks are those of `columns`, or what is wrong with them."""
    counts = [len(report.blocks) for report in reports]
    begins = columns.begins[np.cumsum([0, *counts])]
    wrong, heads = wrong_rows(columns), _heads(columns, begins)
    any_wrong, found, block = bool(wrong.any()), [], 0
    for at, report in enumerate(reports):
        low, high = heads.lows[at], heads.lows[at + 1]
        # A copy, so that the others' rows can leave memory.
        values = columns.values[: TOTALS + 2 * len(report.phases), low:high].copy()
        if any_wrong and wrong[low:high].any():
            own = columns.begins[block : block + counts[at] + 1] - low
            found.append(_error_of(report, StepColumns(values, own), wrong[low:high]))
        elif counts[at] > 1:
            found.append(pushed(in_order(values)))
        else:
            found.append(PushedSteps(values, *heads.of[at]) if low < high else PushedSteps(values))
        block += counts[at]
    return found


class _Heads(NamedTuple):
    lows: list[int]  # the first row of each report and, last, the number of rows
    of: list[
        tuple[int, int, int, int, int]
    ]  # PushedSteps without the values; of reports without rows anything


def _heads(columns: StepColumns, begins: np.ndarray) -> _Heads:
    lows = begins.tolist()
    if not len(columns):
        return _Heads(lows, [])
    # A report without rows takes a neighbour's, and nothing is made of it.
    firsts = np.minimum(begins[:-1], len(columns) - 1)
    filled = np.flatnonzero(np.diff(begins))
    start, end = np.zeros_like(firsts), np.zeros_like(firsts)
    start[filled] = np.minimum.reduceat(columns.start, firsts[filled])
    end[filled] = np.maximum.reduceat(columns.end, firsts[filled])
    numbers = columns.number[firsts], columns.number[begins[1:] - 1]
    first, last, step, starts, ends = (one.tolist() for one in (*numbers, columns.step[firsts], start, end))
    return _Heads(lows, list(zip(first, last, step, starts, ends, strict=True)))


def in_parts(
    report: schema.RankReport, steps: PushedSteps, rows_max: int
) -> list[tuple[schema.RankReport, PushedSteps]]:
    """A report and its steps, in parts of so many rows; the last one has the events."""
    count = steps.values.shape[1]
    if count <= rows_max:
        return [(report, steps)]
    bare = replace(report, blocks=[], events=[])
    begins = range(0, count, rows_max)
    parts = [(bare, pushed(steps.values[:, at : at + rows_max])) for at in begins]
    return [*parts[:-1], (replace(bare, events=report.events), parts[-1][1])]


def refused_beyond_bound(reports: Sequence[schema.RankReport]) -> dict[int, schema.SchemaError]:
    """Errors for the reports of a push that have the most steps, where all have too many, by their place.

    A few bytes can claim many steps.
    """
    counts = [sum([block.count for block in report.blocks]) for report in reports]
    refused, excess = {}, sum(counts) - schema.STEPS_MAX
    for at in sorted(range(len(reports)), key=counts.__getitem__, reverse=True) if excess > 0 else ():
        if excess > 0:
            excess -= counts[at]
            refused[at] = schema.SchemaError(
                f"{schema.name_of(reports[at])}: {counts[at]} steps in a report that has {sum(counts)} with its other "
                f"ranks, {schema.STEPS_MAX} at most; push them in parts"
            )
    return refused


def _error_of(report: schema.RankReport, columns: StepColumns, wrong: np.ndarray) -> schema.SchemaError:
    """What is wrong with the first wrong row."""
    at = int(wrong.argmax())
    block = int(np.searchsorted(columns.begins, at, "right")) - 1
    who = f"{schema.name_of(report)}: step block {block}"
    (row,) = step_rows(columns, at, at + 1, len(report.phases))
    try:
        schema.check_step(row, len(report.phases), who)
    except schema.SchemaError as error:
        return error
    return schema.SchemaError(f"{who}: step row {row.number} does not follow the row before it")
