"""Who may write the runs of a partition: always the one that took it last, however late another one goes on."""

from __future__ import annotations

import threading
import time

import pytest
from support.account.account_history import ns
from support.aggregator.later_goodput import HEAD, NEXT, later_migrations
from support.aggregator.reports import story

from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.database import Database
from goodput.aggregator.ledger.fence import Fence, Fenced, LedgerTooNew
from goodput.aggregator.ledger.ledger import Ledger, LedgerError

PARTITION = {"a": 0, "b": 1}


@pytest.fixture
def servers(postgresql, postgresql_template):
    """Makes ledger objects and fences over one database."""
    url, opened = postgresql.create_database(postgresql_template), []

    def server(stream: str = "s1") -> tuple[Ledger, Fence]:
        ledger = Ledger(url)
        opened.append(ledger)
        return ledger, Fence(ledger, stream, PARTITION.__getitem__)

    yield server
    for ledger in opened:
        ledger.close()
    postgresql.drop_databases()


@pytest.fixture
def new_program(tmp_path, monkeypatch):
    """Migrates a ledger as the next version will, and returns its version."""
    copy = later_migrations(tmp_path / "migrations")

    def migrate(database: Database) -> str | None:
        with monkeypatch.context() as patch:
            patch.setattr(migrations.importlib.resources, "files", lambda _: copy)
            patch.setattr(migrations, "HEAD", NEXT)
            migrations.migrate(database.migrating(), NEXT)
        with database.inspecting().connect() as connection:
            return migrations.version(connection)

    return migrate


def merged(run: str) -> list:
    """What a store has to write of a run."""
    store = Store()
    return [store.merge(report, ns(5000)) for ranks in story(run, ranks=1) for report in ranks]


def test_last_who_took_it_writes(servers):
    (one, first), (other, second) = servers(), servers()
    first.take(0)
    one.append(merged("a"))
    second.take(0)
    with pytest.raises(Fenced, match="another aggregator writes partition 0; nothing was written"):
        one.append(merged("a"))
    assert first.lost == {0}
    other.append(merged("a"))
    first.drop(0)
    assert first.lost == set()
    with pytest.raises(Fenced, match="partition 0"):
        one.append(merged("a"))
    first.take(0)
    one.append(merged("a"))
    with pytest.raises(Fenced):
        other.append(merged("a"))


def test_runs_of_partitions_not_held(servers):
    """Also after it was given away, when nothing of it is locked."""
    ledger, fence = servers()
    fence.take(0)
    with pytest.raises(Fenced, match="partition 1"):
        ledger.append(merged("b"))
    assert ledger.runs() == []
    with pytest.raises(Fenced, match="partition 1"):
        ledger.append(merged("a") + merged("b"))
    assert ledger.runs() == []
    fence.take(1)
    ledger.append(merged("a") + merged("b"))
    assert sorted(ledger.runs()) == ["a", "b"]


def test_transaction_that_has_begun_is_waited_for(servers):
    """A holder in the middle of a write ends it before another one takes the partition: nothing is written after that."""
    (one, first), (_, second) = servers(), servers()
    first.take(0)
    order = []

    def take() -> None:
        second.take(0)
        order.append("taken")

    taking = threading.Thread(target=take)
    with one.transaction({"a"}):
        taking.start()
        time.sleep(0.3)  # it would have been taken by now
        order.append("written")
    taking.join(30)
    assert order == ["written", "taken"]


def test_stopped_in_a_transaction(servers, monkeypatch):
    """Its locks end with its connection, which the server ends after a while."""
    (one, first), (_, second) = servers(), servers()
    first.take(0)
    with pytest.raises(LedgerError), one.transaction({"a"}) as connection:
        connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 300")
        second.take(0)
        connection.exec_driver_sql("SELECT 1")
    with pytest.raises(Fenced):
        one.append(merged("a"))


def test_positions(servers):
    (_, first), (_, second) = servers(), servers()
    assert (first.take(0), first.take(1)) == (0, 0)
    first.keep({0: 40, 1: 7, 2: 9})
    first.keep({0: 30})
    assert second.take(0) == 40, "a position never goes back"
    with pytest.raises(Fenced):
        first.keep({0: 50})
    first.drop(0)
    first.keep({0: 60, 1: 8})
    second.keep({0: 41})
    assert first.take(0) == 41
    second.drop(0)
    assert second.take(1) == 8


def test_another_stream_begins_anew(servers, caplog):
    """Its messages are numbered from 1 again, so a position of the one before would leave some out."""
    (_, first), (_, second) = servers(), servers("made anew")
    first.take(0)
    first.keep({0: 40})
    assert first.take(0) == 40 and not caplog.records
    assert second.take(0) == 0
    second.keep({0: 3})
    assert second.take(0) == 3
    (record,) = caplog.records
    assert "'made anew'; all messages are read again" in record.getMessage()


@pytest.mark.faults
def test_migration_ends_the_writes_of_running_programs(servers, new_program):
    """Though they could go on: the new column may be null. What they were writing is in the ledger before."""
    (one, first), (_, second) = servers(), servers()
    first.take(0)
    one.append(merged("a"))
    order, migrating = [], threading.Thread(target=lambda: order.append(new_program(one._database)))
    with one.transaction({"a"}):
        migrating.start()
        time.sleep(0.3)  # it would have been done by now
        order.append("written")
    migrating.join(60)
    assert order == ["written", NEXT]
    for write in (lambda: one.append(merged("a")), lambda: first.take(0), first.verify, second.verify):
        with pytest.raises(LedgerTooNew, match=f"has version {NEXT}, this program knows up to {HEAD}"):
            write()
    assert first.too_new and not first.lost
    first.drop(0)
    with pytest.raises(LedgerTooNew), one.transaction():
        pass
    with pytest.raises(
        LedgerError, match=f"has version {NEXT}, this program knows up to {HEAD}; use the version"
    ):
        Ledger(one._database._url.render_as_string(hide_password=False))
    assert len(list(one.processes("a"))) == 2
