"""PostgreSQL that stops, restarts, freezes or holds locks under a running aggregator; and secrets."""

import gc
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sql
from support.account.account_history import Process, ns
from support.aggregator.ledgers import aggregator, bodies, contents, restored_equals, stored_reports, take
from support.aggregator.reports import body_of, rank_report, story
from support.aggregator.serve_process import serving
from support.servers.postgresql_server import PASSWORD
from support.servers.servers import wait_until

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import database as database_module
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.wire import schema

LISTED = "/api/v1/runs/r1"


@pytest.fixture
def backend():
    return "postgresql"


@pytest.fixture
def short(monkeypatch):
    """The bounds, so short that a test can wait for them."""
    for name, seconds in {"CONNECT_SECONDS_MAX": 2, "LOCK_SECONDS_MAX": 1, "SILENT_SECONDS_MAX": 3}.items():
        monkeypatch.setattr(database_module, name, seconds)


def push(client, body: bytes) -> int:
    answer = client.post("/api/v1/ingest", content=body)
    if answer.status_code == 503:
        assert answer.text.startswith("ledger postgresql") and PASSWORD not in answer.text
        assert len(answer.text.splitlines()) == 1
    return answer.status_code


def steps_in(url: str) -> list[int]:
    ledger = Ledger(url)
    found = [len(report.steps) for report in stored_reports(ledger)]
    ledger.close()
    return found


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["restart", "kill"])
def test_aggregator_survives_a_server_restart(how, postgresql, url, caplog):
    pushes = bodies(*story(start=time.time() - 600))
    with serving(create_app(url)) as client:
        assert [push(client, body) for body in pushes[:8]] == [200] * 8
        postgresql.stop(how)
        try:
            assert [push(client, body) for body in pushes[8:12]] == [503] * 4
            assert client.get("/healthz").status_code == 200
            assert client.get(LISTED).status_code == 200, "what is in memory is shown meanwhile"
        finally:
            postgresql.start()
        assert [push(client, body) for body in pushes[8:]] == [200] * len(pushes[8:])
        assert "goodput_aggregator_ledger_errors_total 4" in client.get("/metrics").text
    assert steps_in(url) == [12, 12, 8, 8]
    assert "ledger postgresql" in caplog.text and PASSWORD not in caplog.text
    assert "the ledger is written again: 4 transactions failed" in caplog.text


def test_dead_idle_connections_cost_no_push(postgresql, url, ledger, monkeypatch):
    monkeypatch.setattr(database_module, "FRESH_SECONDS", 0)
    ingest, pushes = aggregator(ledger), bodies(*story())
    for body in pushes:
        assert isinstance(take(ingest, body)[0], schema.Ack)
        with postgresql.connect("postgres") as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'goodput'"
            )
    assert restored_equals(ledger, ingest)


@pytest.mark.faults
def test_frozen_server_does_not_block_pushes_forever(short, postgresql, url, caplog):
    one = Process(start=time.time() - 600)
    with serving(create_app(url)) as client:
        assert push(client, body_of(rank_report(one.steps(2, forward=1)))) == 200
        with postgresql.frozen():
            for _ in range(2):  # On a connection that is open, and on one that is to be opened.
                began = time.monotonic()
                assert push(client, body_of(rank_report(one.steps(2, forward=1)))) == 503
                assert time.monotonic() - began < 8
        thawed = body_of(rank_report(one.finished()))
        wait_until(lambda: push(client, thawed) == 200, 60, "the thawed server to be used again")
    assert "no answer for 3 s" in caplog.text and "timeout" in caplog.text
    assert steps_in(url) == [6]


def test_timed_out_connects_leave_no_socket(short, postgresql, ledger):
    ledger._engine.dispose()
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        with postgresql.frozen():
            for _ in range(2):
                with pytest.raises(LedgerError, match="timeout"):
                    ledger.runs()
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


