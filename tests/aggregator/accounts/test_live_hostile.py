"""Impossible but well-formed reports: the live account closes and equals that over all rows at every push.

Totals decrease, attempts overlap, clocks jump, numbers are missing or huge, rows come late and twice, ended
processes report. Trimmed rows are read back as from a ledger. Cases are seeded.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from support.account.account_history import PHASES, assert_closes, ns
from support.aggregator.exports import STALE
from support.aggregator.live_accounts import STALL, MemoryLedger, differing_fields, live_account
from support.seeds import cases

from goodput.account import compute, document
from goodput.account.states import STATES
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.hangs import HangDetector
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.causes import explain
from goodput.wire import schema

START = 1_700_000_000 * 10**9
MOST = schema.TIME_NS_MAX - 1
SEEDS = 32


class Rank:
    """A process that reports impossible values with probability `wild`."""

    def __init__(
        self, rng: random.Random, rank: int, attempt: int, start_ns: int, world: int, wild: float, again: bool
    ):
        self.rng, self.wild, self.again, self.sequence = rng, wild, again, 0
        self.identity = schema.Identity(
            run="r1",
            rank=rank,
            attempt=attempt,
            world_size=max(rank + 1, self.maybe(world, 1, 300)),
            host=rng.choice(["n0", "n1"]),
            pid=rng.randrange(1, 1000),
            start_ns=self.maybe(start_ns, 0, start_ns - ns(100), start_ns + ns(100)),
            device=rng.choice(["", "NVIDIA H100 80GB HBM3"]),
            devices=self.maybe(1, 1 << 16, 8),
            group=self.maybe("", "a"),
            stage=rng.choice([None, None, 0, 3]),
            flops_per_step=rng.choice([None, 1e12, 1e-3, 1e29]),
            peak_flops_per_second=rng.choice([None, 1e15]),
            gpu_hour_cost=rng.choice([None, 2.5, 1e29]),
            submit_time=rng.choice([None, None, start_ns / 1e9 - 5, start_ns / 1e9 + 1e5, 1e-9, 1e29]),
        )
        self.phases, self.states = PHASES, {}
        self.clock_ns, self.number, self.step, self.samples = start_ns, 0, rng.choice([0, 0, 50]), 0
        self.totals, self.outside = [0] * len(PHASES), [0] * len(PHASES)
        self.rows, self.events, self.over = [], [], None

    def maybe(self, usual, *others):
        return self.rng.choice(others) if self.rng.random() < self.wild else usual

    def work(self) -> None:
        """Some steps and events, some of them impossible."""
        rng = self.rng
        if rng.random() < 0.1 and len(self.phases) < 20:
            name = f"mine{len(self.phases)}"
            self.phases, self.states = (*self.phases, name), {name: rng.choice([*STATES, "nonsense"])}
            self.totals.append(0)
            self.outside.append(0)
        if self.states and rng.random() < self.wild / 4:
            self.states = {name: rng.choice(STATES) for name in self.states}
        for _ in range(rng.randrange(8)):
            self.row()
        if rng.random() < 0.2:
            kind = rng.choice(["checkpoint_begun", "checkpoint_committed", "resumed", "mark", "?"])
            step = self.maybe(self.step - 1, -1, rng.randrange(60), MOST - 1)
            self.events.append(schema.EventRow(len(self.events) + 1, kind, self.clock_ns, step))

    def row(self) -> None:
        rng, gap = self.rng, 0
        length = ns(self.maybe(rng.choice([0.5, 1]), 0 if self.again else 2, 3, 90))
        if rng.random() < 0.1:
            gap = ns(rng.choice([1, 10, 100]))
            self.spend(rng.randrange(len(self.phases)), gap, self.outside)
        start = self.clock_ns + gap
        self.clock_ns = start + length
        for _ in range(2):
            self.spend(rng.randrange(len(self.phases)), length // 2)
        self.number += self.maybe(1, 2, 5)
        self.samples += rng.choice([0, 32])
        end = self.clock_ns
        if self.again:
            end = self.maybe(end, end - ns(20), end + ns(20), start)
        row = schema.StepRow(
            self.maybe(self.number, self.number + 1_000_000) if self.again else self.number,
            self.maybe(self.step, max(self.step - 3, 0), self.step + 10) if self.again else self.step,
            *(min(self.maybe(start, 0, end), end), end, self.maybe(self.samples, 0, MOST)),
            *(tuple(self.totals), tuple(self.outside)),
        )
        if self.rng.random() < self.wild / 8:
            totals = tuple(self.rng.choice([0, 1, MOST]) for _ in self.totals)
            row = msgspec.structs.replace(row, totals=totals, outside=tuple(0 for _ in totals))
        self.step += self.maybe(1, 10)
        self.rows.append(row)

    def spend(self, phase: int, spent_ns: int, *also: list) -> None:
        for totals in (self.totals, *also):
            totals[phase] += spent_ns

    def report(self) -> schema.RankReport:
        rng, rows = self.rng, list(self.rows)
        if rng.random() < 0.5:
            rows = rows[-rng.randrange(1, 20) :]
        if rng.random() < self.wild:
            rows = rng.sample(rows, len(rows) // 2)
        self.over = self.maybe(None, "finished", "failed", "", "resumed")
        now_ns = self.maybe(self.clock_ns, self.clock_ns + ns(40), self.clock_ns - ns(40), 0)
        ended_ns = self.maybe(now_ns, 0, self.clock_ns - ns(50)) if self.over is not None else 0
        seen = schema.Live(
            now_ns=now_ns,
            last_ns=self.maybe(now_ns, 0, now_ns + ns(10)),
            phase=rng.choice(self.phases),
            step_next=self.step,
            steps_done=self.number,
            samples=self.samples,
            alive=self.over is None,
            ended=self.over or "",
            end_ns=max(ended_ns, 0),
            totals=tuple(self.maybe(t, 0, t + ns(5), MOST) for t in self.totals),
        )
        self.sequence += self.maybe(1, 0, -1)
        return schema.RankReport(
            identity=self.identity,
            sequence=max(self.sequence, 0),
            phases=self.phases,
            live=seen,
            phase_states=self.states,
            steps=rows,
            events=self.events,
        )


def story(rng: random.Random, again: bool) -> list[tuple[int, schema.RankReport]]:
    """(time of arrival, report) in order; the aggregator's clock is set back now and then.

    `again`: ranks may repeat steps, and end them before earlier ones, within one attempt.
    """
    wild, ranks, found, at_ns, going = rng.choice([0.02, 0.1, 0.5]), rng.randrange(1, 4), [], START, []
    for _ in range(rng.randrange(5, 25)):
        if not going or rng.random() < 0.15:
            attempt, world = rng.choice([1, 2, 2, 3, 9]), rng.randrange(1, 6)
            going += [
                Rank(rng, rank, attempt, at_ns, max(world, ranks), wild, again) for rank in range(ranks)
            ]
        if rng.random() < wild / 4:
            at_ns -= ns(rng.choice([1, 100, 1000]))
        at_ns += ns(rng.choice([0, 1, 10, 10, 60]))
        for one in going:
            if rng.random() < 0.7:
                one.clock_ns = max(one.clock_ns, at_ns - ns(rng.choice([0, 5, 50])))
                one.work()
                found.append((at_ns, one.report()))
    return found


def play(pushes: list[tuple[int, schema.RankReport]]) -> int:
    """Compare both accounts at every push; returns how often the live one waited for a backlog."""
    some, whole, rows, folding, behind = Store(), Store(), MemoryLedger(), None, 0
    hangs = HangDetector(some, stall_seconds=STALL, stale_seconds=STALE, clock_ns=lambda: START)
    for arrived_ns, report in pushes:
        try:
            schema.check(report)
            merged = some.merge(report, arrived_ns)
        except (schema.SchemaError, ReportRejected):
            continue
        rows.append(merged, some.take_late())
        whole.merge(msgspec.structs.replace(report, steps=merged.rows()), arrived_ns)
        folding = folding or IncrementalAccount(some.runs["r1"], stall_seconds=STALL, stale_seconds=STALE)
        found = live_account(folding, rows, arrived_ns)
        rows.take_segment(folding, some)
        assert_closes(found, elastic=True)
        want = compute(whole.runs["r1"], arrived_ns, stale_seconds=STALE, known_only=True)
        if found.end_ns > want.end_ns and want.status == "running":
            behind += 1
        else:
            assert differing_fields(found, want) == []
        shown = document(found, explain(found))
        assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
        some.recent["r1"].windows(found.end_ns, found.world_size)
        hang = hangs.evaluate("r1", arrived_ns, found.threshold_ns, found.world_size)
        assert hang is None or msgspec.json.encode(hangs.document("r1", hang))
    return behind


@pytest.mark.parametrize("part", cases(4))
def test_hostile_reports_keep_accounts_equal(part, monkeypatch):
    for seed in range(part, SEEDS, 4):
        rng = random.Random(seed)
        monkeypatch.setattr(live, "ROWS_MAX", rng.choice([20, 200_000]))
        monkeypatch.setattr(live, "TOGETHER_ROWS_MAX", rng.choice([1 << 18, 2, 30]))
        try:
            play(story(rng, again=rng.random() < 0.5))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_run_that_starts_ahead_has_an_account():
    """By more than the stale time: the account is empty, from the start to the start."""
    store = Store()
    one = Rank(random.Random(1), 0, 1, START + ns(100), 1, wild=0, again=False)
    store.merge(one.report(), START)
    found = compute(store.runs["r1"], START, stale_seconds=STALE, known_only=True)
    assert (found.status, found.start_ns, found.end_ns) == ("running", START + ns(100), START + ns(100))
