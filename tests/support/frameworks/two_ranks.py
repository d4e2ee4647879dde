"""Two ranks of a script on this machine, over gloo on loopback, and the account of what they wrote.

In: a script of this folder, a temporary directory, the script's arguments. Out: its ranks' output, once both have
ended well; accounts from their pages. Nothing is left running.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.paths import SUPPORT, TESTS
from support.servers.servers import free_ports

from goodput.account import compute
from goodput.account.states import INDEX
from goodput.sdk.reports.local_accounts import runs_in

FOLDER = SUPPORT / "frameworks" / "scripts"
SECONDS_MAX = 120
# What a launcher tells a rank: none of it shall come from whoever runs the tests.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
LAUNCHED += ("PYTHONPATH", "GOODPUT_AUTO", "GOODPUT_RUN", "GOODPUT_DISABLE", "GOODPUT_PURE")


def environment(directory: Path, run: str | None, **more: str) -> dict:
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    more["PYTHONPATH"] = os.pathsep.join([*filter(None, [more.get("PYTHONPATH")]), str(TESTS)])
    environ.update({"GOODPUT_DIR": str(directory / "pages"), "OMP_NUM_THREADS": "1"}, **more)
    return {**environ, "GOODPUT_RUN": run} if run else environ


def run_ranks(script: str, directory: Path, *arguments: str, **more: str) -> str:
    """What two ranks of a script have written on standard error, one after the other."""
    environ = environment(directory, script.removesuffix(".py"), WORLD_SIZE="2", **more)
    environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_ports(1)[0]))
    command = [sys.executable, str(FOLDER / script), str(directory), *arguments]
    logs = [directory / f"log-{rank}" for rank in range(2)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                ranks.append(subprocess.Popen(command, env={**environ, "RANK": str(rank)}, stderr=file))
        ended = [rank.wait(SECONDS_MAX) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    text = "\n".join(log.read_text() for log in logs)
    assert ended == [0, 0], text[-8000:]
    return text


def run_script(command: list[str], environ: dict) -> str:
    """What a script that starts processes has written on standard error; all of them end with this call."""
    with subprocess.Popen(
        command, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as script:
        try:
            _, errors = script.communicate(timeout=SECONDS_MAX)
        finally:
            _end_session(script.pid)
    assert script.returncode == 0, errors[-8000:]
    return errors


def _end_session(leader: int) -> None:
    """End the processes of this session, which may have groups of their own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.joinpath("stat").read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, IndexError):
            continue  # It went away.


def written(directory: Path, name: str) -> list[dict]:
    """The JSON that each rank has written: `name` with `{}` for the rank."""
    return [json.loads((directory / name.format(rank)).read_text()) for rank in range(2)]


def the_account(directory: Path):
    """The account of the one run whose pages lie there."""
    runs, errors = runs_in(str(directory / "pages"), time.perf_counter_ns())
    assert errors == [] and len(runs) == 1, (errors, [run.name for run in runs])
    return compute(runs[0], time.time_ns())


def seconds(account, rank: int, state: str) -> float:
    return account.ranks[rank].states[INDEX[state]] / 1e9


def closes(account) -> bool:
    return all(sum(rank.states) == account.end_ns - account.start_ns for rank in account.ranks)


def leading(account, rank: int) -> str:
    """The state that took most of a rank's steps, beside computing."""
    states = ("loader", "h2d", "communication", "straggler", "evaluation", "launch", "unattributed")
    return max(states, key=lambda state: seconds(account, rank, state))
