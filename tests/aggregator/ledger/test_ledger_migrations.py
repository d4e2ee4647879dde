"""Ledgers of earlier and later versions, half-made ones, and several programs that open one at once."""

import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sql
from alembic.config import Config
from alembic.script import ScriptDirectory
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.ledgers import NOW, contents, database, stored_reports
from support.aggregator.old_ledgers import chunk_columns, identity_of, rows_of
from support.aggregator.old_ledgers import make as version_4_ledger
from support.aggregator.reports import rank_report, story

from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import database as database_module
from goodput.aggregator.ledger import migrations
from goodput.aggregator.ledger.blocks import StoredBlock, decode, step_rows
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.migrations import conversion
from goodput.aggregator.ledger.migrations.versions import version_5
from goodput.aggregator.records import NewRecords

# The tables exactly as version 4 made them.
KEY = "run VARCHAR(128) NOT NULL, rank INTEGER NOT NULL, host VARCHAR(255) NOT NULL, pid BIGINT NOT NULL, start_ns BIGINT NOT NULL"
BY_KEY = "PRIMARY KEY (run, rank, host, pid, start_ns"
VERSION_4 = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
    " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))",
    "INSERT INTO alembic_version VALUES ('4')",
    f"CREATE TABLE processes ({KEY}, sequence BIGINT NOT NULL, report BYTES NOT NULL, {BY_KEY}))",
    "CREATE INDEX processes_by_start ON processes (start_ns, rank, run, host, pid)",
    f"CREATE TABLE chunks ({KEY}, first BIGINT NOT NULL, last BIGINT NOT NULL, digest BIGINT NOT NULL,"
    f" start_ns_first BIGINT NOT NULL, end_ns_last BIGINT NOT NULL, rows BYTES NOT NULL, {BY_KEY}, first, last, digest))",
    "CREATE INDEX chunks_by_end ON chunks (run, rank, start_ns, end_ns_last, start_ns_first, first)",
    f"CREATE TABLE events ({KEY}, number BIGINT NOT NULL, kind VARCHAR(32) NOT NULL, time_ns BIGINT NOT NULL,"
    f" step BIGINT NOT NULL, text VARCHAR(255) NOT NULL, {BY_KEY}, number))",
    "CREATE TABLE health (node VARCHAR(255) NOT NULL, number BIGINT NOT NULL, severity INTEGER NOT NULL,"
    " time_ns BIGINT NOT NULL, event BYTES NOT NULL, PRIMARY KEY (node, number))",
    "CREATE INDEX health_by_severity ON health (node, severity, time_ns)",
    f"CREATE TABLE ends ({KEY}, reason VARCHAR(32) NOT NULL, at_ns BIGINT NOT NULL, until_ns BIGINT NOT NULL,"
    f" said_ns BIGINT NOT NULL, {BY_KEY}))",
)


def merged(reports) -> list[NewRecords]:
    store = Store()
    return [store.merge(report, NOW) for report in reports]


def old_ledger(url: str, batch: list[NewRecords]) -> None:
    """A ledger with this content as version 4 wrote it."""
    with database(url) as connection:
        bytes_type = {"sqlite": "BLOB", "postgresql": "BYTEA"}[connection.dialect.name]
        for statement in VERSION_4:
            connection.exec_driver_sql(statement.replace("BYTES", bytes_type))
        tables = sql.MetaData()
        tables.reflect(connection)
        newest = {}
        for one in batch:
            identity = one.report.identity
            key = {name: getattr(identity, name) for name in ("run", "rank", "host", "pid", "start_ns")}
            rows = sorted(one.rows(), key=lambda row: row.number) if one.blocks else []
            for at in range(0, len(rows), 512):
                values = {**key, **chunk_columns(rows[at : at + 512])}
                connection.execute(tables.tables["chunks"].insert(), values)
            for event in one.events:
                connection.execute(tables.tables["events"].insert(), {**key, **msgspec.structs.asdict(event)})
            newest[tuple(key.values())] = {
                **key,
                "sequence": one.report.sequence,
                "report": msgspec.msgpack.encode(one.report),
            }
        connection.execute(tables.tables["processes"].insert(), list(newest.values()))


