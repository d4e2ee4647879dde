"""A database that cannot be written: pushes are refused, nothing is lost or accumulates."""

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import sqlalchemy as sql
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.ledgers import (
    account,
    aggregator,
    bodies,
    contents,
    database,
    on_connect,
    read_only,
    restored_equals,
    stored_reports,
    take,
)
from support.aggregator.reports import body_of, rank_report, story
from support.aggregator.serve_process import serving
from support.servers.postgresql_server import PostgreSQL
from support.servers.servers import wait_until

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest import ingest as ingest_module
from goodput.aggregator.ingest.write_failures import REASONS_MAX, WriteFailures
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.wire import schema


def locked(ledger, url):
    """Another program holds a lock on the database."""
    mend = on_connect(ledger, sqlite="PRAGMA busy_timeout=20", postgresql="SET lock_timeout=20")
    other = sql.create_engine(ledger._engine.url, poolclass=sql.NullPool).connect()
    sqlite = ledger._engine.dialect.name == "sqlite"
    # SHARE: readers need not wait.
    other.exec_driver_sql("BEGIN EXCLUSIVE" if sqlite else "LOCK TABLE processes IN SHARE MODE")

    def release():
        other.rollback()
        other.close()
        mend()

    return release


def missing_table(ledger, url):
    """A table that is written after others is missing, so earlier writes must be rolled back."""

    def rename(old: str, new: str) -> None:
        with database(url) as connection:
            connection.exec_driver_sql(f"alter table {old} rename to {new}")

    rename("blocks", "hidden")
    return lambda: rename("hidden", "blocks")


@pytest.mark.parametrize("failure", [read_only, locked, missing_table])
def test_unwritten_rows_go_with_the_next_push(ledger, url, failure):
    pushes = story()
    ingest = aggregator(ledger)
    assert all(isinstance(answer, schema.Ack) for answer in take(ingest, *bodies(*pushes[:4])))
    before = contents(url)
    mend = failure(ledger, url)
    answers = take(ingest, *bodies(*pushes[4:9]))
    assert all(isinstance(answer, LedgerError) and ledger.url in str(answer) for answer in answers)
    assert ingest.counts["ledger", "error"] == ingest.counts["report", "failed"] == 5
    mend()
    assert contents(url) == before, "nothing of a failed transaction is there"
    # The next push brings it to disk, were it for another run.
    (ack,) = take(ingest, body_of(rank_report(Process(), run="other")))
    assert ack.accepted == 1
    again = Ledger(url)
    assert restored_equals(again, ingest)
    again.close()
    # And the agents repeat what was not acknowledged.
    take(ingest, *bodies(*pushes[4:9]))
    take(ingest, *bodies(*pushes[9:]))
    again = Ledger(url)
    assert restored_equals(again, ingest)
    again.close()


@pytest.mark.faults
@pytest.mark.parametrize("backend", ["sqlite"])
def test_full_disk_refuses_new_and_keeps_old(ledger, url):
    ingest = aggregator(ledger)
    one = Process().steps(2, forward=1)
    take(ingest, body_of(rank_report(one)))
    mend = on_connect(ledger, sqlite="PRAGMA max_page_count=1")  # No page more than there is.
    for number in range(20_000):
        one.step(forward=1 + number * 7919 % 10_007 / 1e9)
    (error,) = take(ingest, body_of(rank_report(one)))
    assert isinstance(error, LedgerError) and "full" in str(error)
    (found,) = stored_reports(ledger)
    assert (len(found.steps), found.live.steps_done) == (2, 2), "not a part of it was written"
    mend()
    take(ingest, body_of(rank_report(one.finished(), rows=[])))
    assert restored_equals(ledger, ingest) and account(ingest)["steps"]["kept"] == 20_002


@contextlib.contextmanager
def mounted(at: Path, mebibytes: int):
    """A file system of its own at an empty folder."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=755", "goodput-test", at]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of 8 MiB."""
    at = tmp_path / "disk"
    at.mkdir()
    with mounted(at, 8):
        yield at


@pytest.fixture
def database_disk():
    """One that other users reach, by a path that is short enough for a socket."""
    at = Path(tempfile.mkdtemp(prefix="goodput-disk-"))
    at.chmod(0o755)
    with mounted(at, 128):
        yield at
    at.rmdir()


