"""Series of checkpoints, restarts and GPUs: clocks, absence and bounds."""

from types import SimpleNamespace

import pytest
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api import run_series
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.api.run_series import RESTARTS_SHOWN
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store

# Who may see all runs, and not the aggregator itself.
RUNS = SimpleNamespace(may=lambda run: True, is_of_all=False)


class Board:
    """A store with a clock of its own, and what it exposes."""

    def __init__(self):
        self.store, self.now_ns = Store(), 0
        health = HealthLog()
        ingest = Ingest(self.store, None, health=health)
        self._accounts = Accounts(
            self.store, history=History(None), stall_seconds=60.0, stale_seconds=1e6, age_seconds=0.0
        )
        self._accounts.account = lambda name, now_ns=None, of=self._accounts.account: of(name, self.now_ns)
        view = HealthCosts(health, self._accounts)
        self._exposition = Exposition(self._accounts, ingest, view, None, clock_ns=lambda: self.now_ns)

    def take(self, *processes: Process, at: float | None = None, **given) -> None:
        """All that the processes have by now arrives, at once or at `at`."""
        for one in processes:
            self.now_ns = ns(at) if at is not None else max(one.now_ns, self.now_ns)
            self.store.merge(rank_report(one, **given), self.now_ns)

    def restore(self, *processes: Process) -> None:
        for one in processes:
            self.store.merge(rank_report(one), 0)

    def series(self, name: str) -> dict | float | None:
        """The value of a run's series; by attempt where it has one; None where it is absent."""
        families = self._exposition.families(RUNS)
        found = {s.labels.get("attempt"): s.value for f in families for s in f.samples if s.name == name}
        return found.get(None) if None in found else found or None


def saving(one: Process, steps: int, seconds: float) -> Process:
    """Some steps of a second, then a save of so long."""
    one.steps(steps, forward=1)
    one.event("checkpoint_begun", one.step_next - 1)
    return one.between(checkpoint=seconds).event("checkpoint_committed", one.step_next - 1)


def test_no_checkpoint_no_series():
    board = Board()
    board.take(Process(0, 1, 1000).steps(5, forward=1))
    for name in ("age", "interval", "last_save"):
        assert board.series(f"goodput_checkpoint_{name}_seconds") is None


def test_age_interval_and_length_of_saves():
    board, one = Board(), Process(0, 1, 1000)
    board.take(saving(one, 10, 2))
    assert board.series("goodput_checkpoint_age_seconds") == 0
    assert board.series("goodput_checkpoint_last_save_seconds") == 2
    assert board.series("goodput_checkpoint_interval_seconds") is None, "one commit makes no interval"
    for steps, seconds in ((20, 2), (30, 5), (400, 3)):
        board.take(saving(one, steps, seconds))
    board.now_ns += ns(7)
    assert board.series("goodput_checkpoint_age_seconds") == 7
    assert board.series("goodput_checkpoint_last_save_seconds") == 3
    assert board.series("goodput_checkpoint_interval_seconds") == 35, "the median of 22, 35 and 403"


def test_age_and_intervals_use_their_own_clocks():
    """A host that is an hour ahead, and another that is behind, save a part each; reports come twice and late."""
    board = Board()
    ahead, behind = Process(0, 1, 1000 + 3600, world_size=2), Process(1, 1, 1000 - 600, world_size=2)
    for _ in range(3):
        saving(ahead, 10, 1), saving(behind, 10, 4)
        board.take(ahead, behind, at=2000)
        board.take(ahead, behind, at=2010)
    # `behind` needs 3 s longer for each, so their pages are read at different moments; each is judged by its own.
    assert board.series("goodput_checkpoint_age_seconds") == 10
    assert board.series("goodput_checkpoint_interval_seconds") == 11
    assert board.series("goodput_checkpoint_last_save_seconds") == 4, "the slowest part"
    saving(ahead, 10, 1), saving(behind, 10, 4)
    board.take(behind, ahead, at=2020)
    assert board.series("goodput_checkpoint_last_save_seconds") == 4, "whichever rank reports it first"


