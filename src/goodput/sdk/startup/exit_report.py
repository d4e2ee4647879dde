"""The report that `goodput run` prints when a training ends."""

from __future__ import annotations

import os
import sys

from goodput.rank_page import page


def print_report(session) -> None:
    """On rank 0, print the account of this run's pages on this host and what measuring has cost.

    Runs `goodput report` as a child process: importing the account here would change how an interrupt ends
    this process.
    """
    if session.identity["rank"] != 0 or session.writer is None or session.writer.path is None:
        return
    where = ["--directory", os.path.dirname(session.writer.path), "--run", session.identity["run"]]
    environ = {name: value for name, value in session.environ.items() if name != "GOODPUT_AUTO"}
    command = [sys.executable, "-m", "goodput", "report", *where]
    sys.stdout.flush()
    sys.stderr.write("\n")
    sys.stderr.flush()
    child = os.posix_spawn(sys.executable, command, environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
    os.waitpid(child, 0)
    cost_ns = session.recorder.words[page.W_COST]
    share = 100 * cost_ns / max(session.recorder.last_ns - session.identity["start_mono_ns"], 1)
    sys.stderr.write(f"  goodput itself cost {cost_ns / 1e9:.4f} s ({share:.3f} % of all time) in rank 0\n")
