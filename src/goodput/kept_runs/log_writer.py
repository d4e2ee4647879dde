"""Writes one part of a kept run: steps as they come, and at the end one run log.

Of a log that grows beyond a share of the folder's bound a line stands for more and more steps, so that it stays below
about `bytes_max` however long the run is; sums stay exact, as rows are cumulative.
"""

from __future__ import annotations

import contextlib
import gzip
import heapq
import os
import re
import shutil
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from goodput.account import DECLARED, Attempt, Event
from goodput.account.attempts import Row
from goodput.kept_runs.folder import DRAFT, LOG, Folder, Part, Settings, private
from goodput.kept_runs.pages import mark_over
from goodput.log_lines import AttemptLines, line
from goodput.rank_page.page import file_prefix, process_start_ticks
from goodput.sdk.reports.local_accounts import is_without_gpu

PART_SHARE = 8  # of the folder's bound, for one part
_LEVEL = 6
_WITH_PID = re.compile(r".*-(\d+)(?:-workers)?")


class Kept(NamedTuple):
    """An attempt that is being written; `attempt` has no rows."""

    lines: AttemptLines
    attempt: Attempt
    starts: list[Event]  # those that say where it resumed
    number: int
    held: Row | None  # the last row that was left out


class LogWriter:
    """One part of a run: `take` what is new of its attempts, `flush` from time to time, then `close`. All raise OSError."""

    def __init__(self, settings: Settings, run: str, identity: dict[str, Any], is_from_pages: bool = False):
        self._settings, self.folder = settings, Folder(settings.path)
        self.folder.make()
        self._others = self.folder.parts()
        name = kept_name(self._others, run, identity)
        self._others = [one for one in self._others if one.run == name]
        now_ns, host = time.time_ns(), os.uname().nodename
        safe_host = file_prefix(host)[:-1][:40]
        self.part = Part(
            *(name, run, host, os.getpid(), process_start_ticks()),
            stem=f"{file_prefix(name)}{now_ns:x}-{safe_host}-{os.getpid()}",
            is_from_pages=is_from_pages,
        )
        self._attempts: dict[tuple[int, int, int], Kept] = {}
        self._pending: list[bytes] = []
        self._shifts: dict[int, int] = {}
        self._no_gpu = {"without_gpu": True} if is_without_gpu() else {}
        self._bytes, self._every = 0, 1

    def take(self, attempt: Attempt) -> None:
        """What is new of an attempt: its rows and events since the last call. Does no I/O."""
        key = attempt.rank, attempt.attempt, attempt.start_ns
        kept = self._attempts.get(key) or self._begin(attempt)
        rows, held = attempt.ordered_rows(), kept.held
        if self._every > 1:
            left_out = [row for row in rows if row.number % self._every]
            held = left_out[-1] if left_out and left_out[-1] is rows[-1] else None if rows else held
            rows = [row for row in rows if not row.number % self._every]
        self._add(kept.lines, attempt, rows)
        starts = kept.starts + [one for one in attempt.events.values() if one.kind in ("resumed", "restored")]
        self.part.steps += max(attempt.top_number - kept.attempt.top_number, 0)
        self.part.seen_ns = max(self.part.seen_ns, attempt.beat_ns())
        attempt.rows, attempt.events = {}, {}
        attempt.failure = attempt.failure or kept.attempt.failure
        attempt.top_number = max(attempt.top_number, kept.attempt.top_number)
        self._attempts[key] = Kept(kept.lines, attempt, starts[-4:], kept.number, held)

    def _add(self, lines: AttemptLines, attempt: Attempt, rows: Iterable[Row]) -> None:
        said = filter(None, map(lines.event, attempt.events.values()))
        stepped = lines.rows(rows, attempt.phases, attempt.phase_states)
        self._pending += [text for _, text in heapq.merge(stepped, said, key=lambda entry: entry[0])]

    def _begin(self, attempt: Attempt) -> Kept:
        number = self._number(attempt)
        self.part.attempts.append([attempt.rank, attempt.attempt, attempt.start_ns, number])
        self.part.started_ns = min(self.part.started_ns or attempt.start_ns, attempt.start_ns)
        nothing = Attempt(attempt.rank, attempt.attempt, attempt.start_ns)
        return Kept(AttemptLines(attempt, number), nothing, [], number, None)

    def _number(self, attempt: Attempt) -> int:
        """The attempt's number in the run: it follows those of earlier launches, whose pages are gone."""
        rank, used = attempt.rank, [0]
        if rank not in self._shifts:
            for part in self._others:
                is_earlier = part.seen_ns <= attempt.start_ns
                used += [one[3] for one in part.attempts if is_earlier or one[0] == rank]
            self._shifts[rank] = max(max(used) + 1 - attempt.attempt, 0)
        return attempt.attempt + self._shifts[rank]

    def flush(self, summary: dict[str, Any] | None = None) -> None:
        """Append what is new as a compressed block of its own, so that what was written before can be read whatever comes."""
        if self._pending:
            block = gzip.compress(b"".join(self._pending), _LEVEL)
            path = self.folder.file(self.part.stem, DRAFT)
            with open(path, "ab", buffering=0, opener=private) as file:
                begin = file.tell()
                try:
                    if file.write(block) < len(block):
                        file.write(block[len(block) :])
                        raise OSError(28, os.strerror(28))
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(file.fileno(), begin)
                    raise
            self._pending.clear()
            self._bytes += len(block)
            level = self._bytes * 8 * PART_SHARE // max(self._settings.bytes_max, 1)
            self._every = 1 << min(level, 40)
        self._describe(summary)
        self.folder.save(self.part)

    def _describe(self, summary: dict[str, Any] | None) -> None:
        kept = self._attempts.values()
        start_ns = self.part.started_ns
        self.part.head = [
            line("run", start_ns, run=self.part.run, **self._no_gpu).decode(),
            *(one.lines.begin(one.attempt, one.starts)[1].decode() for one in kept),
        ]
        self.part.tail = [one.lines.last(one.attempt)[1].decode() for one in kept]
        self.part.merged = sum(one.lines.merged for one in kept)
        if summary is not None:
            self.part.summary = summary

    def declare(self, attempts: Iterable[Attempt]) -> None:
        """Take what these attempts declare, which may have become known after their last steps."""
        for attempt in attempts:
            kept = self._attempts.get((attempt.rank, attempt.attempt, attempt.start_ns))
            if kept is not None:
                for name in DECLARED:
                    setattr(kept.attempt, name, getattr(attempt, name))

    def close(self, summary: dict[str, Any], is_over: bool = True) -> None:
        """Make the run log of the draft. `is_over`: no process of this launch is left, so none goes on."""
        for one in self._attempts.values():
            if one.held is not None:
                self._add(one.lines, one.attempt, [one.held])
        if is_over:
            mark_over(one.attempt for one in self._attempts.values())
        self.flush(summary)
        if not is_over or any(one.attempt.known_end_ns() is None for one in self._attempts.values()):
            self.part.tail.append(line("look", self.part.seen_ns).decode())
        path, draft = (self.folder.file(self.part.stem, suffix) for suffix in (LOG, DRAFT))
        new = self.folder.new_file(path)
        try:
            with open(new, "wb", opener=private) as file:
                file.write(gzip.compress("".join(self.part.head).encode()))
                with contextlib.suppress(FileNotFoundError), open(draft, "rb") as steps:
                    shutil.copyfileobj(steps, file, 1 << 20)
                file.write(gzip.compress("".join(self.part.tail).encode()))
            os.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        self.part.head, self.part.tail, self.part.is_closed = [], [], True
        self.folder.save(self.part)
        with contextlib.suppress(OSError):
            os.unlink(draft)


def kept_name(others: list[Part], run: str, identity: dict[str, Any]) -> str:
    """The name under which a run is kept. One that ends in its process's id, which the SDK makes up, is another run each time."""
    found = _WITH_PID.fullmatch(run)
    pids = (identity.get("pid"), identity.get("root_pid"))
    if found is None or int(found[1]) not in pids:
        return run
    start_ns = identity.get("start_unix_ns", 0)
    taken = {one.run for one in others if not _is_same_launch(one, run, start_ns)}
    name, number = run, 1
    while name in taken:
        number += 1
        name = f"{run}.{number}"
    return name


def _is_same_launch(part: Part, run: str, start_ns: int) -> bool:
    """Whether a part of the same made-up name has processes of the same program: they began about together."""
    is_over = part.is_closed or (part.host == os.uname().nodename and part.is_launch_over())
    return part.named == run and not is_over and abs(part.started_ns - start_ns) < 60e9
