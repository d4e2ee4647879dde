"""The list of kept runs: one row for each, from what their parts say, without reading a log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from goodput.account import FINAL_STATUSES
from goodput.account.text import duration_ns
from goodput.kept_runs.find import note_of
from goodput.kept_runs.folder import Part
from goodput.wire.identity import clean_text

_GOOD = "productive"
_COLUMNS = ("run", "when", "how long", "ranks", "goodput", "largest loss", "how it ended")
_NAME_MAX = 48


def rows_of(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """By run, the newest first; what is unknown is None. Times are unix seconds."""
    runs: dict[str, list[Part]] = {}
    for part in parts:
        runs.setdefault(part.run, []).append(part)
    rows = [_row(run, own) for run, own in runs.items()]
    return sorted(rows, key=lambda row: -row["start"])


def _row(run: str, parts: list[Part]) -> dict[str, Any]:
    summaries = [one.summary for one in parts if one.summary]
    states: dict[str, float] = {}
    for summary in summaries:
        for name, value in summary.get("states", {}).items():
            states[name] = states.get(name, 0.0) + value
    total = sum(states.values())
    lost = {name: value for name, value in states.items() if name != _GOOD}
    worst = max(lost, key=lambda name: lost[name], default=None)
    steps, merged = sum(one.steps for one in parts), sum(one.merged for one in parts)
    return {
        "run": run,
        "start": min(one.started_ns for one in parts) / 1e9,
        "end": max(_end(one) for one in parts),
        "ranks": len({one[0] for part in parts for one in part.attempts}),
        "goodput": states.get(_GOOD, 0.0) / total if total else None,
        "largest_loss": None if worst is None else {"state": worst, "share": lost[worst] / total},
        "status": _status(parts),
        "steps": steps,
        "steps_kept_singly": max(steps - merged, 0),
        "note": note_of(parts),
    }


def _end(part: Part) -> float:
    return part.summary.get("end") or part.seen_ns / 1e9


def _status(parts: list[Part]) -> str:
    """`running`, how it ended, or `unknown` where what wrote it was killed with it."""
    if any(one.is_written() and not one.is_closed for one in parts):
        return "running"
    newest = max((one[3] for part in parts for one in part.attempts), default=0)
    last = [part for part in parts if any(one[3] == newest for one in part.attempts)]
    found = [one.summary.get("status", "") for one in last]
    if "failed" in found:
        return "failed"
    return found[0] if found and all(one in FINAL_STATUSES for one in found) else "unknown"


def table(rows: list[dict[str, Any]]) -> str:
    """For a terminal or a pipe, a line for each run."""
    cells = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))]
    right = ("how long", "ranks", "goodput")
    lines = [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, _COLUMNS, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    loss, goodput = row["largest_loss"], row["goodput"]
    ended: str = "its end was not seen" if row["status"] == "unknown" else row["status"]
    return (
        clean_text(row["run"], _NAME_MAX),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(row["start"])),
        duration_ns(max(int((row["end"] - row["start"]) * 1e9), 0)),
        str(row["ranks"]),
        "unknown" if goodput is None else f"{100 * goodput:.1f} %",
        "" if loss is None else f"{loss['state']} {100 * loss['share']:.1f} %",
        ended + (" *" if row["note"] else ""),
    )
