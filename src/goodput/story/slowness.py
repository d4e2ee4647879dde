"""Slow ranks and changes of pace, and what both cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from goodput.account.states import INDEX, PLANNED, STATES
from goodput.account.text import percent
from goodput.story.incident import Incident, hosts_of, on_host, step_length
from goodput.story.pace import CHANGE_MIN, Level
from goodput.story.recording import Recording, Track

NAMED_SHARE_MIN = 0.01  # of a step: states that changed by less are not named
SAME_SHARE_MIN = 0.5  # of both: a change of pace and a slow rank at the same time are one
WORDS = {
    "productive": "compute",
    "h2d": "copies to the device",
    "unattributed": "time in no phase",
    "other": "other work",
}
_COMMUNICATION = INDEX["communication"]
_OWN = [i for i, state in enumerate(STATES) if state not in (*PLANNED, "communication", "stall")]


def slow_ranks(document: Mapping[str, Any], recording: Recording) -> list[Incident]:
    """The stretches in which a rank was slow, as the account has them, with when, in what, and what the others waited."""
    hosts, found = hosts_of(document), []
    for onset in document["straggler"]["onsets"]:
        track = recording.tracks.get((onset["attempt"], onset["rank"]))
        if track is None or len(track.rows) < 2:
            continue
        rank, first, last = onset["rank"], onset["first_step"], onset["last_step"]
        # Steps that are lost are not compared, so a stretch cannot end in them.
        lost_after = _lost_after(document, onset["attempt"])
        is_cut = last is not None and lost_after is not None and last > lost_after >= first
        last = lost_after if is_cut else last
        start_ns = track.time_of(first - 1)
        end_ns = int(track.rows[-1, 0]) if last is None else track.time_of(last)
        host = track.attempt.host or hosts.get(rank, "")
        steps = f"from step {first} on" if last is None else f"in steps {first} to {last}"
        one = Incident(
            "slow rank",
            start_ns / 1e9,
            f"rank {rank}{on_host(host)} was slow",
            None if last is None else end_ns / 1e9,
            *((rank,), (host,) if host else ()),
            step=first,
        )
        one.measured(
            f"the others waited for it {steps}"
            + ", perhaps before" * onset["from_start"]
            + "; what came after was lost" * is_cut
        )
        _explain(one, recording, track, np.array([start_ns, end_ns]))
        found.append(one)
    return found


def _lost_after(document: Mapping[str, Any], attempt: int) -> int | None:
    """The last step of an attempt that was kept, if a later one resumed before its end."""
    points = [it["resume_step"] for it in document["restarts"] if it["attempt"] > attempt]
    return min((point for point in points if point is not None), default=None)


def _explain(one: Incident, recording: Recording, track: Track, span: np.ndarray) -> None:
    """In which state it took longer than its peers, and how long all waited for it."""
    number = track.attempt.attempt
    peers = {
        key: other
        for key, other in recording.tracks.items()
        if key[0] == number and other.attempt.group_name() == track.attempt.group_name()
    }
    spent = {key: np.diff(other.at(span), axis=0)[0] for key, other in peers.items()}
    spent = {key: row for key, row in spent.items() if row[0] > 0}
    mine = spent.pop((number, track.attempt.rank), None)
    if mine is None or not spent:
        return
    median = np.median([row[1:] / row[0] for row in spent.values()], axis=0)
    own = mine[1:] / mine[0]
    state = max(_OWN, key=lambda i: own[i] - median[i])
    if own[state] > median[state]:
        one.measured(
            f"its {WORDS.get(STATES[state], STATES[state])} took {step_length(own[state])} a step, {step_length(median[state])} for the "
            "median of the others"
        )
    waited = sum(
        max(row[1 + _COMMUNICATION] - own[_COMMUNICATION] * row[0], 0) * peers[key].attempt.devices
        for key, row in spent.items()
    )
    one.gpu_seconds, one.cost_basis = float(waited) * recording.weight / 1e9, "estimated"


def pace_changes(levels: Sequence[Level], bucket_seconds: float) -> list[Incident]:
    """Where steps became slower or faster. A slower stretch costs what its steps took longer than those before it."""
    found: list[Incident] = []
    reference = levels[0] if levels else None
    for at, (before, now) in enumerate(pairwise(levels), 1):
        assert reference is not None
        slower = now.ns > reference.ns * (1 + CHANGE_MIN)
        is_last = now is levels[-1]
        ratio = now.ns / before.ns - 1
        what = "slower" if ratio > 0 else "faster"
        was = reference.ns if slower and ratio > 0 else before.ns
        one = Incident(
            what,
            now.start_ns / 1e9,
            f"steps became {_change(now.ns / was)}",
            None if is_last or ratio < 0 else levels[at + 1].start_ns / 1e9,
            onset_seconds=bucket_seconds,
        )
        one.measured(f"{step_length(now.ns)} a step instead of {step_length(was)}{_states(before, now)}")
        if slower and ratio < 0:
            share = percent(now.ns / reference.ns - 1)
            one.measured(f"they are still {share} longer than the {step_length(reference.ns)} of earlier")
        if slower:
            one.gpu_seconds, one.cost_basis = (now.ns - reference.ns) * now.steps / 1e9, "measured"
        else:
            reference = now
        found.append(one)
    return found


def _change(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio:.1f} times as long"
    return f"{percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'shorter'}"


def _states(before: Level, now: Level) -> str:
    """ ": loader +59.1 %", in percent of the step before, the largest first, those in the change's direction."""
    grown = {
        name: (now.states.get(name, 0.0) - before.states.get(name, 0.0)) / before.ns
        for name in {**before.states, **now.states}
    }
    sign = 1 if now.ns > before.ns else -1
    named = sorted((-sign * share, name) for name, share in grown.items() if sign * share >= NAMED_SHARE_MIN)
    parts = [f"{name} {'+' if sign > 0 else '-'}{percent(-share)}" for share, name in named[:3]]
    return f": {', '.join(parts)}" if parts else ""


def merged(slow: list[Incident], pace: list[Incident], end: float) -> list[Incident]:
    """Changes of pace that a slow rank explains become a claim of its; its end needs no line either."""
    left, ends = [], []
    for change in pace:
        of = next((one for one in slow if change.kind == "slower" and _is_same(one, change, end)), None)
        if of is not None:
            of.measured(f"meanwhile {change.title}: {change.claims[0][1]}")
            ends.append(change.end)
        elif change.kind == "slower" or not any(end and abs(change.time - end) < 1 for end in ends):
            left.append(change)
    return [*slow, *left]


def _is_same(one: Incident, change: Incident, end: float) -> bool:
    """Whether most of each lies in the other."""
    spans = [(it.time, end if it.end is None else it.end) for it in (one, change)]
    both = min(stop for _, stop in spans) - max(start for start, _ in spans)
    return both > SAME_SHARE_MIN * max(stop - start for start, stop in spans)
