"""An aggregator, an agent and two ranks as real processes, and faults that are injected into them.

Each fault begins while the ranks go on, lasts until they have made some steps, and ends; how long the account then takes to
have all of them is measured. `make faults` prints the measurements (GOODPUT_FAULTS names the file they are added to).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from support.paths import SUPPORT
from support.servers import servers
from support.servers.child_processes import ChildProcesses

from goodput.account import compute, document
from goodput.sdk.reports.local_accounts import runs_in

RUN = "faults"
SECONDS_MAX = 90
STEPS_DURING = 30


class StackUnderFaults(ChildProcesses):
    """All ends with the `with`. `tokens` are one to push and one to read, of `tokens.json` in the folder. The agent is started by `node_prefix`, such as one that enters a network namespace."""

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        tokens: tuple[str, str] = ("", ""),
        node_prefix: Sequence[str] = (),
    ):
        self.pages = folder / "pages"
        self.pages.mkdir()
        super().__init__(folder, {**os.environ, "GOODPUT_DIR": str(self.pages), "GOODPUT_RUN": RUN})
        self._host, self._port = host, servers.free_ports(1)[0]
        self.url = f"http://{host}:{self._port}"
        self._node_prefix, self._headers, self._access = node_prefix, {}, ("", "")
        ingest, read = tokens
        if ingest:
            (folder / "token").write_text(ingest)
            (folder / "token").chmod(0o600)
            self._headers = {"Authorization": f"Bearer {read}"}
            serve_options = f" --tokens {folder / 'tokens.json'} --insecure-http"
            self._access = serve_options, f" --token-file {folder / 'token'}"

    def __enter__(self) -> StackUnderFaults:
        try:
            self.aggregator, self.agent = self.serve(), self.node()
            self.address("node")
            script = str(SUPPORT / "integration" / "live_rank.py")
            identity = {"WORLD_SIZE": "2", "GOODPUT_ATTEMPT": "1"}
            self.ranks = [
                self.start(f"rank-{rank}", script, str(self.folder), RANK=str(rank), **identity)
                for rank in range(2)
            ]
            servers.wait_until(lambda: self.kept() > 20, SECONDS_MAX, "some steps")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def serve(self) -> subprocess.Popen:
        ledger = f"sqlite:///{self.folder / 'ledger.db'}"
        options = f"--listen {self._host}:{self._port} --ledger {ledger}{self._access[0]}"
        return self.goodput("serve", options)

    def node(self) -> subprocess.Popen:
        options = "--listen 127.0.0.1:0 --interval 0.2 --push-interval 0.3 --stack-samples off"
        command = f"-m goodput node {options} --aggregator {self.url}{self._access[1]}"
        return self.start("node", *command.split(), prefix=self._node_prefix)

    def document(self) -> dict | None:
        """The account as the aggregator has it; None while it does not answer."""
        try:
            url = f"{self.url}/api/v1/runs/{RUN}"
            answer = httpx.get(url, trust_env=False, timeout=2, headers=self._headers)
            return answer.json() if answer.status_code == 200 else None
        except httpx.TransportError:
            return None

    def kept(self) -> int:
        found = self.document()
        return found["steps"]["kept"] if found else 0

    def done(self) -> int:
        """Steps that the ranks have written."""
        runs, _ = runs_in(str(self.pages), time.perf_counter_ns())
        return sum(len(attempt.rows) for one in runs for attempt in one.attempts.values())

    def under(
        self, fault: str, begin: Callable[[], object], end: Callable[[], object], steps: int = STEPS_DURING
    ) -> None:
        """Inject one fault and measure how long figures take to be current again after it."""
        begin()
        try:
            before = self.done()
            servers.wait_until(lambda: self.done() > before + steps, SECONDS_MAX, "steps meanwhile")
        finally:
            end()
        ended, done = time.monotonic(), self.done()
        servers.wait_until(lambda: self.kept() >= done, SECONDS_MAX, f"the account after: {fault}")
        record(fault, time.monotonic() - ended)

    def finish(self) -> None:
        """End the ranks; AssertionError unless the account is exactly that of their pages, so that nothing is lost."""
        (self.folder / "stop").touch()
        assert [rank.wait(120) for rank in self.ranks] == [0, 0]
        kept = self.done()
        is_whole = lambda: (found := self.document()) and found["status"] == "finished"  # noqa: E731
        servers.wait_until(lambda: is_whole() and self.kept() == kept, SECONDS_MAX, "all of it")
        (history,) = runs_in(str(self.pages), time.perf_counter_ns())[0]
        found = self.document()
        assert found and found["ranks"] == document(compute(history, time.time_ns()))["ranks"]


def record(fault: str, seconds: float) -> None:
    """Add a measurement to the file of `make faults`."""
    if path := os.environ.get("GOODPUT_FAULTS"):
        with open(path, "a") as file:
            file.write(json.dumps({"fault": fault, "seconds": round(seconds, 1)}) + "\n")
