"""Steps of a run that is not over are thinned up to a state of its account, which stays the same."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.exports import STALE
from support.aggregator.ledgers import take
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.account import Account
from goodput.account.states import STATES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.accounts.past import account_of
from goodput.aggregator.accounts.snapshots import Snapshots
from goodput.aggregator.api import ledger_maintenance
from goodput.aggregator.api.ledger_maintenance import LedgerMaintenance
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import bases, closed_runs, segments
from goodput.aggregator.ledger.compaction import Keep
from goodput.aggregator.ledger.deletion import delete
from goodput.aggregator.ledger.ledger import Ledger

KEPT_SECONDS, STALL_SECONDS = 900, 600.0
STALLED = (30, 130)  # steps
STALL = STATES.index("stall")


class Aggregator:
    """An aggregator without HTTP over a ledger, whose clock is that of the reports."""

    def __init__(self, ledger: Ledger, now_ns: int = 0):
        self.now_ns = now_ns
        self.ledger, self.ingest = ledger, Ingest(Store(), ledger, clock_ns=lambda: self.now_ns)
        self.accounts = Accounts(
            self.ingest._store, stall_seconds=60, stale_seconds=STALE, age_seconds=0, history=History(ledger),
            clock_ns=lambda: self.now_ns,
        )  # fmt: skip
        self.snapshots = Snapshots(self.accounts, self.ingest)
        self.maintenance = LedgerMaintenance(
            ledger, self.ingest, self.accounts, Keep(KEPT_SECONDS / 86_400, 90)
        )
        self.ingest.restore(then=self.maintenance.restored)

    def push(self, now_ns: int, *pushed: bytes) -> None:
        self.now_ns = now_ns
        take(self.ingest, *pushed)

    def account(self) -> Account:
        """The account once the run was folded again, if that is necessary, of whose rows none stay in memory then."""

        async def latest() -> Account:
            for _ in range(2):
                self.accounts._cached.clear()
                found = self.accounts.account("r1", self.now_ns)
                await asyncio.gather(*self.accounts._folding.values())
            return found

        found = asyncio.run(latest())
        self.accounts._lives["r1"].drop_rows()  # as those of a large run
        return found

    def store_state(self) -> None:
        asyncio.run(self.snapshots.write("r1", self.accounts._lives["r1"]))

    def maintain(self) -> None:
        async def maintain() -> None:
            await self.maintenance.move_bases(self.now_ns)
            await self.maintenance.compact(self.now_ns)

        asyncio.run(maintain())

    def base_account(self) -> Account:
        """The account at the end of the base's rows."""
        end_ns = segments.border_of(segments.state(self.ledger.fetch, *base_of(self.ledger)[::2])).end_ns
        return account_of(self.ledger, self.accounts.past(self.account()), (None, end_ns))

    def rows(self) -> int:
        """How many rows of steps the ledger has."""
        return sum(1 for one in self.ledger.processes("r1") for _ in self.ledger.rows(one.identity))