def everything() -> list[NewRecords]:
    """Two attempts of two ranks, and a rank whose rows arrive at once and out of order."""
    long = rank_report(Process(5).steps(1200, forward=0.25), run="long")
    long = replace(long, steps=long.steps[700:] + long.steps[:700])
    return merged([report for push in story() for report in push] + [long])


def shape(url: str) -> dict:
    """Columns, keys, constraints and indices of every table."""
    with database(url) as connection:
        inspector = sql.inspect(connection)
        return {
            name: (
                [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)],
                inspector.get_pk_constraint(name)["constrained_columns"],
                inspector.get_unique_constraints(name),
                inspector.get_foreign_keys(name),
                sorted(inspector.get_indexes(name), key=lambda index: index["name"]),
            )
            for name in inspector.get_table_names()
        }


@pytest.fixture
def revisions(tmp_path, monkeypatch):
    """A copy of the migrations that a test may edit: `edit(version, old, new)` replaces text in one revision."""
    copy = shutil.copytree(Path(migrations.__file__).parent, tmp_path / "migrations")
    monkeypatch.setattr(migrations.importlib.resources, "files", lambda _: copy)

    def edit(number: int, old: str, new: str) -> None:
        path = copy / "versions" / f"version_{number}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return edit


def test_migrated_ledger_holds_what_the_old_one_held(new_url, monkeypatch):
    monkeypatch.setattr(conversion, "PAGE_CHUNKS", 2)
    monkeypatch.setattr(conversion, "ROWS_AT_ONCE", 7)
    old, new = new_url(), new_url()
    batch = everything()
    old_ledger(old, batch)
    with_append = Ledger(new)
    with_append.append(batch)
    migrated = Ledger(old)
    want = list(stored_reports(with_append))
    assert list(stored_reports(migrated)) == want
    assert sum(len(report.steps) for report in want) == 2 * 20 + 1200
    found, expected = contents(old), contents(new)
    same = expected.keys() - {"blocks", "processes"}
    assert found["events"] and all(row[-1] is None for row in found["events"])
    for name in ("events", "health", "ends"):  # of an earlier version they have no checksum
        found[name], expected[name] = ([row[:-1] for row in of[name]] for of in (found, expected))
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    migrated.append(batch)
    assert list(stored_reports(migrated)) == want, "agents may repeat what they pushed to the old one"
    migrated.close()
    with_append.close()


def test_migrated_and_new_ledgers_have_the_same_tables(new_url):
    old, new = new_url(), new_url()
    old_ledger(old, everything())
    Ledger(old).close()
    Ledger(new).close()
    assert shape(old) == shape(new)
    assert migrations.TABLES_OF == migrations.HEAD, "a new ledger is made without migrating"


