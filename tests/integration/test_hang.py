"""A live run that hangs: three ranks, an agent as it is started by default, an aggregator.

Who is stuck, where and since when must be in the API and the series within 30 s of the threshold, with the stack
of the culprit's process, and be gone when the run goes on.
"""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.paths import SUPPORT
from support.servers import servers

RUN, RANKS, STALL_SECONDS = "hangs", 3, 3
NAMED_SECONDS_MAX = 30  # after the threshold, as promised
PUSH_SECONDS, LOOK_SECONDS = 5, 1  # the agent's defaults
BUSY_SECONDS = 5  # for which a process may have no core


class House:
    """The processes of the test, each ended by its pid."""

    def __init__(self, folder: Path):
        self.folder, self.children = folder, []
        (folder / "pages").mkdir()
        self.environ = {
            **os.environ,
            "GOODPUT_DIR": str(folder / "pages"),
            "GOODPUT_RUN": RUN,
            "GOODPUT_ATTEMPT": "1",
            "WORLD_SIZE": str(RANKS),
        }
        ledger = f"sqlite:///{folder / 'ledger.db'}"
        options = f"--listen 127.0.0.1:0 --stall {STALL_SECONDS} --ledger {ledger}"
        self.start("serve", "-m", "goodput", "serve", *options.split())
        self.client = httpx.Client(base_url=self.address("serve"), trust_env=False, timeout=60)
        options = f"--listen 127.0.0.1:0 --py-spy --aggregator {self.address('serve')}"
        self.start("node", "-m", "goodput", "node", *options.split())
        self.address("node")
        script = str(SUPPORT / "integration" / "hanging_rank.py")
        self.ranks = [self.start(f"rank-{r}", script, str(folder), RANK=str(r)) for r in range(RANKS)]

    def start(self, name: str, *arguments: str, **environ: str) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environ, **environ},
            )
        self.children.append(child)
        return child

    def address(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        servers.wait_until(lambda: re.search(r"http://[\d.:]+", log.read_text()), 60, f"{name} to start")
        return re.search(r"http://[\d.:]+", log.read_text()).group()

    def run(self) -> dict:
        answer = self.client.get(f"/api/v1/runs/{RUN}")
        return answer.json() if answer.status_code == 200 else {"steps": {"kept": 0}, "hang": None}

    def series(self, name: str) -> dict[tuple, float]:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

    def end(self) -> None:
        self.client.close()
        for child in reversed(self.children):
            child.kill()
            child.wait()


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(tmp_path_factory.mktemp("hang"))
    try:
        # Enough steps for the slow first one not to be the 99th percentile, which would raise the threshold.
        servers.wait_until(lambda: house.run()["steps"]["kept"] > 150 * RANKS, 60, "150 steps")
        yield house
    finally:
        house.end()


def hang_of(house: House, sign: str) -> tuple[dict, float, float]:
    """The first verdict after `sign` was put up, seconds from there to it, and the threshold."""
    assert house.run()["hang"] is None
    assert list(house.series("goodput_hang_seconds").values()) == [0]
    assert house.series("goodput_hang_culprit_seconds") == {}
    began = time.time()
    (house.folder / sign).touch()
    most = STALL_SECONDS + NAMED_SECONDS_MAX
    hang = servers.wait_until(lambda: house.run()["hang"], most, "the verdict", every_seconds=0.2)
    took = time.time() - began
    threshold = house.run()["stall_threshold_seconds"]
    assert abs(hang["since"] - began) < BUSY_SECONDS, "all are on one host here, so this may be compared"
    return hang, took, threshold


@pytest.mark.parametrize(
    ("sign", "rank", "phase"), [("stuck-loader-1", 1, "loader"), ("stuck-code-2", 2, "tokenize")]
)
def test_stuck_rank_is_named_until_it_continues(house, sign, rank, phase):
    hang, took, threshold = hang_of(house, sign)
    host = socket.gethostname()
    assert (hang["culprit"], hang["host"], hang["phase"], hang["victims"]) == (rank, host, phase, RANKS - 1)
    assert [(one["rank"], one["kind"]) for one in hang["suspects"]] == [(rank, "elsewhere")]
    assert threshold < hang["seconds"] < took + BUSY_SECONDS
    assert threshold < hang["phase_seconds"] < took + BUSY_SECONDS
    assert took < threshold + LOOK_SECONDS + PUSH_SECONDS + 2 * BUSY_SECONDS, "and far within the 30 s"

    (labels,) = house.series("goodput_hang_culprit_seconds")
    assert labels == (("host", host), ("phase", phase), ("rank", str(rank)), ("run", RUN))
    assert house.series("goodput_hang_culprit_seconds")[labels] >= hang["phase_seconds"]
    assert house.series("goodput_hang_seconds")[(("run", RUN),)] >= hang["seconds"]
    assert house.client.get("/api/v1/runs").json()["runs"][0]["hang"] is True

    shown = servers.wait_until(lambda: (house.run()["hang"] or {}).get("stack"), 60, "the stack")
    assert f"Process {house.ranks[rank].pid}" in shown, shown
    assert ("wait_for_a_shard" if phase == "loader" else "main (hanging_rank.py") in shown
    hang = house.run()["hang"]
    assert hang["stack_rank"] == rank and abs(hang["stack_time"] - time.time()) < 60

    (house.folder / sign).unlink()
    servers.wait_until(lambda: house.run()["hang"] is None, 60, "the hang to be over")
    assert list(house.series("goodput_hang_seconds").values()) == [0]
    assert house.series("goodput_hang_culprit_seconds") == {}


def test_killed_rank_is_named_while_others_wait(house):
    (house.folder / "deaf").touch()
    house.ranks[1].kill()
    began = time.time()
    most = STALL_SECONDS + NAMED_SECONDS_MAX
    hang = servers.wait_until(lambda: house.run()["hang"], most, "the verdict", every_seconds=0.2)
    assert (
        time.time() - began
        < house.run()["stall_threshold_seconds"] + LOOK_SECONDS + PUSH_SECONDS + 2 * BUSY_SECONDS
    )
    assert (hang["culprit"], hang["victims"], hang["suspects"][0]["kind"]) == (1, 2, "dead")
    assert "is dead (killed)" in hang["reason"] and hang["stack"] is None
    (house.folder / "deaf").unlink()
    servers.wait_until(lambda: house.run()["status"] == "down", 60, "the others' end to be known")
    assert house.run()["hang"] is None
