"""Series that other programs leave in the files `*.prom` of `Settings.textfile_directories`, as for node_exporter.

Each file is in the Prometheus text format. A file that is malformed, has timestamps, is unreadable, too large or no
regular file has no series and is in `goodput_textfile_refused`; the log names the line. Of two files, in the order of
their names, that have the same series or disagree on the type of a name, the first one counts; the agent's own names, and
those that it serves for --compat, count before all files. A HELP that one file has is for all. A file is read again when it
has changed.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from goodput.metrics import CATALOGUE
from goodput.metrics.foreign import (
    SUFFIXES,
    ForeignFamily,
    MalformedText,
    TimestampedText,
    parse_families,
)
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.system.files import PROBLEMS_MAX, label, open_regular

FILES_MAX = 256
FILE_BYTES_MAX = 1 << 20
SAMPLES_MAX = 20_000
# Of all files: what is parsed is kept, each line as up to half a kilobyte.
LINES_MAX, BYTES_MAX = 3 * SAMPLES_MAX, 8 << 20
SUFFIX = ".prom"
# What Prometheus says of each target, which a series of the target would replace.
_PROMETHEUS = {
    *("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling"),
    *("scrape_series_added", "scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes"),
}


@functools.cache  # Not made where there are no text files.
def _ours() -> frozenset[str]:
    """Names of the agent itself and, where both are scraped together, of an aggregator; OpenMetrics names a counter's family
    without _total."""
    return frozenset(
        name
        for metric in CATALOGUE.values()
        for suffix in ("", *(SUFFIXES["histogram"] if metric.kind == "histogram" else ()))
        for name in (metric.name + suffix, metric.name.removesuffix("_total"))
    )


class _Size(NamedTuple):
    lines: int
    bytes: int

    def fits(self, left: _Size) -> bool:
        return self.lines <= left.lines and self.bytes <= left.bytes


class _File(NamedTuple):
    """What a file had when it was last read; `reason` is why it has no series. `size` is (0, 0) of one that takes none of
    what files may have in all; `is_parsed` is false where there was not enough of that left."""

    mark: tuple
    families: list[ForeignFamily]
    reason: str
    problem: str
    size: _Size = _Size(0, 0)
    is_parsed: bool = True


class Textfile:
    """`reserved` are names that the agent serves besides its own, by the option that has it serve them."""

    name = "textfile"

    def __init__(self, settings: Settings):
        self.reserved: dict[str, str] = {}
        self._directories = [os.path.abspath(path) for path in settings.textfile_directories]
        self._files: dict[str, _File] = {}

    def collect(self, families) -> None:
        if not self._directories:
            raise NoData("no --textfile-dir")
        problems: list[str] = []
        paths = self._paths(problems)
        before, self._files = self._files, {}
        merged, left = _Merged(self.reserved), _Size(LINES_MAX, BYTES_MAX)
        for path in paths:
            file = self._files[path] = self._read(path, before.get(path), left)
            if file.is_parsed:
                left = _Size(left.lines - file.size.lines, left.bytes - file.size.bytes)
            refused = [(file.reason, file.problem)] if file.reason else merged.add(file.families, label(path))
            for reason in dict.fromkeys(reason for reason, _ in refused):
                families.add("goodput_textfile_refused", {"file": label(path), "reason": reason}, 1)
            problems += [f"{label(path)}: {problem}" for _, problem in refused]
            if not file.reason:
                labels = {"file": label(path)}
                families.add("goodput_textfile_modified_timestamp_seconds", labels, file.mark[0] / 1e9)
        families.foreign += merged.families()
        if problems:
            raise CollectorError("; ".join(problems[:PROBLEMS_MAX]))
        if not paths:
            raise NoData(f"{', '.join(map(label, self._directories))}: no file ends in {SUFFIX}")

    def _paths(self, problems: list[str]) -> list[str]:
        paths = []
        for directory in self._directories:
            try:
                names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
            except OSError as error:
                problems.append(f"{label(directory)}: {error.strerror}")
                continue
            paths += [os.path.join(directory, name) for name in names]
        if len(paths) > FILES_MAX:
            problems.append(f"{len(paths)} files; only {FILES_MAX} are read")
        return paths[:FILES_MAX]

    def _read(self, path: str, before: _File | None, left: _Size) -> _File:
        """The file as it is now, or as it was if it has not changed; `left` is what it may have."""
        mark: tuple = (0,)
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                mark = status.st_mtime_ns, status.st_size, status.st_ino
                if before is not None and before.mark == mark and before.is_parsed == before.size.fits(left):
                    return before
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) > FILE_BYTES_MAX:
                return _File(mark, [], "large", f"more than {FILE_BYTES_MAX} bytes")
            size = _Size(content.count(b"\n"), len(content))
            if not size.fits(left):
                problem = f"with it all files have more than {LINES_MAX} lines or {BYTES_MAX} bytes"
                return _File(mark, [], "large", problem, size, is_parsed=False)
            return _File(mark, parse_families(content.decode()), "", "", size)
        except OSError as error:
            return _File(mark, [], "unreadable", error.strerror or str(error))
        except UnicodeDecodeError:
            return _File(mark, [], "malformed", "not UTF-8")
        except TimestampedText as error:
            return _File(mark, [], "timestamp", str(error))
        except MalformedText as error:
            return _File(mark, [], "malformed", str(error))


class _Merged:
    """The families of all files by name."""

    def __init__(self, reserved: dict[str, str]):
        self._reserved = reserved
        self._families: dict[str, ForeignFamily] = {}
        self._owners: dict[str, str] = {}  # the family of each name of a sample
        self._paths: dict[str, list[str]] = {}  # the files of each family
        self._seen: set[tuple] = set()

    def add(self, families: list[ForeignFamily], path: str) -> list[tuple[str, str]]:
        """Add the families of a file; returns what of it is refused as (reason, problem)."""
        refused = []
        for family in families:
            names = {family.name, *(family.name + suffix for suffix in SUFFIXES.get(family.kind, ()))}
            known = self._families.get(family.name)
            if owner := self._owner(family.name, names):
                refused.append(("clash", owner))
            elif known is not None and known.kind != family.kind:
                refused.append(("clash", f"{family.name} is a {known.kind} already, not a {family.kind}"))
            else:
                self._owners.update(dict.fromkeys(names, family.name))
                self._paths.setdefault(family.name, []).append(path)
                refused += self._add_samples(family)
        return refused

    def _owner(self, own: str, names: set[str]) -> str:
        """Whose the first of these names is, "" where they are free."""
        for name in sorted(names):
            if name in _ours():
                return f"{name} is the agent's or an aggregator's own name"
            if name in _PROMETHEUS:
                return f"{name} is Prometheus's own name"
            if name in self._reserved:
                return f"{name} is served for {self._reserved[name]}"
            if self._owners.get(name, own) != own:
                return f"{name} belongs to {self._owners[name]}"
        return ""

    def families(self) -> list[ForeignFamily]:
        for family in self._families.values():
            family.help = family.help or f"Metric read from {', '.join(self._paths[family.name])}"
        return sorted(self._families.values(), key=lambda family: family.name)

    def _add_samples(self, family: ForeignFamily) -> list[tuple[str, str]]:
        known = self._families.setdefault(family.name, ForeignFamily(family.name, family.kind, family.help))
        known.help = known.help or family.help
        duplicates = excess = 0
        for sample in family.samples:
            key = sample.name, sample.labels
            if key in self._seen:
                duplicates += 1
            elif len(self._seen) == SAMPLES_MAX:
                excess += 1
            else:
                self._seen.add(key)
                known.samples.append(sample)
        refused = []
        if duplicates:
            refused.append(("duplicate", f"{duplicates} series of {family.name} are there already"))
        if excess:
            refused.append(("large", f"more than {SAMPLES_MAX} series in all"))
        return refused
