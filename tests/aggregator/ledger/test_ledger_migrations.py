"""Ledgers of earlier versions, of later ones, half-made ones, and several programs that open one at once."""

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import sqlalchemy as sql
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.ledgers import NOW, contents, database
from support.aggregator.reports import rank_report, story

from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import database as database_module
from goodput.aggregator.ledger import ledger as ledger_module
from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.migrations import version_2
from goodput.aggregator.records import NewRecords

# The tables as the first version published them, word by word: migrations must start from what is out there.
KEY = "run VARCHAR(128) NOT NULL, rank INTEGER NOT NULL, host VARCHAR(255) NOT NULL, pid BIGINT NOT NULL, start_ns BIGINT NOT NULL"
VERSION_1 = (
    "CREATE TABLE ledger (version INTEGER NOT NULL, PRIMARY KEY (version))",
    "INSERT INTO ledger VALUES (1)",
    f"CREATE TABLE processes ({KEY}, sequence BIGINT NOT NULL, report BYTES NOT NULL,"
    " PRIMARY KEY (run, rank, host, pid, start_ns))",
    f"CREATE TABLE step_chunks ({KEY}, first BIGINT NOT NULL, last BIGINT NOT NULL, rows BYTES NOT NULL,"
    " PRIMARY KEY (run, rank, host, pid, start_ns, first, last))",
    f"CREATE TABLE events ({KEY}, number BIGINT NOT NULL, kind VARCHAR(32) NOT NULL, time_ns BIGINT NOT NULL,"
    " step BIGINT NOT NULL, text VARCHAR(255) NOT NULL, PRIMARY KEY (run, rank, host, pid, start_ns, number))",
)


def merged(reports) -> list[NewRecords]:
    store = Store()
    return [store.merge(report, NOW) for report in reports]


def old_ledger(url: str, batch: list[NewRecords]) -> None:
    """A version-1 ledger with this in it, as version 1 wrote it."""
    with database(url) as connection:
        bytes_type = {"sqlite": "BLOB", "postgresql": "BYTEA"}[connection.dialect.name]
        for statement in VERSION_1:
            connection.exec_driver_sql(statement.replace("BYTES", bytes_type))
        tables = sql.MetaData()
        tables.reflect(connection)
        newest = {}
        for one in batch:
            identity = one.report.identity
            key = {name: getattr(identity, name) for name in ("run", "rank", "host", "pid", "start_ns")}
            if one.rows:
                numbers = [row.number for row in one.rows]
                rows = msgspec.msgpack.encode(one.rows)
                values = {**key, "first": min(numbers), "last": max(numbers), "rows": rows}
                connection.execute(tables.tables["step_chunks"].insert(), values)
            for event in one.events:
                connection.execute(tables.tables["events"].insert(), {**key, **msgspec.structs.asdict(event)})
            newest[tuple(key.values())] = {
                **key,
                "sequence": one.report.sequence,
                "report": msgspec.msgpack.encode(one.report),
            }
        connection.execute(tables.tables["processes"].insert(), list(newest.values()))


def everything() -> list[NewRecords]:
    """Two attempts of two ranks, and a rank whose rows came all at once, in disorder."""
    long = rank_report(Process(5).steps(1200, forward=0.25), run="long")
    long = replace(long, steps=long.steps[700:] + long.steps[:700])
    return merged([report for push in story() for report in push] + [long])