@pytest.mark.faults
def test_really_full_disk_under_the_ledger_loses_nothing(disk):
    """Over HTTP, with its WAL on the same disk: 503 until there is room, then the node's next pushes give the whole."""
    pushes = [body_of(*ranks) for ranks in story(start=time.time() - 60)]
    url, ballast = f"sqlite:///{disk}/ledger.db", disk / "ballast"
    with serving(create_app(url)) as client:

        def statuses(some: list[bytes]) -> list[int]:
            return [client.post("/api/v1/ingest", content=one).status_code for one in some]

        def kept() -> int:
            return client.get("/api/v1/runs/r1").json()["steps"]["kept"]

        assert statuses(pushes[:8]) == [200] * 8
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        # Pages that the WAL has already may be written again.
        found = statuses(pushes[8:16] * 20)
        assert set(found) <= {200, 503} and found[-8:] == [503] * 8
        assert kept() >= 14 and client.get("/healthz").status_code == 200
        ballast.unlink()
        assert statuses(pushes[8:]) == [200] * len(pushes[8:])
        whole = client.get("/api/v1/runs/r1").json()
    assert whole["steps"] == {"kept": 32, "lost": 8}
    with serving(create_app(url)) as client:
        assert {
            name: client.get("/api/v1/runs/r1").json()[name] for name in ("states", "steps", "ranks")
        } == {name: whole[name] for name in ("states", "steps", "ranks")}


@pytest.mark.slow_faults
def test_full_disk_under_postgresql_loses_nothing(database_disk):
    """The same with PostgreSQL's data and write-ahead log on the disk; where it ends for that, it is started again."""
    pushes = [body_of(*ranks) for ranks in story(start=time.time() - 60)]
    with PostgreSQL(database_disk) as server:
        url, ballast = server.create_database(), database_disk / "ballast"
        with serving(create_app(url)) as client:

            def statuses(some: list[bytes]) -> list[int]:
                return [client.post("/api/v1/ingest", content=one).status_code for one in some]

            assert statuses(pushes[:8]) == [200] * 8
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            found = statuses([large_push(number) for number in range(16)])
            assert set(found) <= {200, 503} and found[-8:] == [503] * 8
            assert client.get("/healthz").status_code == 200
            assert client.get("/api/v1/runs/r1").status_code == 200
            ballast.unlink()
            if server.has_ended():
                server.start()
            wait_until(lambda: statuses(pushes[8:9]) == [200], 60, "it to take pushes again")
            assert statuses(pushes[8:]) == [200] * len(pushes[8:])
            whole = client.get("/api/v1/runs/r1").json()
        assert whole["steps"] == {"kept": 32, "lost": 8}
        with serving(create_app(url)) as client:
            again = client.get("/api/v1/runs/r1").json()
        assert {name: again[name] for name in ("states", "steps", "ranks")} == {
            name: whole[name] for name in ("states", "steps", "ranks")
        }


def large_push(number: int) -> bytes:
    """Some 40 KB of a rank that no other push has."""
    report = rank_report(Process(rank=number, world_size=64).steps(1, forward=1), "large")
    marks = [schema.EventRow(at, "mark", 1, 0, os.urandom(100).hex()) for at in range(1, 201)]
    return body_of(replace(report, events=marks))


def test_failed_transactions_are_logged_once_a_minute(caplog):
    """When that begins, each minute while it lasts, and when it ends."""
    now = 0.0
    failures = WriteFailures(lambda: now)
    failures.succeeded()
    for second in range(0, 130, 10):
        now = float(second)
        failures.failed(LedgerError("the disk is full"))
    failures.succeeded()
    for number in range(20):
        failures.failed(LedgerError("away"))
        failures.failed(LedgerError(f"no room for file {number}"))
    assert [record.getMessage() for record in caplog.records] == [
        "the disk is full; pushes are refused until it can be written",
        "the disk is full; 7 transactions failed in 60 s",
        "the disk is full; 13 transactions failed in 120 s",
        "the ledger is written again: 13 transactions failed in 120 s",
        "away; pushes are refused until it can be written",
        *(f"no room for file {n}; {2 * n + 2} transactions failed in 0 s" for n in range(REASONS_MAX - 1)),
    ]


def test_repeated_pushes_to_broken_ledger_stay_bounded(ledger):
    ingest = aggregator(ledger)
    mend = read_only(ledger, "")
    one = Process()
    for _ in range(20):
        body = body_of(rank_report(one.steps(5, forward=1)))
        assert isinstance(take(ingest, body, body)[0], LedgerError)
    (waiting,) = ingest._unwritten
    assert len(waiting.rows()) == 100 and waiting.report.steps == []
    mend()
    take(ingest, body_of(rank_report(one.finished(), rows=[])))
    assert ingest._unwritten == []
    (found,) = stored_reports(ledger)
    assert ([row.number for row in found.steps], found.live.ended) == (list(range(1, 101)), "finished")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
