"""One thing that happened to a run, before it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from goodput.account.text import duration

MEASURED, ESTIMATED, COINCIDENT = "measured", "estimated", "coincident"


class Hardware(NamedTuple):
    """A health event of a node's hardware, and the ranks of this run whose processes were on the device."""

    node: str
    time: float
    kind: str
    device: str
    code: int
    name: str
    severity: str
    text: str
    ranks: tuple[int, ...]


@dataclass
class Incident:
    """Times are unix seconds; `onset_seconds` is how exactly the start is known."""

    kind: str
    time: float
    title: str
    end: float | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    step: int | None = None
    gpu_seconds: float | None = None
    cost_basis: str | None = None
    claims: list[tuple[str, str]] = field(default_factory=list)
    onset_seconds: float = 0.0

    def measured(self, text: str) -> Incident:
        self.claims.append((MEASURED, text))
        return self

    def estimated(self, text: str) -> Incident:
        self.claims.append((ESTIMATED, text))
        return self


def hosts_of(document: Mapping[str, Any]) -> dict[int, str]:
    """The newest host of each reported rank."""
    return {one["rank"]: one["host"] for one in document["ranks"] if one["host"]}


def listed(ranks: list[int] | tuple[int, ...], most: int = 6) -> str:
    """ "rank 3", "ranks 0 to 3", "ranks 1, 4 and 7 more"."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:most]))
    return f"ranks {shown}" + (f" and {len(ranks) - most} more" if len(ranks) > most else "")


def on_host(host: str | None) -> str:
    return f" on {host}" if host else ""


def step_length(ns: float) -> str:
    return duration(ns / 1e9)