def test_held_lock_does_not_block_pushes_forever(short, postgresql, url):
    one = Process(start=time.time() - 600).steps(2, forward=1)
    with serving(create_app(url)) as client:
        assert push(client, body_of(rank_report(one))) == 200
        with postgresql.connect(sql.make_url(url).database) as other:
            other.execute("begin")
            other.execute("lock table blocks in access exclusive mode")
            began = time.monotonic()
            answer = client.post("/api/v1/ingest", content=body_of(rank_report(one.steps(2, forward=1))))
            assert (answer.status_code, "lock timeout" in answer.text) == (503, True), answer.text
            assert time.monotonic() - began < 6
        assert push(client, body_of(rank_report(one.finished()))) == 200
    assert steps_in(url) == [4]


def test_server_timeouts_and_synchronous_commit_are_set(ledger, url):
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
    with ledger._engine.connect() as connection:
        found = [connection.exec_driver_sql(f"show {name}").scalar() for name in names]
    assert found == ["10s", "5s", "5s", "on"]
    own = Ledger(f"{url}&options=-c%20lock_timeout%3D7s")
    with own._engine.connect() as connection:
        shown = [connection.exec_driver_sql(f"show {name}").scalar() for name in names[:2]]
    assert shown == ["10s", "7s"], "the URL's options override ours"
    own.close()


def test_two_aggregators_can_write_the_same_rows(url, ledger):
    from concurrent.futures import ThreadPoolExecutor

    other = Ledger(url)
    store = Store()
    reports = [rank_report(Process(rank, start=100).steps(3, forward=1)) for rank in range(60)]
    batch = [store.merge(report, ns(2000)) for report in reports]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            # Each in an order of its own: without one order in the database they would wait for each other.
            writes = [
                pool.submit(one.append, part)
                for one in (ledger, other)
                for part in (batch, list(reversed(batch)))
            ]
            for write in writes:
                write.result(60)
    assert [len(report.steps) for report in stored_reports(ledger)] == [3] * 60
    other.close()


# ---- Secrets


@pytest.mark.parametrize("how", ["url", "query"])
def test_wrong_password_is_not_shown(postgresql, how, caplog):
    secret = "s3cret-and-wr0ng"
    good = sql.make_url(postgresql.url("postgres"))
    url = (
        good.set(password=secret)
        if how == "url"
        else good.set(password=None).update_query_dict({"password": secret})
    )
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(LedgerError, match="password authentication failed") as error,
    ):
        Ledger(url.render_as_string(hide_password=False))
    assert secret not in str(error.value) + caplog.text and "***" in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se/s3cret@127.0.0.1/d",
        "postgresql://u@127.0.0.1:s3cret/d",
        "postgresql://u:s3cret@127.0.0.1:1/d",
        "postgresql://u:s3cret@/d?host=/nowhere",
        "postgresql:///d?host=/nowhere&password=s3cret&sslpassword=s3cret",
        "postgresql://u:s3cret@127.0.0.1:1/d?no_such_option=1",
        "postgresql+asyncpg://u:s3cret@127.0.0.1:1/d",
    ],
)
def test_unreachable_url_gives_one_line_without_password(url, tmp_path):
    command = [
        sys.executable,
        "-m",
        "goodput",
        "serve",
        "--oldest-start",
        "36500",
        "--listen",
        "127.0.0.1:0",
        "--ledger",
        url,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "s3cret" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1 and "ledger" in done.stderr, done.stderr


def test_library_errors_lose_the_password():
    there = database_module.Database("postgresql://u:s3%2Fcret@h/d?passfile=other%20one")
    error = there.error(ValueError("cannot s3/cret with other one\nsecond line"))
    assert str(error) == "ledger postgresql://u:***@h/d?passfile=%2A%2A%2A: cannot *** with ***"


def test_shown_url_has_no_password(ledger, url):
    assert PASSWORD not in ledger.url and "***" in ledger.url and "processes" in contents(url)


def test_missing_psycopg_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"pip install 'goodput-telemetry\[postgresql\]'"):
        Ledger("postgresql://u:s3cret@127.0.0.1:1/d")