def test_whatever_stops_a_write_loses_nothing(ledger, error):
    ingest = aggregator(ledger)
    pushes = bodies(*story())

    async def push():
        await ingest.accept(pushes[0])
        ingest._ledger = Failing(error)
        with pytest.raises(type(error)):
            await ingest.accept(pushes[1])
        ingest._ledger = ledger
        await ingest.accept(pushes[2])

    asyncio.run(push())
    assert [[row.number for row in found.steps] for found in stored_reports(ledger)] == [[1, 2], [1, 2]]
    assert restored_equals(ledger, ingest)


class Failing:
    def __init__(self, error):
        self._error = error

    def append(self, batch, health, *more):
        raise self._error


def test_concurrent_pushes_share_one_durable_transaction(ledger):
    ingest = aggregator(ledger)
    batches = []
    append = ledger.append
    ledger.append = lambda batch, *more: (batches.append(len(batch)), append(batch, *more))
    found = []

    async def push(body):
        ack = await ingest.accept(body)
        found.append(len(list(stored_reports(ledger))))
        return ack

    async def together():
        return await asyncio.gather(*(push(body_of(rank_report(Process(r)))) for r in range(30)))

    answers = asyncio.run(together())
    assert sum(ack.accepted for ack in answers) == 30
    assert batches == [30] and set(found) == {30}
    assert sorted(report.identity.rank for report in stored_reports(ledger)) == list(range(30))


@pytest.mark.parametrize("backend", ["sqlite"])
def test_push_gathers_only_after_a_shared_transaction(ledger, monkeypatch):
    """Then until the push that waits longest has waited for GATHER_SECONDS."""
    ingest, batches, slept = aggregator(ledger), [], []
    append, sleep = ledger.append, asyncio.sleep
    monkeypatch.setattr(ingest_module, "GATHER_SECONDS", 60.0)
    ledger.append = lambda batch, *more: (batches.append(len(batch)), append(batch, *more))

    async def gathering(seconds):
        slept.append(seconds)
        await more.wait()

    def pushes(*ranks):
        return [
            asyncio.ensure_future(ingest.accept(body_of(rank_report(Process(r, world_size=9)))))
            for r in ranks
        ]

    async def pushing():
        for rank in range(3):
            await asyncio.gather(*pushes(rank))
        assert (batches, slept) == ([1, 1, 1], []), "alone, none waits"
        await asyncio.gather(*pushes(3, 4))
        first = pushes(5)
        while not slept:
            await sleep(0)
        later = pushes(6, 7)
        await sleep(0)
        more.set()
        await asyncio.gather(*first, *later)
        assert batches == [1, 1, 1, 2, 3] and len(slept) == 1 and 0 < 60 - slept[0] < 30
        more.clear()
        (last,) = pushes(8)
        while len(slept) < 2:
            await sleep(0)
        more.set()
        await last
        await asyncio.gather(*pushes(0))
        assert len(slept) == 2, "after one that was alone it is not waited again"

    more = asyncio.Event()
    monkeypatch.setattr("goodput.aggregator.ingest.ingest.asyncio.sleep", gathering)
    asyncio.run(asyncio.wait_for(pushing(), 60))


@pytest.mark.parametrize("backend", ["sqlite"])
def test_cancelled_push_does_not_cancel_others(ledger):
    ingest = aggregator(ledger)

    async def pushing():
        bodies = (body_of(rank_report(Process(r, world_size=3))) for r in range(3))
        pushes = [asyncio.ensure_future(ingest.accept(body)) for body in bodies]
        await asyncio.sleep(0)
        pushes[0].cancel()
        return await asyncio.gather(*pushes, return_exceptions=True)

    cancelled, *others = asyncio.run(pushing())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [ack.accepted for ack in others] == [1, 1]
    assert len(list(stored_reports(ledger))) == 3, "what is merged is written"


def test_write_to_a_deleted_file_fails(tmp_path):
    """SQLite keeps writing to a deleted file, whose content is lost with the process."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ingest = aggregator(ledger)
    one = Process().steps(2, forward=1)
    (ack,) = take(ingest, body_of(rank_report(one)))
    assert ack.accepted == 1
    for file in tmp_path.iterdir():
        file.unlink()
    (refused,) = take(ingest, body_of(rank_report(one.step(forward=1), rows=one.rows[-1:])))
    assert isinstance(refused, LedgerError) and "deleted or replaced" in str(refused)
    assert list(tmp_path.iterdir()) == []
    ledger.close()


def test_reading_does_not_create_a_ledger(tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db", create=False)
    assert list(tmp_path.iterdir()) == []
