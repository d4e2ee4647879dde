"""Keeps what the pages of ended processes hold of runs that no process beside `goodput run` has kept."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping

from goodput.kept_runs.folder import Folder, Part, Settings, settings_of
from goodput.kept_runs.log_writer import LogWriter
from goodput.kept_runs.pages import Page, mark_over, summary_of
from goodput.rank_page.page import PageError, is_of_user
from goodput.rank_page.page_file import PageFile
from goodput.sdk.reports.local_accounts import page_paths, read_page, runs_of


def keep_dead_pages(
    directories: Iterable[str], environ: Mapping[str, str] = os.environ
) -> tuple[list[Part], str]:
    """The runs that were kept now, and why one could not be, or "". Reads each page's head, some 0.1 ms."""
    settings = settings_of(environ)
    if settings is None:
        return [], ""
    kept, folder = [], Folder(settings.path)
    since_ns = max(folder.pruned_ns(), time.time_ns() - int(settings.days_max * 86_400e9))
    try:
        for run, paths in _dead_runs(directories, folder.parts(), since_ns).items():
            with contextlib.suppress(PageError):
                kept.append(_keep(settings, run, paths))
        if kept:
            folder.prune(settings)
    except OSError as error:
        return kept, f"not kept: {error.filename or settings.path}: {error.strerror}"
    return kept, ""


def _dead_runs(directories: Iterable[str], parts: list[Part], since_ns: int) -> dict[str, list[str]]:
    """This user's pages by run, where no process of the run lives, the last ended after `since_ns`, and no part has them."""
    newest: dict[str, int] = {}
    dead: dict[str, list[str]] = {}
    skipped = {one.named for one in parts if one.is_written()}
    for path in _paths(directories):
        with contextlib.suppress(PageError, OSError), PageFile(path) as page:
            identity, run = page.identity, page.identity["run"]
            if page.alive():
                skipped.add(run)
            elif not any(
                one.named == run and one.has(identity["rank"], identity["start_unix_ns"]) for one in parts
            ):
                dead.setdefault(run, []).append(path)
                newest[run] = max(newest.get(run, 0), page.last_unix_ns())
    return {run: paths for run, paths in dead.items() if run not in skipped and newest[run] > since_ns}


def _paths(directories: Iterable[str]) -> list[str]:
    found: list[str] = []
    for directory in directories:
        with contextlib.suppress(OSError):
            found += [path for path in page_paths(directory) if is_of_user(path, os.geteuid())]
    return found


def _keep(settings: Settings, run: str, paths: list[str]) -> Part:
    writer = written(settings, run, paths)
    reads = [read_page(path, time.perf_counter_ns()) for path in paths]
    found = runs_of(reads)[0]
    mark_over(found.attempts.values())
    writer.close(summary_of(found))
    return writer.part


def written(settings: Settings, run: str, paths: list[str]) -> LogWriter:
    """A writer that has taken what these pages of a run hold. Raises OSError, and PageError for the first page."""
    writer = None
    for path in paths:
        try:
            page = Page(path)
        except PageError:
            continue
        try:
            attempt = page.news(True)
            writer = writer or LogWriter(settings, run, page.identity, is_from_pages=True)
            writer.take(attempt)
        except PageError:
            continue
        finally:
            page.close()
    if writer is None:
        raise PageError("unreadable", f"no page of run {run!r} can be read")
    return writer
