"""A board's variables: which values they can have, which they have, and how they stand in a query.

In: a board's JSON, a function that gives a label's values, and what the caller chose. Out: `Variable`s in the
board's order, each resolved with those before it filled in; and text with every variable in it replaced, the
way Grafana's Prometheus data source does it: one value as it is (quoted for PromQL), several as a regular
expression. A choice that names no variable of the board is an error. It knows no HTTP.

    variables = resolve(board, label_values, {"run": ["r1"]})
    fill('up{run="$run"}', variables, {"__interval": "15s"})
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

ALL = "$__all"
REFERENCE = re.compile(r"\$(\w+)|\$\{(\w+)(?::([\w:\-]+))?\}|\[\[(\w+?)(?::(\w+))?\]\]")
LABEL_VALUES = re.compile(
    r"\s*label_values\(\s*(?:(?P<selector>.+?)\s*,\s*)?(?P<label>[a-zA-Z_]\w*)\s*\)\s*$", re.S
)
# How Grafana sorts the options of a variable, by its number: 1 and 2 by text, 3 and 4 by number, ...
BY_NUMBER, WITHOUT_CASE, NATURAL = (3, 4), (5, 6), (7, 8)


@dataclass(frozen=True)
class Variable:
    """One variable as it stands: `values` are what was chosen, or all of them when `all` is true."""

    name: str
    values: tuple[str, ...]
    label: str = ""
    all: bool = False
    all_value: str = ""
    several: bool = False
    hidden: bool = False

    @property
    def text(self) -> str:
        """What the picker at the top of the board shows."""
        return "All" if self.all else " + ".join(self.values)


def resolve(
    board: Mapping,
    label_values: Callable[[str | None, str], Sequence[str]],
    chosen: Mapping[str, Sequence[str]],
) -> list[Variable]:
    """Every variable of a board; `label_values(selector or None, label)` asks the data source.

    Not chosen: All where the board allows it, else what the board's JSON says, else the first option.
    """
    listed = board.get("templating", {}).get("list", [])
    unknown = set(chosen) - {one["name"] for one in listed}
    if unknown:
        raise ValueError(
            f"board {board.get('uid')!r} has no variable {sorted(unknown)[0]!r}; "
            f"it has {', '.join(one['name'] for one in listed) or 'none'}"
        )
    found: list[Variable] = []
    for one in listed:
        found.append(_resolve_one(one, found, label_values, chosen.get(one["name"])))
    return found


def _resolve_one(one: Mapping, before: Sequence[Variable], label_values, chosen) -> Variable:
    several = bool(one.get("multi") or one.get("includeAll"))
    options = _options(one, before, label_values)
    current = one.get("current", {}).get("value")
    current = [current] if isinstance(current, str) else list(current or [])
    values = list(chosen or current)
    everything = one.get("includeAll", False) and (not values or values == [ALL])
    if everything:
        values = options
    elif not values or values == [ALL]:
        values = options[:1]
    return Variable(
        name=one["name"],
        values=tuple(values),
        label=one.get("label") or "",
        all=everything,
        all_value=one.get("allValue") or "",
        several=several,
        hidden=one.get("hide", 0) in (2, "hideVariable"),
    )


def _options(one: Mapping, before: Sequence[Variable], label_values) -> list[str]:
    """Every value that a variable could have."""
    kind, query = one["type"], one.get("query", "")
    if kind == "query":
        text = query["query"] if isinstance(query, Mapping) else query
        matched = LABEL_VALUES.match(text)
        if matched is None:
            raise ValueError(f"variable {one['name']!r}: only label_values(...) can be asked, not {text!r}")
        selector = fill(matched["selector"], before, {}) if matched["selector"] else None
        return _sorted(
            _filtered(label_values(selector, matched["label"]), one.get("regex", "")), one.get("sort", 0)
        )
    if kind == "datasource":
        return ["Prometheus"]
    if kind in ("custom", "interval"):
        return [item.strip().split(" : ")[-1] for item in str(query).split(",") if item.strip()]
    if kind in ("constant", "textbox"):
        return [str(query)]
    raise ValueError(f"variable {one['name']!r} is of the kind {kind!r}, which is not known here")


def _filtered(values: Sequence[str], regex: str) -> list[str]:
    """What a variable's regex lets through: the first group where it has one, without repeats."""
    if not regex:
        return list(dict.fromkeys(values))
    pattern = re.compile(regex.strip("/"))
    matches = (pattern.search(value) for value in values)
    return list(dict.fromkeys(m[1] if pattern.groups else m.string for m in matches if m))


def _sorted(values: Sequence[str], sort: int) -> list[str]:
    if not sort:
        return list(values)
    if sort in BY_NUMBER:
        key = lambda value: float((re.findall(r"\d+", value) or [-1])[0])  # noqa: E731
    elif sort in WITHOUT_CASE:
        key = str.lower
    elif sort in NATURAL:
        key = lambda value: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", value)]  # noqa: E731
    else:
        key = str
    return sorted(values, key=key, reverse=sort % 2 == 0)


def fill(text: str, variables: Sequence[Variable], specials: Mapping[str, str]) -> str:
    """Text with $name, ${name}, ${name:format} and [[name]] replaced; what is not known stays as it is."""
    by_name = {one.name: one for one in variables}

    def replaced(match: re.Match) -> str:
        name = match[1] or match[2] or match[4]
        form = match[3] or match[5]
        if name in specials:
            return str(specials[name])
        return formatted(by_name[name], form) if name in by_name else match[0]

    return REFERENCE.sub(replaced, text)


def formatted(variable: Variable, form: str | None) -> str:
    """A variable's value in one of Grafana's formats; None is the one for PromQL."""
    if variable.all and variable.all_value and form not in ("text", "queryparam"):
        return variable.all_value
    values = variable.values
    simple: dict[str, Callable[[], str]] = {
        "raw": lambda: ",".join(values),
        "csv": lambda: ",".join(values),
        "pipe": lambda: "|".join(values),
        "text": lambda: variable.text,
        "json": lambda: json.dumps(list(values)),
        "doublequote": lambda: ",".join(json.dumps(value) for value in values),
        "percentencode": lambda: quote(",".join(values), safe=""),
        "queryparam": lambda: "&".join(
            f"var-{variable.name}={quote(value, safe='')}" for value in ([ALL] if variable.all else values)
        ),
    }
    if form in simple:
        return simple[form]()
    if form not in (None, "regex"):
        raise ValueError(f"variable {variable.name!r}: the format {form!r} is not known here")
    if not variable.several and form is None:
        return values[0].replace("\\", "\\\\").replace('"', '\\"') if values else ""
    escaped = [
        _quoted(re.sub(r"([\\^$.|?*+()\[\]{}/])" if form else r"([\\^$.|?*+()\[\]{}])", r"\\\1", v))
        for v in values
    ]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _quoted(text: str) -> str:
    """Backslashes doubled, since a regular expression stands inside a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
