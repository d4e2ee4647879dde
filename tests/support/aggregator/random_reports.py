"""Random runs whose reports arrive late, thinned and in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from support.account.account_history import Process, ns
from support.aggregator.random_runs import gpu_samples, process_after
from support.aggregator.reports import rank_report

USER = {"augment": "loader", "odd": "startup", "thing": "nonsense"}
BETWEEN = ("none", "checkpoint", "forward", "loader", "evaluation")


@dataclass
class RandomReports:
    """Reports of a random run that come late, repeated, thinned and out of order."""

    rng: random.Random
    workers: bool = False  # processes without ranks

    def __post_init__(self):
        one = self.rng.choice
        self.steps, self.length, self.long = one([3, 10, 40]), one([0.5, 0.5, 5, 20]), one([0, 0.02, 0.1])
        self.again, self.skip, self.resumes = one([0, 0, 0.05]), one([0, 0, 0.1]), one([0, 0.3, 1])
        self.ends = one([["finished", "failed", "killed", "silent"], ["killed"], ["silent"], ["finished"]])
        self.thin, self.tail, self.order = one([0, 0, 0.5]), one([0, 0.1, 0.5, 1]), one(["", "near", "any"])
        self.redeclared, self.groups = one([0, 0, 0.2]), one([1, 2, 6])

    def random_seconds(self, most: float = 0.5) -> float:
        return round(self.rng.random() * most, self.rng.choice([1, 9]))

    def life(self, rank: int, number: int, start: float, world: int, point: int) -> Process:
        rng, some = self.rng, self.random_seconds
        declared = {"group": f"g{rank // self.groups}", "stage": rng.choice([None, rank % 2])}
        declared |= {"devices": rng.choice([1, 2]), "submit_time": rng.choice([None, None, start - some(20)])}
        user = USER if rng.random() < 0.5 else {}
        if self.workers:
            declared |= {"worker": f"Process-{rng.choice([rank, rank, rank, number])}"}
        one = Process(rank, number, start, user=user, world_size=world, **declared)
        if rng.random() < 0.7:
            one.between(none=some(), restore=some())
        if number > 1 and rng.random() < self.resumes:
            one.resumed(point if rng.random() < 0.8 else rng.randrange(-1, 15))
        one.step_next = max(one.step_next, point + 1 if rng.random() < 0.8 else 0, 0)
        for _ in range(rng.randrange(self.steps)):
            self.step(one)
        one.hardware = gpu_samples(rng)
        one.begun(**{name: some() for name in rng.sample(["forward", "loader", "communication", "none"], 2)})
        end = rng.choice(self.ends)
        return getattr(one, end)(**({} if end in ("finished", "failed") else {"after": some(40)}))

    def step(self, one: Process) -> None:
        rng, some, what = self.rng, self.random_seconds, self.rng.random()
        if what < self.again:
            one.step_next = max(one.step_next - rng.randrange(1, 6), 0)
        elif what < self.again + self.skip:
            one.step_next += rng.randrange(1, 5)
        parts = {}
        if rng.random() > 0.05:
            names = rng.sample(["none", "loader", "forward", "evaluation", "h2d", *one.user], 3)
            parts = {name: some(self.length) for name in [*names, "communication"]}
        if rng.random() < self.long:
            parts["loader"] = rng.choice([45, 70, 200]) + some()
        one.step(**parts, samples=rng.randrange(40), device=rng.random() < 0.5)
        if rng.random() < 0.25:
            one.between(**{name: some(3) for name in rng.sample(BETWEEN, 2)})
        if rng.random() < 0.15:
            one.saved(rng.choice([None, None, rng.randrange(-1, 20)]), committed=rng.random() < 0.7)
        if rng.random() < self.long / 2:
            one.between(none=65 + some(60))

    def reports(self, one: Process) -> list[tuple]:
        """(moment of arrival, report) of a process, each with the rows its agent still had."""
        rng, found, before, delay = self.rng, [], 0, self.rng.choice([0, 0, 1, 20, 200])
        kept = [row for row in one.rows[:-1] if rng.random() >= self.thin] + one.rows[-1:]
        looks = [
            process_after(one, rng.randrange(len(one.rows) + 1), self.random_seconds(0.3))
            for _ in range(rng.randrange(5))
        ]
        for seen in [*sorted(looks, key=lambda seen: seen.now_ns), one]:
            rows, which = [row for row in kept if row.number <= len(seen.rows)], rng.random()
            if which < self.tail:
                rows = rows[-rng.randrange(1, 15) :]
            elif which < self.tail + 0.2:
                rows = [row for row in rows if row.number > before]
            before = len(seen.rows)
            declared = {"group": rng.choice(["g0", "g1"])} if rng.random() < self.redeclared else {}
            found.append(
                (seen.now_ns + ns(self.random_seconds(delay)), rank_report(seen, rows=rows, **declared))
            )
        if rng.random() < 0.3:
            found.append(
                (
                    one.now_ns + ns(self.random_seconds(60)),
                    rank_report(one, rows=rng.choice([kept, one.rows])),
                )
            )
        return found

    def story(self) -> list[tuple]:
        rng, ranks, found, start, point = self.rng, self.rng.randrange(1, 6), [], 1000.0, -1
        for number in range(1, rng.randrange(2, 6)):
            world = ranks if rng.random() < 0.8 else rng.randrange(1, 7)
            here = [rank for rank in range(min(ranks, world)) if rng.random() < 0.9]
            late = [rng.choice([0, 0, 0, self.random_seconds(15)]) + rng.random() for _ in here]
            lives = [
                self.life(r, number, start + after, world, point) for r, after in zip(here, late, strict=True)
            ]
            for one in lives:
                found += self.reports(one)
            if lives:
                top = max((one.rows[-1].step for one in lives if one.rows), default=-1)
                point = rng.choice([-1, top, max(top - rng.randrange(1, 12), -1), point])
                start = max(one.now_ns for one in lives) / 1e9 + rng.choice(
                    [self.random_seconds(5), -self.random_seconds(3), 100]
                )
        return self.shuffled(sorted(found, key=lambda entry: entry[0]))

    def shuffled(self, found: list[tuple]) -> list[tuple]:
        times, reports = [at for at, _ in found], [report for _, report in found]
        if self.order == "any":
            self.rng.shuffle(reports)
            # So that no clock is ahead of ours.
            times = [times[-1] + ns(i) for i in range(len(times))]
        for i in range(len(reports) - 1 if self.order == "near" else 0):
            if self.rng.random() < 0.3:
                reports[i], reports[i + 1] = reports[i + 1], reports[i]
        return list(zip(times, reports, strict=True))
