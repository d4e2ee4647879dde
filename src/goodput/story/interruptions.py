"""Restarts, stalls, hangs, checkpoints that take long or fail to come, ranks that were never seen, and the run's end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from goodput.account.account import NO_FAILURE
from goodput.account.states import INDEX, PLANNED, STATES
from goodput.account.text import UNKNOWN_STEP, duration, on, unit_of
from goodput.story.incident import Incident, hosts_of, listed, on_host
from goodput.story.recording import Pause, Recording, Save, Track

CULPRIT_SHARE_MIN = 0.5  # of a stall that a rank has to spend elsewhere than waiting
# A save is long if it takes so many times as long as usual, and so much more.
SAVE_TIMES, SAVE_SECONDS_MORE = 3.0, 60.0
LATE_TIMES, LATE_SECONDS = 3.0, 1800.0  # as for a save, since the one before
UNSEEN_SECONDS = 60.0
_COMMUNICATION = INDEX["communication"]
_ENDS = {"failed": "failed", "finished": "finished", "cancelled": "cancelled", "resumed": "began anew", "": "killed"}  # fmt: skip


def restarts(document: Mapping[str, Any], recording: Recording) -> list[Incident]:
    """Each with how the attempt before it ended, and what it cost until steps were made again."""
    found = []
    for restart in document["restarts"]:
        one = Incident("restart", restart["time"], f"restart {restart['attempt'] - 1}")
        one.step, one.gpu_seconds, one.cost_basis = restart["resume_step"], restart["gpu_seconds"], "measured"
        before = [
            track
            for (number, _), track in recording.tracks.items()
            if number == restart["attempt"] - 1 and track.attempt.known_end_ns() is not None
        ]
        if before:
            one.measured(_ending(before))
            one.ranks, one.hosts = _failed(before)
        point, lost, down = restart["resume_step"], restart["lost_steps"], restart["down_seconds"]
        resumed = {None: UNKNOWN_STEP, -1: "from the beginning"}.get(point, f"after step {point}")
        one.measured(
            f"{'down for an unknown time' if down is None else f'down for {duration(down)}'}, resumed {resumed}"
        )
        if lost or restart["lost_gpu_seconds"]:
            steps = f"{lost} steps of ranks" if lost else "an unfinished step"
            one.measured(f"{steps} lost, {duration(restart['lost_gpu_seconds'])} of {unit_of(document)} time")
        found.append(one)
    return found


def _ending(tracks: list[Track]) -> str:
    """How the ranks of an attempt ended: "rank 3 on n1 failed, the other 7 were killed"."""
    reasons = Counter(track.attempt.end_reason() for track in tracks)
    if len(reasons) == 1 and len(tracks) > 1:
        reason = _ENDS.get(next(iter(reasons)), next(iter(reasons)))
        return f"before it all ranks {'were ' * (reason in ('killed', 'cancelled'))}{reason}"
    parts = []
    for reason, count in sorted(reasons.items(), key=lambda item: (item[0] in NO_FAILURE, item[1])):
        own = [track.attempt for track in tracks if track.attempt.end_reason() == reason]
        who = f"rank {own[0].rank}{on_host(own[0].host)}" if count == 1 else f"{count} ranks"
        ended = _ENDS.get(reason, reason)
        were = ("was " if count == 1 else "were ") * (ended in ("killed", "cancelled"))
        parts.append(f"{who} {were}{ended}")
    return f"before it {', '.join(parts)}"


def _failed(tracks: list[Track]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ranks that ended otherwise than most, if these are few, and the hosts on which any failed."""
    ended = [track.attempt for track in tracks if track.attempt.end_reason() not in NO_FAILURE]
    # One fails, and the launcher kills the others.
    failed = [one for one in ended if one.end_reason()] or ended
    few = failed if len(failed) <= max(len(tracks) // 2, 1) else []
    hosts = {one.host for one in failed if one.host}
    return tuple(sorted(one.rank for one in few)), tuple(sorted(hosts))


def stalls(document: Mapping[str, Any], recording: Recording) -> list[Incident]:
    """Times without a step, of the whole run, that are over; and the hang that is not."""
    threshold_ns = document["stall_threshold_seconds"] * 1e9
    waits = [one for one in recording.pauses if one.unplanned_ns() > threshold_ns]
    hang = document.get("hang")
    tails = [tail for track in recording.tracks.values() if (tail := _tail(track, threshold_ns))]
    if hang is not None:
        tails = [one for one in tails if one.end_ns / 1e9 < hang["since"]]
    found = [_stall(group, document, recording) for group in _together([*waits, *tails])]
    if hang is not None:
        what = "hangs" if document["status"] == "running" else "hung until it ended"
        one = Incident("hang", hang["since"], f"the run {what}: no rank completed a step")
        one.measured(f"{duration(hang['seconds'])} without a step")
        (one.measured if hang["culprit"] is not None else one.estimated)(hang["reason"])
        if hang["culprit"] is not None:
            one.ranks, one.hosts = (hang["culprit"],), (hang["host"],) if hang["host"] else ()
        one.gpu_seconds = hang["seconds"] * document["gpu_seconds"] / max(_wall(document), 1e-9)
        one.cost_basis, one.step = "estimated", hang["step"]
        found.append(one)
    return found


def _wall(document: Mapping[str, Any]) -> float:
    return document["end"] - document["start"]


def _tail(track: Track, threshold_ns: float) -> Pause | None:
    """The time from an attempt's last step until it ended, if that was a stall: all of it in the phase of its end."""
    attempt, end_ns = track.attempt, track.attempt.known_end_ns()
    began = track.last_end_ns
    if end_ns is None or attempt.end_reason() == "finished" or end_ns - began <= threshold_ns:
        return None
    state = attempt.phase_states.get(attempt.phase, attempt.phase)
    state = "unattributed" if state not in INDEX else state
    if state in PLANNED:
        return None
    states = [0] * len(STATES)
    states[INDEX[state]] = end_ns - began
    step = int(track.rows[-1, 1]) + 1 if len(track.rows) else 0
    return Pause((attempt.attempt, attempt.rank), step, began, end_ns, states)


def _together(waits: list[Pause]) -> list[list[Pause]]:
    """Pauses of several ranks that overlap, one per attempt number and time."""
    groups: list[list[Pause]] = []
    for one in sorted(waits, key=lambda wait: (wait.key[0], wait.start_ns)):
        last = groups[-1] if groups else []
        if last and last[0].key[0] == one.key[0] and one.start_ns < max(it.end_ns for it in last):
            last.append(one)
        else:
            groups.append([one])
    return groups


def _stall(group: list[Pause], document: Mapping[str, Any], recording: Recording) -> Incident:
    start, end = min(one.start_ns for one in group), max(one.end_ns for one in group)
    one = Incident(
        "stall", start / 1e9, f"no step for {duration((end - start) / 1e9)}", end / 1e9, step=group[0].step
    )
    tracks = recording.tracks
    spent = sum(it.unplanned_ns() * tracks[it.key].attempt.devices for it in group)
    one.gpu_seconds, one.cost_basis = spent * recording.weight / 1e9, "measured"
    culprit = max(group, key=lambda it: it.unplanned_ns() - it.states[_COMMUNICATION])
    elsewhere = culprit.unplanned_ns() - culprit.states[_COMMUNICATION]
    waiting = [it for it in group if it.states[_COMMUNICATION] > CULPRIT_SHARE_MIN * it.unplanned_ns()]
    if elsewhere > CULPRIT_SHARE_MIN * culprit.unplanned_ns() and len(group) - len(waiting) == 1:
        rank, host = culprit.key[1], tracks[culprit.key].attempt.host
        own = list(culprit.states)
        own[_COMMUNICATION] = 0
        longest = max(own)
        state = STATES[own.index(longest)]
        name = "no phase" if state == "unattributed" else state
        others = f", in which {listed([it.key[1] for it in waiting])} waited for it" if waiting else ""
        one.measured(f"rank {rank}{on_host(host)} was in {name} for {duration(longest / 1e9)}{others}")
        one.ranks, one.hosts = (rank,), (host,) if host else ()
    elif len(waiting) == len(group):
        one.measured("all ranks that were recorded waited in communication, so none is named")
    else:
        one.measured("several ranks stood still apart from communication, so none is named")
    return one


def checkpoints(document: Mapping[str, Any], recording: Recording) -> list[Incident]:
    """Saves that took far longer than the others, and times without one that were far longer than usual."""
    savers: dict[int, Track] = {}
    for (number, _), track in sorted(recording.tracks.items()):
        if track.saves and (number not in savers or len(track.saves) > len(savers[number].saves)):
            savers[number] = track
    saves = [save for track in savers.values() for save in track.saves]
    if len(saves) < 2:
        return []
    usual = median(save.ns for save in saves) / 1e9
    pairs = [(a, b) for track in savers.values() for a, b in zip(track.saves, track.saves[1:], strict=False)]
    every = median((b.end_ns - a.end_ns) / 1e9 for a, b in pairs) if pairs else None
    devices = sum(one["devices"] for one in document["ranks"])
    found = [
        _long_save(save, usual, devices)
        for save in saves
        if save.ns / 1e9 > max(SAVE_TIMES * usual, usual + SAVE_SECONDS_MORE)
    ]
    if every is not None:
        found += [one for track in savers.values() for one in _late(track, every)]
    return found


def _long_save(save: Save, usual: float, devices: int) -> Incident:
    seconds = save.ns / 1e9
    one = Incident(
        "checkpoint",
        save.end_ns / 1e9 - seconds,
        f"a checkpoint took {duration(seconds)}",
        save.end_ns / 1e9,
    )
    one.gpu_seconds, one.cost_basis = (seconds - usual) * devices, "measured"
    return one.measured(f"others took {duration(usual)} (median)")


def _late(track: Track, every: float) -> list[Incident]:
    """Late checkpoints of one attempt: gaps between saves, and from the last save to the attempt's last step."""
    last_ns = int(track.rows[-1, 0])
    ends = [save.end_ns for save in track.saves]
    starts_ns = [*(save.end_ns - save.ns for save in track.saves[1:]), last_ns]
    found = []
    for end_ns, next_ns in zip(ends, starts_ns, strict=True):
        seconds = (next_ns - end_ns) / 1e9
        if seconds > max(LATE_TIMES * every, every + LATE_SECONDS):
            one = Incident(
                "no checkpoint", end_ns / 1e9, f"no checkpoint for {duration(seconds)}", next_ns / 1e9
            )
            found.append(one.measured(f"usually one each {duration(every)} (median)"))
    return found


def unseen(document: Mapping[str, Any]) -> list[Incident]:
    """Ranks that were expected and never reported, and those of which the newest is not known."""
    found, hosts = [], hosts_of(document)
    never = [
        one["rank"] for one in document["ranks"] if not one["host"] and sum(one["states"].values()) > 0
        and one["states"]["unobserved"] == sum(one["states"].values())
    ]  # fmt: skip
    more = sum(one["ranks"] for one in document["unseen_ranks"])
    if never or more:
        count = len(never) + more
        title = f"{count} of {document['world_size']} ranks {'was' if count == 1 else 'were'} never seen"
        one = Incident("unseen", document["start"], title, ranks=tuple(never[:64]))
        seconds = sum(
            it["states"]["unobserved"] for it in document["ranks"] if it["rank"] in set(never)
        ) + sum(it["states"]["unobserved"] for it in document["unseen_ranks"])
        one.gpu_seconds, one.cost_basis = seconds, "estimated"
        found.append(one.measured(f"no agent reported {listed(never) if never else 'them'}"))
    dark = {
        one["rank"]: one["states"]["unobserved"] / max(one["devices"], 1)
        for one in document["ranks"]
        if one["rank"] not in never and one["states"]["unobserved"] / max(one["devices"], 1) > UNSEEN_SECONDS
    }
    if dark:
        longest = max(dark.values())
        where = sorted({hosts[rank] for rank in dark if rank in hosts})
        one = Incident(
            "unobserved",
            document["end"] - longest,
            f"{listed(list(dark))}{on(where[0]) if len(where) == 1 else ''} {'was' if len(dark) == 1 else 'were'} not "
            f"observed for up to {duration(longest)}",
            ranks=tuple(sorted(dark)[:64]),
            hosts=tuple(where),
        )
        seconds = sum(it["states"]["unobserved"] for it in document["ranks"] if it["rank"] in dark)
        one.gpu_seconds, one.cost_basis = seconds, "estimated"
        found.append(one.measured("what they did in that time is unknown"))
    return found


def end(document: Mapping[str, Any], recording: Recording) -> list[Incident]:
    """How the run ended, if it did otherwise than by finishing."""
    status = document["status"]
    if status in ("running", "finished", "unobserved"):
        return []
    newest = max((number for number, _ in recording.tracks), default=0)
    last = [track for (number, _), track in recording.tracks.items() if number == newest]
    one = Incident("end", document["end"], f"the run ended: {status}")
    ended = [track for track in last if track.attempt.known_end_ns() is not None]
    if ended:
        one.time = max(ns for track in ended if (ns := track.attempt.known_end_ns()) is not None) / 1e9
        one.measured(_ending(ended).replace("before it ", ""))
        one.ranks, one.hosts = _failed(ended)
    return [one]
