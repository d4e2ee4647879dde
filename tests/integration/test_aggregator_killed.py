"""SIGKILL of the aggregator in the middle of a live run: after a restart the account is what the pages say."""

import os
import subprocess
import time
from pathlib import Path

import httpx
from support.paths import SUPPORT
from support.servers import servers
from support.servers.child_processes import ChildProcesses

from goodput.account import compute, document
from goodput.sdk.reports.local_accounts import runs_in


class KilledRun(ChildProcesses):
    """An aggregator that can be killed and started again at the same address, an agent, and two ranks."""

    def __init__(self, folder: Path):
        self.pages = folder / "pages"
        self.pages.mkdir()
        super().__init__(folder, {**os.environ, "GOODPUT_DIR": str(self.pages), "GOODPUT_RUN": "killed"})
        self.port = servers.free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self) -> subprocess.Popen:
        ledger = f"sqlite:///{self.folder / 'ledger.db'}"
        return self.goodput("serve", f"--listen 127.0.0.1:{self.port} --ledger {ledger}")

    def kept(self) -> int:
        """Steps kept, as the aggregator says now; 0 while it does not answer."""
        try:
            answer = httpx.get(f"{self.url}/api/v1/runs/killed", trust_env=False, timeout=2)
            return answer.json()["steps"]["kept"] if answer.status_code == 200 else 0
        except httpx.TransportError:
            return 0

    def document(self) -> dict:
        return httpx.get(f"{self.url}/api/v1/runs/killed", trust_env=False, timeout=5).json()


def test_killing_the_aggregator_loses_nothing(tmp_path):
    run = KilledRun(tmp_path)
    script = str(SUPPORT / "integration" / "live_rank.py")
    try:
        serving = run.serve()
        options = f"--listen 127.0.0.1:0 --interval 0.2 --push-interval 0.3 --aggregator {run.url}"
        run.goodput("node", options)
        run.address("node")
        ranks = [
            run.start(
                f"rank-{rank}", script, str(tmp_path), RANK=str(rank), WORLD_SIZE="2", GOODPUT_ATTEMPT="1"
            )
            for rank in range(2)
        ]
        servers.wait_until(lambda: run.kept() > 20, 60, "some steps")
        serving.kill()
        serving.wait()
        done = _steps_done(run)
        servers.wait_until(lambda: _steps_done(run) > done + 40, 60, "steps while the aggregator was away")
        run.serve()
        servers.wait_until(lambda: run.kept() > done + 40, 60, "the aggregator to know them")
        (tmp_path / "stop").touch()
        assert [rank.wait(120) for rank in ranks] == [0, 0]
        kept = _steps_done(run)
        servers.wait_until(
            lambda: run.kept() == kept and run.document()["status"] == "finished", 60, "all of it"
        )
        assert run.document()["ranks"] == _from_the_pages(run)["ranks"]
    finally:
        run.end()


def _steps_done(run: KilledRun) -> int:
    runs, _ = runs_in(str(run.pages), time.perf_counter_ns())
    return sum(len(attempt.rows) for one in runs for attempt in one.attempts.values())


def _from_the_pages(run: KilledRun) -> dict:
    (history,) = runs_in(str(run.pages), time.perf_counter_ns())[0]
    return document(compute(history, time.time_ns()))
