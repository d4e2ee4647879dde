"""The values of a board's variables, and their substitution in queries as Grafana's Prometheus data source does it.

Supports the variables that dashboards/*.py use: label_values() queries, a data source and a text box.

    variables = resolve(board, label_values, {"run": ["r1"]})
    fill('up{run="$run"}', variables, {"__interval": "15s"})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ALL = "$__all"
REFERENCE = re.compile(r"\$(\w+)")
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def _natural(text: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


# Grafana's numbers for the order of a variable's options: the key and whether it is descending.
SORTS: dict[int, tuple[Callable, bool]] = {2: (str, True), 7: (_natural, False)}


@dataclass(frozen=True)
class Variable:
    """`values` are what was chosen, or all of them when `all` is true; `several` may be chosen at once."""

    name: str
    values: tuple[str, ...]
    label: str = ""
    all: bool = False
    all_value: str = ""
    several: bool = False

    @property
    def text(self) -> str:
        """What the picker at the top of the board shows."""
        return "All" if self.all else " + ".join(self.values)


def resolve(
    board: Mapping,
    label_values: Callable[[str, str], Sequence[str]],
    chosen: Mapping[str, Sequence[str]],
) -> list[Variable]:
    """Every variable of a board, each with those before it filled in; `label_values(selector, label)` queries Prometheus.

    Without a choice: All where the board allows it, else the first option. ValueError for a choice of an unknown variable.
    """
    listed = board.get("templating", {}).get("list", [])
    unknown = sorted(set(chosen) - {one["name"] for one in listed})
    if unknown:
        raise ValueError(
            f"board {board.get('uid')!r} has no variable {unknown[0]!r}; "
            f"it has {', '.join(one['name'] for one in listed) or 'none'}"
        )
    found: list[Variable] = []
    for one in listed:
        values = chosen.get(one["name"]) or []
        everything = not values and one.get("includeAll", False)
        if not values:
            options = _options(one, found, label_values)
            values = options if everything else options[:1]
        found.append(
            Variable(
                name=one["name"],
                values=tuple(values),
                label=one.get("label") or "",
                all=everything,
                all_value=one.get("allValue") or "",
                several=bool(one.get("multi") or one.get("includeAll")),
            )
        )
    return found


def _options(one: Mapping, before: Sequence[Variable], label_values) -> list[str]:
    """Every value that a variable could have."""
    if one["type"] == "datasource":
        return ["Prometheus"]
    if one["type"] == "textbox":
        return [one["query"]]
    matched = LABEL_VALUES.fullmatch(one["query"]["query"]) if one["type"] == "query" else None
    if matched is None:
        raise ValueError(
            f"variable {one['name']!r}: supported are a data source, a text box and "
            f"label_values(SELECTOR, LABEL), not type {one['type']!r} with {one.get('query')!r}"
        )
    key, descending = SORTS[one.get("sort", 7)]
    return sorted(set(label_values(fill(matched[1], before, {}), matched[2])), key=key, reverse=descending)


def fill(text: str, variables: Sequence[Variable], builtin: Mapping[str, str]) -> str:
    """Text with each $name of a board's or Grafana's own (`builtin`) variables replaced; unknown names stay."""
    known = {one.name: _promql(one) for one in variables} | builtin
    return REFERENCE.sub(lambda match: known.get(match[1], match[0]), text)


def _promql(variable: Variable) -> str:
    """One value quoted for a PromQL string; several as a regular expression."""
    if variable.all and variable.all_value:
        return variable.all_value
    values = variable.values
    if variable.several:
        values = [re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", value) for value in values]
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    if variable.several and len(quoted) != 1:
        return f"({'|'.join(quoted)})"
    return quoted[0] if quoted else ""