def test_late_commit_has_its_age():
    board, one = Board(), Process(0, 1, 1000)
    saving(one, 10, 1).steps(50, forward=1)
    board.take(one, at=5000)
    assert board.series("goodput_checkpoint_age_seconds") == 50


def test_commits_of_two_attempts_give_no_interval():
    board, one = Board(), Process(0, 1, 1000)
    saving(saving(one, 10, 1), 10, 1).killed()
    board.take(one)
    again = saving(Process(0, 2, 5000).resumed(19), 10, 1)
    board.take(again)
    assert board.series("goodput_checkpoint_interval_seconds") == 11
    assert board.series("goodput_checkpoint_age_seconds") == 0


def test_the_ledger_has_the_same():
    board, other, one = Board(), Board(), Process(0, 1, 1000)
    board.take(saving(saving(one, 10, 1), 10, 2))
    other.restore(one)
    board.now_ns = other.now_ns = board.now_ns + ns(30)
    for name in ("age", "interval", "last_save"):
        assert board.series(f"goodput_checkpoint_{name}_seconds") == other.series(
            f"goodput_checkpoint_{name}_seconds"
        )


def test_repeated_commit_counts_once():
    board, one = Board(), Process(0, 1, 1000)
    saving(one, 10, 1).between(none=3).event("checkpoint_committed", 9)
    board.take(one)
    assert board.series("goodput_checkpoint_interval_seconds") is None
    board.take(one.event("checkpoint_begun", 9).steps(5, forward=1).event("checkpoint_committed", 14))
    assert board.series("goodput_checkpoint_last_save_seconds") is None
    assert board.series("goodput_checkpoint_interval_seconds") == 5


def test_memory_does_not_grow_with_checkpoints():
    board, one = Board(), Process(0, 1, 1000)
    for _ in range(200):
        saving(one, 1, 1)
    board.take(one)
    saves = board.store.checkpoints["r1"]
    assert len(saves.intervals_ns) == len(saves._counted) == 32


def test_newest_restarts_are_exposed_by_attempt():
    board, at, one = Board(), 1000.0, None
    for number in range(1, RESTARTS_SHOWN + 4):
        one = Process(0, number, at, devices=4)
        if number > 1:
            one.resumed(1)
        one.steps(10, forward=1).killed()
        board.take(one)
        at = one.now_ns / 1e9 + 5
    lost = board.series("goodput_restart_lost_gpu_seconds")
    assert list(lost) == [str(number) for number in range(4, RESTARTS_SHOWN + 4)]
    assert lost["4"] == 4 * 10, "the third attempt's steps after step 1, on 4 GPUs"
    assert board.series("goodput_restart_down_seconds")["5"] == 5
    newest = board.series("goodput_restart_timestamp_seconds")[str(RESTARTS_SHOWN + 3)]
    assert newest == one.start_ns / 1e9


def test_run_gpus_follow_the_world_size():
    board = Board()
    ranks = [Process(r, 1, 1000, world_size=3, devices=2).steps(3, forward=1) for r in (0, 1)]
    board.take(*ranks)
    assert board.series("goodput_run_gpus") == 6, "a rank without reports is allocated too"
    board.take(*(one.killed() for one in ranks))
    assert board.series("goodput_run_gpus") == 6
    one = Process(0, 2, 1100, world_size=1, devices=2).steps(3, forward=1)
    board.take(one)
    assert board.series("goodput_run_gpus") == 2
    board.take(saving(one, 1, 1).finished())
    assert board.series("goodput_run_info") == 1 and board.series("goodput_run_gpus") is None
    assert board.series("goodput_checkpoint_age_seconds") is None, "a finished run has nothing to save"