def test_new_ledger_is_made_without_what_others_need(tmp_path):
    """Alembic and the dialect of PostgreSQL take 14 MiB for as long as the aggregator runs."""
    url = f"sqlite:///{tmp_path}/new.db"
    program = f"""
import sys
from goodput.aggregator.ledger.database import insert
from goodput.aggregator.ledger.ledger import Ledger
from goodput.aggregator.ledger.migrations.versions import version_5
Ledger({url!r})
insert("sqlite", version_5.blocks).on_conflict_do_nothing()
print([name for name in ("alembic", "sqlalchemy.dialects.postgresql") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_index_of_blocks_has_their_ids_on_postgresql():
    """So that what is looked for by the index is found without reading the table."""
    made = []
    engine = sql.create_mock_engine(
        "postgresql+psycopg://",
        lambda statement, *_, **__: made.append(str(statement.compile(dialect=engine.dialect))),
    )
    version_5.blocks.create(engine, checkfirst=False)
    assert made[-1].endswith("tier, digest) INCLUDE (id)")


def test_migrated_blocks_match_their_rows(url):
    old_ledger(url, everything())
    ledger = Ledger(url)
    with database(url) as connection:
        found = connection.execute(sql.select(version_5.blocks)).mappings().all()
    for block in found:
        rows = list(step_rows(decode([StoredBlock(block["id"], block["width"], block["block"])])))
        assert [row.number for row in rows] == sorted({row.number for row in rows})
        assert (block["first"], block["last"], block["rows"]) == (rows[0].number, rows[-1].number, len(rows))
        assert block["start_ns_first"] == min(row.start_ns for row in rows)
        assert block["end_ns_last"] == max(row.end_ns for row in rows)
    assert sorted(block["rows"] for block in found) == [8, 8, 12, 12, 176, 1024]
    ledger.close()


@pytest.mark.parametrize("old", [True, False])
def test_concurrent_openers_migrate_once(new_url, old):
    for _ in range(2):
        url, done, errors = new_url(), [], []
        batch = everything()
        if old:
            old_ledger(url, batch)
        together = threading.Barrier(6)

        def open_it(url=url, together=together, done=done, errors=errors):
            together.wait(120)
            try:
                ledger = Ledger(url)
                done.append([report.identity.rank for report in stored_reports(ledger)])
                ledger.close()
            except LedgerError as error:
                errors.append(error)

        threads = [threading.Thread(target=open_it) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == [] and done == [[5, 0, 1, 0, 1] if old else []] * 6
        assert contents(url)["alembic_version"] == [(migrations.HEAD,)]


def test_head_is_the_newest_revision():
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.HEAD]


def test_a_revision_runs_once(url, revisions, tmp_path):
    log = tmp_path / "upgrades"
    revisions(
        5, "connection = op.get_bind()", f"connection = op.get_bind(); open({str(log)!r}, 'a').write('5 ')"
    )
    old_ledger(url, everything())
    for _ in range(3):
        Ledger(url).close()
    assert log.read_text() == "5 "


@pytest.mark.parametrize(
    "version, why",
    [
        ("9", f"has version 9, this program knows up to {migrations.HEAD}; use the"),
        ("3", "it has version 3, this program converts versions from 4 on"),
    ],
)
def test_other_versions_are_refused_and_left_alone(url, backend, version, why):
    with database(url) as connection:
        connection.exec_driver_sql("create table alembic_version (version_num varchar(32))")
        connection.exec_driver_sql(f"insert into alembic_version values ('{version}')")
    before = contents(url)
    path = Path(url.removeprefix("sqlite:///"))
    bytes_before = path.read_bytes() if backend == "sqlite" else None
    with pytest.raises(LedgerError, match=why):
        Ledger(url)
    assert contents(url) == before
    if bytes_before is not None:
        assert path.read_bytes() == bytes_before


def test_failed_migration_leaves_the_old_ledger_whole(url, revisions):
    revisions(
        5,
        '    op.drop_table("processes_4")\n',
        """    op.drop_table("processes_4")
    connection.exec_driver_sql("delete from events")
    connection.exec_driver_sql("create table more (number integer)")
    raise ValueError("out of luck")
