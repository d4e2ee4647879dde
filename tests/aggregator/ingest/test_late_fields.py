"""Fields declared late apply to all steps: live, in the ledger and in the export, in any order."""

from __future__ import annotations

import itertools
import random

import pytest
from support.account.account_history import Process
from support.aggregator.exports import STALE, assert_export_equals_live
from support.aggregator.ledgers import NOW, account, aggregator, take
from support.aggregator.live_accounts import account_or_refold
from support.aggregator.reports import body_of, rank_report
from support.node.node_rank import SECOND, Rank
from support.node.node_tree import Clock, write_tree
from support.seeds import cases

from goodput.account import compute
from goodput.aggregator.accounts import live
from goodput.aggregator.accounts.live import IncrementalAccount
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.rank_page import page
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks.collector import Ranks

LATE = {
    "flops_per_step": 2e12,
    "peak_flops_per_second": 8e12,
    "gpu_hour_cost": 2.5,
    "devices": 2,
    "device": "NVIDIA H100 80GB HBM3",
    "dtype": "bf16",
    "gpu_power_watts": 500.0,
    "world_size": 2,
    "total_steps": 100,
}


def pushes(late: dict, steps: int = 12, declared_at: int = 5) -> list:
    """Two ranks, step by step; from push `declared_at` on each declares `late` too. Then they end."""
    ranks = [Process(r, 1, 1000.0 + r / 8, world_size=2).between(none=1) for r in range(2)]
    found = [[rank_report(one) for one in ranks]]
    for i in range(steps):
        for one in ranks:
            one.step(loader=0.125 + one.rank / 4, forward=0.5, communication=0.5 - one.rank / 4, samples=32)
        more = late if i >= declared_at else {}
        found.append([rank_report(one, rows=one.rows[-1:], events=[], **more) for one in ranks])
    found.append([rank_report(one.finished(), rows=[], events=[], **late) for one in ranks])
    return found


def test_live_ledger_and_export_agree_per_push(ledger, tmp_path):
    ingest = aggregator(ledger)
    for number, push in enumerate(pushes(LATE)):
        take(ingest, body_of(*push))
        now_ns = max(report.live.now_ns for report in push)
        assert_export_equals_live(ledger, ingest, tmp_path, now_ns)
        factors = account(ingest, now_ns=now_ns)["factors"]
        assert (factors["mfu"] is not None) == (number >= 6)
    found = account(ingest)
    kept = 12 * 2
    assert found["cost"]["total"] == pytest.approx(found["gpu_seconds"] / 3600 * 2.5)
    busy = sum(2 * 8e12 / 2 * seconds for seconds in [found["gpu_seconds"] / 2])
    assert found["factors"]["mfu"] == pytest.approx(kept * 2e12 / busy)
    restored = aggregator(ledger)
    assert account(restored) == found


def test_declared_fields_reach_the_export(ledger, tmp_path):
    write_tree(tmp_path)
    (tmp_path / "pages").mkdir()
    clock = Clock()
    settings = Settings(
        directory=str(tmp_path / "pages"),
        sysfs=str(tmp_path / "sys"),
        procfs=str(tmp_path / "proc"),
        monotonic_ns=clock.monotonic_ns,
        unix_ns=clock.unix_ns,
    )
    rank, agent = Rank(tmp_path / "pages", world_size=1, device=""), Ranks(settings)
    ingest = Ingest(Store(), ledger, clock_ns=clock.unix_ns)
    for i in range(10):
        rank.step({"forward": SECOND, "loader": SECOND}, samples=4)
        if i == 6:
            late = {name: value for name, value in LATE.items() if name != "world_size"}
            page.rewrite_identity(rank.words, {**rank.identity, **late})
        clock.seconds = 2.0 * (i + 1)
        (report,) = agent.poll()
        (ack,) = take(ingest, body_of(report))
        assert ack.accepted == 1
        assert_export_equals_live(ledger, ingest, tmp_path, clock.unix_ns())
    agent.close()
    found = account(ingest, now_ns=clock.unix_ns())
    # Without the first step's work, as long as its time is compiling provisionally.
    assert found["factors"]["mfu"] == pytest.approx(9 * 2e12 / (8e12 * 20))
    assert found["gpu_seconds"] == pytest.approx(40)
    assert found["cost"]["total"] == pytest.approx(40 / 3600 * 2.5)


def test_the_order_of_reports_changes_nothing(ledger):
    story = pushes(LATE, steps=3, declared_at=1)
    want = None
    for order in itertools.permutations(range(len(story))):
        store = Store()
        for at in (*order, *order[:2]):
            for report in story[at]:
                store.merge(report, 0)
        run = store.runs["r1"]
        found = [(a.flops_per_step, a.devices, a.gpu_hour_cost, a.world_size) for a in run.attempts.values()]
        found += [compute(run, NOW).gpu_ns(), {p.identity.flops_per_step for p in store.processes.values()}]
        want = want or found
        assert found == want
    assert want[0] == (2e12, 2, 2.5, 2)


@pytest.mark.parametrize("rows_max", [200_000, 20])
@pytest.mark.parametrize("seed", cases(6))
def test_incremental_fold_equals_full_account(seed, rows_max, monkeypatch):
    """Also a group that is declared after steps were compared, and after rows were dropped."""
    monkeypatch.setattr(live, "ROWS_MAX", rows_max)
    rng = random.Random(seed)
    store, whole, anew = Store(), Store(), 0
    folded = None
    ranks = [Process(r, 1, 1000.0 + rng.random(), world_size=4).between(none=1) for r in range(4)]
    declared: dict[int, dict] = {r: {} for r in range(4)}
    for _ in range(60):
        for one in ranks:
            wait = rng.random() / 2
            one.step(loader=wait, forward=0.5, communication=0.5 - wait + rng.random() / 8)
            if rng.random() < 0.05:
                declared[one.rank] = {
                    **declared[one.rank],
                    "group": f"g{rng.randrange(2)}",
                    "devices": rng.randrange(1, 4),
                }
            report = rank_report(one, rows=one.rows[-1:], events=[], **declared[one.rank])
            now_ns = report.live.now_ns
            store.merge(report, now_ns)
            whole.merge(report, now_ns)
        folded = folded or IncrementalAccount(store.runs["r1"], stall_seconds=60, stale_seconds=STALE)
        found, again = account_or_refold(folded, whole.runs["r1"], now_ns)
        anew += again
        want = compute(whole.runs["r1"], now_ns, stale_seconds=STALE, known_only=True)
        assert (found.ranks, found.straggler) == (want.ranks, want.straggler)
    assert rows_max > 20 or anew, "this test must refold from the history"
