"""The ledger: round trips, repetition, failures, and restarts."""

import os
import re
import sqlite3

import pytest
from msgspec.structs import astuple, replace
from support.account.account_history import Process, ns
from support.aggregator.ledgers import (
    NOW,
    account,
    aggregator,
    bodies,
    contents,
    database,
    stored_reports,
    take,
)
from support.aggregator.reports import body_of, node_report, rank_report, story

from goodput.account import compute
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import database as database_module
from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.inserts import STATEMENT_ROWS_MAX
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.wire import schema

# ---- Round trips


def test_reports_round_trip_as_merged(ledger):
    ingest = aggregator(ledger)
    take(ingest, *bodies(*story()))
    found = list(stored_reports(ledger))
    assert [(r.identity.rank, r.identity.attempt) for r in found] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    for report in found:
        schema.check(replace(report, steps=[]))
        attempt = ingest._store.runs["r1"].attempts[report.identity.rank, report.identity.attempt]
        assert list(map(astuple, report.steps)) == attempt.ordered_rows()
        assert {event.number: event for event in report.events} == attempt.events
        assert (report.phases, report.phase_states) == (attempt.phases, attempt.phase_states)
        assert (report.live.ended, report.live.totals) == (attempt.ended, tuple(attempt.totals))


def test_restart_gives_the_same_account(url, ledger):
    before = aggregator(ledger)
    take(before, *bodies(*story(ranks=3)))
    want = account(before)
    assert want["status"] == "finished"
    ledger.close()
    again = Ledger(url)
    restored = aggregator(again)
    assert account(restored) == want
    assert compute(restored._store.runs["r1"], NOW) == compute(before._store.runs["r1"], NOW)
    assert (restored._store.new, restored._store.repeated) == (0, 0)
    again.close()


def test_restart_in_the_middle_continues(new_url):
    pushes = story()
    want = Store()
    for report in (report for push in pushes for report in push):
        want.merge(report, NOW)
    for at in (1, 7, 14, 20):
        path = new_url()
        first = Ledger(path)
        take(aggregator(first), *bodies(*pushes[:at]))
        first.close()
        second = Ledger(path)
        ingest = aggregator(second)
        # The responses to the last two pushes were lost.
        take(ingest, *bodies(*pushes[max(0, at - 2) :]))
        assert compute(ingest._store.runs["r1"], NOW) == compute(want.runs["r1"], NOW)
        second.close()


def test_assigned_attempt_numbers_survive_a_restart(url, ledger):
    ingest = aggregator(ledger)
    silent = Process(start=20).steps(4, forward=1)  # Its node went down, so its end is unknown.
    take(ingest, body_of(rank_report(silent)))
    # The next process has the same number from its launcher, and an earlier start by its own host's clock.
    other = Process(start=5).resumed(3).steps(3, forward=1).finished()
    report = rank_report(other, pid=77, host="n9")
    ingest._clock_ns = lambda: NOW + ns(60)
    (ack,) = take(ingest, body_of(report))
    assert ack.accepted == 1
    ledger.close()
    again = Ledger(url)
    restored = aggregator(again)
    for store in (ingest._store, restored._store):
        attempts = store.runs["r1"].attempts
        assert {key: a.host for key, a in attempts.items()} == {(0, 1): "n0", (0, 2): "n9"}
    # The process continues under its number.
    take(restored, body_of(report))
    assert sorted(restored._store.runs["r1"].attempts) == [(0, 1), (0, 2)]
    again.close()


def test_appending_again_changes_nothing(ledger, url):
    store = Store()
    batch = [store.merge(report, NOW) for push in story() for report in push]
    ledger.append(batch)
    first = contents(url)
    ledger.append(batch)
    ledger.append(list(reversed(batch)))
    assert contents(url) == first


def test_any_number_of_ranks_is_written_at_once(ledger):
    """SQLite gets many rows in one statement: each number of them is written, repeated and replaced alike."""
    ranks = [Process(at).steps(2, forward=1) for at in range(4 * STATEMENT_ROWS_MAX)]
    store, written = Store(), 0
    for count in (1, 2, 3, STATEMENT_ROWS_MAX - 1, STATEMENT_ROWS_MAX, STATEMENT_ROWS_MAX + 5):
        some = ranks[written : written + count]
        first = [store.merge(rank_report(one, world_size=512), NOW) for one in some]
        later = [store.merge(rank_report(one.step(forward=1), world_size=512), NOW) for one in some]
        ledger.append(later[::2] + first[1::2])
        ledger.append(first + later)
        written += count
    found = {report.identity.rank: report for report in stored_reports(ledger)}
    assert sorted(found) == list(range(written)) and written > 2 * STATEMENT_ROWS_MAX
    for rank, report in found.items():
        assert [row.number for row in report.steps] == [1, 2, 3], rank
        assert report.live.steps_done == 3, rank


def test_only_newer_live_part_replaces(ledger):
    one = Process().steps(2, forward=1)
    old = rank_report(one)
    new = rank_report(one.step(forward=1).finished(), rows=[])
    store = Store()
    batch = [store.merge(new, NOW), store.merge(old, NOW)]
    ledger.append(batch[:1])
    ledger.append(batch[1:])
    (found,) = stored_reports(ledger)
    assert (found.live.ended, found.sequence, len(found.steps)) == ("finished", new.sequence, 2)
    ledger.append([store.merge(replace(old, sequence=new.sequence + 1), NOW)])
    (found,) = stored_reports(ledger)
    assert found.live.ended == ""


