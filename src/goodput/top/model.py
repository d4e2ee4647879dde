"""What `goodput top` shows, made from account documents; plain values that `--json` prints as they are.

A document is that of the API's run (an account, `live` ranks, `hang`); pages.py makes the same of rank pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from goodput.account.states import STATES
from goodput.progress.estimate import Progress, progress_of
from goodput.progress.local_runs import SHOWN_STEPS, Pace
from goodput.top import collective
from goodput.top.trouble import NONE, troubles

WINDOW_SECONDS, SAMPLE_SECONDS = 60.0, 5.0
# Waiting for another rank is no fault of the rank that waits.
_NOT_ITS_OWN = ("productive", "communication", "straggler", "bubble", "down", "queue", "unobserved")


class SourceError(Exception):
    """Nothing could be read; the text has the source and the reason."""


@dataclass
class RunRow:
    """A run in the list."""

    run: str
    status: str
    ranks: int
    seconds: float
    goodput: float | None
    restarts: int
    cause: str | None
    hang: bool


@dataclass
class RankRow:
    """A rank. `states` are seconds in each state over the last `window_seconds`, or since the start where that is None.

    `gpu` is the share of time in which a kernel ran, `watts` the power of its GPUs; None where they are not measured.
    `pid` is None where the process is not on this machine.
    """

    rank: int
    host: str
    attempt: int | None = None
    phase: str = ""
    phase_seconds: float | None = None
    has_ended: bool = False  # `phase` is how, "" if that is unknown
    step: int | None = None
    step_seconds: float | None = None
    severity: int = 0
    trouble: str = ""
    collective: str = ""  # what it does in the call that hangs
    states: dict[str, float] = field(default_factory=dict)
    window_seconds: float | None = None
    own_loss: float = 0.0  # share of that time lost by the rank itself
    recent: list[float] = field(default_factory=list)  # its last step times, oldest first
    gpu: float | None = None
    watts: float | None = None
    pid: int | None = None
    stack: str | None = None
    places: list[str] = field(default_factory=list)  # sampled in no phase, with their shares


@dataclass
class RunView:
    """An opened run; `unseen` counts ranks that never reported and are not among `ranks`."""

    progress: Progress
    mfu: float | None
    world_size: int
    hosts: int
    states: dict[str, float]
    pace: Pace
    answer: list[str]  # in lines: what was lost, why, what to do next
    hang: str | None
    collective: str | None  # which call hangs, and who is in it
    ranks: list[RankRow]
    unseen: int


@dataclass
class Frame:
    """All that is known at one moment, unix seconds. `notes` say what could not be read."""

    source: str
    time: float
    runs: list[RunRow]
    opened: RunView | None
    notes: list[str] = field(default_factory=list)


class History:
    """States and step times of the ranks of one run over the last minute, from one reading to the next."""

    def __init__(self):
        self._run: str | None = None
        self._samples: deque[tuple[float, dict[int, list[float]]]] = deque()
        self._steps: dict[int, deque[tuple[int, float]]] = {}

    def add(self, document: Mapping[str, Any], now: float) -> None:
        """Note a document read at `now`, monotonic seconds. Another run's replaces what was noted."""
        if document["run"] != self._run:
            self._run, self._steps = document["run"], {}
            self._samples.clear()
        for live in document["live"]:
            steps = self._steps.setdefault(live["rank"], deque(maxlen=SHOWN_STEPS))
            if live["step"] is not None and (not steps or steps[-1][0] != live["step"]):
                steps.append((live["step"], live["step_seconds"]))
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, {rank["rank"]: _vector(rank["states"]) for rank in document["ranks"]}))
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()

    def states(self, rank: Mapping[str, Any], now: float) -> tuple[dict[str, float], float | None]:
        """A rank's states since the oldest sample and how long ago that is; since the start while that is too recent.

        Time that was counted as another state before is left out where its state has shrunk.
        """
        since, before = self._samples[0] if self._samples else (now, {})
        known = before.get(rank["rank"])
        if known is None or now - since < SAMPLE_SECONDS:
            return dict(rank["states"]), None
        grown = {
            state: max(s - k, 0.0) for state, s, k in zip(STATES, _vector(rank["states"]), known, strict=True)
        }
        return (grown, now - since) if sum(grown.values()) else (dict(rank["states"]), None)

    def recent(self, rank: int) -> list[float]:
        return [seconds for _, seconds in self._steps.get(rank, ())]


def run_row(document: Mapping[str, Any]) -> RunRow:
    """The row of a run whose document is at hand; as the API's list of runs has it."""
    return RunRow(
        run=document["run"],
        status=document["status"],
        ranks=document["world_size"],
        seconds=document["end"] - document["start"],
        goodput=document["factors"]["goodput"],
        restarts=len(document["restarts"]),
        cause=next(iter(document["advice_order"]), None),
        hang=document["hang"] is not None,
    )


def run_view(document: Mapping[str, Any], pace: Pace, history: History, now: float) -> RunView:
    """An opened run at `now`, monotonic seconds."""
    history.add(document, now)
    live = {one["rank"]: one for one in document["live"]}
    wrong, hang = troubles(document), document["hang"]
    verdict = hang.get("collective") if hang else None
    ranks = []
    for rank in document["ranks"]:
        number = rank["rank"]
        states, seconds = history.states(rank, now)
        total = sum(states.values())
        own = sum(s for state, s in states.items() if state not in _NOT_ITS_OWN)
        row = RankRow(number, rank["host"], states=states, window_seconds=seconds)
        row.severity, row.trouble = wrong.get(number, NONE)
        row.own_loss = own / total if total else 0.0
        row.recent = history.recent(number)
        if number in live:
            _fill(row, live[number])
        if verdict:
            row.collective = collective.of_rank(verdict, number)
        if hang and hang["stack_rank"] == number:
            row.stack = hang["stack"]
        ranks.append(row)
    _add_places(ranks, document["stack_samples"])
    return RunView(
        progress=progress_of(document, pace.steps_per_second),
        mfu=document["factors"]["mfu"],
        world_size=document["world_size"],
        hosts=len({rank.host for rank in ranks}),
        states={state: s for state, s in document["states"].items() if s},
        pace=pace,
        answer=document["answer"]["lines"] if "answer" in document else [],  # An earlier aggregator has none.
        hang=hang["reason"] if hang else None,
        collective=collective.of_run(verdict) if verdict else None,
        ranks=ranks,
        unseen=sum(one["ranks"] for one in document["unseen_ranks"]),
    )


def _fill(row: RankRow, live: Mapping[str, Any]) -> None:
    row.attempt, row.step, row.step_seconds = live["attempt"], live["step"], live["step_seconds"]
    # An aggregator of an earlier version has no figures of GPUs.
    row.gpu, row.watts = live.get("gpu_activity"), live.get("gpu_watts")
    if live["alive"] and not live["ended"]:
        # At its agent's last reading; it may have moved on since.
        row.phase, row.phase_seconds = live["phase"], live["phase_seconds"]
    else:
        row.phase, row.has_ended = live["ended"], True


def _add_places(ranks: list[RankRow], samples: Mapping[str, Any] | None) -> None:
    by_rank = {one["rank"]: one for one in samples["ranks"]} if samples else {}
    for row in ranks:
        one = by_rank.get(row.rank)
        if one:
            row.places = [f"{100 * place['share']:.0f} % {place['place']}" for place in one["places"]]
            row.places += [one["reason"]] if one["reason"] else []


def _vector(states: Mapping[str, float]) -> list[float]:
    return [states.get(state, 0.0) for state in STATES]
