"""The last probe of each node, as files ~/.cache/goodput/probe/HOST.json."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable

from goodput import user_cache

FILE_BYTES_MAX = 1 << 20
FIGURES_MAX = 1024
POLL_SECONDS = 60
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


class ProbeError(Exception):
    """A file has no probe; the message says which file and why."""


def save(document: dict, is_whole: bool = True) -> str | None:
    """Keep the probe of its node and return the file; None if it cannot be written.

    Of one that is not whole the figures that could be measured replace those of their names, and the others stay.
    """
    path = path_of(document["host"])
    if path is None:
        return None
    before = None if is_whole else load(document["host"])
    if before is not None:
        has = {figure["name"] for figure in before["figures"] if figure["value"]}
        new = [one for one in document["figures"] if one["value"] or one["name"] not in has]
        names = {figure["name"] for figure in new}
        others = [figure for figure in before["figures"] if figure["name"] not in names]
        document = {**document, "figures": [*others, *new][-FIGURES_MAX:]}
    return path if user_cache.replace(path, json.dumps(document)) else None


def load(host: str) -> dict | None:
    """The kept probe of a node; None if there is none, or it is damaged."""
    path = path_of(host)
    return None if path is None else load_file(path)


def load_file(path: str) -> dict | None:
    """The probe in a file; None if there is none, or it is damaged."""
    with contextlib.suppress(OSError, ProbeError), open(path, encoding="utf-8", errors="replace") as file:
        return parse(file.read(FILE_BYTES_MAX), path)[0]
    return None


class KeptFile:
    """A node's kept probe as it is now: its time of change is read every POLL_SECONDS, and the file when that has changed."""

    def __init__(self, path: str, monotonic_ns: Callable[[], int]):
        self._path, self._monotonic_ns = path, monotonic_ns
        self._next_ns = 0
        self._stamp: tuple[int, int] | None = None
        self._document: dict | None = None

    def document(self) -> dict | None:
        """The same object until the file changes; None if there is none, or it is damaged."""
        if not self._path or self._monotonic_ns() < self._next_ns:
            return self._document
        self._next_ns = self._monotonic_ns() + POLL_SECONDS * 10**9
        stamp = None
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp:
            self._stamp, self._document = stamp, load_file(self._path) if stamp else None
        return self._document


def parse(text: str, name: str) -> list[dict]:
    """The probes in a text: one, a list of them, or one on each line. Raises ProbeError for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise ProbeError(f"{name} is not JSON: {error}") from error
    found = found if isinstance(found, list) else [found]
    flat = [one for part in found for one in (part if isinstance(part, list) else [part])]
    if not flat or not all(map(_is_probe, flat)):
        raise ProbeError(f"{name} has no output of `goodput probe --json`")
    return flat


def value(document: dict | None, figure: str, device: str = "") -> float | None:
    """The median of the figures of this name, of this device if it is given; None where none is known."""
    figures = document["figures"] if document else []
    known = sorted(
        one["value"]
        for one in figures
        if one["name"] == figure and one["value"] and (not device or one["device"] == device)
    )
    return known[len(known) // 2] if known else None


def _is_probe(one: object) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("host"), str):
        return False
    figures = one.get("figures")
    return isinstance(figures, list) and len(figures) <= FIGURES_MAX and all(map(_is_figure, figures))


def _is_figure(one: object) -> bool:
    if not isinstance(one, dict) or not all(
        isinstance(one.get(key), str) for key in ("name", "unit", "device")
    ):
        return False
    value = one.get("value")
    return value is None or (isinstance(value, int | float) and math.isfinite(value) and value > 0)


def path_of(host: str) -> str | None:
    """Where the probe of a node is kept; None for a name that no host has."""
    if not _HOST.fullmatch(host) or host.startswith("."):
        return None
    return user_cache.path_of("probe", f"{host}.json")
