"""Merging and thinning of step blocks: no row missing or twice, no figure of an account changed."""

import asyncio
import random
import threading
import time
import zlib

import numpy as np
import pytest
import sqlalchemy as sql
from msgspec.structs import replace
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.exports import STALE, with_integers
from support.aggregator.ledgers import NOW, bodies, database, records_of, take
from support.aggregator.old_ledgers import identity_of, report_of, rows_of
from support.aggregator.reports import body_of, rank_report, story
from support.seeds import cases

from goodput.account import document
from goodput.aggregator import records
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api.ledger_maintenance import LedgerMaintenance
from goodput.aggregator.column_attempt import columns_of
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import block_reader, blocks, closed_runs, inspection
from goodput.aggregator.ledger.compaction import DAY_NS, Compaction, Keep
from goodput.aggregator.ledger.deletion import delete
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.records import new_blocks
from goodput.causes import explain
from goodput.wire import schema


def push(ledger, rank: int, rows, events=()) -> None:
    report = report_of(identity_of(rank), rows[-1].number, rows[-1].end_ns)
    ledger.append([records_of(report, rows, events)])


def filled(ledger, ranks: int = 2, steps: int = 1500, at_once: int = 10) -> list[list]:
    """A ledger with the pushes of some ranks; their rows."""
    found = [list(rows_of(identity_of(rank), steps)) for rank in range(ranks)]
    for at in range(0, steps, at_once):
        for rank, rows in enumerate(found):
            push(ledger, rank, rows[at : at + at_once])
    return found


def block_rows(url: str, tier: int = 0) -> list[int]:
    with database(url) as connection:
        query = f"select rows from blocks where tier = {tier} order by process, first"
        return list(connection.exec_driver_sql(query).scalars())


def close(ledger, run: str = "r1") -> None:
    state = closed_runs.state_of(ledger, run)
    closed_runs.close_run(ledger, run, state, closed_runs.newest_ns(ledger, run), {"document": b"{}"})


def finish(work) -> None:
    for _ in work:
        pass


def test_merging_keeps_every_row(ledger, url):
    want = filled(ledger)
    assert set(block_rows(url)) == {10}
    compaction = Compaction(ledger)
    finish(compaction.work(0))
    # What does not fill a block yet is left for the next pushes.
    assert block_rows(url) == [1020, *[10] * 48] * 2
    assert [list(ledger.rows(identity_of(rank))) for rank in range(2)] == want
    assert compaction.counts.blocks_merged == 2 * 102 and compaction.counts.bytes_freed > 0
    finish(compaction.work(0, merge_all=True))
    assert block_rows(url) == [1020, 480] * 2
    assert [list(ledger.rows(identity_of(rank))) for rank in range(2)] == want
    finish(compaction.work(0, merge_all=True))
    assert compaction.counts.blocks_merged == 2 * 150, "what is merged stays"


def test_merging_what_was_appended_needs_no_search(ledger, url):
    want = filled(ledger, ranks=3, steps=1100)
    push(ledger, 3, list(rows_of(identity_of(3), 5)))
    finish(Compaction(ledger).work(0, search=False))
    assert block_rows(url) == [1020, *[10] * 8] * 3 + [5]
    assert [list(ledger.rows(identity_of(rank))) for rank in range(3)] == want
    assert list(ledger.appended.values()) == [5]
    other = Ledger(url)
    finish(Compaction(other).work(0, search=False))
    assert block_rows(url) == [1020, *[10] * 8] * 3 + [5], "it appended nothing"
    other.close()


def test_columns_equal_rows(ledger):
    (rows,) = filled(ledger, ranks=1, steps=700)
    (process,) = ledger.processes("r1")
    for window in ((None, None), (rows[100].start_ns, rows[300].end_ns)):
        want = list(ledger.rows(process.identity, *window))
        found = [row for part in ledger.columns(process, *window) for row in blocks.step_rows(part.values)]
        assert found == want
        assert all(part.begins.tolist() == [0, len(part)] for part in ledger.columns(process, *window))


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("seed", cases(8))
def test_readers_see_each_row_once_during_merges(ledger, monkeypatch, seed):
    """Blocks are merged and rows pushed between any two rows that a slow reader takes."""
    rng = random.Random(seed)
    monkeypatch.setattr(block_reader, "PAGE_BLOCKS", rng.randint(1, 5))
    monkeypatch.setattr(records, "BLOCK_ROWS_MAX", 40)
    monkeypatch.setattr("goodput.aggregator.ledger.compaction.SMALL_ROWS", 20)
    rows = list(rows_of(identity_of(0), 400))
    at = 0
    while at < 300:  # Pushes of which some repeat a part of the one before, and some come late.
        size = rng.randint(1, 12)
        push(ledger, 0, rows[max(at - rng.randint(0, 3), 0) : at + size])
        at += size
    push(ledger, 0, [rows[at - 1 - back] for back in (250, 130, 7)])
    reader, found = ledger.rows(identity_of(0)), []
    work = Compaction(ledger).work(0)
    for row in reader:
        found.append(row)
        if rng.random() < 0.2 and next(work, True) is True:
            push(ledger, 0, rows[at : at + 5])
            at = min(at + 5, 395)
            work = Compaction(ledger).work(0, merge_all=rng.random() < 0.3)
    assert found == rows[: len(found)] and len(found) >= 300


