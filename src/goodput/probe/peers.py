"""Compares the probe of a node with those of its peers: which figures are slower than the peers' median."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from goodput.probe import FIGURES, PARTS

TOLERANCE = 0.1


@dataclass(frozen=True)
class Slower:
    """A figure of `host` that is `ratio` of the median of `peers` figures, all of the same name and device."""

    host: str
    name: str
    index: int | None
    ratio: float
    peers: int


def slower(documents: list[dict], peers: list[dict], tolerance: float = TOLERANCE) -> list[Slower]:
    """What is slower by more than `tolerance`, the slowest first, for each node of `documents`.

    It must also be slower by more than the figure varies: by the spread of its own repetitions, and by half of the
    distance between the quartiles of four or more peers. A node is not its own peer; figures of other devices are not
    compared, see `compared`.
    """
    found = []
    for document in documents:
        for figure, values in _pairs(document, peers):
            middle = statistics.median(values)
            ratio = figure["value"] / middle
            if 1 - ratio > max(tolerance, figure.get("spread") or 0.0, _spread(values) / middle):
                found.append(
                    Slower(document["host"], figure["name"], figure.get("index"), ratio, len(values))
                )
    return sorted(found, key=lambda one: one.ratio)


def compared(documents: list[dict], peers: list[dict]) -> int:
    """How many figures have one to be compared with."""
    return sum(len(list(_pairs(document, peers))) for document in documents)


def missing(documents: list[dict], peers: list[dict], parts: Iterable[str] = PARTS) -> list[tuple[str, str]]:
    """(host, figure) of what most peers have measured, and this node could not, though it has measured these parts."""
    found, beginnings = [], tuple(begin for part in parts for begin in FIGURES[part])
    for document in documents:
        others = [peer for peer in peers if peer["host"] != document["host"]]
        has = {figure["name"] for figure in document["figures"] if figure["value"]}
        names = sorted({figure["name"] for peer in others for figure in peer["figures"] if figure["value"]})
        for name in names:
            count = sum(any(f["name"] == name and f["value"] for f in peer["figures"]) for peer in others)
            if name not in has and 2 * count > len(others) and name.startswith(beginnings):
                found.append((document["host"], name))
    return found


def _spread(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4) if len(values) >= 4 else (0.0, 0.0, 0.0)
    return (high - low) / 2


def _pairs(document: dict, peers: list[dict]):
    """Each known figure of a node with those of its peers, if there are any."""
    for figure in document["figures"]:
        values = [
            other["value"]
            for peer in peers
            if peer["host"] != document["host"]
            for other in peer["figures"]
            if other["value"] and (other["name"], other["device"]) == (figure["name"], figure["device"])
        ]
        if figure["value"] and values:
            yield figure, values
