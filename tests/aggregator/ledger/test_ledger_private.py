"""Who may read an SQLite ledger, and threads that cannot be started."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.aggregator.ledgers import aggregator, bodies, take
from support.aggregator.reports import story

from goodput.aggregator.accounts.history import History, HistoryError
from goodput.aggregator.ledger.inspection import backup
from goodput.aggregator.ledger.ledger import Ledger, LedgerError

FILES = ("ledger.db", "ledger.db-wal", "ledger.db-shm")


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder) -> dict[str, int]:
    return {name: stat.S_IMODE((folder / name).stat().st_mode) for name in FILES}


def test_new_ledger_and_its_journals_are_private(tmp_path, open_umask):
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    take(aggregator(ledger), *bodies(*story()[:3]))
    assert modes(tmp_path) == dict.fromkeys(FILES, 0o600)
    backup(ledger, str(tmp_path / "copy.db"), lambda done, of: None)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    ledger.close()


@pytest.mark.parametrize(
    ("before", "after"), [(0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o600, 0o600)]
)
def test_opened_ledger_is_closed_to_others(tmp_path, open_umask, before, after):
    Ledger(f"sqlite:///{tmp_path}/ledger.db").close()
    (tmp_path / "ledger.db").chmod(before)
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    take(aggregator(ledger), *bodies(*story()[:3]))
    assert modes(tmp_path) == dict.fromkeys(FILES, after)
    ledger.close()


def test_thread_that_cannot_start_is_logged_once(tmp_path, monkeypatch, caplog):
    """Queries fail with one text, pushes as where the ledger fails; both work again."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ingest, history, pushes = aggregator(ledger), History(ledger), bodies(*story()[:2])

    def cannot(_self) -> None:
        raise RuntimeError("can't start new thread")

    async def query() -> list:
        found = []
        for _ in range(3):
            try:
                found.append((await history.run("", lambda ledger, check: "answer"))[0])
            except HistoryError as error:
                found.append(str(error))
        return found

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(ThreadPoolExecutor, "_adjust_thread_count", cannot)
        texts = asyncio.run(query())
        (refused,) = take(ingest, pushes[0])
    assert len(set(texts)) == 1 and texts[0].startswith(
        "no thread can be started (can't start new thread): raise"
    )
    assert isinstance(refused, LedgerError)
    assert len([one for one in caplog.records if "queries of the past fail" in one.message]) == 1
    assert asyncio.run(query()) == ["answer"] * 3
    assert [answer.accepted for answer in take(ingest, *pushes)] == [2, 2]
    ledger.close()
