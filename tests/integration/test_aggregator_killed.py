"""SIGKILL of the aggregator in the middle of a live run: after a restart the account is what the pages say."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
from support.paths import SUPPORT
from support.servers import servers

from goodput.account import compute, document
from goodput.sdk.reports.local_accounts import runs_in


class House:
    """An aggregator that can be killed and started again at the same address, an agent, and two ranks."""

    def __init__(self, folder: Path):
        self.folder, self.pages = folder, folder / "pages"
        self.pages.mkdir()
        self.port = servers.free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.children: list[subprocess.Popen] = []

    def start(self, name: str, *arguments: str, **environ: str) -> subprocess.Popen:
        environ = {**os.environ, "GOODPUT_DIR": str(self.pages), "GOODPUT_RUN": "killed", **environ}
        with open(self.folder / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environ
            )
        self.children.append(child)
        return child

    def serve(self) -> subprocess.Popen:
        options = f"--listen 127.0.0.1:{self.port} --ledger sqlite:///{self.folder / 'ledger.db'}"
        return self.start("serve", "-m", "goodput", "serve", *options.split())

    def kept(self) -> int:
        """Steps kept, as the aggregator says now; 0 while it does not answer."""
        try:
            answer = httpx.get(f"{self.url}/api/v1/runs/killed", trust_env=False, timeout=2)
            return answer.json()["steps"]["kept"] if answer.status_code == 200 else 0
        except httpx.TransportError:
            return 0

    def document(self) -> dict:
        return httpx.get(f"{self.url}/api/v1/runs/killed", trust_env=False, timeout=5).json()

    def end(self) -> None:
        for child in reversed(self.children):
            child.kill()
            child.wait()


def test_killing_the_aggregator_loses_nothing(tmp_path):
    house = House(tmp_path)
    script = str(SUPPORT / "integration" / "live_rank.py")
    try:
        serving = house.serve()
        options = f"--listen 127.0.0.1:0 --interval 0.2 --push-interval 0.3 --aggregator {house.url}"
        house.start("node", "-m", "goodput", "node", *options.split())
        log = tmp_path / "node.log"
        servers.wait_until(lambda: re.search("serves http", log.read_text()), 60, "the agent to start")
        ranks = [
            house.start(
                f"rank-{rank}", script, str(tmp_path), RANK=str(rank), WORLD_SIZE="2", GOODPUT_ATTEMPT="1"
            )
            for rank in range(2)
        ]
        servers.wait_until(lambda: house.kept() > 20, 60, "some steps")
        serving.kill()
        serving.wait()
        done = _steps_done(house)
        servers.wait_until(lambda: _steps_done(house) > done + 40, 60, "steps while the aggregator was away")
        house.serve()
        servers.wait_until(lambda: house.kept() > done + 40, 60, "the aggregator to know them")
        (tmp_path / "stop").touch()
        assert [rank.wait(120) for rank in ranks] == [0, 0]
        kept = _steps_done(house)
        servers.wait_until(
            lambda: house.kept() == kept and house.document()["status"] == "finished", 60, "all of it"
        )
        assert house.document()["ranks"] == _from_the_pages(house)["ranks"]
    finally:
        house.end()


def _steps_done(house: House) -> int:
    runs, _ = runs_in(str(house.pages), time.perf_counter_ns())
    return sum(len(attempt.rows) for run in runs for attempt in run.attempts.values())


def _from_the_pages(house: House) -> dict:
    (run,) = runs_in(str(house.pages), time.perf_counter_ns())[0]
    return document(compute(run, time.time_ns()))
