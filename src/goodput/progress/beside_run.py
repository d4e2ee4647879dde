"""The process beside `goodput run` that shows the progress of the whole job: one line, drawn from outside of the ranks.

    python -m goodput.progress.beside_run DIRECTORY PID PLAIN_SECONDS

It follows the rank pages of the run whose rank 0 is a descendant of PID, and ends with PID. Where the number of steps is
declared it keeps one line at the bottom of the terminal on standard error, or without a terminal prints a line every
PLAIN_SECONDS (0: prints nothing). Where Kubeflow Trainer's variables are set it reports to that, too. Reading the
pages takes at most CPU_SHARE_MAX of one core.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping

from goodput.account import FINAL_STATUSES
from goodput.defaults import STALL_SECONDS
from goodput.progress import KUBEFLOW_URL
from goodput.progress.estimate import Progress, progress_of
from goodput.progress.line import line
from goodput.progress.local_runs import LocalRuns
from goodput.progress.terminal_line import TerminalLine, write
from goodput.rank_page.page import PageError, process_start_ticks
from goodput.rank_page.page_file import PageFile
from goodput.sdk.reports.local_accounts import page_paths
from goodput.stack_samples.beside_run import is_descendant

POLL_SECONDS, SIZE_SECONDS, CPU_SHARE_MAX, NICE = 1.0, 0.25, 0.02, 10
KUBEFLOW_SECONDS, PLAIN_COLUMNS = 10.0, 160
STDERR = 2


class Command:
    """The command's process, which `goodput run` replaced itself with."""

    def __init__(self, pid: int):
        self.pid, self._ticks = pid, process_start_ticks(pid)
        try:
            self._fd: int | None = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self._fd = None  # A kernel before 5.3, or it has ended.

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, at the latest after `seconds`; noticed at once where the kernel has pidfds."""
        if self._fd is not None:
            return bool(select.select([self._fd], [], [], seconds)[0])
        time.sleep(seconds if self._ticks is not None else 0.0)
        return self._ticks is None or process_start_ticks(self.pid) != self._ticks

    def is_in_foreground(self) -> bool:
        """Whether it has its terminal: it is neither stopped (Ctrl-Z) nor in the background."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                state, _, group, _, _, foreground = file.read().rpartition(b")")[2].split()[:6]
        except (OSError, ValueError):
            return False
        return state not in (b"T", b"t") and group == foreground


class Job:
    """The progress of the run that a command trains; None while it has no rank 0 on this machine."""

    def __init__(self, directory: str, root: int):
        self._root, self._directory, self._runs = root, directory, LocalRuns([directory], STALL_SECONDS)
        self._name: str | None = None
        self.cpu_seconds = 0.0  # of the last reading

    def progress(self) -> Progress | None:
        began = time.process_time()
        try:
            self._name = self._name or self._find()
            found = self._runs.read(self._name) if self._name is not None else []
        except OSError:
            found = []  # The folder cannot be read now.
        progress = progress_of(found[0].document, found[0].pace.steps_per_second) if found else None
        self.cpu_seconds = time.process_time() - began
        return progress

    def _find(self) -> str | None:
        """The run of a rank 0 that the command has started. Raises OSError."""
        try:
            paths = page_paths(self._directory)
        except FileNotFoundError:
            return None  # The first rank makes it.
        for path in paths:
            with contextlib.suppress(PageError), PageFile(path) as page:
                identity = page.identity
                is_first = identity["rank"] == 0 and page.alive()
                if is_first and is_descendant(identity["pid"], self._root):
                    return identity["run"]
        return None


class Display:
    """The line on a terminal, or lines from time to time elsewhere; none once the output is gone."""

    def __init__(self, command: Command, plain_seconds: float):
        self._command, self._plain_seconds = command, plain_seconds
        is_terminal = os.isatty(STDERR) and os.environ.get("TERM", "dumb") not in ("", "dumb")
        self._line = TerminalLine(STDERR) if is_terminal and plain_seconds else None
        self._due = time.monotonic() + plain_seconds
        self._shown_end = ""  # the final status that was printed
        self._is_over = not plain_seconds

    def show(self, progress: Progress) -> None:
        """Show the job's progress; nothing where its number of steps is not declared."""
        if self._is_over or not progress.total:
            return
        try:
            if self._line is not None:
                self._draw(self._line, progress)
            elif time.monotonic() >= self._due:
                self._due = time.monotonic() + self._plain_seconds
                end = progress.status if progress.status in FINAL_STATUSES else ""
                if not end or end != self._shown_end:
                    write(STDERR, f"goodput: {line(progress, PLAIN_COLUMNS)}\n")
                self._shown_end = end
        except OSError:
            self._is_over = True

    def _draw(self, terminal: TerminalLine, progress: Progress) -> None:
        if self._command.is_in_foreground():
            terminal.draw(f" {line(progress, terminal.columns - 2)} ")
        else:
            terminal.clear()

    def waited(self, seconds: float) -> bool:
        """Wait for `seconds` or the command's end; returns whether it has ended. The line follows the terminal's size."""
        end = time.monotonic() + seconds
        while not self._command.wait(min(SIZE_SECONDS, seconds)):
            if time.monotonic() >= end:
                return False
            with contextlib.suppress(OSError):
                if self._line is not None:
                    self._line.redraw()
        return True

    def close(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.clear()


def sender_of(environ: Mapping[str, str]):
    """The sender that the environment configures; its modules are loaded only where there may be one."""
    if not environ.get(KUBEFLOW_URL):
        return None
    from goodput.progress.kubeflow import Sender

    return Sender.from_environment(environ)


def main(directory: str, root: int, plain_seconds: float) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    command, job = Command(root), Job(directory, root)
    display, sender = Display(command, plain_seconds), sender_of(os.environ)
    if not plain_seconds and sender is None:
        return
    due, problem = 0.0, ""
    try:
        while True:
            is_over = display.waited(max(POLL_SECONDS, job.cpu_seconds / CPU_SHARE_MAX))
            if is_over:
                display.close()  # At once, since a shell goes on.
            progress = job.progress() if sender or not is_over else None
            if progress is not None and not is_over:
                display.show(progress)
            if sender and progress is not None and (is_over or time.monotonic() >= due):
                due, before = time.monotonic() + KUBEFLOW_SECONDS, problem
                problem = sender.send(progress, time.time())
                if problem and not before:
                    text = f"goodput run: Kubeflow Trainer's status endpoint: {problem}"
                    with contextlib.suppress(OSError):
                        write(STDERR, f"{text[:500]}\n")
            if is_over:
                return
    finally:
        display.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
