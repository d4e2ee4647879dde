"""Two aggregators on one ledger: the second is refused, and what is left by a killed one is not in the way."""

import os
import re
import time

import pytest
import sqlalchemy as sql
from support.aggregator.serve_command import ServeCommand
from support.servers.servers import wait_until

from goodput.aggregator.ledger import owner as ownership
from goodput.aggregator.ledger.database import Database, LedgerError
from goodput.aggregator.ledger.owner import LedgerOwner


@pytest.fixture
def owners(url):
    made = []

    def make(**given) -> LedgerOwner:
        made.append(LedgerOwner(url, **given))
        return made[-1]

    yield make
    for owner in made:
        owner.release()


def test_second_owner_is_refused(owners):
    first, second = owners(), owners()
    first.acquire()
    with pytest.raises(LedgerError, match="another aggregator serves it") as refused:
        second.acquire(wait_seconds=0)
    assert re.search(rf"serves it \(process {os.getpid()} on .+\), .*--ledger", str(refused.value))
    first.check()
    first.release()
    second.acquire(wait_seconds=0)


def test_replacement_waits_for_the_end(owners, monkeypatch):
    first, second = owners(), owners()
    first.acquire()
    monkeypatch.setattr(ownership.time, "sleep", lambda _: first.release())
    second.acquire(wait_seconds=60)


def test_end_of_the_server_ends_the_wait(owners):
    first, second = owners(), owners()
    first.acquire()
    with pytest.raises(LedgerError):
        second.acquire(is_stopping=lambda: True)


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_restart_of_the_database_is_noticed(owners, url):
    first, second = owners(), owners()
    first.acquire()
    end_sessions(url)
    wait_until(lambda: checks(first), 30, "the lock to be taken again")
    with pytest.raises(LedgerError):
        second.acquire(wait_seconds=0)
    end_sessions(url)
    second.acquire(wait_seconds=30, settle_seconds=0)
    with pytest.raises(LedgerError, match="another aggregator"):
        wait_until(lambda: checks(first) and None, 30, "the refusal")


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_aggregators_over_one_stream_share_a_ledger(owners):
    """Any number of them; one without a stream is refused with how it could be, and so is one with beside one without."""
    one, other, alone = owners(is_shared=True), owners(is_shared=True), owners()
    one.acquire(wait_seconds=0)
    other.acquire(wait_seconds=0)
    with pytest.raises(LedgerError, match="have both divide the runs over a --stream"):
        alone.acquire(wait_seconds=0)
    one.release()
    other.release()
    alone.acquire(wait_seconds=0)
    with pytest.raises(
        LedgerError, match="without --stream; stop that one, or start it with the same --stream"
    ):
        other.acquire(wait_seconds=0)


def checks(owner: LedgerOwner) -> bool:
    owner.check()
    return owner._lock._session is not None


def end_sessions(url: str) -> None:
    with Database(url).inspecting().connect() as connection:
        text = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        connection.execute(sql.text(f"{text} AND datname = current_database()"))


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_lock_file_is_private_and_no_link_is_followed(owners, url, tmp_path):
    owners().acquire()
    file = Database(url).file + ownership.LOCK_FILE_SUFFIX
    assert os.stat(file).st_mode & 0o777 == 0o600
    os.remove(file)
    os.symlink(tmp_path / "elsewhere", file)
    with pytest.raises(LedgerError, match="symbolic link"):
        owners().acquire()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_command_refuses_a_served_ledger(tmp_path, url):
    """The second says which process serves it and exits with 1; the first goes on, and after SIGKILL another may begin."""
    setup = "from goodput.aggregator.ledger import owner\nowner.WAIT_SECONDS_MAX = 0.2"
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    with ServeCommand(tmp_path / "first", url) as first:
        second = ServeCommand(tmp_path / "second", url, setup=setup)
        assert second.process.wait(60) == 1
        assert "another aggregator serves it" in second.log.read_text()
        assert first.process.poll() is None
    began = time.monotonic()
    with ServeCommand(tmp_path / "third", url) as third:
        assert "waiting" not in third.log.read_text() and time.monotonic() - began < 60
