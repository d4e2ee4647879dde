"""Two accounts side by side: the run's seconds for each kept step, by state.

A run of N ranks that kept S steps each lasted T seconds, of which a state that took the share q of the GPU time has q T / S
seconds for each step. The states' seconds sum to T / S, so their changes sum to the whole change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goodput.account.text import whole
from goodput.mcp import answers
from goodput.mcp.read_api import ApiError
from goodput.mcp.summaries import Document, rounded, rounded_or_none, text

STEPS_FEW = 50


def compare(base: Document, new: Document) -> answers.Comparison:
    """Raises ApiError for a run without a kept step."""
    old_states, new_states = seconds_per_step(base), seconds_per_step(new)
    old_whole, new_whole = sum(old_states.values()), sum(new_states.values())
    changes = [
        answers.StateChange(
            state=state,
            base_seconds=rounded(before),
            new_seconds=rounded(after),
            change_seconds=rounded(after - before),
            change_share=rounded((after - before) / old_whole) if old_whole else None,
        )
        for state, before in old_states.items()
        if (after := new_states.get(state, 0.0)) or before
    ]
    return answers.Comparison(
        base=text(base["run"]),
        new=text(new["run"]),
        base_seconds_per_step=rounded(old_whole),
        new_seconds_per_step=rounded(new_whole),
        change_share=rounded(new_whole / old_whole - 1) if old_whole else None,
        states=sorted(changes, key=lambda one: -abs(one.change_seconds)),
        base_goodput=rounded_or_none(base["factors"]["goodput"]),
        new_goodput=rounded_or_none(new["factors"]["goodput"]),
        base_mfu=rounded_or_none(base["factors"]["mfu"]),
        new_mfu=rounded_or_none(new["factors"]["mfu"]),
        base_dollars_per_1000_steps=_dollars(base),
        new_dollars_per_1000_steps=_dollars(new),
        notes=list(_notes(base, new)),
    )


def steps_of(found: Document) -> float:
    """Kept steps of one rank, the mean over those that made steps. Raises ApiError if there are none."""
    ranks = sum(rank["steps"]["kept"] > 0 for rank in found["ranks"])
    if not ranks:
        raise ApiError(f"run {found['run']!r} has kept no step yet")
    return found["steps"]["kept"] / ranks


def seconds_per_step(found: Document) -> Mapping[str, float]:
    steps, whole = steps_of(found), found["gpu_seconds"]
    seconds = found["end"] - found["start"]
    return {state: gpu_seconds / whole * seconds / steps for state, gpu_seconds in found["states"].items()}


def _dollars(found: Document) -> float | None:
    cost: Any = found["cost"]
    return None if cost is None else rounded(1000 * cost["total"] / steps_of(found))


def _notes(base: Document, new: Document):
    yield (
        "no confidence intervals: steps vary, so a small change may be chance; `goodput export` both runs and "
        "`goodput compare` them for intervals"
    )
    if base["world_size"] != new["world_size"]:
        yield f"different numbers of ranks: {base['world_size']} and {new['world_size']}"
    for found in (base, new):
        steps = steps_of(found)
        if steps < STEPS_FEW:
            yield f"run {text(found['run'])} has kept only {steps:.0f} steps, so its start weighs much"
        if found["status"] == "running":
            yield f"run {text(found['run'])} is still running"
        if found["coverage"]["time"] is not None and found["coverage"]["time"] < 0.99:
            yield f"of run {text(found['run'])} only {100 * found['coverage']['time']:.0f} % of the time was reported"
    per_step = [found["samples"] / steps_of(found) for found in (base, new)]
    if all(per_step) and abs(per_step[0] - per_step[1]) > 0.001 * max(per_step):
        yield f"different samples per step: {whole(per_step[0])} and {whole(per_step[1])}"
