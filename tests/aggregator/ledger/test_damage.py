"""Ledgers with damaged rows: an aggregator sets them aside and serves the rest, or refuses the file and says what to do."""

import sqlite3

import msgspec
import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.owner import LedgerOwner
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
    """Its number of the last row is flipped, which the start does not see: a reader looked for that row for ever."""
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE blocks SET last = last + (1 << 26)")
    connection.close()
    assert main(["ledger", "check", "--ledger", f"sqlite:///{file}"]) == 1
    with serving(create_app(f"sqlite:///{file}")) as client:
        found = client.get("/api/v1/runs/good/timeline")
        assert found.status_code == 503 and "have no row" in found.text
        assert client.get("/api/v1/runs").status_code == 200
