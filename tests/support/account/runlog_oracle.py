"""The account of a run log by brute force, written from docs/definitions.md and sharing no code with the account.

Every step of every rank is in memory, and every rule is a search over all of them. A log has one run and times that
do not contradict each other; there are no windows. Where the definitions leave the last nanosecond open (a median
between two lengths) it rounds down. `Unclear` means that the log is none of these.
"""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from statistics import median, median_low

STATE_OF = {
    "forward": "productive",
    "backward": "productive",
    "optimizer": "productive",
    "none": "unattributed",
}
KNOWN = ("loader", "h2d", "communication", "checkpoint", "restore", "evaluation", "compile", "rollout")
PLANNED = ("checkpoint", "evaluation", "rollout", "restore", "compile")
LASTING = ("devices", "group", "stage")
SHARED = ("communication", "straggler", "compile", "stall")  # no part of a rank's own time


class Unclear(Exception):
    """The words do not decide this log to the nanosecond."""


class Life:
    """One attempt of one rank: its lines, by time."""

    def __init__(self, rank: int, number: int):
        self.rank, self.number, self.declared, self.lines = rank, number, {}, []
        self.start = self.end = 0
        self.reason = ""  # of its end line; "killed" where a later attempt shows that it died


def ns(seconds) -> int:
    return int(Decimal(seconds) * 10**9)


def state_of(phase: str) -> str:
    return STATE_OF.get(phase, phase if phase in KNOWN else "unattributed")


def account(text: str, stall_seconds: float) -> dict:
    """The account of the log `text`."""
    lines = [json.loads(line, parse_float=Decimal) for line in text.splitlines() if line.strip()]
    run = {}
    for line in lines:
        if line["kind"] == "run":
            run.update(line)
    lives = read_lives(lines, run)
    start, end, open_, status = span_of_run(lines, run, lives)
    settle_ends(lives, end)
    points, commits = resume_points(lives), committed(lives)
    for life in lives:
        lay_out(life)
    thresholds = Thresholds(lives, stall_seconds)
    provisional = None
    if not open_ and status == "failed":
        provisional = last_commit(lives, points, max(life.number for life in lives) + 1)
    blamed = defaultdict(lambda: [0, 0])
    for life in lives:
        judge(life, lives, points, provisional, thresholds, blamed)
    waits = stragglers(lives)
    ranks = lay_ranks(lives, run, start, end, thresholds.of_run())
    return summary(run, lives, ranks, points, blamed, waits, commits, (start, end))


# -- what the lines say


def read_lives(lines, run) -> list[Life]:
    lives: dict[tuple[int, int], Life] = {}
    for line in lines:
        if line["kind"] in ("attempt", "step", "phase", "checkpoint", "beat", "end"):
            key = line.get("rank", 0), line["attempt"]
            life = lives.setdefault(key, Life(*key))
            if line["kind"] == "attempt":
                life.declared = line
            elif line not in life.lines:
                life.lines.append(line)
    for life in lives.values():
        life.lines.sort(key=lambda line: ns(line["time"]))
        began = [ns(x["time"]) - ns(x.get("seconds", 0)) for x in life.lines]
        life.start = ns(life.declared["time"]) if life.declared else min(began)
    for life in lives.values():
        if "submit_time" in run and life.number == min(number for _, number in lives):
            # The run's submit time is that of its first start; a later one has its own or none.
            life.declared = {"submit_time": run["submit_time"], **life.declared}
    ordered = sorted(lives.values(), key=lambda life: (life.rank, life.number))
    for life, before in zip(ordered[1:], ordered, strict=False):
        if life.rank == before.rank and "time" not in life.declared:
            # Without an attempt line it keeps the fields of its rank's attempt before.
            life.declared = {
                **{k: before.declared[k] for k in LASTING if k in before.declared},
                **life.declared,
            }
    return ordered