""",
    )
    old_ledger(url, everything())
    before, tables = contents(url), shape(url)
    with pytest.raises(LedgerError, match=r"^ledger .*: out of luck$"):
        Ledger(url)
    assert contents(url) == before and shape(url) == tables
    revisions(5, 'raise ValueError("out of luck")', "")
    revisions(5, 'connection.exec_driver_sql("delete from events")', "")
    revisions(5, 'connection.exec_driver_sql("create table more (number integer)")', "")
    ledger = Ledger(url)
    assert len(list(stored_reports(ledger))) == 5
    ledger.close()


def test_waiting_for_another_migration_times_out(url, monkeypatch):
    monkeypatch.setattr(database_module, "MIGRATION_WAIT_SECONDS_MAX", 1)
    old_ledger(url, everything())
    before = contents(url)
    holder = database_module.Database(url).migrating()
    with holder.begin(), pytest.raises(LedgerError, match="lock"):
        Ledger(url)
    assert contents(url) == before
    Ledger(url).close()


def test_a_ledger_in_conversion_is_refused_by_older_programs(url, monkeypatch):
    old_ledger(url, everything())
    engine = database_module.Database(url).migrating()
    migrations.migrate(engine, migrations.CONVERTING)
    with pytest.raises(ValueError, match="not converted yet"):
        migrations._upgrade(engine, migrations.HEAD)
    assert contents(url)["alembic_version"] == [(migrations.CONVERTING,)]
    monkeypatch.setattr(migrations, "HEAD", "4")
    with pytest.raises(LedgerError, match="has version 5, this program knows up to 4"):
        Ledger(url)
    monkeypatch.undo()
    ledger = Ledger(url)
    assert len(list(stored_reports(ledger))) == 5
    ledger.close()


def test_conversion_logs_its_progress(url, monkeypatch, caplog):
    monkeypatch.setattr(conversion, "ROWS_AT_ONCE", 500)
    monkeypatch.setattr(conversion, "PROGRESS_SECONDS", 0)
    version_4_ledger(url, ranks=2, steps=1500)
    with caplog.at_level("INFO"):
        Ledger(url).close()
    logged = [
        tuple(map(int, found))
        for found in re.findall(r"(\d+) of about (\d+) step rows, (\d+) %", caplog.text)
    ]
    assert logged[-1] == (3000, 3000, 100) and [done for done, *_ in logged] == sorted(
        done for done, *_ in logged
    )
    assert len(logged) == 6 and all(percent == 100 * done // 3000 for done, _, percent in logged)


def test_damaged_chunk_is_named_and_conversion_continues(url):
    version_4_ledger(url, ranks=2, steps=100)
    with database(url) as connection:
        (whole,) = connection.exec_driver_sql("select rows from chunks where rank = 1 and first = 51").one()
        connection.exec_driver_sql("update chunks set rows = 'garbage' where rank = 1 and first = 51")
    for _ in range(2):
        with pytest.raises(LedgerError, match=re.escape("(run 'r1' rank 1 steps 51 to 60)")):
            Ledger(url)
    with database(url) as connection:
        table = conversion._chunks
        update = table.update().where(table.c.rank == 1, table.c.first == 51)
        connection.execute(update, {"rows": whole})
    assert_converted(url, ranks=2, steps=100)


STEPPING = """
import sys
from goodput.aggregator.ledger.migrations import conversion
from goodput.aggregator.ledger.ledger import Ledger
conversion.ROWS_AT_ONCE, conversion.PAGE_CHUNKS, conversion.PROGRESS_SECONDS = 100, 4, 0
Ledger._log_progress = lambda *progress: print(progress[1], flush=True)
Ledger(sys.argv[1])
print("whole", flush=True)
"""


def test_killed_conversion_continues(url):
    """SIGKILL at random moments of a conversion by two programs at once."""
    rng, kills = random.Random(5), 0
    version_4_ledger(url, ranks=3, steps=300)
    while True:
        programs = [
            subprocess.Popen([sys.executable, "-c", STEPPING, url], stdout=subprocess.PIPE, text=True)
            for _ in range(2 if kills else 1)
        ]
        lines = [programs[0].stdout.readline() for _ in range(rng.randint(1, 3))]
        for program in programs:
            if "whole\n" not in lines:
                program.kill()
            program.communicate(timeout=300)
        if "whole\n" in lines:
            break
        kills += 1
    assert kills >= 1
    assert_converted(url, ranks=3, steps=300)


def assert_converted(url: str, ranks: int, steps: int) -> None:
    ledger = Ledger(url)
    for rank in range(ranks):
        assert list(ledger.rows(identity_of(rank))) == list(rows_of(identity_of(rank), steps))
    ledger.close()
    assert "chunks_4" not in contents(url)
