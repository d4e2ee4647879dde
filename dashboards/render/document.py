"""One JSON document per board: the board, its variables, and Prometheus's answers to all its queries.

In: a board's JSON, the address of a Prometheus, a time range, what was chosen for the variables. Out: the
document that page/document.ts describes, which the page draws without asking anyone. Panels inside collapsed
rows are left out, as Grafana leaves them undrawn. It knows no pixels but the board's width.

    document = document_of(board, "http://127.0.0.1:9090", Range(from_ms, to_ms), {"run": ["r1"]})
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dashboards.render.queries import Range, ask_panel, interval_ms, label_values, range_series, specials
from dashboards.render.variables import Variable, fill, resolve

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
        str(panel["id"]): ask_panel(
            panel,
            prometheus,
            range_,
            variables,
            points_max=int(width * panel["gridPos"]["w"] / COLUMNS),
        )
        for panel in board["panels"]
    }
    return {
        "board": board,
        "theme": theme,
        "width": width,
        "from": range_.from_ms,
        "to": range_.to_ms,
        "variables": [_shown(one) for one in variables],
        "answers": answers,
        "marks": [
            mark
            for one in _annotations(board)
            for mark in marks_of(one, prometheus, range_, variables, width)
        ],
    }


def _shown(one: Variable) -> dict:
    return {
        "name": one.name,
        "label": one.label,
        "text": one.text,
        "value": ",".join(one.values),
        "hidden": one.hidden,
    }


def _annotations(board: Mapping) -> list[Mapping]:
    """The board's annotation queries that go to Prometheus and are switched on."""
    listed = board.get("annotations", {}).get("list") or []
    return [one for one in listed if one.get("enable", True) and _expression(one)]


def _expression(annotation: Mapping) -> str:
    return annotation.get("expr") or (annotation.get("target") or {}).get("expr") or ""


def marks_of(
    annotation: Mapping, prometheus: str, range_: Range, variables: Sequence[Variable], width: int
) -> list[dict]:
    """Times at which an annotation's query has a value other than zero; neighbours are one stretch."""
    target = annotation.get("target") or {}
    step = interval_ms(range_, width, 15_000)
    expr = fill(_expression(annotation), variables, specials(range_, step, 5000))
    title = annotation.get("titleFormat") or target.get("titleFormat") or annotation["name"]
    marks = []
    for series in range_series(prometheus, expr, range_, step):
        text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda m, s=series: s["metric"].get(m[1], ""), title)
        for first, last in _stretches([t for t, value in series["values"] if float(value)], step / 1000):
            marks.append(
                {
                    "name": annotation["name"],
                    "colour": annotation.get("iconColor") or "red",
                    "from": round(first * 1000),
                    "to": round(last * 1000),
                    "title": text,
                }
            )
    return sorted(marks, key=lambda mark: (mark["from"], mark["name"]))


def _stretches(times: Sequence[float], step_seconds: float) -> list[tuple[float, float]]:
    """Ascending times as (first, last) of every unbroken row of steps."""
    found: list[tuple[float, float]] = []
    for time in times:
        if found and time - found[-1][1] <= step_seconds * 1.001:
            found[-1] = (found[-1][0], time)
        else:
            found.append((time, time))
    return found