class Running:
    """A run of four ranks in two groups, reported to an aggregator that thins it, and to one that does not."""

    def __init__(self, rng: random.Random, thinned: Ledger, whole: Ledger):
        self.rng, self.thinned, self.whole = rng, Aggregator(thinned), Aggregator(whole)
        self.processes: list[Process] = []
        self.late_number: int | None = None  # of a row of the first process that `report_late` reports

    def start(self, number: int = 1, resumed: int | None = None) -> None:
        at = max((one.now_ns for one in self.processes), default=ns(1000)) / 1e9 + 5
        at = max(at, self.thinned.now_ns / 1e9)
        self.processes = [Process(r, number, at, world_size=4, group=f"g{r // 2}") for r in range(4)]
        self.sent = [0] * 4
        self.first = self.processes[0] if number == 1 else self.first
        for one in self.processes:
            one.between(none=2)
            if resumed is not None:
                one.resumed(resumed)

    def play(self, reports: int, lengths: tuple[float, float] = (4, 8)) -> None:
        """Steps in lock step, reported now and then; two take as long as a stall."""
        for at in range(reports):
            for _ in range(self.rng.randrange(5, 15)):
                self._step(lengths, STALL_SECONDS * (self.processes[0].step_next in STALLED))
                for one in self.processes:
                    if one.step_next % 40 == 0:
                        one.saved()
            self.push(self.processes)
            self.whole.account()
            self.thinned.account()
            if at % 2:
                self.thinned.store_state()

    def report(self, steps: int, lengths: tuple[float, float]) -> None:
        """Steps in lock step, reported together, without an account between them."""
        for _ in range(steps):
            self._step(lengths)
        self.push(self.processes)

    def _step(self, lengths: tuple[float, float], longer: float = 0.0) -> None:
        own = [round(self.rng.uniform(*lengths), 9) + longer for _ in self.processes]
        for one, seconds in zip(self.processes, own, strict=True):
            one.step(forward=seconds, communication=round(max(own) - seconds + 0.125, 9), samples=3)

    def push(self, processes: list[Process]) -> None:
        now_ns = max(one.now_ns for one in processes)
        for one in processes:
            rows = one.rows[self.sent[one.rank] :]
            self.sent[one.rank] = len(one.rows)
            late = self.late_number if one is self.first else None
            self._push(now_ns, one, [row for row in rows if row.number != late])

    def report_late(self) -> None:
        row = next(row for row in self.first.rows if row.number == self.late_number)
        self._push(max(one.now_ns for one in self.processes), self.first, [row])

    def _push(self, now_ns: int, process: Process, rows: list) -> None:
        body = body_of(rank_report(process, rows=rows))
        for to in (self.whole, self.thinned):
            to.push(now_ns, body)

    def die(self) -> None:
        """All ranks are killed."""
        for one in self.processes:
            one.killed(3)
        self.push(self.processes)

    def close(self) -> None:
        """All ranks finish, and the thinned run is closed."""
        self.push([one.finished() for one in self.processes])
        self.thinned.now_ns += ns(KEPT_SECONDS + 100)
        asyncio.run(self.thinned.maintenance.close_runs(self.thinned.now_ns))
        assert closed_runs.is_closed(self.thinned.ledger, "r1")

    def restart(self) -> None:
        """Another aggregator over the thinned ledger takes the place of the one before."""
        self.thinned = Aggregator(self.thinned.ledger, self.thinned.now_ns)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Bases move on after some minutes."""
    monkeypatch.setattr(ledger_maintenance, "SEGMENT_ROWS", 2)


@pytest.fixture
def running(ledger, tmp_path, request):
    whole = Ledger(f"sqlite:///{tmp_path}/whole.db")
    yield Running(random.Random(request.node.callspec.params.get("seed", 0)), ledger, whole)
    whole.close()


def base_of(ledger: Ledger) -> bases.Base:
    (found,) = bases.stored(ledger.fetch, "r1")
    return found


@pytest.mark.parametrize("seed", cases(3))
def test_account_of_a_thinned_run_goes_on(running, seed):
    """Also after restarts of the aggregator and of the run."""
    running.start()
    running.play(30)
    running.thinned.maintain()
    assert running.thinned.rows() < running.whole.rows()
    assert closed_runs.thinned_seconds(running.thinned.ledger, "r1") == 60
    first = base_of(running.thinned.ledger)
    assert running.thinned.account() == running.whole.account()
    running.restart()
    assert running.thinned.account() == running.whole.account()
    running.play(10)
    running.die()
    running.start(2, resumed=running.processes[0].rows[-1].step - 7)
    running.play(12)
    running.thinned.maintain()
    assert base_of(running.thinned.ledger).rows > first.rows
    assert running.thinned.account() == running.whole.account()
    running.restart()
    running.play(2)
    assert running.thinned.account() == running.whole.account()
    assert all(rank.states[STALL] for rank in running.whole.account().ranks), "or the case shows little"


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("seed", cases(3))
def test_resume_from_a_checkpoint_before_the_base(running, seed):
    """Which steps are kept and lost is exact, since the rows of checkpoints are kept."""
    running.start()
    running.play(30)
    running.thinned.maintain()
    running.die()
    step, base = 79, base_of(running.thinned.ledger)
    assert segments.numbers(running.thinned.ledger.fetch, "r1", base.rows)[0, 1] > step + 20
    running.start(2, resumed=step)
    running.play(6)
    found, whole = running.thinned.account(), running.whole.account()
    assert_closes(found)
    for mine, theirs in zip(found.ranks, whole.ranks, strict=True):
        assert (mine.wall_ns, mine.kept_steps, mine.lost_steps) == (
            theirs.wall_ns,
            theirs.kept_steps,
            theirs.lost_steps,
        )
    assert found.restarts[0].lost_steps == whole.restarts[0].lost_steps > 0
    running.play(8)
    running.thinned.maintain()
    running.restart()
    assert running.thinned.account().ranks[0].kept_steps == running.whole.account().ranks[0].kept_steps


def test_windows_of_a_thinned_run(running):
    """Between two states that are left they are exact; others have the resolution of the rows that are left."""
    running.start()
    running.play(40)
    ledger = running.thinned.ledger
    past = running.thinned.accounts.past(running.thinned.account())
    ends = {row.step: row.end_ns for row in ledger.rows(ledger.processes("r1")[0].identity)}
    running.thinned.maintain()
    base, at = base_of(ledger), {}
    for rows in ledger.segment_rows("r1"):
        if rows <= base.rows:
            at[rows] = ends[segments.border_of(segments.state(ledger.fetch, "r1", rows)).spans[1][1]]
    assert len(at) > 3
    windows = [(one, other) for one in at.values() for other in at.values() if one < other]
    for window in windows:
        found = account_of(ledger, past, window)
        want = account_of(running.whole.ledger, past, window)
        assert [rank.states for rank in found.ranks] == [rank.states for rank in want.ranks]
    for _ in range(20):
        window = tuple(sorted(running.rng.randrange(ns(1010), running.thinned.now_ns) for _ in range(2)))
        found = account_of(ledger, past, window)
        want = account_of(running.whole.ledger, past, window)
        for mine, theirs in zip(found.ranks, want.ranks, strict=True):
            assert sum(mine.states) == sum(theirs.states) == mine.wall_ns
            assert abs(mine.productive_ns - theirs.productive_ns) < ns(140)


def test_base_stays_where_states_make_room(running, monkeypatch):
    running.start()
    running.play(24)
    running.thinned.maintain()
    base = base_of(running.thinned.ledger)
    assert base.rows in running.thinned.ledger.segment_rows("r1")
    monkeypatch.setattr(segments, "COUNT_MAX", 3)
    running.play(6)
    assert base.rows in running.thinned.ledger.segment_rows("r1")
    assert len(running.thinned.ledger.segment_rows("r1")) <= 4
    monkeypatch.setattr(segments, "BYTES_MAX", 1)
    running.play(2)
    assert len(found := running.thinned.ledger.segment_rows("r1")) == 2 and base.rows in found


def test_minutes_become_hours(running):
    """Once they are old enough, up to a base of their own."""
    running.start()
    running.play(40)
    running.thinned.maintain()
    minutes = running.thinned.rows()
    running.thinned.maintenance.compaction.keep.minutes_days = KEPT_SECONDS / 86_400
    running.thinned.maintain()
    assert [one.tier for one in bases.stored(running.thinned.ledger.fetch, "r1")] == [3600, 60]
    assert running.thinned.rows() < minutes
    assert closed_runs.thinned_seconds(running.thinned.ledger, "r1") == 3600
    running.restart()
    running.play(2)
    assert running.thinned.account() == running.whole.account()


@pytest.mark.parametrize("backend", ["sqlite"])
def test_base_is_looked_for_again_soon_where_there_was_none(running):
    """The first states of a run are younger than the steps that are kept."""
    running.start()
    running.play(1)
    aggregator = running.thinned
    aggregator.now_ns += ns(2 * KEPT_SECONDS)
    aggregator.account()
    aggregator.maintain()
    assert not bases.stored(aggregator.ledger.fetch), "it has no state"
    aggregator.store_state()
    aggregator.now_ns += ns(120 / ledger_maintenance.MOVES + 1)
    aggregator.account()
    aggregator.maintain()
    assert bases.stored(aggregator.ledger.fetch)


@pytest.mark.parametrize("backend", ["sqlite"])
def test_run_whose_base_cannot_be_moved_holds_up_no_other(running, monkeypatch):
    running.start()
    running.play(24)
    aggregator, tried = running.thinned, []

    async def failing(account, tier, before_ns):
        tried.append(account.run)
        raise ValueError("damaged")

    monkeypatch.setattr(aggregator.maintenance, "_move_base", failing)
    for _ in range(2):
        with suppress(ValueError):
            asyncio.run(aggregator.maintenance.move_bases(aggregator.now_ns))
    assert tried == ["r1"], "it is not tried first each time"


def test_longer_steps_change_no_stall_before(running):
    """Whatever the stall threshold becomes: what a step was charged to depends on those before it, thinned or not."""
    running.start()
    running.play(24)
    running.thinned.maintain()
    before = running.thinned.base_account()
    assert all(rank.states[STALL] for rank in before.ranks)
    running.play(30, lengths=(900, 1000))
    found, whole = running.thinned.account(), running.whole.account()
    assert found == whole and whole.threshold_ns > ns(STALL_SECONDS)
    running.restart()
    assert running.thinned.account() == whole


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("backend", ["sqlite"])
def test_late_row_before_all_states_of_a_thinned_run(running, is_closed):
    """No state is left, so the thinned rows are folded: steps are exact, and the account closes."""
    running.late_number = 4
    running.start()
    running.play(55)
    if is_closed:
        running.close()
    running.thinned.maintain()
    assert closed_runs.thinned_seconds(running.thinned.ledger, "r1") == 60
    if is_closed:
        running.start(2, resumed=running.processes[0].step_next // 40 * 40 - 1)
        running.play(3)
    running.report_late()
    assert not running.thinned.ledger.segment_rows("r1")
    running.thinned.account()
    running.thinned.accounts._folded.clear()  # else the next fold would wait
    found, whole = running.thinned.account(), running.whole.account()
    assert_closes(found)
    for mine, theirs in zip(found.ranks, whole.ranks, strict=True):
        assert (mine.wall_ns, mine.kept_steps, mine.lost_steps) == (
            theirs.wall_ns,
            theirs.kept_steps,
            theirs.lost_steps,
        )


def test_deleted_run_has_no_base(running):
    running.start()
    running.play(24)
    running.thinned.maintain()
    ledger, base = running.thinned.ledger, base_of(running.thinned.ledger)
    for _ in delete(ledger, "r1"):
        pass
    bases.put(ledger, base)  # as by a program that was moving it
    assert not bases.stored(ledger.fetch)
