"""The steps of a push as columns: the blocks of all its ranks decoded and checked at once, as NumPy costs per call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from goodput.wire import schema
from goodput.wire.step_blocks import TOTALS
from goodput.wire.step_columns import StepColumns, decode, step_rows, wrong_rows


def in_version_2(report: schema.RankReport) -> schema.RankReport:
    """A checked report with its steps in blocks, also one of version 1, whose rows may be in any order and repeated."""
    if not report.steps:
        return report
    rows = {row.number: row for row in reversed(report.steps)}
    return schema.in_blocks(replace(report, steps=[rows[number] for number in sorted(rows)]))


def decode_steps(reports: Sequence[schema.RankReport]) -> list[StepColumns | schema.SchemaError]:
    """The steps of each report, which `schema.check` has accepted, or why they are refused."""
    refused = _refuse_beyond_bound(reports)
    blocks = [block for at, report in enumerate(reports) if at not in refused for block in report.blocks]
    columns = decode(blocks, max((len(report.phases) for report in reports), default=1))
    wrong = wrong_rows(columns)
    any_wrong, found, first = bool(wrong.any()), [], 0
    for at, report in enumerate(reports):
        if at in refused:
            found.append(refused[at])
            continue
        begins = columns.begins[first : first + len(report.blocks) + 1]
        first += len(report.blocks)
        rows = slice(begins[0], begins[-1])
        own = StepColumns(columns.values[: TOTALS + 2 * len(report.phases), rows], begins - begins[0])
        found.append(_error_of(report, own, wrong[rows]) if any_wrong and wrong[rows].any() else own)
    return found


def _refuse_beyond_bound(reports: Sequence[schema.RankReport]) -> dict[int, schema.SchemaError]:
    """Errors for the reports with the most steps, where all have too many: a few bytes can claim many steps."""
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
