"""Stories of runs as the page gets them in a file, with events whose costs are written out here."""

from __future__ import annotations

from typing import Any


def event(number: int, **fields: Any) -> dict[str, Any]:
    """One of a story, at second `number` of the log, which cost as many GPU-seconds."""
    return {
        "kind": "restart",
        "time": float(number),
        "end": None,
        "title": f"restart {number}",
        "ranks": [],
        "hosts": [],
        "step": None,
        "gpu_seconds": float(number),
        "cost": 0.001 * number,
        "cost_basis": "measured",
        "claims": [
            {"basis": "measured", "text": f"claim {number}"},
            {"basis": "coincident", "text": "an xid beside it"},
        ],
        **fields,
    }


def with_story(document: dict[str, Any], events: list[dict], **fields: Any) -> dict[str, dict]:
    """The stories of a file with the run of this account document."""
    names = ("run", "status", "start", "end", "world_size", "gpu_seconds")
    return {
        document["run"]: {
            **{name: document[name] for name in names},
            "cost": 0.188,
            "told_gpu_seconds": sum(one["gpu_seconds"] or 0.0 for one in events),
            "pace": "from the recorded steps",
            "left_out": 0,
            "events": events,
            **fields,
        }
    }
