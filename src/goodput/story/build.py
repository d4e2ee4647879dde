"""Puts the story of a run together: what happened in order, what hardware reported beside it, and what it all cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from goodput.story import interruptions, slowness
from goodput.story.document_types import Claim, Story, StoryEvent
from goodput.story.incident import COINCIDENT, Hardware, Incident, hosts_of, listed
from goodput.story.pace import Level, levels
from goodput.story.recording import Recording

KINDS = (
    *("restart", "stall", "hang", "slow rank", "slower", "faster", "checkpoint", "no checkpoint"),
    *("unseen", "unobserved", "hardware", "end"),
)
EVENTS_MAX = 200
COINCIDENT_MAX = 4  # of one event
# Drivers report late, and an error may take minutes until a process fails.
BEFORE_SECONDS, AFTER_SECONDS = 600.0, 60.0


def build_story(
    document: Mapping[str, Any], recording: Recording, hardware: Sequence[Hardware] = ()
) -> Story:
    """The story of the run with this account document (account.document), from its recorded steps.

    `hardware` are the health events of its nodes, in any order. At most EVENTS_MAX events are kept, the costliest.
    """
    found = levels(recording)
    bucket = min(((one.end_ns - one.start_ns) / 1e9 for one in found), default=0.0) / 5
    end = document["end"]
    incidents = [
        *interruptions.restarts(document, recording),
        *interruptions.stalls(document, recording),
        *interruptions.checkpoints(document, recording),
        *interruptions.unseen(document),
        *slowness.merged(slowness.slow_ranks(document, recording), slowness.pace_changes(found, bucket), end),
        *interruptions.end(document, recording),
    ]
    mentioned = set()
    for one in incidents:
        mentioned |= _add_coincidences(one, hardware, document)
    incidents += [_alone(event) for at, event in enumerate(hardware) if at not in mentioned]
    incidents.sort(key=lambda one: (one.time, one.kind))
    return _story(document, incidents, _pace(found, recording))


def _add_coincidences(one: Incident, hardware: Sequence[Hardware], document: Mapping[str, Any]) -> set[int]:
    """Add claims of what the hardware of its nodes reported at the same time, never as its cause. Returns their places."""
    if one.kind in ("faster", "checkpoint", "no checkpoint", "unseen"):
        return set()
    hosts = set(one.hosts) or set(hosts_of(document).values())
    begins = one.time - (
        BEFORE_SECONDS if one.kind in ("restart", "end") else AFTER_SECONDS + one.onset_seconds
    )
    ends = (one.time if one.end is None else one.end) + AFTER_SECONDS
    if one.end is None and one.kind in ("hang", "slow rank", "slower"):
        ends = document["end"]
    near = [
        (at, event)
        for at, event in enumerate(hardware)
        if event.node in hosts and begins <= event.time <= ends
    ]
    near.sort(key=lambda pair: (pair[1].severity != "critical", abs(pair[1].time - one.time)))
    for _, event in near[:COINCIDENT_MAX]:
        one.claims.append((COINCIDENT, f"{name_of(event)}, {_when(event.time - one.time)}"))
    if len(near) > COINCIDENT_MAX:
        one.claims.append((COINCIDENT, f"{len(near) - COINCIDENT_MAX} more hardware events on these nodes"))
    return {at for at, _ in near}


def _when(seconds: float) -> str:
    whole = round(abs(seconds))
    length = f"{whole} s" if whole < 120 else f"{round(whole / 60)} min"
    return "at that moment" if whole == 0 else f"{length} {'before' if seconds < 0 else 'after its start'}"


def name_of(event: Hardware) -> str:
    what = " ".join(filter(None, [event.kind.replace("_", " "), str(event.code or ""), event.name]))
    ranks = f", {listed(event.ranks)}" if event.ranks else ""
    return f"{what} on {event.device or 'an unknown device'} of {event.node}{ranks} ({event.severity})"


def _alone(event: Hardware) -> Incident:
    one = Incident("hardware", event.time, name_of(event), ranks=event.ranks[:64], hosts=(event.node,))
    return one.measured("no other event of this story there at that time")


def _pace(found: Sequence[Level], recording: Recording) -> str:
    if not found:
        return "unknown: too few steps were recorded"
    ranks = len({rank for _, rank in recording.tracks})
    some = "" if recording.weight == 1 else f" of {ranks} ranks that stand for all"
    return f"from the recorded steps{some}"


def _story(document: Mapping[str, Any], incidents: list[Incident], pace: str) -> Story:
    kept = incidents
    if len(incidents) > EVENTS_MAX:
        costly = sorted(incidents, key=lambda one: -(one.gpu_seconds or 0.0))[:EVENTS_MAX]
        kept = [one for one in incidents if any(one is it for it in costly)]
    total = document["cost"]
    price = total["total"] / document["gpu_seconds"] if total and document["gpu_seconds"] else None
    return {
        "run": document["run"],
        "status": document["status"],
        "start": document["start"],
        "end": document["end"],
        "world_size": document["world_size"],
        "is_on_cpu": bool(document.get("is_on_cpu")),
        "gpu_seconds": document["gpu_seconds"],
        "cost": None if total is None else total["total"],
        "told_gpu_seconds": sum(one.gpu_seconds or 0.0 for one in incidents),
        "pace": pace,
        "events": [_event(one, price) for one in kept],
        "left_out": len(incidents) - len(kept),
    }


def _event(one: Incident, price: float | None) -> StoryEvent:
    spent = one.gpu_seconds
    return {
        "kind": one.kind,
        "time": one.time,
        "end": one.end,
        "title": one.title,
        "ranks": list(one.ranks),
        "hosts": list(one.hosts),
        "step": one.step,
        "gpu_seconds": spent,
        "cost": None if spent is None or price is None else spent * price,
        "cost_basis": one.cost_basis if spent is not None else None,
        "claims": [Claim(basis=basis, text=text) for basis, text in one.claims],
    }
