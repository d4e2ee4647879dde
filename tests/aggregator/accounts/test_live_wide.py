"""The live account of runs in which much happens, and happens out of order, is that of all rows: at every push.

Ranks come late and leave, worlds change, attempts overlap, steps are skipped, done again or take no time; reports
come in any order, with rows thinned and missing that come later. At the end the history and the replay of the
exported log say the same. What a random case has shown is below it in its smallest form.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from aggregator.accounts.test_live_hostile import Rows, differences, looked_at
from aggregator.ledger.test_export import _plain, sampled
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.reports import rank_report

from goodput.account import Account, compute, straggler
from goodput.account import attempts as attempts_module
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.history import Job, without_rows
from goodput.aggregator.accounts.history_worker import account_of
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.runlog import replay
from goodput.runlog.export import export

STALE, STALL = 30.0, 60.0
USER = {"augment": "loader", "odd": "startup", "thing": "nonsense"}
BETWEEN = ("none", "checkpoint", "forward", "loader", "evaluation")


@dataclass
class Both:
    """A store whose rows are let go, with a ledger, and one that keeps all; every push goes to both."""

    some: Store = field(default_factory=Store)
    whole: Store = field(default_factory=Store)
    rows: Rows = field(default_factory=Rows)
    folding: IncrementalAccount | None = None

    def push(self, report, now_ns: int) -> int:
        """How many rows were new."""
        merged = self.some.merge(report, now_ns)
        self.rows.append(merged)
        self.whole.merge(report, now_ns)
        run = self.some.runs["r1"]
        self.folding = self.folding or IncrementalAccount(run, stall_seconds=STALL, stale_seconds=STALE)
        return len(merged.rows)

    def full(self, now_ns: int) -> Account:
        return compute(self.whole.runs["r1"], now_ns, stale_seconds=STALE, known_only=True)

    def look(self, now_ns: int) -> bool:
        """Whether as much is known as was before; if so the accounts are compared."""
        found, want = looked_at(self.folding, self.rows, now_ns), self.full(now_ns)
        assert_closes(found, elastic=True)
        if found.end_ns > want.end_ns and want.status == "running":
            return False
        assert differences(found, want) == []
        return True

    def at_last(self, now_ns: int, path) -> None:
        """History and replay. When a rank was last heard of neither knows, so its own last look counts."""
        for store in (self.some, self.whole):
            for process in store.processes.values():
                process.attempt.received_ns = 0
        want = self.full(now_ns)
        path.write_bytes(b"".join(export(self.rows, "r1", now_ns)))
        (one,) = replay(str(path))
        found = _plain(one.account)
        assert {name: found[name] for name, value in _plain(want).items() if found[name] != value} == {}
        job = Job("", without_rows(self.some.runs["r1"]), now_ns, want.threshold_ns, STALE, [])
        found = account_of(self.rows, job, (None, None))
        assert found.straggler == want.straggler
        assert [rank.states for rank in found.ranks] == [rank.states for rank in want.ranks]
        assert found.restarts == want.restarts


@dataclass
class Draws:
    """What kind of run it is."""

    rng: random.Random

    def __post_init__(self):
        one = self.rng.choice
        self.steps, self.length, self.long = one([3, 10, 40]), one([0.5, 0.5, 5, 20]), one([0, 0.02, 0.1])
        self.again, self.skip, self.says = one([0, 0, 0.05]), one([0, 0, 0.1]), one([0, 0.3, 1])
        self.ends = one([["finished", "failed", "killed", "silent"], ["killed"], ["silent"], ["finished"]])
        self.thin, self.tail, self.order = one([0, 0, 0.5]), one([0, 0.1, 0.5, 1]), one(["", "near", "any"])
        self.told, self.groups = one([0, 0, 0.2]), one([1, 2, 6])

    def some(self, most: float = 0.5) -> float:
        return round(self.rng.random() * most, self.rng.choice([1, 9]))

    def life(self, rank: int, number: int, start: float, world: int, point: int) -> Process:
        rng, some = self.rng, self.some
        told = {"group": f"g{rank // self.groups}", "stage": rng.choice([None, rank % 2])}
        told |= {"devices": rng.choice([1, 2]), "submit_time": rng.choice([None, None, start - some(20)])}
        user = USER if rng.random() < 0.5 else {}
        one = Process(rank, number, start, user=user, world_size=world, **told)
        if rng.random() < 0.7:
            one.between(none=some(), restore=some())
        if number > 1 and rng.random() < self.says:
            one.resumed(point if rng.random() < 0.8 else rng.randrange(-1, 15))
        one.step_next = max(one.step_next, point + 1 if rng.random() < 0.8 else 0, 0)
        for _ in range(rng.randrange(self.steps)):
            self.step(one)
        one.hardware = sampled(rng)
        one.begun(**{name: some() for name in rng.sample(["forward", "loader", "communication", "none"], 2)})
        end = rng.choice(self.ends)
        return getattr(one, end)(**({} if end in ("finished", "failed") else {"after": some(40)}))

    def step(self, one: Process) -> None:
        rng, some, what = self.rng, self.some, self.rng.random()
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

    def seen(self, one: Process, count: int) -> Process:
        """The process as it was after so many rows."""
        found = Process(one.rank, one.number, one.start_ns / 1e9, user=one.user, **one.identity)
        found.start_ns = found.now_ns = found.last_ns = one.start_ns
        found.rows = one.rows[:count]
        if found.rows:
            found.now_ns = found.last_ns = found.rows[-1].end_ns
            found.totals = list(found.rows[-1].totals)
        found.events = [event for event in one.events if event.time_ns <= found.now_ns]
        found.hardware = {
            name: value * count // max(len(one.rows), 1) for name, value in one.hardware.items()
        }
        return found.silent(after=self.some(0.3))

    def reports(self, one: Process) -> list[tuple]:
        """(moment of arrival, report) of a process, each with the rows that its agent had left."""
        rng, found, before, delay = self.rng, [], 0, self.rng.choice([0, 0, 1, 20, 200])
        kept = [row for row in one.rows[:-1] if rng.random() >= self.thin] + one.rows[-1:]
        looks = [self.seen(one, rng.randrange(len(one.rows) + 1)) for _ in range(rng.randrange(5))]
        for seen in [*sorted(looks, key=lambda seen: seen.now_ns), one]:
            rows, which = [row for row in kept if row.number <= len(seen.rows)], rng.random()
            if which < self.tail:
                rows = rows[-rng.randrange(1, 15) :]
            elif which < self.tail + 0.2:
                rows = [row for row in rows if row.number > before]
            before = len(seen.rows)
            told = {"group": rng.choice(["g0", "g1"])} if rng.random() < self.told else {}
            found.append((seen.now_ns + ns(self.some(delay)), rank_report(seen, rows=rows, **told)))
        if rng.random() < 0.3:
            found.append(
                (one.now_ns + ns(self.some(60)), rank_report(one, rows=rng.choice([kept, one.rows])))
            )
        return found

    def story(self) -> list[tuple]:
        rng, ranks, found, start, point = self.rng, self.rng.randrange(1, 6), [], 1000.0, -1
        for number in range(1, rng.randrange(2, 6)):
            world = ranks if rng.random() < 0.8 else rng.randrange(1, 7)
            here = [rank for rank in range(min(ranks, world)) if rng.random() < 0.9]
            late = [rng.choice([0, 0, 0, self.some(15)]) + rng.random() for _ in here]
            lives = [
                self.life(r, number, start + after, world, point) for r, after in zip(here, late, strict=True)
            ]
            for one in lives:
                found += self.reports(one)
            if lives:
                top = max((one.rows[-1].step for one in lives if one.rows), default=-1)
                point = rng.choice([-1, top, max(top - rng.randrange(1, 12), -1), point])
                start = max(one.now_ns for one in lives) / 1e9 + rng.choice(
                    [self.some(5), -self.some(3), 100]
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


def play(seed: int, monkeypatch, path) -> None:
    rng = random.Random(seed)
    draws, both = Draws(rng), Both()
    monkeypatch.setattr(live, "ROWS_MAX", rng.choice([0, 5, 20, 100, 200_000]))
    monkeypatch.setattr(live, "ROWS_KEPT", rng.choice([1, 2, 16]))
    # Steps that are done again and have been compared meanwhile are compared with others than in a fold of all.
    monkeypatch.setattr(straggler, "SWEEP_ENTRIES", 4096 if draws.again else rng.choice([8, 64, 4096]))
    often, now_ns = rng.choice([1, 0.3]), 0
    for now_ns, report in draws.story():
        both.push(report, now_ns)
        if rng.random() < often:
            both.look(now_ns)
    if now_ns:
        both.look(now_ns)
        both.look(now_ns + ns(rng.choice([0.5, 20, 1000])))
        if not draws.again:
            # In a log a step that is done again says itself that what was done from there on is lost.
            both.at_last(now_ns, path)


SEEDS = 100


@pytest.mark.parametrize("part", range(4))
def test_incremental_account_equals_full_in_any_order(part, monkeypatch, tmp_path):
    for seed in range(part, SEEDS, 4):
        try:
            play(seed, monkeypatch, tmp_path / "run.jsonl")
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def trimming(monkeypatch, sweep: int = 4096) -> Both:
    monkeypatch.setattr(live, "ROWS_MAX", 10)
    monkeypatch.setattr(live, "ROWS_KEPT", 2)
    monkeypatch.setattr(straggler, "SWEEP_ENTRIES", sweep)
    return Both()


def pair(count: int) -> list[Process]:
    """Two ranks, of which the second waits for the first."""
    return [
        Process(rank, world_size=2).steps(count, forward=0.5, communication=0.25 * (1 + rank))
        for rank in range(2)
    ]


def test_late_rows_after_trimming_are_folded(monkeypatch):
    """Their numbers never came, so they are new; of them the restarts know what is lost, and who was waited for."""
    both, ranks = trimming(monkeypatch), pair(50)
    for one in ranks:
        one.killed(after=1)
        now_ns = one.now_ns
        for rows in (one.rows[:10], one.rows[30:]):
            assert both.push(rank_report(one, rows=rows), now_ns) == len(rows)
            assert both.look(now_ns)
    again = [Process(rank, 2, 60, world_size=2).resumed(17).steps(3, forward=1) for rank in range(2)]
    for one in again:
        both.push(rank_report(one), now_ns)
        both.look(now_ns)
    for one in ranks:
        attempt = both.some.runs["r1"].attempts[one.rank, 1]
        assert attempt.holes == [(11, 30)] and len(attempt.rows) == 2
        assert both.push(rank_report(one, rows=one.rows[12:20]), now_ns) == 8
        assert both.look(now_ns)
        assert attempt.holes == [(11, 12), (21, 30)]
        assert both.push(rank_report(one), now_ns) == 12
        assert both.look(now_ns)
        assert attempt.holes == [] and both.push(rank_report(one), now_ns) == 0
        assert both.look(now_ns)
    account = both.full(now_ns)
    assert account.restarts[0].lost_steps == 2 * 32 and account.straggler.waited_ns == 18 * ns(0.25)


def test_fold_refuses_a_ledger_without_trimmed_rows(monkeypatch):
    """They are merged and not written yet: folded without them they would be missing for good."""
    both, one = trimming(monkeypatch), Process(world_size=1).steps(50, forward=0.5)
    both.push(rank_report(one, rows=one.rows[:20]), one.now_ns)
    assert both.look(one.now_ns)
    written = both.rows.kept[0, 1]
    both.push(rank_report(one), one.now_ns)
    assert both.look(one.now_ns) and both.some.runs["r1"].attempts[0, 1].trimmed == 48
    again = Process(0, 2, 60).resumed(9).steps(3, forward=1)
    both.push(rank_report(again), again.now_ns)
    both.rows.kept[0, 1] = {number: row for number, row in written.items() if number <= 20}
    with pytest.raises(LedgerError, match="rank 0 attempt 1 up to row 20, not up to 48 yet"):
        both.look(again.now_ns)
    both.rows.kept[0, 1] = written
    assert both.look(again.now_ns)


def test_remembered_holes_are_bounded(monkeypatch):
    """Rows that were thinned leave a hole each; nobody will ever fill them."""
    both, one = trimming(monkeypatch), Process().steps(400, forward=0.5)
    thinned = one.rows[::2]
    for at in range(0, 200, 20):
        both.push(rank_report(one, rows=thinned[at : at + 20]), one.now_ns)
        assert both.look(one.now_ns)
    (attempt,) = both.some.runs["r1"].attempts.values()
    assert len(attempt.holes) == attempts_module.HOLES_MAX
    assert attempt.holes[-1] == (attempt.trimmed - 1, attempt.trimmed - 1)
    assert not attempt.lacks(2) and attempt.lacks(attempt.trimmed - 1) and not attempt.lacks(attempt.trimmed)


def test_returned_rank_is_compared_at_once(monkeypatch):
    """While it was silent nobody waited for it; that its steps are late is seen when they are folded."""
    both, (one, two) = trimming(monkeypatch, sweep=4), pair(60)
    early = pair(5)[1]
    both.push(rank_report(early), early.now_ns)
    for count in (20, 40, 60):
        now_ns = ns(100) + one.rows[count - 1].end_ns
        both.push(rank_report(one, rows=one.rows[:count]), now_ns)
        assert both.look(now_ns)
    assert both.folding._engine.groups.settled[1, ""] > 20
    both.push(rank_report(two, rows=two.rows), now_ns)
    assert both.look(now_ns)
    # The account goes as far as the first rank is known, which is faster.
    assert both.full(now_ns).straggler.waited_ns == 45 * ns(0.25)


def test_first_step_outside_does_not_block_others(monkeypatch, tmp_path):
    """It lies in the time of the attempt before; the history does not even read it."""
    both = trimming(monkeypatch, sweep=4)
    before = Process(0, 1, 0, world_size=3).steps(8, forward=1).killed()
    ranks = [Process(rank, 2, 5.5, world_size=3) for rank in range(3)]
    for i in range(6):
        for one in ranks:
            if i > 2 or one.rank:
                # What the second rank does in the first step of the first one tells that it is slow.
                one.step(i, forward=1 if (i, one.rank) == (3, 1) else 0.5, communication=0.25)
            else:
                one.between(none=0.25)
    for one in (before, *ranks):
        both.push(rank_report(one), ranks[0].now_ns)
        both.look(ranks[0].now_ns)
    both.at_last(ranks[0].now_ns, tmp_path / "run.jsonl")


def test_silent_earlier_attempt_is_in_the_log(monkeypatch, tmp_path):
    """The run finished without the rank; in the log too it is stale, and not at work for ever."""
    both = trimming(monkeypatch)
    lost = Process(1, 1, 0, world_size=2).steps(5, forward=1).silent(after=0.5)
    first = Process(0, 1, 0, world_size=2).steps(5, forward=1).killed()
    again = Process(0, 2, 10, world_size=2).resumed(4).steps(5, forward=1).finished()
    for one in (lost, first, again):
        both.push(rank_report(one), ns(100))
    assert both.look(ns(200)) and both.full(ns(200)).status == "finished"
    both.at_last(ns(200), tmp_path / "run.jsonl")