def test_only_ranks_that_reported_count_for_the_cluster():
    """A rank may claim any world; the GPUs that its run adds to the cluster's figures are those that were seen."""
    board = Board()
    board.take(Process(0, 1, 1000, world_size=262_144, devices=2).steps(3, forward=1))
    assert board.series("goodput_run_gpus") == 524_288 and board.series("goodput_run_reported_gpus") == 2
    ranks = [Process(r, 2, 1100, world_size=2, devices=2).steps(3, forward=1) for r in (0, 1)]
    board.take(*ranks)
    assert board.series("goodput_run_reported_gpus") == 4
    board.take(*(one.killed() for one in ranks))
    assert board.series("goodput_run_reported_gpus") == 4, "a run that failed had its GPUs"
    board.take(Process(0, 3, 1200, world_size=1, devices=2).steps(3, forward=1).finished())
    assert board.series("goodput_run_reported_gpus") == 2


@pytest.mark.parametrize("kinds", [("checkpoint_committed",), ("checkpoint_begun", "mark")])
def test_unmatched_checkpoint_events_give_no_length(kinds):
    board, one = Board(), Process(0, 1, 1000).steps(3, forward=1)
    for kind in kinds:
        one.event(kind, 2)
    board.take(one)
    assert board.series("goodput_checkpoint_last_save_seconds") is None
    assert (board.series("goodput_checkpoint_age_seconds") is None) == (kinds[0] == "checkpoint_begun")


def phases_shown(board: Board) -> dict[str, set[str]]:
    """Phases with series, by run."""
    found: dict[str, set[str]] = {}
    for family in board._exposition.families(RUNS):
        for one in family.samples:
            if one.name in ("goodput_run_phase_seconds", "goodput_run_phase_duration_seconds_count"):
                found.setdefault(one.labels["run"], set()).add(one.labels["phase"])
    return found


def test_phases_that_runs_name_are_bounded_together(monkeypatch):
    """2000 runs that named 27 phases each made a text of 51 MB. All runs have the same share, and our own phases theirs."""
    monkeypatch.setattr(run_series, "NAMED_PHASES_SHOWN", 30)
    names = [f"mine-{number}" for number in range(14)]
    board = Board()
    for number in range(2):
        one = Process(0, 1, 1000, user=dict.fromkeys([*names, "before_forward"], "loader"))
        board.take(one.steps(3, loader=1, before_forward=1, **dict.fromkeys(names, 1)), run=f"r{number}")
    assert phases_shown(board)["r1"] >= {*names, "loader", "before_forward"}, "15 of each run"
    assert board._exposition._series.used_share() == 14 / 15
    for number in range(2, 10):
        one = Process(0, 1, 1000, user=dict.fromkeys(names, "loader"))
        board.take(one.steps(3, loader=1, **dict.fromkeys(names, 1)), run=f"r{number}")
    shown = phases_shown(board)
    assert {run: len(phases & set(names)) for run, phases in shown.items()} == {f"r{n}": 3 for n in range(10)}
    assert all("loader" in phases for phases in shown.values()) and "before_forward" in shown["r0"]
    assert board._exposition._series.used_share() == 14 / 3


def test_ranks_that_report_nothing_are_named():
    """Rank 1 is silent, rank 3 of four never reported; the others do."""
    board, ranks = (
        Board(),
        [Process(rank, 1, 1000, world_size=4, host=f"n{rank}").steps(10, forward=1) for rank in range(3)],
    )
    board.take(*ranks, at=1010)
    for one in (ranks[0], ranks[2]):
        one.steps(140, forward=1)
    board.take(ranks[0], ranks[2], at=1150)
    families = board._exposition.families(RUNS)
    found = {
        (s.labels["rank"], s.labels["host"]): s.value
        for f in families
        for s in f.samples
        if s.name == "goodput_rank_missing_seconds"
    }
    assert found == {("3", ""): 150, ("1", "n1"): 140}
