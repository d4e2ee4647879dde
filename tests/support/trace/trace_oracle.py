"""The states of a trace by brute force: every event is examined at every moment between two breakpoints.

Shares no code with goodput.trace. Events are those of `trace_maker`, with integer nanoseconds in `at` and `until`
beside the text, and the kind of event in `what`.
"""

from __future__ import annotations

from itertools import pairwise

STATES = ("compute", "communication", "copy", "loader", "host", "idle")
DEVICE_KINDS = ("compute", "communication", "copy")


def states(events: list[dict]) -> dict:
    """{device: [(step, wall, {state: ns}, communication ns, hidden ns)]}"""
    devices = sorted({e["args"]["device"] for e in events if e["what"] in DEVICE_KINDS})
    if devices:
        return {f"GPU {device}": _device(events, device) for device in devices}
    return {"CPU": _processor(events)}


def _device(events: list[dict], device: int) -> list:
    work = [e for e in events if e["what"] in DEVICE_KINDS and e["args"]["device"] == device]
    launched = {e["args"]["correlation"]: e for e in events if e["what"] == "launch"}
    for e in work:
        e["launch"] = launched.get(e["args"].get("correlation"))
    feeding = {e["launch"]["tid"] for e in work if e["launch"]}
    marked = {e["tid"] for e in events if e["what"] == "step"}
    threads = feeding | marked if feeding else {e["tid"] for e in events if e["what"] not in DEVICE_KINDS}
    windows = _windows(events)
    reach = [end for _, _, end in windows]
    for i, (_, start, end) in enumerate(windows):
        for e in work:
            if (
                e["launch"]
                and start <= e["launch"]["at"] < end
                and (e["what"] == "compute" or i == len(windows) - 1)
            ):
                reach[i] = max(reach[i], e["until"])
    out, before = [], _begin(windows[0][1], work, launched)
    for (name, start, _), end in zip(windows, reach, strict=True):
        start = max(start, before)
        end = max(start, end)
        if name == "whole trace":
            start, end = _cut(
                start, end, [at for e in work if e["at"] < e["until"] for at in (e["at"], e["until"])]
            )
        out.append(_sum(name, start, end, events, lambda t: _device_state(t, work, events, threads)))
        before = end
    return out


def _begin(mark: int, work: list[dict], launched: dict) -> int:
    """When the first step begins: after all earlier compute, and after other earlier work or with its own compute."""
    if not launched:
        return mark
    earlier = [
        e
        for e in work
        if (
            e["launch"]["at"] < mark
            if e["launch"]
            else e["at"] < mark or e["args"].get("correlation", 10**9) < min(launched)
        )
    ]
    own = [e["at"] for e in work if e["what"] == "compute" and e["launch"] and e["launch"]["at"] >= mark]
    after_all = max([mark, *(e["until"] for e in earlier)])
    after_compute = max([mark, *(e["until"] for e in earlier if e["what"] == "compute")])
    return max(after_compute, min([after_all, *own]))


def _device_state(t: float, work: list[dict], events: list[dict], threads: set) -> tuple[str, bool, bool]:
    running = {e["what"] for e in work if e["at"] < t < e["until"]}
    talking = "communication" in running
    for kind in DEVICE_KINDS:
        if kind in running:
            return kind, talking, talking and "compute" in running
    real = [e for e in work if e["at"] < e["until"]]
    before = [e["until"] for e in real if e["until"] <= t]
    after = [e["at"] for e in real if e["at"] >= t]
    known = [e["launch"]["at"] for e in real if after and e["at"] == min(after) and e["launch"]]
    if known and before and min(known) < max(before):
        return "idle", False, False
    doing = {
        _thread_state(t, [e for e in events if e["tid"] == tid and e["what"] not in DEVICE_KINDS])
        for tid in threads
    }
    for what, state in (("busy", "host"), ("loader", "loader"), ("sync", "idle")):
        if what in doing:
            return state, False, False
    return ("host" if known or "weak" in doing else "idle"), False, False