def span_of_run(lines, run, lives):
    """(start, end, lives without an end, status)."""
    start = ns(run["time"]) if "time" in run else min(life.start for life in lives)
    start = min([start, *(life.start for life in lives)])
    start = min(
        [start, *(ns(life.declared["submit_time"]) for life in lives if "submit_time" in life.declared)]
    )
    ends = [ns(line["time"]) for line in lines if line["kind"] == "run_end"]
    end = max(ends or [ns(line["time"]) for line in lines if line["kind"] != "run"])
    open_ = []
    for life in lives:
        own = [x for x in life.lines if x["kind"] == "end"]
        if own:
            life.end, life.reason = ns(own[0]["time"]), own[0]["reason"]
        elif any(o.rank == life.rank and o.number > life.number for o in lives):
            life.end, life.reason = max([life.start, *(ns(x["time"]) for x in life.lines)]), "killed"
        else:
            open_.append(life)
    newest = max(life.number for life in lives)
    well = all(life.reason == "finished" for life in lives if life.number == newest)
    if well and not open_:
        return start, max(ends or [life.end for life in lives]), open_, "finished"
    if not open_ and not ends:
        end = max(life.end for life in lives)
    return start, end, open_, "failed"


def settle_ends(lives, end: int) -> None:
    for life in lives:
        if not life.reason:
            life.end = end
        life.first = next((x["step"] for x in life.lines if x["kind"] == "step"), None)


def saved(lives, **fields):
    for life in lives:
        for line in life.lines:
            if line["kind"] == "checkpoint" and (not fields or line.get("committed", True)):
                yield life.number, line["step"]


def committed(lives) -> int:
    """Checkpoints of the run: per attempt those of the rank that reported most."""
    most = defaultdict(int)
    for life in lives:
        steps = {step for _, step in saved([life], committed=True)}
        most[life.number] = max(most[life.number], len(steps))
    return sum(most.values())


def resume_points(lives) -> dict[int, int | None]:
    points = {}
    for number in sorted({life.number for life in lives}):
        own = [life for life in lives if life.number == number]
        declared = [life.declared["resume_step"] for life in own if "resume_step" in life.declared]
        done = [life.first - 1 for life in own if life.first is not None]
        points[number] = min(declared or done) if declared or done else last_commit(lives, points, number)
    return points


def last_commit(lives, points, before: int):
    """The newest checkpoint whose work is not passed over by a later attempt, -1 if none; None if none was begun."""
    if not any(number < before for number, _ in saved(lives)):
        return None
    good = [-1]
    for number, step in saved(lives, committed=True):
        later = [p for n, p in points.items() if number < n < before and p is not None]
        if number < before and all(step <= p for p in later):
            good.append(step)
    return max(good)


# -- an attempt as a row of pieces: gap, step, gap, step, ..., tail


def lay_out(life: Life) -> None:
    life.pieces, at, gap = [], life.start, defaultdict(int)
    for line in life.lines:
        if line["kind"] == "phase":
            gap[state_of(line["phase"])] += ns(line["seconds"])
        if line["kind"] == "step":
            end, length = ns(line["time"]), ns(line["seconds"])
            inside = defaultdict(int)
            for phase, seconds in line.get("phases", {}).items():
                inside[state_of(phase)] += ns(seconds)
            inside["unattributed"] += length - sum(inside.values())
            gap["unattributed"] += end - length - at - sum(gap.values())
            life.pieces.append({"what": "gap", "start": at, "end": end - length, "in": gap})
            step = {"what": "step", "start": end - length, "end": end, "in": inside, "index": line["step"]}
            life.pieces.append({**step, "length": length, "samples": line.get("samples", 0)})
            at, gap = end, defaultdict(int)
    gap["unattributed"] += life.end - at - sum(gap.values())
    life.pieces.append({"what": "tail", "start": at, "end": life.end, "in": gap})
    life.steps = [piece for piece in life.pieces if piece["what"] == "step"]
    if any(ns < 0 for piece in life.pieces for ns in piece["in"].values()):
        raise Unclear("the log contradicts itself")


