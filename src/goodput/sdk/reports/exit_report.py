"""The report that `goodput run` prints when a training ends, or why there is none."""

from __future__ import annotations

import os
import sys

from goodput.rank_page import page
from goodput.sdk.reports.nothing_measured import explanation
from goodput.sdk.startup import exit_status, unranked


def print_reports(session, has_steps: bool) -> None:
    """On rank 0, print the account of this run's pages on this host and what measuring has cost.

    Of several processes without ranks the program that started them prints it, or else the last one to end.
    """
    identity, path = session.identity, session.writer and session.writer.path
    directory = os.path.dirname(path) if path else page.default_directory(session.environ)
    is_ranked = bool(identity) and not identity.get("worker")
    runs = set() if is_ranked or not os.path.isdir(directory) else unranked.runs_of_children(directory)
    is_own = has_steps and path is not None and identity["run"] not in runs
    if is_own and (identity["rank"] == 0 if is_ranked else unranked.is_last(directory, identity)):
        _print_report(session, directory, identity["run"], _cost(session))
    for run in sorted(runs):
        _print_report(session, directory, run)
    if not (has_steps or runs):
        sys.stderr.write(explanation(session, directory))


def _cost(session) -> str:
    identity, cost_ns = session.identity, session.recorder.words[page.W_COST]
    share = 100 * cost_ns / max(session.recorder.last_ns - identity["start_mono_ns"], 1)
    return f"  goodput itself cost {cost_ns / 1e9:.4f} s ({share:.3f} % of all time) in rank {identity['rank']}\n"


def _print_report(session, directory: str, run: str, footer: str = "") -> None:
    """Runs `goodput report` as a child process: importing the account here would change how an interrupt ends it.

    It waits for the end of its input, which comes once this process' exit status is known, also if it is killed.
    """
    environ = {name: value for name, value in session.environ.items() if name != "GOODPUT_AUTO"}
    command = [sys.executable, "-m", "goodput", "report", "--directory", directory, "--at-exit", "--", run]
    sys.stdout.flush()
    sys.stderr.write("\n")
    sys.stderr.flush()
    output, input_ = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, output, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
        child = os.posix_spawn(sys.executable, command, environ, file_actions=actions)
        os.write(input_, footer.encode())
    except BaseException:
        os.close(input_)
        raise
    finally:
        os.close(output)
    if not exit_status.will_wait(child, input_):
        os.close(input_)
        os.waitpid(child, 0)
