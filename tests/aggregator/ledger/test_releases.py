"""Ledgers that released versions wrote, the backup that docs/operations.md describes, and the way back from a later version."""

import json
import lzma
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.account.account_history import Process
from support.aggregator.full_ledgers import accounts_of
from support.aggregator.later_goodput import HEAD, NEXT
from support.aggregator.ledgers import database
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving
from support.servers.postgresql_server import programs

from goodput.aggregator.api.app import create_app
from goodput.cli import main

RELEASES = Path(__file__).parent / "releases"
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
LATER_GOODPUT = Path(__file__).parents[2] / "support" / "aggregator" / "later_goodput.py"
RANKS, PUSHES, STEPS = 4, 40, 25


def released(name: str, folder: Path) -> str:
    """The URL of a copy of a release's ledger."""
    file = folder / "released.db"
    file.write_bytes(lzma.decompress((RELEASES / f"{name}.db.xz").read_bytes()))
    return f"sqlite:///{file}"


@pytest.mark.parametrize("name", sorted(path.name[:-6] for path in RELEASES.glob("*.db.xz")))
def test_ledger_of_a_release_has_the_same_accounts(name, tmp_path):
    """To the nanosecond, when it is upgraded and when it is read once more."""
    wanted = json.loads((RELEASES / f"{name}.json").read_text())
    url = released(name, tmp_path)
    for _ in range(2):
        assert accounts_of(url, wanted["now_ns"]) == wanted["accounts"]
    assert main(["ledger", "check", "--ledger", url]) == 0


def test_present_version_has_its_ledger():
    """Made by `python -m support.aggregator.full_ledgers`, as CONTRIBUTING.md says."""
    assert (RELEASES / f"version-{HEAD}.db.xz").exists() and (RELEASES / f"version-{HEAD}.json").exists()


def test_roll_back_by_a_version(tmp_path, capsys):
    """The present program refuses what the next one has converted and says so; with the backup it has the same accounts."""
    wanted = json.loads((RELEASES / f"version-{HEAD}.json").read_text())
    url, backup = released(f"version-{HEAD}", tmp_path), tmp_path / "backup.db"
    assert main(["ledger", "backup", str(backup), "--ledger", url]) == 0
    later = [sys.executable, str(LATER_GOODPUT), "ledger", str(tmp_path / "later"), "ledger", "show"]
    subprocess.run([*later, "--ledger", url], check=True, capture_output=True, timeout=60)
    capsys.readouterr()
    for command in (["ledger", "show"], ["ledger", "check"], ["serve", "--listen", "127.0.0.1:0"]):
        assert main([*command, "--ledger", url]) == 1
        err = capsys.readouterr().err
        assert (
            f"has version {NEXT}, this program knows up to {HEAD}; use the version of goodput that wrote it"
            in err
        )
        assert len(err.strip().splitlines()) == 1, err
    with database(url) as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == NEXT
    assert accounts_of(f"sqlite:///{backup}", wanted["now_ns"]) == wanted["accounts"]


def documented(heading: str) -> list[str]:
    """The commands of a section of docs/operations.md."""
    section = OPERATIONS.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^    (\S.*?)(?:   +#.*)?$", section, re.MULTILINE)


class Load:
    """Pushes of a run until they are all acknowledged."""

    def __init__(self, client):
        self._client = client
        self.acknowledged = 0  # pushes
        self.bodies = []
        processes = [Process(rank, 1, 1000, world_size=RANKS) for rank in range(RANKS)]
        for _ in range(PUSHES):
            for one in processes:
                one.steps(STEPS, forward=0.75, communication=0.125 * (1 + one.rank % 2)).saved()
            new = [rank_report(one, rows=one.rows[-STEPS:], events=one.events[-1:]) for one in processes]
            self.bodies.append(body_of(*new))
        self.now_ns = max(one.now_ns for one in processes)
        self.may_end = threading.Event()
        self._thread = threading.Thread(target=self._push, daemon=True)

    def _push(self) -> None:
        for at, body in enumerate(self.bodies):
            if at == PUSHES * 3 // 4:
                self.may_end.wait(120)
            self.send(self._client, body)
            self.acknowledged = at + 1

    @staticmethod
    def send(client, body: bytes) -> None:
        assert client.post("/api/v1/ingest", content=body).status_code == 200

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.may_end.set()
        self._thread.join(120)
        assert self.acknowledged == PUSHES


def test_documented_backup_of_a_living_aggregator(url, new_url, backend, tmp_path):
    """Copied while ranks push, restored elsewhere: what was acknowledged before is there, and with what ranks push again the
    account is the same to the nanosecond."""
    here, there, kept = tmp_path / "here", tmp_path / "there", tmp_path / "backup"
    for folder in (here, there, kept):
        folder.mkdir()
    if backend == "sqlite":
        url, restored = f"sqlite:///{here}/ledger.db", f"sqlite:///{there}/ledger.db"
    else:
        restored = new_url()

    def run(command: str, folder: Path, database_url: str) -> None:
        changed = command.replace("2026-11-22", "$(date +%F)").replace("/backup", str(kept))
        changed = changed.replace("/var/lib/goodput", str(folder))
        changed = changed.replace("postgresql://goodput@db/goodput", database_url)
        path = f"{Path(sys.executable).parent}:{programs()}:{os.environ['PATH']}"
        subprocess.run(["bash", "-euc", changed], check=True, timeout=120, env={**os.environ, "PATH": path})

    words = ("pg_",) if backend == "postgresql" else ("goodput", "rm", "cp")
    commands = [line for line in documented("Backup and restore") if line.startswith(words)]
    assert len(commands) == {"sqlite": 4, "postgresql": 2}[backend], commands
    with serving(create_app(url)) as client, Load(client) as load:
        while load.acknowledged < PUSHES // 4:
            load.may_end.wait(0.01)
        before = load.acknowledged
        run(commands[0], here, url)
    with serving(create_app(url)):
        pass
    for command in commands[1:]:
        run(command, there, restored)
    assert main(["ledger", "check", "--ledger", restored]) == 0
    with serving(create_app(restored)) as client:
        steps = client.get("/api/v1/runs/r1").json()["steps"]["kept"]
        assert before * STEPS * RANKS <= steps <= PUSHES * STEPS * RANKS
        for body in load.bodies[before:]:
            Load.send(client, body)
    assert accounts_of(restored, load.now_ns) == accounts_of(url, load.now_ns)