class Thresholds:
    """From how long on a wait is a stall: of each rank at a moment, by its last 1024 steps before."""

    def __init__(self, lives, stall_seconds: float):
        self.least = ns(Decimal(stall_seconds))
        self._of_rank = defaultdict(list)
        for life in sorted(lives, key=lambda life: (life.start, life.number)):
            self._of_rank[life.rank].append(life)
        self._lengths = {id(life): [step["length"] for step in life.steps] for life in lives}

    def known(self, life: Life, steps: int) -> list[int]:
        """Lengths of the rank's steps before this life's step of this place, each life's first left out."""
        own = self._of_rank[life.rank]
        before = [n for one in own[: own.index(life)] for n in self._lengths[id(one)][1:]]
        return before + self._lengths[id(life)][1:steps]

    def at(self, life: Life, steps: int) -> int:
        known = sorted(self.known(life, steps)[-1024:])
        if not known:
            return max(self.least, 1800 * 10**9)
        return max(self.least, 10 * (known[-1] if len(known) < 8 else known[99 * (len(known) - 1) // 100]))

    def of_run(self) -> int:
        """The longest of the ranks' at the end."""
        newest = [own[-1] for own in self._of_rank.values()]
        known = [self.at(life, len(life.steps)) for life in newest if self.known(life, len(life.steps))]
        return max(known, default=self.least)


def unplanned(states) -> int:
    return sum(ns for state, ns in states.items() if state not in PLANNED)


def move(states, names, to: str) -> None:
    moved = sum(states.pop(name, 0) for name in list(names))
    states[to] += moved


def judge(life: Life, lives, points, provisional, thresholds: Thresholds, blamed) -> None:
    """Give each piece its states, and each step its fate."""
    first_excess(life)
    for at, piece in enumerate(life.pieces):
        states, what, threshold = piece["in"], piece["what"], thresholds.at(life, at // 2)
        if what == "step":
            if unplanned(states) > threshold:
                move(states, [s for s in states if s not in PLANNED], "stall")
            again = any(s["index"] <= piece["index"] and s["end"] > piece["end"] for s in life.steps)
            by = [
                n
                for n, p in sorted(points.items())
                if n > life.number and p is not None and p < piece["index"]
            ]
            passed = provisional is not None and piece["index"] > provisional
            piece["lost"] = again or passed or bool(by)
            if piece["lost"]:
                move(states, list(states), "lost")
            if by and not again:
                blamed[by[0], life.rank][0] += 1
                blamed[by[0], life.rank][1] += piece["length"]
            continue
        move(states, ["productive"], "unattributed")
        if not life.steps or piece is life.pieces[0]:
            move(states, [s for s in states if s not in ("restore", "compile", "rollout")], "startup")
        elif unplanned(states) > threshold:
            move(states, [s for s in states if s not in PLANNED], "stall")
        elif what == "tail" and life.reason not in ("", "finished"):
            move(states, list(states), "lost")
            later = [n for n in sorted(points) if n > life.number]
            if later:
                blamed[later[0], life.rank][1] += states["lost"]


def first_excess(life: Life) -> None:
    if len(life.steps) < 2:
        return
    others = life.steps[1:16]
    first = life.steps[0]["in"]
    work = lambda states: states["productive"] + states["unattributed"]  # noqa: E731
    excess = life.steps[0]["length"] - int(median(step["length"] for step in others))
    excess = min(excess, work(first) - int(median(work(step["in"]) for step in others)))
    if excess > 0:
        compute = min(excess, first["productive"])
        first["productive"] -= compute
        first["unattributed"] -= excess - compute
        first["compile"] += excess


def stragglers(lives) -> dict:
    """Split communication of kept steps, step by step; who was waited for, in ns as fractions."""
    waits = {"length": 0, "waited": 0, "by": defaultdict(Fraction), "hosts": defaultdict(Fraction)}
    waits["stages"] = defaultdict(Fraction)
    groups, staged = defaultdict(list), pipelines(lives)
    for life in lives:
        group = "" if life.number in staged else str(life.declared.get("group", ""))
        for step in life.steps:
            if not step["lost"]:
                groups[life.number, group, step["index"]].append((life, step))
    for (number, *_), members in groups.items():
        if len(members) >= 2:
            waits["length"] += sum(step["length"] for _, step in members)
            if number in staged:
                split_stages(members, waits)
            else:
                split_group(members, waits)
    return waits


def pipelines(lives) -> set[int]:
    """Attempts whose ranks with steps all declare a stage, and not the same."""
    stages = defaultdict(set)
    for life in lives:
        if life.steps:
            stages[life.number].add(life.declared.get("stage"))
    return {number for number, found in stages.items() if None not in found and len(found) > 1}


def split_group(members, waits, covered=None) -> tuple[int, list, int]:
    """Move what each waits beyond the least to `straggler`; returns the least, who waited so, and what is covered.

    `covered(step, last)` is how long a rank would have waited for a slower stage anyway: its group is not blamed for that.
    """
    paid = {life.rank: step["in"]["communication"] for life, step in members}
    least = min(paid.values())
    last = [(life, step) for life, step in members if paid[life.rank] == least]
    hidden = 0
    for life, step in members:
        beyond = paid[life.rank] - least
        hidden += min(covered(step, last), beyond) if covered else 0
        give(step, beyond)
    blame([life for life, _ in last], sum(paid.values()) - least * len(paid) - hidden, waits)
    return least, last, hidden


def split_stages(members, waits) -> None:
    """Within the groups of each stage, then between stages; these logs tell no microbatches."""
    own = lambda step: sum(step["in"][s] for s in step["in"] if s not in SHARED)  # noqa: E731
    units, times = defaultdict(list), defaultdict(list)
    for life, step in members:
        units[life.declared["stage"], str(life.declared.get("group", ""))].append((life, step))
        times[life.declared["stage"]].append(own(step))
    usual = {stage: median_low(values) for stage, values in times.items()}
    before = {id(step): own(step) for _, step in members}
    slow = max(usual.values())
    slowest = [stage for stage, ns in usual.items() if ns == slow]

    def covered(step, last) -> int:
        return max(min(slow, max(before[id(one)] for _, one in last)) - before[id(step)], 0)

    split = {
        unit: split_group(ranks, waits, None if unit[0] in slowest else covered)
        for unit, ranks in units.items()
    }
    ends = {unit: max(before[id(step)] for _, step in last) for unit, (_, last, _) in split.items()}
    longest = max(ends.values())
    by_rank, by_stage = 0, sum(hidden for *_, hidden in split.values())
    for unit, ranks in units.items():
        for_rank = min(max(longest - max(slow, ends[unit]), 0), split[unit][0])
        for_stage = min(max(slow - ends[unit], 0), split[unit][0] - for_rank)
        for _, step in ranks:
            give(step, for_rank + for_stage)
        by_rank, by_stage = by_rank + for_rank * len(ranks), by_stage + for_stage * len(ranks)
    blame(
        [life for unit, (_, last, _) in split.items() if ends[unit] == longest for life, _ in last],
        by_rank,
        waits,
    )
    waits["waited"] += by_stage
    for stage in slowest:
        waits["stages"][stage] += Fraction(by_stage, len(slowest))


def give(step, ns: int) -> None:
    step["in"]["straggler"] += ns
    step["in"]["communication"] -= ns


def blame(culprits, waited: int, waits) -> None:
    waits["waited"] += waited
    for life in culprits if waited else []:
        part = Fraction(waited, len(culprits))
        waits["by"][life.rank] += part
        waits["hosts"][life.declared.get("host", "")] += part
        if "stage" in life.declared:
            waits["stages"][life.declared["stage"]] += part


# -- ranks


def lay_ranks(lives, run, start: int, end: int, threshold: int) -> dict[int, dict]:
    """Each expected rank's wall time: every life's pieces, and what lies before, between and after them."""
    numbers = sorted({life.number for life in lives})
    spans = defaultdict(list)
    seen = 1 + max(life.rank for life in lives)
    for number, later in zip(numbers, [*numbers[1:], None], strict=True):
        own = [life for life in lives if life.number == number]
        worlds = [life.declared.get("world_size") or run.get("world_size") or seen for life in own]
        world = max(*worlds, *(1 + life.rank for life in own), 1)
        begins = start if number == numbers[0] else min(life.start for life in own)
        over = end if later is None else min(life.start for life in lives if life.number == later)
        for rank in range(world):
            spans[rank].append((begins, over))
    ranks = {}
    for rank, own in sorted(spans.items()):
        states, at, before = defaultdict(int), start, "unobserved"
        mine = [life for life in lives if life.rank == rank]
        for life in [*mine, None]:
            until = end if life is None else life.start
            declared = {} if life is None else life.declared
            if life is not None:
                until = max(at, min(o.start for o in lives if o.number == life.number))
                until = until if life.start - until <= threshold else life.start
                states["startup"] += overlap(own, until, life.start)
            elif mine and mine[-1].reason == "finished":
                last = max(o.end for o in lives)
                if last - at <= threshold:
                    states["unattributed"] += overlap(own, at, last)
                    at = last
            submitted = max(at, ns(declared["submit_time"])) if "submit_time" in declared else until
            submitted = min(submitted, until)
            states[before] += overlap(own, at, submitted)
            states["queue"] += overlap(own, submitted, until)
            if life is not None:
                life.down = overlap(own, at, submitted) if before == "down" else 0
                for piece in life.pieces:
                    if overlap(own, piece["start"], piece["end"]) != piece["end"] - piece["start"]:
                        raise Unclear("a rank was alive when it was not expected")
                    for state, spent in piece["in"].items():
                        states[state] += spent
                at, before = life.end, "down"
        ranks[rank] = {
            "wall": sum(b - a for a, b in own),
            "states": dict(states),
            "devices": mine[-1].declared.get("devices", 1) if mine else None,
            "kept": sum(not step["lost"] for life in mine for step in life.steps),
            "lost": sum(step["lost"] for life in mine for step in life.steps),
            "kept_ns": sum(in_kept_steps(step) for life in mine for step in life.steps),
            "samples": sum(s["samples"] for life in mine for s in life.steps if not s["lost"]),
        }
    most = max(life.declared.get("devices", 1) for life in lives)
    for rank in ranks.values():
        rank["devices"] = rank["devices"] or most
    return ranks


def in_kept_steps(step) -> int:
    if step["lost"]:
        return 0
    return sum(ns for state, ns in step["in"].items() if state not in ("compile", "stall"))


def overlap(spans, start: int, end: int) -> int:
    return sum(max(0, min(end, b) - max(start, a)) for a, b in spans)


# -- figures


def summary(run, lives, ranks, points, blamed, waits, commits: int, span) -> dict:
    gpu = lambda what: sum(what(rank) * rank["devices"] for rank in ranks.values())  # noqa: E731
    wall, kept = gpu(lambda rank: rank["wall"]), gpu(lambda rank: rank["kept_ns"])
    productive = gpu(lambda rank: rank["states"].get("productive", 0))
    restarts = []
    for number in sorted(points)[1:]:
        own = [life for life in lives if life.number == number]
        devices = sum(ranks[life.rank]["devices"] for life in own)
        down = sum(life.down * ranks[life.rank]["devices"] for life in own)
        costs = [(cost, ranks[rank]["devices"]) for (n, rank), cost in blamed.items() if n == number]
        restarts.append(
            {
                "attempt": number,
                "time": min(life.start for life in own),
                "resume_step": points[number],
                "down": Fraction(down, devices),
                "lost_steps": sum(steps for (steps, _), _ in costs),
                "lost_gpu_ns": sum(ns * devices for (_, ns), devices in costs),
            }
        )
    numbers = sorted(points)
    of = {number: [life for life in lives if life.number == number] for number in numbers}
    over = [n for n in numbers if n != numbers[-1] or all(life.reason for life in of[n])]
    flops = run.get("flops_per_step")
    peak = run.get("peak_flops_per_second")
    work = sum(rank["kept"] for rank in ranks.values())
    peaks = Fraction(peak) * sum(rank["wall"] for rank in ranks.values()) if peak else None
    busy = (
        Fraction(peak) * sum(rank["states"].get("productive", 0) for rank in ranks.values()) if peak else None
    )
    return {
        "start": span[0],
        "end": span[1],
        "ranks": ranks,
        "restarts": restarts,
        "availability": Fraction(kept, wall) if wall else None,
        "step_efficiency": Fraction(productive, kept) if kept else None,
        "goodput": Fraction(productive, wall) if wall else None,
        "mfu": Fraction(flops) * work * 10**9 / peaks if flops and peaks else None,
        "compute_efficiency": Fraction(flops) * work * 10**9 / busy if flops and busy else None,
        "slowdown": Fraction(waits["length"], waits["length"] - waits["waited"])
        if waits["length"] > waits["waited"]
        else None,
        **{name: shares(waits[name], waits["waited"]) for name in ("by", "hosts", "stages")},
        "commits": commits,
        "failures": sum(any(life.reason != "finished" for life in of[n]) for n in over),
        "alive": sum(max(x.end for x in of[n]) - min(x.start for x in of[n]) for n in numbers),
    }


def shares(waited: dict, total: int) -> dict:
    return {who: part / total for who, part in waited.items() if part}
