"""Ledgers with damaged rows: an aggregator sets them aside and serves the rest, or refuses the file and says what to do."""

import asyncio
import sqlite3
import time
from contextlib import closing, suppress

import msgspec
import pytest
from support.account.account_history import Process, ns
from support.aggregator.full_ledgers import Aggregator
from support.aggregator.ledgers import database, take
from support.aggregator.reports import body_of, health_event, rank_report
from support.aggregator.serve_process import push, samples, serving

from goodput.account import EndMark
from goodput.aggregator.api import ledger_maintenance
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.owner import LedgerOwner
from goodput.aggregator.ledger.page_reader import PageBounds
from goodput.cli import main


@pytest.fixture
def file(tmp_path):
    """A ledger of two runs."""
    path = tmp_path / "ledger.db"
    with serving(create_app(f"sqlite:///{path}")) as client:
        for run in ("good", "bad"):
            push(client, rank_report(Process(0, 1, 1000).steps(20, forward=1).saved().finished(), run))
    return path


def flip(path, table: str, column: str) -> None:
    """Flip the highest bit of the last byte of a value of run `bad`."""
    with sqlite3.connect(path) as connection:
        of = "process" if table == "blocks" else "run"
        key = (
            "bad"
            if of == "run"
            else connection.execute("SELECT id FROM processes WHERE run = 'bad'").fetchone()[0]
        )
        query = f"SELECT rowid, CAST({column} AS BLOB), typeof({column}) FROM {table} WHERE {of} = ?"
        row, value, kind = connection.execute(query, (key,)).fetchone()
        value = value[:-1] + bytes([value[-1] ^ 0x80])
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE rowid = ?", (value, row))
    connection.close()


@pytest.mark.parametrize(
    "table, column",
    [
        ("processes", "run"),
        ("processes", "host"),
        ("processes", "report"),
        ("blocks", "block"),
        ("events", "kind"),
    ],
)
def test_a_flipped_byte_leaves_the_rest_served(file, table, column, caplog, capsys):
    flip(file, table, column)
    assert main(["ledger", "check", "--ledger", f"sqlite:///{file}"]) == 1
    assert f"table {table}" in capsys.readouterr().out or table == "blocks"
    with serving(create_app(f"sqlite:///{file}")) as client:
        assert client.get("/api/v1/runs/good").json()["steps"] == {"kept": 20, "lost": 0}
        push(client, rank_report(Process(0, 1, 1000).steps(20, forward=1).saved().finished(), "bad"))
        assert client.get("/api/v1/runs/bad").json()["steps"]["kept"] == 20
    assert f"damaged and set aside: table {table}" in caplog.text and "the last backup" in caplog.text
    with sqlite3.connect(file) as connection:
        connection.text_factory = bytes
        tables = [row for (row,) in connection.execute("SELECT of FROM damaged_rows")]
        (packed, *_) = connection.execute("SELECT row FROM damaged_rows").fetchone()
    assert table.encode() in tables and msgspec.msgpack.decode(packed)
    assert main(["ledger", "check", "--ledger", f"sqlite:///{file}"]) == 1
    assert "were set aside" in capsys.readouterr().out


def test_a_file_of_0_bytes_is_refused_where_a_ledger_was(file, tmp_path):
    owner = LedgerOwner(f"sqlite:///{file}")
    owner.acquire()
    owner.release()
    file.write_bytes(b"")
    with pytest.raises(
        LedgerError, match=r"has 0 bytes, though .*-owner says .* Put the last backup in its place"
    ):
        Ledger(f"sqlite:///{file}")
    empty = tmp_path / "empty.db"
    empty.write_bytes(b"")
    with pytest.raises(LedgerError, match="has 0 bytes"):
        Ledger(f"sqlite:///{empty}", create=False)
    Ledger(f"sqlite:///{empty}").close()


def test_a_damaged_file_is_refused_with_what_to_do(file):
    file.write_bytes(file.read_bytes()[:50] + b"x" * 4000)
    with pytest.raises(LedgerError, match="last backup in its place"):
        Ledger(f"sqlite:///{file}")


def test_check_says_that_the_write_ahead_log_is_gone(file, capsys):
    """A killed aggregator leaves both files beside the ledger; here one of them was not copied along."""
    file.with_name(f"{file.name}-shm").write_bytes(bytes(32768))
    assert main(["ledger", "check", "--ledger", f"sqlite:///{file}"]) == 1
    out, err = capsys.readouterr()
    assert (
        "up to 16 MB of pushes that agents take for stored" in out
        and "put it back, or the last backup" in out
    )
    assert "It ends with the reports of" in out and "write-ahead log is gone" in err


def test_a_block_without_its_last_row_is_not_read_for_ever(file):
    """Its number of the last row is flipped, and it has no checksum as earlier versions wrote none: a reader looked for that
    row for ever."""
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE blocks SET checksum = NULL, last = last + (1 << 26)")
    connection.close()
    assert main(["ledger", "check", "--ledger", f"sqlite:///{file}"]) == 1
    ledger = Ledger(f"sqlite:///{file}")
    (pages,) = ledger.pages(ledger.sources("good"), [PageBounds()], 1000)
    with pytest.raises(LedgerError, match="have no row"):
        list(pages)
    ledger.close()
    with serving(create_app(f"sqlite:///{file}")) as client:
        # It needs no row after the last one in the run's time.
        assert client.get("/api/v1/runs/good/timeline").status_code == 200
        assert client.get("/api/v1/runs").status_code == 200


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(ledger_maintenance, "DELETIONS_EVERY_SECONDS", 0.1)


