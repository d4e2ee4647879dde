"""Runs two or more ranks of a script over gloo on loopback, and computes the account of their pages.

All ranks must end cleanly, and no process is left running.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.forks import server_with
from support.frameworks.script_process import SCRIPTS, TIMEOUT_SECONDS
from support.paths import TESTS
from support.servers.servers import free_ports

from goodput.account import compute
from goodput.account.states import INDEX
from goodput.sdk.reports.local_accounts import runs_in

# Variables that a launcher sets, which must not come from the environment of the tests.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
LAUNCHED += ("PYTHONPATH", "GOODPUT_AUTO", "GOODPUT_RUN", "GOODPUT_DISABLE")


def environment(directory: Path, run: str | None, **more: str) -> dict:
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    more["PYTHONPATH"] = os.pathsep.join([*filter(None, [more.get("PYTHONPATH")]), str(TESTS)])
    environ.update({"GOODPUT_DIR": str(directory / "pages"), "OMP_NUM_THREADS": "1"}, **more)
    return {**environ, "GOODPUT_RUN": run} if run else environ


def run_ranks(
    script: str, directory: Path, *arguments: str, forked: str = "", ranks: int = 2, **more: str
) -> str:
    """Standard error of the ranks, one after the other; `forked` as in script_process."""
    environ = environment(directory, Path(script).stem, WORLD_SIZE=str(ranks), **more)
    environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_ports(1)[0]))
    command = [str(SCRIPTS / script), str(directory), *arguments]
    if forked:
        processes = [(command, {**environ, "RANK": str(rank)}) for rank in range(ranks)]
        ended = server_with(forked).run(*processes, seconds=TIMEOUT_SECONDS)
        text = "\n".join(rank.stderr for rank in ended)
        assert not any(rank.returncode for rank in ended), text[-8000:]
        return text
    logs = [directory / f"log-{rank}" for rank in range(ranks)]
    started = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                started.append(
                    subprocess.Popen(
                        [sys.executable, *command], env={**environ, "RANK": str(rank)}, stderr=file
                    )
                )
        ended = [rank.wait(TIMEOUT_SECONDS) for rank in started]
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
    text = "\n".join(log.read_text() for log in logs)
    assert not any(ended), text[-8000:]
    return text


def run_command(command: list[str], environ: dict) -> str:
    """Standard error of a command that starts processes; all of them are ended by this call."""
    with subprocess.Popen(
        command, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as script:
        try:
            _, errors = script.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            _end_session(script.pid)
    assert script.returncode == 0, errors[-8000:]
    return errors


def _end_session(leader: int) -> None:
    """Kill the processes of this session, which may have process groups of their own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.joinpath("stat").read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, IndexError):
            continue  # It has ended.


def written(directory: Path, name: str, ranks: int = 2) -> list[dict]:
    """The JSON that each rank wrote; `{}` in `name` stands for the rank."""
    return [json.loads((directory / name.format(rank)).read_text()) for rank in range(ranks)]


def the_account(directory: Path):
    """The account of the only run in this directory."""
    runs, errors = runs_in(str(directory / "pages"), time.perf_counter_ns())
    assert errors == [] and len(runs) == 1, (errors, [run.name for run in runs])
    return compute(runs[0], time.time_ns())


def seconds(account, rank: int, state: str) -> float:
    return account.ranks[rank].states[INDEX[state]] / 1e9


def closes(account) -> bool:
    return all(sum(rank.states) == account.end_ns - account.start_ns for rank in account.ranks)


def leading(account, rank: int) -> str:
    """The state that took most of a rank's steps, apart from computing."""
    states = ("loader", "h2d", "communication", "straggler", "evaluation", "launch", "unattributed")
    return max(states, key=lambda state: seconds(account, rank, state))
