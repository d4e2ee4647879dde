"""The folder of kept runs: where it is, what is in it, and how it stays within its bounds.

A run has a part for each launch and host, so that no two processes write to one file, also in a home on NFS. A part is
two files: `STEM.json` says what it has, `STEM.jsonl.gz` is the run log. Until its launch has ended the log is
`STEM.draft.gz`, which lacks the lines of attempts; those are in the JSON. Files that change are replaced by renaming.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from goodput.rank_page.page import file_prefix, process_start_ticks

OFF = ("0", "off", "no", "false")
BYTES_MAX, DAYS_MAX = 1 << 30, 90.0
PART_JSON_BYTES_MAX = 16 << 20
# A part that was not closed counts as living for so long after its last sign of life: its host may be another one.
LIVING_SECONDS = 1800.0
ORPHAN_SECONDS = 86_400.0
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Settings(NamedTuple):
    """`problem` says which variable has a value that is not used."""

    path: str
    bytes_max: int
    days_max: float
    problem: str = ""


def settings_of(environ: Mapping[str, str] = os.environ) -> Settings | None:
    """By GOODPUT_RUNS (a folder, or 0), GOODPUT_RUNS_SIZE and GOODPUT_RUNS_DAYS; None where no run is kept."""
    path = environ.get("GOODPUT_RUNS", "").strip()
    if path.lower() in OFF:
        return None
    problems = []
    size, days = _size(environ.get("GOODPUT_RUNS_SIZE", "")), _days(environ.get("GOODPUT_RUNS_DAYS", ""))
    if size is None:
        problems.append(
            f"GOODPUT_RUNS_SIZE={environ['GOODPUT_RUNS_SIZE'][:40]!r}: want a size such as 512M or 2G"
        )
    if days is None:
        problems.append(
            f"GOODPUT_RUNS_DAYS={environ['GOODPUT_RUNS_DAYS'][:40]!r}: want a positive number of days"
        )
    return Settings(
        os.path.abspath(path) if path else _default_path(environ),
        BYTES_MAX if size is None else size,
        DAYS_MAX if days is None else days,
        "; ".join(problems),
    )


def _default_path(environ: Mapping[str, str]) -> str:
    data = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):  # As the XDG specification has it.
        home = environ.get("HOME") or os.path.expanduser("~")
        data = os.path.join(home, ".local", "share")
    return os.path.join(data, "goodput", "runs")


def _size(text: str) -> int | None:
    if not text.strip():
        return BYTES_MAX
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        found = float(number.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        return None
    return int(found) if 1 <= found < 1 << 60 else None


def _days(text: str) -> float | None:
    if not text.strip():
        return DAYS_MAX
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 < found < 1e6 else None


@dataclass
class Part:
    """What is kept of one launch of a run on one host. Times are unix ns.

    `run` is the kept run's name, `named` the one that its pages have: names that have a process id in them may come
    again. `attempts` are (rank, attempt of the page, start, attempt in the log). `steps` are those that its ranks made,
    and of `merged` of them a line stands for several. `head` and `tail` are lines of a draft.
    """

    run: str
    named: str
    host: str
    pid: int
    pid_start_ticks: int | None
    stem: str = ""
    launched_pid: int = 0
    launched_ticks: int | None = None
    started_ns: int = 0
    seen_ns: int = 0
    is_closed: bool = False
    is_from_pages: bool = False
    steps: int = 0
    merged: int = 0
    attempts: list[list[int]] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def has(self, rank: int, start_ns: int) -> bool:
        """Whether it has the attempt of a rank that began then."""
        return any(one[0] == rank and one[2] == start_ns for one in self.attempts)

    def is_written(self) -> bool:
        """Whether its writer lives, as far as this host can see."""
        if self.host != os.uname().nodename:
            return False
        return self.pid_start_ticks is not None and process_start_ticks(self.pid) == self.pid_start_ticks

    def is_launch_over(self) -> bool:
        """Whether the command that it follows has ended on this host."""
        return self.launched_pid > 0 and process_start_ticks(self.launched_pid) != self.launched_ticks


_FIELDS = {one.name: one for one in fields(Part)}
JSON, LOG, DRAFT = ".json", ".jsonl.gz", ".draft.gz"
PRUNED = ".pruned"


class Folder:
    """The folder at `path`, which `make` makes. Reading raises nothing: what cannot be read is not there."""

    def __init__(self, path: str):
        self.path = path

    def make(self) -> None:
        """Its own folders are private, those above it as the user's umask has them. Raises OSError."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        os.scandir(self.path).close()

    def file(self, stem: str, suffix: str) -> str:
        return os.path.join(self.path, stem + suffix)

    def parts(self, run: str | None = None) -> list[Part]:
        """Those of all runs, or of the one of this name, by their starts."""
        prefix = "" if run is None else file_prefix(run)
        try:
            names = [one for one in os.listdir(self.path) if one.startswith(prefix) and one.endswith(JSON)]
        except OSError:
            return []
        found = (self._part(name.removesuffix(JSON)) for name in names if not name.startswith("."))
        return sorted(
            (one for one in found if one is not None and run in (None, one.run)),
            key=lambda one: one.started_ns,
        )

    def _part(self, stem: str) -> Part | None:
        try:
            with open(self.file(stem, JSON), "rb") as file:
                found = json.loads(file.read(PART_JSON_BYTES_MAX))
            known = {name: value for name, value in found.items() if name in _FIELDS}
            part = Part(**{**known, "stem": stem})
            texts = all(isinstance(one, str) for one in (part.run, part.named, part.host))
            numbers = all(type(one) is int for one in (part.pid, part.started_ns, part.seen_ns, part.steps))
            return part if texts and numbers and isinstance(part.summary, dict) else None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return None

    def save(self, part: Part) -> None:
        """Raises OSError."""
        self.replace(self.file(part.stem, JSON), json.dumps(asdict(part)).encode())

    def replace(self, path: str, content: bytes) -> None:
        """Raises OSError, and leaves what was there."""
        draft = self.new_file(path)
        try:
            with open(draft, "wb", opener=private) as file:
                file.write(content)
            os.replace(draft, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def new_file(self, path: str) -> str:
        """A hidden name beside `path`, of this process."""
        return os.path.join(self.path, f".{os.path.basename(path)}.{os.uname().nodename[:40]}.{os.getpid()}")

    def is_living(self, part: Part) -> bool:
        """Whether its log may still grow, here or on another host."""
        try:
            age = time.time() - os.stat(self.file(part.stem, JSON)).st_mtime
        except OSError:
            return False
        return part.is_written() or (not part.is_closed and age < LIVING_SECONDS)

    def remove(self, part: Part) -> None:
        for suffix in (LOG, DRAFT, JSON):
            with contextlib.suppress(OSError):
                os.unlink(self.file(part.stem, suffix))

    def size(self, parts: Iterable[Part]) -> int:
        total = 0
        for part in parts:
            for suffix in (LOG, DRAFT, JSON):
                with contextlib.suppress(OSError):
                    total += os.stat(self.file(part.stem, suffix)).st_size
        return total

    def prune(self, settings: Settings) -> None:
        """Remove runs that are too old, and then the oldest while all take too much; never one that may still grow."""
        runs: dict[str, list[Part]] = {}
        for part in self.parts():
            runs.setdefault(part.run, []).append(part)
        sizes = {run: self.size(parts) for run, parts in runs.items()}
        total, oldest_ns = sum(sizes.values()), time.time_ns() - int(settings.days_max * 86_400e9)
        for run, parts in sorted(runs.items(), key=lambda item: max(one.seen_ns for one in item[1])):
            is_old = max(one.seen_ns for one in parts) < oldest_ns
            if (not is_old and total <= settings.bytes_max) or any(map(self.is_living, parts)):
                continue
            total -= sizes[run]
            for part in parts:
                self.remove(part)
            self._set_pruned(max(one.seen_ns for one in parts))
        self._remove_orphans()

    def pruned_ns(self) -> int:
        """Until when runs that had ended were removed: pages that are still there of these must not bring them back."""
        try:
            return os.stat(self.file(PRUNED, "")).st_mtime_ns
        except OSError:
            return 0

    def _set_pruned(self, seen_ns: int) -> None:
        if seen_ns > self.pruned_ns():
            with contextlib.suppress(OSError):
                with open(self.file(PRUNED, ""), "ab", opener=private):
                    pass
                os.utime(self.file(PRUNED, ""), ns=(seen_ns, seen_ns))

    def _remove_orphans(self) -> None:
        """Files without their JSON that a killed process has left."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            listed = list(entries)
            stems = {one.name.removesuffix(JSON) for one in listed if one.name.endswith(JSON)}
            for one in listed:
                stem = one.name.removesuffix(LOG).removesuffix(DRAFT)
                if one.name == PRUNED:
                    continue
                is_ours = one.name.startswith(".") or (stem != one.name and stem not in stems)
                if is_ours and time.time() - one.stat().st_mtime > ORPHAN_SECONDS:
                    os.unlink(one.path)


def private(path: str, flags: int) -> int:
    """An opener for files that only their user may read."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
