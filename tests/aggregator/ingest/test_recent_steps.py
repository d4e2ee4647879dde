"""Steps counted together in step windows, against the same steps counted one by one; pushes merged together."""

import asyncio
import random
from itertools import accumulate

import numpy as np
import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.ledgers import NOW
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.account import Row
from goodput.aggregator.column_attempt import columns_of
from goodput.aggregator.ingest import checks
from goodput.aggregator.ingest import ingest as ingest_module
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.recent import recent_steps
from goodput.aggregator.ingest.recent.step_trends import (
    DISCRETE_SPANS,
    DISCRETE_WINDOWS,
    SLIDING_SPANS,
    SPAN_NS,
)
from goodput.aggregator.ingest.store import Store
from goodput.histograms.windows import StepSpans
from goodput.wire import schema
from goodput.wire.step_blocks import END, NUMBER, SAMPLES, START, TOTALS


def rows_of_rank(rng: random.Random) -> list[Row]:
    """Steps of a rank, some of them missing, the first at any number, some of no length or very long."""
    end, samples, rows = rng.randrange(10**9, 4 * 10**11), 0, []
    for number in range(rng.choice((1, 1, 5)), rng.randrange(2, 60)):
        length = rng.choice((0, rng.randrange(3 * 10**9), rng.randrange(10**11), 10**14))
        start, end = end, end + length
        samples = max(samples + rng.randrange(-2, 9), 0)
        if rng.random() < 0.9:
            rows.append(Row(number, number, start, end, samples, (end, number), (0, 0)))
    return rows


