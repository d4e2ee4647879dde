"""Ranks kernels, copies or operators by their time inside the steps, largest first.

A kernel counts with its own duration, whatever runs beside it, so the rows may sum to more than the wall time. An
operator counts with its *self* time, without the operators inside it."""

from __future__ import annotations

from goodput.trace import names
from goodput.trace.columns import Columns, DeviceEvents
from goodput.trace.spans import length_before
from goodput.trace.steps import Window, bounds_of

ROWS_MAX = 20


def kernels(columns: Columns, rows: DeviceEvents, windows: list[Window]) -> list[dict]:
    """Rows of name, kind, count and ns for a device."""
    covered, found = length_before(bounds_of(windows)), {}
    for start, end, name, kind in zip(rows.starts, rows.ends, rows.names, rows.kinds, strict=True):
        ns = covered(end) - covered(start)
        if ns > 0:
            row = found.setdefault((name, kind), [0, 0])
            row[0] += 1
            row[1] += ns
    return _rows(columns, found, names.KINDS)


def operators(columns: Columns, threads: set[int], windows: list[Window]) -> list[dict]:
    """Rows of name, kind, count and ns for the training threads of a CPU, by self time."""
    covered, found = length_before(bounds_of(windows)), {}
    of_thread: dict[int, list[int]] = {place: [] for place in threads}
    for i, place in enumerate(columns.op_threads):
        if place in of_thread:
            of_thread[place].append(i)
    starts, ends = columns.op_starts, columns.op_ends
    for rows in of_thread.values():
        # Two stable sorts by one key need half the memory of one sort by two; the longer of equal starts comes first.
        rows.sort(key=ends.__getitem__, reverse=True)
        rows.sort(key=starts.__getitem__)
        open_rows: list[int] = []
        for i in rows:
            while open_rows and ends[open_rows[-1]] <= starts[i]:
                open_rows.pop()
            ns = covered(ends[i]) - covered(starts[i])
            if open_rows:
                outer = found.get((columns.op_names[open_rows[-1]], 0))
                if outer is not None:
                    outer[1] -= covered(min(ends[i], ends[open_rows[-1]])) - covered(starts[i])
            open_rows.append(i)
            if ns > 0:
                row = found.setdefault((columns.op_names[i], 0), [0, 0])
                row[0] += 1
                row[1] += ns
    return _rows(columns, found, ("operator",))


def _rows(columns: Columns, found: dict, kinds: tuple[str, ...]) -> list[dict]:
    ordered = sorted(found.items(), key=lambda item: (-item[1][1], columns.names[item[0][0]]))
    return [
        {"name": columns.names[name], "kind": kinds[kind], "count": count, "ns": ns}
        for (name, kind), (count, ns) in ordered[:ROWS_MAX]
    ]