def test_several_compactions_at_once_keep_every_row(ledger, url):
    want = filled(ledger, ranks=4, steps=1100, at_once=50)
    others = [ledger, Ledger(url), Ledger(url)]
    compactions = [Compaction(one) for one in others]
    threads = [threading.Thread(target=lambda one=one: finish(one.work(0))) for one in compactions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [list(ledger.rows(identity_of(rank))) for rank in range(4)] == want
    assert block_rows(url) == [1000, 50, 50] * 4
    assert sum(one.counts.blocks_merged for one in compactions) == 4 * 20
    for one in others[1:]:
        one.close()


def test_thinned_run_keeps_minutes_and_named_steps(ledger, url):
    want = filled(ledger, ranks=1, steps=2000, at_once=500)[0]
    named = schema.EventRow(1, "checkpoint_committed", want[777].end_ns, 777)
    push(ledger, 0, want[-1:], [named])
    newest_ns = want[-1].end_ns
    compaction = Compaction(ledger, Keep(7, 90))
    finish(compaction.work(newest_ns + 8 * DAY_NS))
    assert block_rows(url, 60) == [], "the run is not closed"
    close(ledger)
    finish(compaction.work(newest_ns + 6 * DAY_NS))
    assert block_rows(url, 60) == [], "its time is not over"
    finish(compaction.work(newest_ns + 7 * DAY_NS))
    assert block_rows(url) == []
    kept = list(ledger.rows(identity_of(0)))
    minutes = {row.end_ns // 60_000_000_000: row for row in want}
    expected = {row.number for row in (*minutes.values(), want[0], want[-1], want[777])}
    assert [row.number for row in kept] == sorted(expected) and set(kept) <= set(want)
    assert compaction.counts.rows_thinned == 2000 - len(kept)
    finish(compaction.work(newest_ns + 90 * DAY_NS))
    hours = list(ledger.rows(identity_of(0)))
    assert block_rows(url, 60) == [] and block_rows(url, 3600) == [len(hours)]
    assert (hours[0], hours[-1]) == (want[0], want[-1]) and want[777] in hours and len(hours) <= 6


def test_damaged_thinned_block_is_refused(ledger):
    (rows,) = filled(ledger, ranks=1, steps=400, at_once=400)
    (whole,) = ledger.columns(ledger.processes("r1")[0])
    (one,) = blocks.block_columns(whole.values, blocks.MINUTES)
    assert blocks.step_rows(blocks.decode([blocks.StoredBlock(1, one["width"], one["block"])])) == rows
    bomb = zlib.compress(bytes(1 << 26))
    for damaged in (one["block"][:-9], one["block"][:20] + b"x" + one["block"][21:], bomb, b"x"):
        with pytest.raises(ValueError):
            blocks.decode([blocks.StoredBlock(1, one["width"], damaged)])


def test_blocks_are_checked_for_their_own_width():
    """Also beside wider ones, with which they are checked and decoded together."""
    wide = columns_of(rows_of(identity_of(0), 30))
    whole, narrow = (new_blocks(values)[0] for values in (wide, np.ascontiguousarray(wide[:-2])))
    stored = [blocks.StoredBlock(at, one.width, one.block) for at, one in enumerate((whole, narrow, whole))]
    found = blocks.decode_columns(stored)
    assert found.begins.tolist() == [0, 30, 60, 90] and (found.values[:-2, 30:60] == wide[:-2]).all()
    with pytest.raises(blocks.BlockError, match="columns"):
        blocks.decode([*stored, stored[0]._replace(width=2)])


def test_closed_run_that_goes_on_is_not_thinned(ledger, url):
    rows = list(rows_of(identity_of(0), 600))
    push(ledger, 0, rows[:500])
    close(ledger)
    assert closed_runs.stored_account(ledger, "r1") == b"{}"
    push(ledger, 0, rows[500:])
    assert closed_runs.stored_account(ledger, "r1") is None
    finish(Compaction(ledger).work(rows[-1].end_ns + 30 * DAY_NS))
    assert list(ledger.rows(identity_of(0))) == rows


def test_steps_of_a_run_that_goes_on_while_it_is_thinned_are_kept(ledger, url):
    rows = filled(ledger, ranks=2, steps=600)
    close(ledger)
    work = Compaction(ledger).work(rows[0][-1].end_ns + 8 * DAY_NS)
    next(work)
    later = list(rows_of(identity_of(0), 900))[600:]
    push(ledger, 0, later)
    push(ledger, 1, list(rows_of(identity_of(1), 900))[600:])
    finish(work)
    assert sum(block_rows(url, blocks.MINUTES)) and sum(block_rows(url)) == 600
    assert [row for row in ledger.rows(identity_of(0)) if row.number > 600] == later


@pytest.mark.parametrize("backend", ["sqlite"])
def test_rank_step_stays_within_its_bytes(ledger):
    """48 bytes a rank-step at rest, 1 byte after compaction to minutes, the whole file counted."""
    steps = 61_000
    rows = list(rows_of(identity_of(0), steps))
    for at in range(0, steps, 500):
        push(ledger, 0, rows[at : at + 500])
    compaction = Compaction(ledger)
    empty = 120_000  # of tables without rows
    finish(compaction.work(0, merge_all=True))
    ledger.vacuum()
    assert inspection.size_bytes(ledger) - empty < 48 * steps
    close(ledger)
    finish(compaction.work(rows[-1].end_ns + 7 * DAY_NS))
    ledger.vacuum()
    assert inspection.size_bytes(ledger) - empty < steps
    assert len(list(ledger.rows(identity_of(0)))) >= steps // 70


# ---- In the aggregator


def maintained(ledger) -> tuple[Ingest, Accounts, LedgerMaintenance]:
    ingest = Ingest(Store(), ledger, clock_ns=lambda: NOW)
    accounts = Accounts(ingest._store, stall_seconds=60, stale_seconds=STALE, history=History(ledger))
    maintenance = LedgerMaintenance(ledger, ingest, accounts, Keep(7, 90))
    ingest.restore(then=maintenance.restored)
    return ingest, accounts, maintenance


def test_account_of_a_thinned_run_is_the_same(ledger, url):
    """Its steps are one row a minute, but its account is that of every step, also after a restart."""
    ingest, accounts, maintenance = maintained(ledger)
    take(ingest, *bodies(*story(ranks=3)))
    want = accounts.account("r1")
    steps = sum(1 for one in ledger.processes("r1") for _ in ledger.rows(one.identity))

    async def maintain(now_ns):
        await maintenance.close_runs(now_ns)
        await maintenance.compact(now_ns)

    asyncio.run(maintain(NOW + DAY_NS))
    assert closed_runs.is_closed(ledger, "r1") and "r1" in ingest._store.stored, "it ended over an hour ago"
    assert closed_runs.thinned_seconds(ledger, "r1") == 0, "it ended less than 7 days ago"
    asyncio.run(maintain(NOW + 8 * DAY_NS))
    asyncio.run(maintain(NOW + 8 * DAY_NS))
    thinned = sum(1 for one in ledger.processes("r1") for _ in ledger.rows(one.identity))
    assert thinned < steps
    asyncio.run(maintenance.memory.load("r1"))
    assert (ingest.counts["ledger", "runs_closed_total"], accounts.account("r1")) == (1, want)
    assert ingest.counts["ledger", "rows_thinned_total"] == steps - thinned
    restarted, again, _ = maintained(ledger)
    assert again.account("r1") == want
    assert document(again.account("r1"), explain(want)) == document(want, explain(want))
    take(restarted, *bodies(*story(run="other")))
    assert again.account("r1") == want


def test_closed_run_goes_on_after_a_restart(ledger, url):
    """Its stored account stands until its steps have been read from the ledger again."""
    ingest, accounts, maintenance = maintained(ledger)
    first = [
        Process(rank, 1, 1000.0, world_size=2).steps(9, forward=1, communication=0.25) for rank in (0, 1)
    ]
    take(ingest, *(body_of(rank_report(one.finished())) for one in first))
    want = accounts.account("r1")
    asyncio.run(maintenance.close_runs(NOW + 8 * DAY_NS))
    restarted, again, _ = maintained(ledger)
    assert all(one.kept_rows() == 0 for one in restarted._store.runs["r1"].attempts.values())

    async def go_on():
        for rank in (0, 1):
            more = Process(rank, 2, 1100.0, world_size=2).resumed(8).steps(4, forward=1).finished()
            await restarted.accept(body_of(rank_report(more)))
        assert again.account("r1") == want
        until = time.monotonic() + 30
        while again.account("r1") == want and time.monotonic() < until:
            await asyncio.sleep(0.05)

    asyncio.run(go_on())
    account = again.account("r1")
    assert_closes(account)
    assert [rank.kept_steps for rank in account.ranks] == [13, 13]
    assert account.restarts[0].lost_steps == 0


def test_closed_run_starts_again_without_a_step(ledger):
    """Such as in its setup: until a step comes it has an account as any run."""
    ingest, accounts, maintenance = maintained(ledger)
    first = [Process(rank, 1, 1000.0, world_size=2).steps(9, forward=1).finished() for rank in (0, 1)]
    take(ingest, *(body_of(rank_report(one)) for one in first))
    accounts.account("r1")
    asyncio.run(maintenance.close_runs(NOW + DAY_NS))
    restarted, again, _ = maintained(ledger)
    more = [Process(rank, 2, 1100.0, world_size=2).resumed(8).between(none=3) for rank in (0, 1)]
    take(restarted, *(body_of(rank_report(one)) for one in more))

    async def folded_again():
        for _ in range(2):
            account = again.account("r1", ns(1104))
            await asyncio.gather(*again._folding.values())
        return account

    account = asyncio.run(folded_again())
    assert_closes(account)
    assert account.status == "running" and [rank.kept_steps for rank in account.ranks] == [9, 9]


def test_late_rows_of_a_thinned_run_are_exact(ledger, tmp_path):
    """Reported after a week without a network: the account is that of all rows, though most of them are thinned."""
    processes = [Process(rank, 1, 1000.0, world_size=2) for rank in (0, 1)]
    for at in range(30):
        for one in processes:
            one.step(forward=1, loader=at % 3 / 4, communication=(1 + (5 * at + 3 * one.rank) % 4) / 8)
    whole = [rank_report(one.finished()) for one in processes]
    first = [replace(one, sequence=one.sequence - 1, steps=one.steps[:20]) for one in whole]

    async def late(ingest, accounts, maintenance):
        await ingest.accept(body_of(*first))
        for _ in range(2):
            await maintenance.close_runs(NOW + 8 * DAY_NS)
            await maintenance.compact(NOW + 8 * DAY_NS)
        assert ingest.counts["ledger", "rows_thinned_total"] > 20
        before = accounts.last_of("r1")
        await ingest.accept(body_of(*(replace(one, steps=one.steps[20:]) for one in whole)))
        until = time.monotonic() + 30
        while accounts.account("r1", NOW) == before and time.monotonic() < until:
            await asyncio.sleep(0.02)
        while accounts._folding and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return accounts.account("r1", NOW)

    found = asyncio.run(late(*maintained(ledger)))
    ingest, accounts, _ = maintained(Ledger(f"sqlite:///{tmp_path}/other.db"))
    take(ingest, body_of(*whole))
    assert with_integers(found) == with_integers(accounts.account("r1", NOW))


def test_deleted_run_does_not_come_back(ledger, url):
    ingest, accounts, maintenance = maintained(ledger)
    take(ingest, *bodies(*story()), *bodies(*story("kept", start=500)))
    accounts.account("r1")
    other = Ledger(url)  # of another program
    finish(delete(other, "r1"))
    other.close()
    asyncio.run(maintenance.forget_deleted())
    assert list(ingest._store.runs) == ["kept"]
    with pytest.raises(KeyError):
        accounts.account("r1")
    take(ingest, *bodies(*story("later", start=600)))
    assert ledger.runs() == ["kept", "later"]
    assert list(inspection.damages(ledger)) == []
    restarted, _, _ = maintained(ledger)
    assert sorted(restarted._store.runs) == ["kept", "later"]
    assert len(restarted._store.processes) == len(ingest._store.processes) == 8


def test_run_can_be_reported_again_after_its_deletion(ledger):
    ingest, accounts, maintenance = maintained(ledger)
    take(ingest, *bodies(*story()))
    finish(delete(ledger, "r1"))
    asyncio.run(maintenance.forget_deleted())
    take(ingest, *bodies(*story()))
    asyncio.run(maintenance.forget_deleted())
    assert ledger.runs() == ["r1"] and accounts.account("r1").status == "finished"


def test_maintenance_survives_a_broken_ledger(ledger, monkeypatch, caplog):
    ingest, _, maintenance = maintained(ledger)
    monkeypatch.setattr("goodput.aggregator.api.ledger_maintenance.DELETIONS_EVERY_SECONDS", 0.01)
    with ledger.transaction() as connection:
        connection.execute(sql.text("ALTER TABLE deletions RENAME TO hidden"))

    async def some_rounds():
        task = asyncio.ensure_future(maintenance.run())
        deadline = time.monotonic() + 30
        while ingest.counts["ledger", "error"] < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(some_rounds())
    assert ingest.counts["ledger", "error"] >= 2 and "maintenance of the ledger" in caplog.text
