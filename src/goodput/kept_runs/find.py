"""Finds a run by its name: among the kept ones, then among the pages on this machine, as a run log that can be read.

with log_of("train-4711") as found: replay(found.path)
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from goodput.kept_runs.dead_pages import written
from goodput.kept_runs.folder import DRAFT, LOG, Folder, Part, Settings, settings_of
from goodput.log_lines import line
from goodput.rank_page.page import STEP_RING, PageError, existing_directories
from goodput.rank_page.page_file import PageFile
from goodput.sdk.reports.local_accounts import page_paths
from goodput.wire.identity import clean_text

NAMES_SHOWN = 10
FINISH_SECONDS_MAX, AGAIN_SECONDS = 15.0, 0.05


class NotFound(Exception):
    """No run of this name; the text says where was looked and what runs there are."""


class Found(NamedTuple):
    """`note` says what the log lacks, "" for nothing."""

    path: str
    note: str = ""


def kept_parts(run: str | None = None) -> list[Part]:
    """What is kept, once the processes beside commands that have ended have written it; at most FINISH_SECONDS_MAX."""
    settings = settings_of()
    if settings is None:
        return []
    folder, end = Folder(settings.path), time.monotonic() + FINISH_SECONDS_MAX
    while True:
        parts = folder.parts(run)
        if time.monotonic() > end or not any(one.is_written() and one.is_launch_over() for one in parts):
            return parts
        time.sleep(AGAIN_SECONDS)


@contextlib.contextmanager
def log_of(run: str, elsewhere: str = "") -> Iterator[Found]:
    """The log of a run, which may be a temporary file; `elsewhere` was looked before. Raises NotFound and OSError."""
    settings, parts = settings_of(), kept_parts(run)
    if parts and settings is not None:
        folder = Folder(settings.path)
        if len(parts) == 1 and parts[0].is_closed:
            yield Found(folder.file(parts[0].stem, LOG), note_of(parts))
            return
        with tempfile.TemporaryDirectory(prefix="goodput-") as temporary:
            path = os.path.join(temporary, "run.jsonl")
            with open(path, "wb") as file:
                for part in parts:
                    file.writelines(_lines(folder, part))
            yield Found(path, note_of(parts))
        return
    paths = page_paths_of(run)
    if not paths:
        raise NotFound(not_found_text(run, elsewhere))
    with tempfile.TemporaryDirectory(prefix="goodput-") as temporary:
        try:
            writer = written(Settings(temporary, 1 << 50, 1e6), run, paths)
        except PageError as error:
            raise NotFound(str(error)) from None
        writer.close({}, is_over=False)
        path = writer.folder.file(writer.part.stem, LOG)
        yield Found(path, note_of([writer.part]))


def _lines(folder: Folder, part: Part) -> Iterator[bytes]:
    """The lines of one part; what a process that was killed has left of it, or one that still writes."""
    if part.is_closed:
        yield from _unpacked(folder.file(part.stem, LOG))
        return
    yield from (text.encode() for text in part.head)
    yield from _unpacked(folder.file(part.stem, DRAFT))
    yield from (text.encode() for text in part.tail)
    yield line("look", part.seen_ns)


def _unpacked(path: str) -> Iterator[bytes]:
    """Its lines, as far as they can be read."""
    with contextlib.suppress(OSError, EOFError, zlib.error), gzip.open(path) as file:
        for text in file:
            if text.endswith(b"\n"):
                yield text


def page_paths_of(run: str, directories: list[str] | None = None) -> list[str]:
    """The pages of a run on this machine."""
    found = []
    for directory in existing_directories() if directories is None else directories:
        with contextlib.suppress(OSError):
            for path in page_paths(directory):
                with contextlib.suppress(PageError), PageFile(path) as page:
                    if page.identity["run"] == run:
                        found.append(path)
    return found


def lives(run: str, directories: list[str] | None = None) -> bool:
    """Whether a page of the run is of a living process, so that it says more than what is kept."""
    for path in page_paths_of(run, directories):
        with contextlib.suppress(PageError), PageFile(path) as page:
            if page.alive() and not page.ended():
                return True
    return False


def note_of(parts: list[Part]) -> str:
    """Which steps of a run are not kept one by one, "" if all are."""
    steps, merged = sum(one.steps for one in parts), sum(one.merged for one in parts)
    if not merged:
        return ""
    if all(one.is_from_pages for one in parts):
        return (
            f"its pages held the last {STEP_RING:,} steps of each rank, {max(steps - merged, 0):,} of {steps:,}; "
            "of those before there are sums"
        )
    return f"{merged:,} of its {steps:,} steps are kept as sums of several"


def not_found_text(run: str, elsewhere: str = "") -> str:
    """Where was looked for a run, and what runs there are, the newest first."""
    settings = settings_of()
    kept = "" if settings is None else settings.path
    parts = [] if settings is None else Folder(settings.path).parts()
    looked = [
        *([elsewhere] if elsewhere else []),
        *([f"the kept runs ({kept})"] if kept else ["the kept runs (turned off by GOODPUT_RUNS)"]),
        f"the pages in {' or '.join(existing_directories())}",
    ]
    names = dict.fromkeys(one.run for one in sorted(parts, key=lambda one: -one.seen_ns))
    names |= dict.fromkeys(_runs_with_pages())
    shown = ", ".join(clean_text(one, 128) for one in list(names)[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN} more (goodput runs)" if len(names) > NAMES_SHOWN else ""
    there = f"the runs there: {shown}{more}" if names else "there is none"
    what = "file or run" if os.sep in run or "." in run else "run"
    return f"no {what} {clean_text(run, 128)!r}: looked in {', '.join(looked)}; {there}"


def _runs_with_pages() -> Iterator[str]:
    for directory in existing_directories():
        with contextlib.suppress(OSError):
            for path in page_paths(directory):
                with contextlib.suppress(PageError), PageFile(path) as page:
                    yield page.identity["run"]
