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

BYTES_MAX = 64 << 20
_BEGIN = b'{"seed":'
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
        lines = self._read() if self._path.exists() else []
        # It was being written when the series was interrupted.
        cut_off = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for number, line in enumerate(lines, 1):
            try:
                result = msgspec.json.decode(line, type=Result)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ResultsError(f"{path}: line {number} is no result of a seed: {error}") from None
            self._found[result.key()] = result
        if cut_off[: len(_BEGIN)] != _BEGIN[: len(cut_off)]:
            raise ResultsError(f"{path}: line {len(lines) + 1} is no result of a seed")
        if cut_off:  # Only now that the file is known to have results and nothing else.
            os.truncate(self._path, self._path.stat().st_size - len(cut_off))

    def _read(self) -> list[bytes]:
        with self._path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise ResultsError(f"{self._path}: more than {BYTES_MAX} bytes")
        return content.splitlines(keepends=True)

    def find(self, key: Key) -> Result | None:
        return self._found.get(key)

    def add(self, result: Result) -> None:
        """Append a result; it is in the file when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[result.key()] = result
