"""The shape of a story, as `goodput report --story --json` and the API have it."""

from __future__ import annotations

from typing import TypedDict


class Claim(TypedDict):
    """`basis` is measured, estimated, or coincident: at the same time and place, which says nothing about a cause."""

    basis: str
    text: str


class StoryEvent(TypedDict):
    """Something that happened to the run, from `time` to `end`, null if at once or still going on.

    `kind` is one of build.KINDS. `gpu_seconds` is what it cost, null where that is unknown, as are `cost` in dollars
    without a price, and `cost_basis`, measured or estimated. `ranks` and `hosts` are those that it is about, if not all.
    """

    kind: str
    time: float
    end: float | None
    title: str
    ranks: list[int]
    hosts: list[str]
    step: int | None
    gpu_seconds: float | None
    cost: float | None
    cost_basis: str | None
    claims: list[Claim]


class Story(TypedDict):
    """What happened to a run, in order. `left_out` is how many of the least costly events are not among `events`.

    `told_gpu_seconds` is what the events cost together, which may overlap; `pace` says from what changes of pace are
    known, or why they are not. Where `is_on_cpu` seconds are of processes, as in an account.
    """

    run: str
    status: str
    start: float
    end: float
    world_size: int
    is_on_cpu: bool
    gpu_seconds: float
    cost: float | None
    told_gpu_seconds: float
    pace: str
    events: list[StoryEvent]
    left_out: int
