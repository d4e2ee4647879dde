"""The process beside `goodput run` that keeps the run: all steps of the command's ranks, read from their pages.

    python -m goodput.kept_runs.beside_run DIRECTORY PID QUIET

It follows the pages of PID and its descendants, and ends with PID, however that ends. Nothing that goes wrong with the
log reaches the training; one line on standard error says it. Takes at most CPU_SHARE_MAX of one core: where steps are so
short that more would be needed, some lines stand for several steps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from goodput.account import Attempt, Run
from goodput.defaults import FLOPS_COUNTING
from goodput.kept_runs.folder import Settings, settings_of
from goodput.kept_runs.log_writer import LogWriter
from goodput.kept_runs.pages import Page, mark_over, summary_of
from goodput.rank_page.page import PageError, process_start_ticks
from goodput.sdk.reports.local_accounts import PageRead, page_paths, read_page, runs_of
from goodput.stack_samples.beside_run import is_descendant

POLL_SECONDS, CPU_SHARE_MAX, NICE = 0.5, 0.03, 10
FLUSH_SECONDS, SUMMARY_SECONDS = 10.0, 60.0
TERMINATED_SECONDS = 5.0  # that a command may take to end once this process is told to
COUNT_SECONDS_MAX = 10.0  # for the count of a model's FLOPs after its training
GONE_MAX = 64  # attempts that have ended, whose pages the agent may remove before the command ends


class Keeper:
    """Keeps the runs of one command. Raises OSError where a log cannot be written."""

    def __init__(self, settings: Settings, directory: str, root: int):
        self._settings, self._directory, self._root = settings, directory, root
        self._ticks = process_start_ticks(root)
        self._pages: dict[tuple[str, int], Page | None] = {}  # None: of no process of the command, or over
        self._mine: dict[
            str, dict[str, PageRead | None]
        ] = {}  # by run and path; the page of an ended process
        self._writers: dict[str, LogWriter] = {}
        self._ended: set[tuple[str, int]] = set()
        self._flush_at = self._summary_at = 0.0

    def poll(self) -> None:
        """Take what is new of all pages; write it where that is due, or a process has ended."""
        has_ended = False
        for path in self._paths():
            key = _key(path)
            if key is None:
                continue
            if key not in self._pages:
                self._pages[key] = self._open(path)
            page = self._pages[key]
            if page is not None:
                has_ended |= self._take(key, page)
        now = time.monotonic()
        if has_ended or now >= self._flush_at:
            wants_summary = has_ended or now >= self._summary_at
            self._flush_at = now + FLUSH_SECONDS
            if wants_summary:
                self._summary_at = now + SUMMARY_SECONDS
            self._flush(wants_summary)

    def _paths(self) -> list[str]:
        try:
            return page_paths(self._directory)
        except OSError:
            return []  # The first rank makes it.

    def _open(self, path: str) -> Page | None:
        """The page if it is of a process of the command. One that ended before it was seen is left to `dead_pages`."""
        try:
            page = Page(path)
        except PageError:
            return None
        identity = page.identity
        is_root = identity["pid"] == self._root and identity.get("pid_start_ticks") in (None, self._ticks)
        if is_root or is_descendant(identity["pid"], self._root):
            self._mine.setdefault(identity["run"], {})[path] = None
            return page
        page.close()
        return None

    def _take(self, key: tuple[str, int], page: Page) -> bool:
        """Take what is new of a page; returns whether its attempt has ended since the last time."""
        run, is_gone = page.identity["run"], _is_gone(page)
        has_ended = is_gone
        try:
            attempt = page.news(time.monotonic() >= self._flush_at)
            if run not in self._writers:
                self._writers[run] = self._writer(run, page)
            has_ended |= bool(attempt.ended) and key not in self._ended
            if has_ended:
                self._ended.add(key)
                self._keep_gone(run, key[0])
            self._writers[run].take(attempt)
        except PageError:
            is_gone = True
        if is_gone:
            self._pages[key] = None
            page.close()
        return has_ended

    def _writer(self, run: str, page: Page) -> LogWriter:
        writer = LogWriter(self._settings, run, page.identity)
        writer.part.launched_pid, writer.part.launched_ticks = self._root, self._ticks
        writer.folder.prune(self._settings)
        return writer

    def _keep_gone(self, run: str, path: str) -> None:
        mine = self._mine[run]
        mine[path] = read_page(path, time.perf_counter_ns())
        gone = [one for one, read in mine.items() if read is not None]
        for one in gone[:-GONE_MAX]:
            del mine[one]

    def _flush(self, wants_summary: bool) -> None:
        for run, writer in self._writers.items():
            writer.flush(self._summary(run) if wants_summary else None)

    def _account_of(self, run: str) -> Run | None:
        """The run as the pages of this command have it."""
        reads = []
        for path, read in self._mine[run].items():
            with contextlib.suppress(PageError):
                reads.append(read or read_page(path, time.perf_counter_ns()))
        return runs_of(reads)[0] if reads else None

    def _summary(self, run: str, is_over: bool = False) -> dict | None:
        found = self._account_of(run)
        if found is None:
            return None
        if is_over:
            mark_over(found.attempts.values())
        return summary_of(found)

    def close(self, is_over: bool) -> None:
        """Take the rest, and make the run logs."""
        self.poll()
        end = time.monotonic() + COUNT_SECONDS_MAX
        while any(self._is_counting(run) for run in self._writers) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        for run, writer in self._writers.items():
            found = self._account_of(run)
            writer.declare(found.attempts.values() if found else ())
            writer.close(self._summary(run, is_over) or {}, is_over)
            writer.folder.prune(self._settings)

    def _is_counting(self, run: str) -> bool:
        found = self._account_of(run)
        return found is not None and any(map(_counts_flops, found.attempts.values()))


def _counts_flops(attempt: Attempt) -> bool:
    return attempt.flops_per_step is None and attempt.flops_unknown == FLOPS_COUNTING and bool(attempt.ended)


def _is_gone(page: Page) -> bool:
    """Whether its process is: one that has ended its attempt may still declare something."""
    return process_start_ticks(page.identity["pid"]) != page.identity.get("pid_start_ticks")


def _key(path: str) -> tuple[str, int] | None:
    try:
        return path, os.stat(path).st_ino
    except OSError:
        return None


def _say(text: str, is_quiet: bool) -> None:
    if not is_quiet:
        with contextlib.suppress(OSError):
            os.write(2, f"goodput run: {text}\n"[:600].encode(errors="replace"))


def _follow(keeper: Keeper, root: int, ticks: int | None) -> bool:
    """Until the command has ended; False if it has not, some seconds after this process was told to end."""
    told: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
    wait = POLL_SECONDS / 10  # At first: the training may be short.
    while ticks is not None and process_start_ticks(root) == ticks:
        if told and time.monotonic() - told[0] > TERMINATED_SECONDS:
            return False
        time.sleep(wait)
        began = time.process_time()
        keeper.poll()
        took = time.process_time() - began
        wait = min(max(POLL_SECONDS, took / CPU_SHARE_MAX), 30.0)
        if told:
            wait = POLL_SECONDS / 5
    return True


def main(directory: str, root: int, is_quiet: bool) -> None:
    settings = settings_of()
    if settings is None:
        return
    if settings.problem:
        _say(f"ignored: {settings.problem}", is_quiet)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        keeper = Keeper(settings, directory, root)
        keeper.close(_follow(keeper, root, process_start_ticks(root)))
    except OSError as error:
        where = error.filename or settings.path
        text = f"the run's log is not kept: {where}: {error.strerror}; training goes on"
        _say(f"{text} (GOODPUT_RUNS names another folder, GOODPUT_RUNS=0 turns it off)", is_quiet)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