def _thread_state(t: float, own: list[dict]) -> str:
    inside = {e["what"] for e in own if e["at"] < t < e["until"]}
    for whats, state in (
        (("loader",), "loader"),
        (("sync",), "sync"),
        (("op", "call", "launch"), "busy"),
        (("weak",), "weak"),
    ):
        if inside & set(whats):
            return state
    return "quiet"


def _processor(events: list[dict]) -> list:
    marked = {e["tid"] for e in events if e["what"] == "step"}
    threads = marked or {e["tid"] for e in events if e["what"] == "op"}

    def state(t: float):
        computing = talking = False
        weak = waiting = False
        later = False
        for tid in {e["tid"] for e in events}:
            own = [e for e in events if e["tid"] == tid and e["what"] != "wire"]
            inside = {e["what"] for e in own if e["at"] < t < e["until"]}
            if tid not in threads:
                talking |= "call" in inside
                continue
            if "loader" in inside:
                waiting = True
            elif "call" in inside:
                talking = True
            elif "op" in inside:
                computing = True
            weak |= "weak" in inside
        talking |= any(e["what"] == "wire" and e["at"] < t < e["until"] for e in events)
        if computing:
            return "compute", talking, talking
        if talking:
            return "communication", True, False
        if waiting:
            return "loader", False, False
        later = any(_works(after, events, threads) for after in _moments(events) if after > t)
        return ("host" if later or weak else "idle"), False, False

    windows = _windows(events)
    if windows[0][0] == "whole trace":
        points = sorted({at for e in events for at in (e["at"], e["until"])})
        works = [one for one in pairwise(points) if _works(sum(one) / 2, events, threads)]
        windows = [("whole trace", *_cut(*windows[0][1:], [at for one in works for at in one]))]
    return [_sum(name, start, end, events, state) for name, start, end in windows]


def _cut(start: int, end: int, points: list[int]) -> tuple[int, int]:
    """A step without marks, cut to the first and the last of its work."""
    if not points:
        return start, end
    start = max(start, min(points)) if min(points) < end else start
    return start, max(start, max(points))


def _works(t: float, events: list[dict], threads: set) -> bool:
    """Whether an operator outside the loader, or a collective, runs at `t`."""
    for e in events:
        if not e["at"] < t < e["until"]:
            continue
        waiting = any(
            o["what"] == "loader" and o["tid"] == e["tid"] and o["at"] < t < o["until"] for o in events
        )
        if e["what"] == "wire" or (e["what"] == "call" and (e["tid"] not in threads or not waiting)):
            return True
        if e["what"] == "op" and e["tid"] in threads and not waiting:
            return True
    return False


def _moments(events: list[dict]) -> list[float]:
    """One moment between each two breakpoints."""
    points = sorted({at for e in events for at in (e["at"], e["until"])})
    return [(a + b) / 2 for a, b in pairwise(points)]


def _windows(events: list[dict]) -> list[tuple[str, int, int]]:
    marks = sorted(
        (e["at"], e["until"], e["name"]) for e in events if e["what"] == "step" and e["at"] < e["until"]
    )
    if not marks:
        return [("whole trace", min(e["at"] for e in events), max(e["until"] for e in events))]
    out = []
    for at, until, name in marks:
        at = max([at, *(end for _, _, end in out)])
        if at < until:
            out.append((name, at, until))
    return out


def _sum(name: str, start: int, end: int, events: list[dict], state) -> tuple:
    points = sorted({start, end} | {at for e in events for at in (e["at"], e["until"]) if start < at < end})
    sums, talked, hidden = dict.fromkeys(STATES, 0), 0, 0
    for a, b in pairwise(points):
        found, talking, behind = state((a + b) / 2)
        sums[found] += b - a
        talked += (b - a) * talking
        hidden += (b - a) * behind
    return name, end - start, sums, talked, hidden