def shape(url: str) -> dict:
    """Columns, keys and indices of every table."""
    with database(url) as connection:
        look = sql.inspect(connection)
        return {
            name: (
                [(c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(name)],
                look.get_pk_constraint(name)["constrained_columns"],
                sorted((index["name"], index["column_names"]) for index in look.get_indexes(name)),
            )
            for name in look.get_table_names()
        }


def test_an_old_ledger_is_brought_up_to_date_and_holds_what_it_held(new_url, monkeypatch):
    monkeypatch.setattr(version_2, "PAGE_CHUNKS", 3)  # Many pages, the last one not full.
    old, new = new_url(), new_url()
    batch = everything()
    old_ledger(old, batch)
    with_append = Ledger(new)
    with_append.append(batch)
    migrated = Ledger(old)
    assert contents(old) == contents(new), "to the byte, as if this version had written it"
    assert list(migrated.reports()) == list(with_append.reports())
    assert sum(len(report.steps) for report in migrated.reports()) == 2 * 20 + 1200
    migrated.append(batch)
    assert contents(old) == contents(new), "and agents may repeat what they sent to the old one"
    migrated.close()
    with_append.close()


def test_a_ledger_that_grew_and_a_new_one_have_the_same_tables_which_are_those_of_the_program(new_url):
    old, new, made = new_url(), new_url(), new_url()
    old_ledger(old, everything())
    Ledger(old).close()
    Ledger(new).close()
    with database(made) as connection:
        ledger_module._tables.create_all(connection)
    assert shape(old) == shape(new)
    assert {name: table for name, table in shape(new).items() if name != "ledger"} == shape(made)


def test_the_times_of_chunks_are_those_of_their_rows(url):
    old_ledger(url, everything())
    ledger = Ledger(url)
    with database(url) as connection:
        chunks = connection.execute(sql.select(ledger_module._chunks)).mappings().all()
    for chunk in chunks:
        rows = msgspec.msgpack.decode(chunk["rows"])
        assert chunk["start_ns_first"] == min(row[2] for row in rows)
        assert chunk["end_ns_last"] == max(row[3] for row in rows)
        assert len(rows) <= ledger_module.CHUNK_ROWS_MAX
    assert len(chunks) == 2 * 20 + 3
    ledger.close()


@pytest.mark.parametrize("old", [True, False])
def test_of_several_programs_that_open_a_ledger_at_once_one_works_and_all_find_it_done(new_url, old):
    for _ in range(5):
        url, done, errors = new_url(), [], []
        batch = everything()
        if old:
            old_ledger(url, batch)
        together = threading.Barrier(6)

        def open_it(url=url, together=together, done=done, errors=errors):
            together.wait(10)
            try:
                ledger = Ledger(url)
                done.append([report.identity.rank for report in ledger.reports()])
                ledger.close()
            except LedgerError as error:
                errors.append(error)

        threads = [threading.Thread(target=open_it) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == [] and done == [[5, 0, 1, 0, 1] if old else []] * 6
        assert contents(url)["ledger"] == [(len(migrations.VERSIONS),)]


def test_a_version_is_done_once(url, monkeypatch):
    calls = []
    upgrade = version_2.upgrade
    counted = SimpleNamespace(upgrade=lambda connection: (calls.append(1), upgrade(connection)))
    monkeypatch.setattr(migrations, "VERSIONS", (migrations.version_1, counted))
    old_ledger(url, everything())
    for _ in range(3):
        Ledger(url).close()
    assert calls == [1]


def test_a_newer_version_is_refused_with_a_clear_text_and_left_alone(url, backend):
    with database(url) as connection:
        connection.exec_driver_sql("create table ledger (version integer primary key)")
        connection.exec_driver_sql("insert into ledger values (9)")
    path = Path(url.removeprefix("sqlite:///"))
    before = path.read_bytes() if backend == "sqlite" else None
    with pytest.raises(LedgerError) as error:
        Ledger(url)
    assert f"has version 9, this program knows {ledger_module.VERSION}" in str(error.value)
    assert contents(url) == {"ledger": [(9,)]}
    if before is not None:
        assert path.read_bytes() == before


def test_a_failed_migration_leaves_the_version_before_it_whole(url, monkeypatch):
    def upgrade(connection):
        version_2.upgrade(connection)
        connection.exec_driver_sql("delete from events")
        connection.exec_driver_sql("create table more (number integer)")
        raise ValueError("out of luck")

    batch = everything()
    old_ledger(url, batch)
    before, tables = contents(url), shape(url)
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "VERSIONS", (migrations.version_1, SimpleNamespace(upgrade=upgrade)))
        with pytest.raises(LedgerError, match=r"^ledger .*: out of luck$"):
            Ledger(url)
    assert contents(url) == before and shape(url) == tables
    ledger = Ledger(url)
    assert len(list(ledger.reports())) == 5
    ledger.close()


def test_a_damaged_old_chunk_is_named_and_nothing_is_changed(url):
    old_ledger(url, everything())
    with database(url) as connection:
        connection.exec_driver_sql("update step_chunks set rows = 'garbage' where rank = 1 and first = 3")
    before = contents(url)
    with pytest.raises(LedgerError, match=re.escape("a chunk is damaged (run 'r1' rank 1 steps 3 to 3)")):
        Ledger(url)
    assert contents(url) == before


def test_what_a_killed_first_program_left_half_made_is_made_whole(url):
    with database(url) as connection:
        connection.exec_driver_sql(VERSION_1[0])
        connection.exec_driver_sql(VERSION_1[4].replace("BYTES", "BLOB"))
    ledger = Ledger(url)
    batch = everything()
    ledger.append(batch)
    assert len(list(ledger.reports())) == 5
    ledger.close()


def test_waiting_for_somebody_elses_migration_has_an_end(url, monkeypatch):
    monkeypatch.setattr(database_module, "MIGRATION_WAIT_SECONDS_MAX", 1)
    old_ledger(url, everything())
    before = contents(url)
    holder = database_module.Database(url).migrating()
    with holder.begin(), pytest.raises(LedgerError, match="lock"):
        Ledger(url)
    assert contents(url) == before
    Ledger(url).close()
