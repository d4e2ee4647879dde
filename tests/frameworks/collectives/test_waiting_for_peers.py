"""A real process group of which one rank starts late or never: who waits, for whom, and what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from support.installed import need
from support.servers.servers import free_ports

from goodput.account import compute
from goodput.progress.local_runs import LocalRuns
from goodput.sdk.reports.local_accounts import runs_in

pytestmark = pytest.mark.torch

SCRIPT = """
import sys, torch, goodput.auto, torch.distributed as dist
given = {"rank": int(sys.argv[1]), "world_size": 2} if len(sys.argv) > 1 else {}
dist.init_process_group("gloo", **given)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


class Group:
    """Starts ranks of one process group of two."""

    def __init__(self, place):
        self.pages, self.script, self.port = str(place / "pages"), place / "train.py", free_ports(1)[0]
        self.script.write_text(SCRIPT)
        self.processes: list[subprocess.Popen] = []

    def start(self, rank: int, is_launched: bool = True) -> None:
        environ = dict(os.environ, GOODPUT_DIR=self.pages, GOODPUT_RUN="group", MASTER_ADDR="127.0.0.1")
        environ["MASTER_PORT"] = str(self.port)
        if is_launched:
            environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        command = [sys.executable, str(self.script), *([] if is_launched else [str(rank)])]
        self.processes.append(subprocess.Popen(command, env=environ))

    def wait_until(self, holds, seconds: float = 120.0):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = holds()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError("not in time")

    def account(self):
        (run,) = runs_in(self.pages, time.perf_counter_ns())[0]
        return compute(run, time.time_ns())

    def waits(self, seconds: float):
        """The account once a rank has waited for so long."""
        if not os.path.isdir(self.pages) or not runs_in(self.pages, time.perf_counter_ns())[0]:
            return None
        account = self.account()
        return account if account.peers and account.peers.waited_ns > seconds * 1e9 else None


@contextmanager
def group(place):
    need("torch")
    made = Group(place)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("is_launched", [True, False], ids=["launcher", "arguments"])
def test_a_rank_that_never_comes_is_named(tmp_path, is_launched):
    """Seen live from outside: in the account, in its advice and as the verdict of a hang."""
    with group(tmp_path) as made:
        made.start(0, is_launched)
        account = made.wait_until(lambda: made.waits(1))
        assert account.peers.is_waiting and (account.peers.rank, account.peers.missing) == (0, (1,))
        (local,) = LocalRuns([made.pages], stall_seconds=0.5).read()
        hang = local.document["hang"]
        assert hang["phase"] is None and hang["victims"] == 1
        assert hang["reason"] == (
            "1 rank waits in init_process_group for the other ranks to start; rank 1 of 2 has never reported"
        )


def test_a_late_rank_is_named(tmp_path):
    with group(tmp_path) as made:
        made.start(0)
        made.wait_until(lambda: made.waits(1))
        made.start(1)
        made.wait_until(lambda: all(process.poll() == 0 for process in made.processes))
        account = made.account()
        assert not account.peers.is_waiting
        assert (account.peers.rank, account.peers.last, account.peers.missing) == (0, 1, ())
        for rank in account.ranks:
            assert sum(rank.states) == account.end_ns - account.start_ns
