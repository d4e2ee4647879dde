"""The comparisons of many random scenarios in a file, one per line of JSON, so that an interrupted series can go on.

results = Results("seeds.jsonl")
for seed in seeds:
    if results.find(key) is None:
        results.add(Result(...))
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from goodput.simulate.check.comparison import Report

Key = tuple[int, int, float, bool]  # seed, ranks, seconds, innocent


class ResultsError(Exception):
    """A file that has something else than results."""


class Result(Struct):
    """The comparison of one random scenario, before it is judged, and how long it took."""

    seed: int
    ranks: int
    seconds: float
    innocent: bool
    took_seconds: float
    version: str
    report: Report

    def key(self) -> Key:
        return self.seed, self.ranks, self.seconds, self.innocent


class Results:
    """The results in the file at `path`, which need not exist. Raises ResultsError, OSError."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._found: dict[Key, Result] = {}
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            # It was written when the series was interrupted.
            os.truncate(self._path, self._path.stat().st_size - len(lines.pop()))
        for number, line in enumerate(lines, 1):
            try:
                result = msgspec.json.decode(line, type=Result)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ResultsError(f"{path}: line {number} is no result of a seed: {error}") from None
            self._found[result.key()] = result

    def find(self, key: Key) -> Result | None:
        return self._found.get(key)

    def add(self, result: Result) -> None:
        """Append a result; it is in the file when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[result.key()] = result
