"""Explains the gaps of a millisecond and more: what the host did in each, and whether a graph launch ended it.

Gaps between launches take microseconds; a longer one has a cause of its own, which is named by the innermost operator,
call, annotation or Python frame that covers at least half of it."""

from __future__ import annotations

from collections.abc import Iterable

from goodput.trace.columns import LONG_GAP_NS, Columns, DeviceEvents
from goodput.trace.spans import lengths_in

ROWS_MAX = 20
# Frames that explain less than the user's function around them.
_INNER = ("<", "torch/", "nn.Module", "contextlib.py")
Bounds = list[tuple[int, int]]


def long_gaps(
    columns: Columns, threads: set[int], states: dict, gaps, rows: DeviceEvents | None
) -> list[dict]:
    """Rows of state, during (a name or None), before_graph, count, ns and longest_ns, largest first."""
    bounds = [pair for pair in zip(gaps[::2], gaps[1::2], strict=True) if pair[1] - pair[0] >= LONG_GAP_NS]
    if not bounds:
        return []
    parts = {state: lengths_in(states[state], bounds) for state in ("loader", "host", "idle")}
    during, graphs = _during(columns, threads, bounds), _before_graphs(columns, rows, bounds)
    found: dict[tuple, list[int]] = {}
    for i, (_, end) in enumerate(bounds):
        state = max(parts, key=lambda name: parts[name][i])
        row = found.setdefault((state, during[i], end in graphs), [0, 0, 0])
        row[0] += 1
        row[1] += parts[state][i]
        row[2] = max(row[2], parts[state][i])
    ordered = sorted(found.items(), key=lambda item: (-item[1][1], str(item[0])))
    return [
        {
            "state": state,
            "during": name,
            "before_graph": graph,
            "count": count,
            "ns": ns,
            "longest_ns": longest,
        }
        for (state, name, graph), (count, ns, longest) in ordered[:ROWS_MAX]
    ]


def _during(columns: Columns, threads: set[int], bounds: Bounds) -> list[str | None]:
    """The name of the innermost span that covers half of each gap; such a span contains the gap's middle."""
    spans = columns.long
    order = sorted(
        (i for i in range(len(spans.starts)) if spans.threads[i] in threads), key=spans.starts.__getitem__
    )
    open_spans: list[int] = []
    out: list[str | None] = []
    place = 0
    for start, end in bounds:
        middle = (start + end) // 2
        while place < len(order) and spans.starts[order[place]] <= middle:
            open_spans.append(order[place])
            place += 1
        open_spans = [i for i in open_spans if spans.ends[i] > middle]
        covering = [
            i
            for i in open_spans
            if 2 * (min(end, spans.ends[i]) - max(start, spans.starts[i])) >= end - start
        ]
        covering.sort(key=lambda i: spans.ends[i] - spans.starts[i])
        out.append(_innermost(columns.names[spans.names[i]] for i in covering))
    return out


def _innermost(names: Iterable[str]) -> str | None:
    """The first name that is a function of the user's code, else the first one."""
    listed = [name for name in names if not name.endswith(": <module>")]
    return next((name for name in listed if not name.startswith(_INNER)), listed[0] if listed else None)


def _before_graphs(columns: Columns, rows: DeviceEvents | None, bounds: Bounds) -> set[int]:
    """The ends of the gaps after which the work of a graph launch begins."""
    graphs = set(columns.graph_correlations)
    if rows is None or not graphs:
        return set()
    ends = {end for _, end in bounds}
    return {
        start
        for start, correlation in zip(rows.starts, rows.correlations, strict=True)
        if start in ends and correlation in graphs
    }