def long_closed(url: str) -> None:
    """A ledger of two runs that were over long ago, so that they are in the ledger alone."""
    with serving(create_app(url)) as client:
        for run in ("good", "bad"):
            push(client, rank_report(Process(0, 1, 1000).steps(20, forward=1).saved().finished(), run))


def eventually(condition) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def damage_run(url: str, table: str, column: str, value: str) -> None:
    """Write this into all rows of the run `bad`; bytes are no text in either database."""
    with database(url) as connection:
        of = (
            "run = 'bad'"
            if table == "processes"
            else "process = (SELECT id FROM processes WHERE run = 'bad')"
        )
        if connection.dialect.name == "postgresql" and column != "width":
            value = r"'\xff'"
        connection.exec_driver_sql(f"UPDATE {table} SET {column} = {value} WHERE {of}")


BROKEN = ("processes", "report", "'\xff'"), ("blocks", "block", "'garbage'"), ("blocks", "width", "1 << 30")


@pytest.mark.parametrize("table, column, value", BROKEN)
def test_damage_after_the_start_is_set_aside(url, table, column, value, often, caplog):
    """A query that meets a damaged row is refused, until the row was moved away seconds later; the other run is served."""
    long_closed(url)
    with serving(create_app(url)) as client:
        damage_run(url, table, column, value)
        timeline = "/api/v1/runs/bad/timeline"
        assert client.get(timeline).status_code == 503
        eventually(lambda: samples(client)["goodput_aggregator_runs_moved_total", "damaged"] == 1)
        assert client.get(timeline).status_code in (200, 404)
        assert f"damaged and set aside: table {table}" in caplog.text
        assert client.get("/api/v1/runs/good").json()["steps"]["kept"] == 20
        push(client, rank_report(Process(0, 1, 1000).steps(20, forward=1).saved().finished(), "bad"))
        assert client.get("/api/v1/runs/bad").json()["steps"]["kept"] == 20
    with serving(create_app(url)) as client:
        assert client.get("/api/v1/runs/bad").json()["steps"]["kept"] == 20
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("table, column, value", BROKEN)
def test_damaged_rows_are_set_aside_at_start(url, table, column, value, caplog):
    long_closed(url)
    damage_run(url, table, column, value)
    with serving(create_app(url)) as client:
        assert client.get("/api/v1/runs/good").json()["steps"]["kept"] == 20
        assert client.get("/api/v1/runs/bad").status_code in (200, 404)
    assert f"damaged and set aside: table {table}" in caplog.text


def test_damaged_block_does_not_stop_compaction(url, caplog):
    """Merging met it in each round, and got no further."""
    with closing(Ledger(url)) as ledger:
        one = Aggregator(ledger, ns(2000))
        for run in ("bad", "good"):
            process = Process(0, 1, 1000)
            for _ in range(4):
                process.steps(200, forward=1)
                take(one.ingest, body_of(rank_report(process, run, rows=process.rows[-200:])))
        with database(url) as connection:
            value = r"'\xff'" if connection.dialect.name == "postgresql" else "'garbage'"
            connection.exec_driver_sql(f"UPDATE blocks SET block = {value} WHERE first = 201 AND process = 1")

        async def maintain() -> None:
            with suppress(LedgerError):
                await one.maintenance.compact(ns(3000))
            await one.maintenance.set_damage_aside()
            await one.maintenance.compact(ns(3000))

        asyncio.run(maintain())
        assert one.ingest.counts["ledger", "blocks_merged"] == 7
    assert "damaged and set aside: table blocks" in caplog.text


NUMBERS = [
    ("processes", "sequence"),
    ("blocks", "tier"),
    ("blocks", "start_ns_first"),
    ("events", "step"),
    ("events", "time_ns"),
    ("ends", "at_ns"),
    ("ends", "until_ns"),
    ("health", "time_ns"),
]


@pytest.mark.parametrize("table, column", NUMBERS)
def test_a_flipped_bit_of_a_number_is_found_at_start(url, table, column, caplog, capsys):
    """It contradicts nothing, so it would be served as it is; a checksum tells. The good run is as before."""
    long_closed(url)
    bad = rank_report(Process(0, 2, 1030).steps(4, forward=1), "bad")
    with serving(create_app(url)) as client:
        push(client, bad, health=[health_event(1, 1005, 0, run="bad")])
        good = client.get("/api/v1/runs/good").json()["steps"]
    with closing(Ledger(url)) as ledger:
        ledger.end([(bad.identity, EndMark("killed", ns(1034), ns(1040)))], ns(1034))
    with database(url) as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET {column} = {column} + 4")
    assert main(["ledger", "check", "--ledger", url]) == 1
    assert "its columns are not as they were written" in capsys.readouterr().out or column != "at_ns"
    with database(url) as connection:  # of the bad run alone
        if table != "health":
            of = (
                "run = 'good'"
                if table != "blocks"
                else "process = (SELECT id FROM processes WHERE run = 'good')"
            )
            connection.exec_driver_sql(f"UPDATE {table} SET {column} = {column} - 4 WHERE {of}")
    with serving(create_app(url)) as client:
        assert client.get("/api/v1/runs/good").json()["steps"] == good
    assert f"damaged and set aside: table {table}" in caplog.text
