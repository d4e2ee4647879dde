"""One JSON document per board: the board, its variables, and Prometheus's answers to all its queries.

page/document.ts has its types, and the page draws it without any other input.

    document = document_of(board, "http://127.0.0.1:9090", Range(from_ms, to_ms), {"run": ["r1"]})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboards.render.queries import (
    Range,
    builtin_variables,
    label_values,
    query_panel,
    range_series,
    step_ms,
)
from dashboards.render.variables import Variable, fill, resolve
from dashboards.rows import panels_of

WIDTH_PIXELS = 1600
COLUMNS = 24


def document_of(
    board: Mapping,
    prometheus: str,
    range_: Range,
    chosen: Mapping[str, Sequence[str]] | None = None,
    *,
    theme: str = "dark",
    width: int = WIDTH_PIXELS,
) -> dict:
    """Everything the page needs to draw a board; ValueError for a variable that cannot be resolved."""
    variables = resolve(
        board, lambda selector, label: label_values(prometheus, range_, selector, label), chosen or {}
    )
    answers = {
        str(panel["id"]): query_panel(
            panel, prometheus, range_, variables, int(width * panel["gridPos"]["w"] / COLUMNS)
        )
        for panel in panels_of(board)
    }
    annotations = board.get("annotations", {}).get("list") or []
    return {
        "board": board,
        "theme": theme,
        "width": width,
        "from": range_.from_ms,
        "to": range_.to_ms,
        "variables": [{"name": one.name, "label": one.label, "text": one.text} for one in variables],
        "answers": answers,
        "marks": [
            mark
            for one in annotations
            if one.get("enable", True) and one.get("expr")
            for mark in _marks(one, prometheus, range_, variables, width)
        ],
    }


def _marks(
    annotation: Mapping, prometheus: str, range_: Range, variables: Sequence[Variable], width: int
) -> list[dict]:
    """The time spans in which an annotation's query has a value other than zero, without gaps of more than a step."""
    step = step_ms(range_, width, 15_000)
    expr = fill(annotation["expr"], variables, builtin_variables(range_, step))
    marks: list[dict] = []
    for series in range_series(prometheus, expr, range_, step):
        last = None
        if annotation.get("useValueForTime"):
            found = {int(float(value)) for _, value in series["values"]}
            marks += [{"colour": annotation["iconColor"], "from": ms, "to": ms} for ms in found]
            continue
        for ms in (round(seconds * 1000) for seconds, value in series["values"] if float(value)):
            if last is not None and ms - last["to"] <= step:
                last["to"] = ms
            else:
                last = {"colour": annotation["iconColor"], "from": ms, "to": ms}
                marks.append(last)
    return sorted(marks, key=lambda mark: mark["from"])
