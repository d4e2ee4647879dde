"""A live run that hangs: three ranks, an agent as it is started by default, an aggregator.

Who is stuck, where and since when must be in the API and the series within 30 s of the threshold, with the stack
of the culprit's process, and be gone when the run goes on.
"""

import os
import socket
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.paths import SUPPORT
from support.servers import servers
from support.servers.child_processes import ChildProcesses

RUN, RANKS, STALL_SECONDS = "hangs", 3, 3
NAMED_SECONDS_MAX = 30  # after the threshold, as promised
PUSH_SECONDS, POLL_SECONDS = 5, 1  # the agent's defaults
BUSY_SECONDS = 5  # for which a process may have no core


class HangingRun(ChildProcesses):
    """An aggregator, an agent and the ranks."""

    def __init__(self, folder: Path):
        (folder / "pages").mkdir()
        environ = {
            **os.environ,
            "GOODPUT_DIR": str(folder / "pages"),
            "GOODPUT_RUN": RUN,
            "GOODPUT_ATTEMPT": "1",
            "WORLD_SIZE": str(RANKS),
        }
        super().__init__(folder, environ)
        self.client = httpx.Client(trust_env=False, timeout=60)

    def begin(self) -> None:
        folder = self.folder
        ledger = f"sqlite:///{folder / 'ledger.db'}"
        options = f"--listen 127.0.0.1:0 --stall {STALL_SECONDS} --ledger {ledger}"
        self.goodput("serve", options)
        aggregator = self.address("serve")
        self.client.base_url = aggregator
        self.goodput("node", f"--listen 127.0.0.1:0 --py-spy --aggregator {aggregator}")
        self.address("node")
        script = str(SUPPORT / "integration" / "hanging_rank.py")
        self.ranks = [self.start(f"rank-{r}", script, str(folder), RANK=str(r)) for r in range(RANKS)]

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
        super().end()


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    hanging = HangingRun(tmp_path_factory.mktemp("hang"))
    try:
        hanging.begin()
        # Enough steps for the slow first one not to be the 99th percentile, which would raise the threshold.
        servers.wait_until(lambda: hanging.run()["steps"]["kept"] > 150 * RANKS, 60, "150 steps")
        yield hanging
    finally:
        hanging.end()


def hang_of(hanging: HangingRun, sign: str) -> tuple[dict, float, float]:
    """The first verdict after `sign` was put up, seconds from there to it, and the threshold."""
    assert hanging.run()["hang"] is None
    assert list(hanging.series("goodput_hang_seconds").values()) == [0]
    assert hanging.series("goodput_hang_culprit_seconds") == {}
    began = time.time()
    (hanging.folder / sign).touch()
    most = STALL_SECONDS + NAMED_SECONDS_MAX
    hang = servers.wait_until(lambda: hanging.run()["hang"], most, "the verdict", every_seconds=0.2)
    took = time.time() - began
    threshold = hanging.run()["stall_threshold_seconds"]
    assert abs(hang["since"] - began) < BUSY_SECONDS, "all are on one host here, so this may be compared"
    return hang, took, threshold


@pytest.mark.parametrize(
    ("sign", "rank", "phase"), [("stuck-loader-1", 1, "loader"), ("stuck-code-2", 2, "tokenize")]
)
def test_stuck_rank_is_named_until_it_continues(hanging, sign, rank, phase):
    hang, took, threshold = hang_of(hanging, sign)
    host = socket.gethostname()
    assert (hang["culprit"], hang["host"], hang["phase"], hang["victims"]) == (rank, host, phase, RANKS - 1)
    assert [(one["rank"], one["kind"]) for one in hang["suspects"]] == [(rank, "elsewhere")]
    assert threshold < hang["seconds"] < took + BUSY_SECONDS
    assert threshold < hang["phase_seconds"] < took + BUSY_SECONDS
    assert took < threshold + POLL_SECONDS + PUSH_SECONDS + 2 * BUSY_SECONDS, "and far within the 30 s"

    (labels,) = hanging.series("goodput_hang_culprit_seconds")
    assert labels == (("host", host), ("phase", phase), ("rank", str(rank)), ("run", RUN))
    assert hanging.series("goodput_hang_culprit_seconds")[labels] >= hang["phase_seconds"]
    assert hanging.series("goodput_hang_seconds")[(("run", RUN),)] >= hang["seconds"]
    assert hanging.client.get("/api/v1/runs").json()["runs"][0]["hang"] is True

    shown = servers.wait_until(lambda: (hanging.run()["hang"] or {}).get("stack"), 60, "the stack")
    assert f"Process {hanging.ranks[rank].pid}" in shown, shown
    assert ("wait_for_a_shard" if phase == "loader" else "main (hanging_rank.py") in shown
    hang = hanging.run()["hang"]
    assert hang["stack_rank"] == rank and abs(hang["stack_time"] - time.time()) < 60

    (hanging.folder / sign).unlink()
    servers.wait_until(lambda: hanging.run()["hang"] is None, 60, "the hang to be over")
    assert list(hanging.series("goodput_hang_seconds").values()) == [0]
    assert hanging.series("goodput_hang_culprit_seconds") == {}


def test_killed_rank_is_named_while_others_wait(hanging):
    (hanging.folder / "deaf").touch()
    hanging.ranks[1].kill()
    began = time.time()
    most = STALL_SECONDS + NAMED_SECONDS_MAX
    hang = servers.wait_until(lambda: hanging.run()["hang"], most, "the verdict", every_seconds=0.2)
    assert (
        time.time() - began
        < hanging.run()["stall_threshold_seconds"] + POLL_SECONDS + PUSH_SECONDS + 2 * BUSY_SECONDS
    )
    assert (hang["culprit"], hang["victims"], hang["suspects"][0]["kind"]) == (1, 2, "dead")
    assert "is dead (killed)" in hang["reason"] and hang["stack"] is None
    (hanging.folder / "deaf").unlink()
    servers.wait_until(lambda: hanging.run()["status"] == "failed", 60, "the others' end to be known")
    assert hanging.run()["hang"] is None
