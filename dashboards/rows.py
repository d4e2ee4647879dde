"""The panels of a board's JSON, those of collapsed rows too: Grafana keeps these inside their row.

[panel["title"] for panel in panels_of(board)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def panels_of(board: Mapping) -> Iterator[dict]:
    """Every panel of a board in its order; rows themselves are left out."""
    for one in board["panels"]:
        if one["type"] == "row":
            yield from one["panels"]
        else:
            yield one


def collapsed_rows(board: Mapping) -> list[dict]:
    """The board's rows; each has its own `title` and `panels`."""
    return [one for one in board["panels"] if one["type"] == "row"]