@pytest.mark.parametrize("seed", cases(8))
def test_windows_are_those_of_single_steps(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(recent_steps, "ROWS_MIN", rng.choice((1, 7, 1000)))
    together, alone = recent_steps.RecentSteps(), StepSpans(SPAN_NS, keep=SLIDING_SPANS)
    for _ in range(5):
        rows, before = rows_of_rank(rng), None
        while rows:
            some, rows = rows[: rng.randrange(1, 9)], rows
            rows = rows[len(some) :]
            last = None if before is None or some[0].number == 1 else columns_of([before]).tobytes()
            together.add(("none", "a"), columns_of(some), len(some), last)
            for row in some:
                had = before if row.number > 1 else Row(0, 0, 0, 0, 0, (), ())
                if had is not None and had.number == row.number - 1:
                    alone.add(row.end_ns, row.end_ns - row.start_ns, max(row.samples - had.samples, 0))
                before = row
    for now_ns in (10**9, 4 * 10**11, 10**12):
        found, sliding = together.windows(now_ns, 1), alone.sliding(now_ns)
        assert (found.sliding.steps, found.sliding.busy_ratio) == (sliding.steps, sliding.busy_ratio)
        assert found.sliding.samples_per_second == sliding.samples_per_second
        discrete = alone.discrete(now_ns, DISCRETE_SPANS, DISCRETE_WINDOWS)
        for one, want in zip(found.discrete, discrete, strict=True):
            assert (one.start, one.steps, one.busy_ratio) == (
                want.start_ns / 1e9,
                want.steps,
                want.busy_ratio,
            )
            assert one.step_seconds == type(one.step_seconds)(**want.step_seconds())


def following(before: list[int], columns: list[list[int]], shift: int, width: int) -> list[tuple[int, ...]]:
    """What counts of each step that follows the row before it, step by step; phases that a row lacks have no time."""
    found, last = [], before
    for row in map(list, zip(*columns, strict=True)):

        def inside(of: list[int], phase: int) -> int:
            total, apart = (TOTALS + 2 * phase + at for at in (0, 1))
            return of[total] - of[apart] if apart < len(of) else 0

        if row[NUMBER] == (last[NUMBER] if last else 0) + 1:
            samples = max(row[SAMPLES] - (last[SAMPLES] if last else 0), 0)
            spent = [max(inside(row, phase) - inside(last, phase), 0) for phase in range(1, width)]
            found.append((row[END], row[END] + shift, samples, row[END] - row[START], *spent))
        last = row
    return found


@pytest.mark.parametrize("seed", cases(8))
def test_following_steps_are_those_of_single_rows(seed):
    """Of ranks with fewer or more phases than are counted, and with none or another number before them."""
    rng = random.Random(seed)
    width, expected = rng.randrange(5), []
    waiting = recent_steps._Waiting(width)
    for _ in range(rng.choice((1, 40, 400))):
        rows, shift = rng.choice((1, 3, 7)), rng.randrange(-(1 << 20), 1 << 20)
        columns = [
            [rng.randrange(1 << 30) for _ in range(rows)] for _ in range(TOTALS + 2 * rng.choice((3, 4)))
        ]
        before = [rng.randrange(1 << 30) for _ in range(rng.choice((0, TOTALS, TOTALS + 2, TOTALS + 8)))]
        before[:1] = [rng.randrange(3)] * bool(before)
        columns[NUMBER] = list(
            accumulate([rng.randrange(1, 3) for _ in range(rows)], initial=before[0] if before else 0)
        )[1:]
        values = np.array(columns, np.int64)
        came = values.tobytes() if rng.random() < 0.5 else values
        waiting.add(came, rows, np.array(before, np.int64).tobytes(), shift)
        expected += following(before, columns, shift, max(width, 1))
    assert sorted(map(tuple, waiting.found().tolist())) == sorted(expected)


class SlowLedger:
    """A ledger whose first transaction is slow, so that the pushes after it share one."""

    def __init__(self):
        self.batches: list[int] = []

    def append(self, batch, *_):
        self.batches.append(len(batch))


def push_together(*bodies: bytes, ledger) -> tuple[Store, list]:
    store = Store()
    ingest = Ingest(store, ledger, clock_ns=lambda: NOW)

    async def push():
        return await asyncio.gather(*map(ingest.accept, bodies), return_exceptions=True)

    return store, asyncio.run(push())


def reports(ranks: int) -> list[schema.RankReport]:
    return [rank_report(Process(rank, world_size=ranks).steps(6, forward=1)) for rank in range(ranks)]


@pytest.mark.parametrize("rows_at_once", [1, 13, 8192])
def test_pushes_merged_together_keep_their_answers(rows_at_once, monkeypatch):
    """A wrong block, a rank that another process owns and a malformed body cost only themselves."""
    for module in (ingest_module, checks):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
    ranks = reports(6)
    (block,) = schema.in_blocks(ranks[1]).blocks
    wrong = replace(ranks[1], steps=[], blocks=[replace(block, least=(*block.least[:-1], -(10**12)))])
    claimed = replace(ranks[4], identity=replace(ranks[0].identity, pid=9, start_ns=ns(1)))
    bodies = [
        body_of(ranks[0], wrong),
        b"\xc1",
        body_of(ranks[2]),
        body_of(ranks[3], claimed),
        body_of(ranks[5]),
    ]
    store, answers = push_together(*bodies, ledger=(ledger := SlowLedger()))
    assert isinstance(answers[1], schema.SchemaError)
    got = [
        (one.accepted, [rejection.reason for rejection in one.rejected])
        for one in answers
        if one is not answers[1]
    ]
    assert got == [(1, ["malformed"]), (1, []), (1, ["claim"]), (1, [])]
    assert sorted(rank for rank, _ in store.runs["r1"].attempts) == [0, 2, 3, 5]
    assert ledger.batches == [4], "one transaction"


@pytest.mark.parametrize("where", ["check", "merge", "decode"])
def test_unforeseen_error_fails_one_push(where, monkeypatch):
    """The pushes beside it are answered, and nothing of theirs is merged twice."""
    ranks, merge, decode = reports(4), Store.merge, checks.decode_steps

    def fail_on(given: list[schema.RankReport]) -> None:
        if any(report.identity.rank == 2 for report in given):
            raise RuntimeError("unforeseen")

    if where == "check":
        check = schema.check
        monkeypatch.setattr(
            schema, "check", lambda report, **more: fail_on([report]) or check(report, **more)
        )
    elif where == "merge":
        monkeypatch.setattr(
            Store, "merge", lambda self, report, *of: fail_on([report]) or merge(self, report, *of)
        )
    else:
        monkeypatch.setattr(checks, "decode_steps", lambda given: fail_on(given) or decode(given))
    store, answers = push_together(*map(body_of, ranks), ledger=SlowLedger())
    assert [getattr(answer, "accepted", str(answer)) for answer in answers] == [1, 1, "unforeseen", 1]
    assert sorted(rank for rank, _ in store.runs["r1"].attempts) == [0, 1, 3]
    assert (store.new, store.repeated) == (18, 0)


def test_pushes_are_merged_while_the_ledger_does_not_answer(monkeypatch):
    monkeypatch.setattr(ingest_module, "UNMERGED_SECONDS", -1.0)
    store, ranks = Store(), reports(3)

    async def push():
        blocked = asyncio.Event()
        ingest = Ingest(store, SlowLedger(), clock_ns=lambda: NOW)
        monkeypatch.setattr(ingest, "_append", blocked.wait)
        pushes = [asyncio.ensure_future(ingest.accept(body_of(rank))) for rank in ranks]
        await asyncio.sleep(0)
        seen = len(store.runs["r1"].attempts)
        blocked.set()
        await asyncio.gather(*pushes)
        return seen

    assert asyncio.run(push()) == 3


def test_large_pushes_are_merged_in_slices(monkeypatch):
    """A backlog of many ranks: others have a turn between its ranks, and all of it is in one transaction."""
    monkeypatch.setattr(ingest_module, "ROWS_AT_ONCE", 4)
    ledger, turns, merged = SlowLedger(), [], []
    merge_some = ingest_module.Ingest._merge_some

    def noted(self) -> int:
        before = self._store.new
        weight = merge_some(self)
        merged.append(self._store.new - before)
        return weight

    monkeypatch.setattr(ingest_module.Ingest, "_merge_some", noted)

    async def scenario() -> None:
        ingest = ingest_module.Ingest(Store(), ledger, clock_ns=lambda: NOW)
        push = asyncio.ensure_future(ingest.accept(body_of(*reports(6))))
        while not push.done():
            await asyncio.sleep(0)
            turns.append(len(merged))
        assert push.result().accepted == 6 and ledger.batches == [6]

    asyncio.run(scenario())
    assert len(merged) == 6 and set(turns) >= set(range(1, 7))
