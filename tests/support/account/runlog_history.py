"""Run logs generated from a seed: whole runs with restarts, rewinds and elastic worlds, as lines in order of time."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from decimal import Decimal

MS = 1_000_000
SECOND = 1000 * MS
PHASES = (
    "loader",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "evaluation",
    "compile",
    "rollout",
)
OUTSIDE = (*PHASES, "restore", "my_own")


def seconds(ns: int) -> str:
    """Whole ns as seconds, exactly, with as many digits as it takes."""
    return f"{'-' * (ns < 0)}{abs(ns) // SECOND}.{abs(ns) % SECOND:09d}".rstrip("0").rstrip(".")


_MOMENT = re.compile(r'"(time|over_at|submit_time)":(-?[0-9.]+)')


def earlier(lines: Iterable[str], ns: int) -> list[str]:
    """The lines with all their moments this much earlier."""
    return [
        _MOMENT.sub(lambda at: f'"{at[1]}":{seconds(int(Decimal(at[2]) * SECOND) - ns)}', line)
        for line in lines
    ]


class Raw(int):
    """Nanoseconds that are written as exact seconds."""


def line(kind: str, **fields) -> str:
    """One line; fields that are None are left out, Raw ones are times or lengths."""
    parts = [f'"kind":"{kind}"']
    for name, value in fields.items():
        if isinstance(value, Raw):
            parts.append(f'"{name}":{seconds(value)}')
        elif isinstance(value, dict):
            inner = ",".join(f'"{key}":{seconds(ns)}' for key, ns in value.items())
            parts.append(f'"{name}":{{{inner}}}')
        elif value is not None:
            parts.append(f'"{name}":{json.dumps(value)}')
    return "{" + ",".join(parts) + "}"


def log(seed: int) -> list[str]:
    """The lines of one run."""
    return History(random.Random(seed)).lines()


class History:
    """A run as it proceeds; `at` is the time up to which it has been generated."""

    def __init__(self, dice: random.Random):
        self.dice, self.out = dice, []
        self.unit = dice.choice([1, 1, 2 * MS])
        self.base = self.at = dice.choice([0, 0, 1_700_000_000]) * SECOND
        self.worlds = [dice.randint(1, 5)]
        self.elastic = dice.random() < 0.3
        self.missing = (
            {dice.randrange(self.worlds[0])} if dice.random() < 0.2 and self.worlds[0] > 1 else set()
        )
        self.groups = dice.choice([None, None, "two", "numbers"])
        self.staged, self.moves = dice.random() < 0.4, dice.random() < 0.4
        self.devices = [dice.choice([1, 1, 2, 8]) for _ in range(8)]
        self.slow = dice.choice([None, 0, 1])
        self.waits = dice.random() < 0.35
        self.next, self.commits, self.declares_world = 0, [], dice.random() < 0.7

    def ns(self, most: int) -> int:
        return self.dice.randrange(most // self.unit + 1) * self.unit

    def say(self, time_ns: int, text: str) -> None:
        self.out.append((time_ns, len(self.out), text))

    def lines(self) -> list[str]:
        dice = self.dice
        count = dice.choice([1, 1, 2, 2, 3, 4])
        for _ in range(count - 1):
            last = self.worlds[-1]
            self.worlds.append(dice.randint(1, 5) if self.elastic else last)
        declared = {"flops_per_step": 1e12, "peak_flops_per_second": 1e14} if dice.random() < 0.5 else {}
        if not self.declares_world and not self.elastic:
            declared["world_size"] = self.worlds[0] if dice.random() < 0.8 else None
        run = dict(run="r1", **declared)
        if dice.random() < 0.7:
            run["time"] = Raw(self.base)
            self.at += self.ns(2 * SECOND) if dice.random() < 0.3 else 0
        if dice.random() < 0.15:
            run["submit_time"] = self.base // SECOND - dice.randint(0, 5)
        self.say(-1, line("run", **run))
        for number, world in enumerate(self.worlds, 1):
            self.attempt(number, world, number == count)
        if dice.random() < 0.6:
            end = self.at + (self.ns(3 * SECOND) if dice.random() < 0.4 else 0)
            self.say(end, line("run_end", time=Raw(end)))
        return [text for *_, text in sorted(self.out)]

    def attempt(self, number: int, world: int, last: bool) -> None:
        dice = self.dice
        resume = None
        if number > 1:
            self.at += self.ns(2 * SECOND) if dice.random() < 0.8 else 0
            resume = self.commits[-1] if self.commits else -1
            if self.commits and dice.random() < 0.2:
                resume = dice.choice(self.commits)
            self.commits = [step for step in self.commits if step <= resume]
            self.next = resume + 1
        submit = None
        if dice.random() < 0.2:
            submit = max(self.at // SECOND - dice.randint(0, 2), self.base // SECOND)
        count, bulk = dice.choice([0, 1, 2, 4, 8]), dice.random() < 0.2
        plan = self.plan(count, 140 if bulk else 0)
        save = [step for step in plan if dice.random() < 0.25]
        committed = [step for step in save if dice.random() < 0.7]
        began, over = self.at, self.at
        ranks = [r for r in range(world) if r not in self.missing and (r == 0 or dice.random() < 0.93)]
        for rank in ranks:
            start = began + (0 if rank == ranks[0] else self.ns(40 * MS))
            if rank and dice.random() < 0.05:
                start += self.ns(2 * SECOND)
            resume_step = resume if resume is not None and dice.random() < 0.5 else None
            if rank == 0 or dice.random() < 0.93:
                self.begin(number, rank, start, world, resume_step, submit)
            over = max(over, self.live(number, rank, start, plan, save, committed, bulk, last))
        self.commits += [step for step in dict.fromkeys(committed) if plan and step <= plan[-1]]
        self.at = over

    def plan(self, count: int, more: int) -> list[int]:
        """Step indices in the order in which they are done; now and then the attempt goes back by itself."""
        plan, step = [], self.next
        while len(plan) < count:
            plan.append(step)
            step += 1
            if len(plan) > 1 and self.dice.random() < 0.04:
                step = max(self.next, step - self.dice.randint(1, 4))
        return plan + list(range(step, step + more)) if plan else plan

    def begin(self, number: int, rank: int, start: int, world: int, resume_step, submit) -> None:
        group = {"two": "ab"[rank // 2 % 2], "numbers": rank % 2}.get(self.groups)
        text = line(
            "attempt",
            time=Raw(start),
            rank=rank,
            attempt=number,
            host=f"n{rank + (number if self.moves else 0)}",
            devices=self.devices[rank],
            group=group,
            stage=rank % 2 if self.staged else None,
            world_size=world if self.declares_world or self.elastic else None,
            resume_step=resume_step,
            submit_time=submit,
        )
        self.say(start, text)

    def live(self, number, rank, start, plan, save, committed, bulk, last) -> int:
        """A rank's lines from its start on; returns its last moment."""
        dice, place = self.dice, {"rank": rank, "attempt": number}
        at = self.between(start, place, 0.8, 3)
        done = plan[: max(0, len(plan) - dice.choice([0, 0, 0, 1]))]
        if not done and dice.random() < 0.3:
            self.say(start, line("beat", time=Raw(start), **place))
        if dice.random() < 0.05 and len(done) > 3:
            done.pop(len(done) // 2)
        for i, step in enumerate(done):
            length, phases = self.step(rank, bulk and i)
            at += length
            samples = dice.choice([None, 32])
            fields = {"step": step, "seconds": Raw(length), "phases": phases, "samples": samples}
            self.say(at, line("step", time=Raw(at), **place, **fields))
            if step in save and rank != 1:
                kind = step in committed
                at = self.between(at, place, 0.5, 1)
                self.say(at, line("checkpoint", time=Raw(at), **place, step=step, committed=kind))
            if not (bulk and i) or dice.random() < 0.05:
                at = self.between(at, place, 0.15, 2)
        return self.leave(at, place, last)

    def between(self, at: int, place, chance: float, most: int) -> int:
        """Phases outside steps, with silence between them."""
        for _ in range(self.dice.randint(0, most) if self.dice.random() < chance else 0):
            at += self.ns(20 * MS) if self.dice.random() < 0.7 else 0
            spent = self.ns(4 * SECOND if self.waits and self.dice.random() < 0.3 else 40 * MS)
            at += spent
            phase = self.dice.choice(OUTSIDE)
            self.say(at, line("phase", time=Raw(at), **place, phase=phase, seconds=Raw(spent)))
        if self.dice.random() < 0.1:
            at += self.ns(30 * MS)
            self.say(at, line("beat", time=Raw(at), **place))
        if self.waits and self.dice.random() < 0.05:
            at += self.ns(3 * SECOND)
        return at

    def step(self, rank: int, bulk) -> tuple[int, dict[str, int]]:
        """A step's length and phases. Steps in bulk are alike, so that a rare long one does not move the percentile."""
        dice = self.dice
        if bulk and dice.random() < 0.995:
            own = (12 if rank == self.slow else 10) * MS
            return 16 * MS, {"forward": own, "communication": 15 * MS - own}
        names = dice.sample(PHASES, dice.randint(0, 5))
        if dice.random() < 0.8 and "communication" not in names:
            names.append("communication")
        phases = {name: self.ns(20 * MS) for name in names}
        if self.waits and names and dice.random() < 0.1:
            phases[names[0]] += self.ns(4 * SECOND)
        if rank == self.slow:
            phases["backward"] = phases.get("backward", 0) + 10 * MS
        return sum(phases.values()) + (self.ns(10 * MS) if dice.random() < 0.5 else 0) + self.unit, phases

    def leave(self, at: int, place, last: bool) -> int:
        """How it ends: with a line, with a last beat, or with nothing at all."""
        dice = self.dice
        at = self.between(at, place, 0.3, 2)
        if self.waits and dice.random() < 0.2:
            at += self.ns(3 * SECOND)
        how = dice.choice(["finished", "finished", "failed", "killed", "beat", "nothing"])
        if self.elastic and how in ("beat", "nothing"):
            how = "failed"
        if last and dice.random() < 0.3:
            how = "finished"
        if how == "nothing":
            return at
        at += self.ns(100 * MS)
        if how == "beat":
            self.say(at, line("beat", time=Raw(at), **place))
        else:
            self.say(at, line("end", time=Raw(at), **place, reason=how))
        return at