def test_mark_with_any_text_is_stored(ledger):
    one = Process().step(forward=1)
    texts = ["plain", "nul \0 inside", "ünïcödé 🚀", "' \" ; --", ""]
    report = rank_report(one)
    events = [schema.EventRow(i, "mark", ns(1), 0, text) for i, text in enumerate(texts, 1)]
    take(aggregator(ledger), schema.encode(node_report(replace(report, events=events))))
    (found,) = stored_reports(ledger)
    assert [event.text for event in found.events] == [text.replace("\0", "?") for text in texts]


def test_every_valid_report_fits_the_ledger(ledger, url):
    most = schema.TIME_NS_MAX - 1
    one = Process(user={f"user {i:02d} {'x' * 23}": "loader" for i in range(16)}).step(forward=1)
    report = rank_report(
        one, run="ü" * 128, pid=most, start_ns=most, stage=(1 << 24) - 1, devices=1 << 16, world_size=schema.WORLD_SIZE_MAX,
        **dict.fromkeys(("host", "device", "device_uuid", "group"), "é" * 255),
        **dict.fromkeys(("flops_per_step", "peak_flops_per_second", "gpu_hour_cost"), 9.99e+29),
    )  # fmt: skip
    identity = replace(report.identity, attempt=1 << 20, rank=schema.WORLD_SIZE_MAX - 1)
    ends = (most,) * len(report.phases)
    row = schema.StepRow(most, most, 0, most, most, ends, ends)
    live = replace(report.live, now_ns=most, last_ns=most, step_next=most - 1, cost_ns=most, totals=ends)
    live = replace(live, drops={f"{i:02d}{'d' * 30}": most for i in range(schema.DROPS_MAX)}, end_ns=most)
    event = schema.EventRow(most, "k" * 32, most, most - 1, "🚀" * 255)
    extreme = replace(report, identity=identity, sequence=most, live=live, steps=[row], events=[event])
    # A clock of that time too: far ahead of the aggregator's own it would be refused.
    (ack,) = take(Ingest(Store(), ledger, clock_ns=lambda: most), schema.encode(node_report(extreme)))
    assert (ack.accepted, ack.rejected) == (1, [])
    (found,) = stored_reports(ledger)
    assert found == extreme


# ---- Opening


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "ledger"),
        ("sqlite:////nowhere/at/all/ledger.db", "unable to open"),
        ("mysql+nothing://u:secret@h/d", "ledger mysql"),
        ("oracle://u:secret@h/d", "ledger oracle"),
    ],
)
def test_open_error_names_cause_without_password(url, words):
    with pytest.raises(LedgerError) as error:
        Ledger(url)
    assert words in str(error.value) and "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_ledger_in_memory_is_refused(url):
    with pytest.raises(LedgerError, match="name a file"):
        Ledger(url)


def test_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look like one\n" * 50)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger(f"sqlite:///{tmp_path}/notes.txt")


def test_damaged_row_is_a_ledger_error(ledger, url):
    take(aggregator(ledger), *bodies(*story()))
    with database(url) as connection:
        connection.exec_driver_sql("update blocks set block = 'not MessagePack' where first = 2")
    with pytest.raises(LedgerError, match=rf"ledger {re.escape(ledger.url)}: "):
        list(stored_reports(ledger))


def test_opening_twice_keeps_what_is_there(url, ledger):
    take(aggregator(ledger), *bodies(*story()))
    first = contents(url)
    Ledger(url).close()
    assert contents(url) == first and first["alembic_version"] == [(migrations.HEAD,)]


@pytest.mark.parametrize("backend", ["sqlite"])
def test_sqlite_readers_and_writer_do_not_block(url, ledger):
    take(aggregator(ledger), *bodies(*story()))
    assert os.path.exists(url.removeprefix("sqlite:///") + "-wal")


class Busy:
    """A connection on which the change to WAL fails so often; SQLite answers so when two change it at once."""

    def __init__(self, text: str, failures: int):
        self.text, self.failures, self.done = text, failures, []

    def execute(self, statement: str) -> None:
        if "journal_mode" in statement and self.failures:
            self.failures -= 1
            raise sqlite3.OperationalError(self.text)
        self.done.append(statement)


def test_sqlite_retries_the_change_to_wal(monkeypatch):
    connection = Busy("database is locked", 3)
    database_module._configure_sqlite(connection, None)
    assert connection.failures == 0
    assert {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"} <= set(connection.done)
    with pytest.raises(sqlite3.OperationalError):
        database_module._configure_sqlite(Busy("disk I/O error", 1), None)
    monkeypatch.setattr(database_module, "LOCK_SECONDS_MAX", 0)
    with pytest.raises(sqlite3.OperationalError):
        database_module._configure_sqlite(Busy("database is locked", 1 << 30), None)


# ---- Step blocks


def stored_rows(url: str) -> list[int]:
    with database(url) as connection:
        return list(connection.exec_driver_sql("select rows from blocks order by id").scalars())


def test_only_new_rows_of_a_push_are_stored(ledger, url):
    one = Process().steps(30, forward=1)
    ingest = aggregator(ledger)
    for begin, end in ((0, 10), (0, 10), (10, 20), (15, 30)):
        take(ingest, body_of(rank_report(one, rows=one.rows[begin:end])))
    assert stored_rows(url) == [10, 10, 10]
    (found,) = stored_reports(ledger)
    assert found.steps == rank_report(one).steps


def test_a_long_pushed_block_is_cut(ledger, url):
    """Blocks of equal steps take a few bytes whatever their number, and are decoded as a whole."""
    one = Process().steps(5000, forward=1)
    take(aggregator(ledger), body_of(rank_report(one)))
    assert stored_rows(url) == [1024, 1024, 1024, 1024, 904]
    (found,) = stored_reports(ledger)
    assert found.steps == rank_report(one).steps
