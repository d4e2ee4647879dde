"""Real trainings whose steps differ by planted delays, and what a replay predicts for them."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

from support.forks import server_with
from support.paths import SUPPORT
from support.programs.running import ENVIRONMENT
from support.servers.servers import free_ports

from goodput.account import Run
from goodput.cli.run import environment
from goodput.estimates.repetition import repetition_of
from goodput.sdk.reports.local_accounts import runs_in
from goodput.whatif import replay, savings
from goodput.whatif.changes import Change, slow_ranks, state_gone
from goodput.whatif.steps import Recorder, Team, steps_in

Kinds = dict[str, tuple[str, int | None, float]]  # name: (where, rank or None for all, seconds)
# What each kind of steps has that the kind in the second place has not.
PAIRS = {
    "loader of all": "no loader",
    "loader of one": "none",
    "compute of one": "none",
    "checkpoint of one": "none",
}
# After another kind of steps one of the new kind is the first whose times are all of its own.
SETTLING = 2
TIMEOUT_SECONDS = 300


class Outcome(NamedTuple):
    """Mean seconds of a step: recorded, predicted without the delay with its 95 % interval, and really without it.

    `core_wait` is how long all ranks together had no core in a step of either kind, by which these may differ from a quiet
    machine's; `core_wait_without` is the part of the steps without the delay.
    """

    recorded: float
    predicted: float
    low: float
    high: float
    real: float
    core_wait: float
    core_wait_without: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the recorded time."""
        return (self.predicted - self.real) / self.recorded

    @property
    def is_covered(self) -> bool:
        return self.low <= self.real <= self.high


def outcomes(
    ranks: int, length: int, rounds: int, directory: Path, factor: float = 1.0, rounds_max: int | None = None
) -> dict[str, Outcome]:
    """Of one training, for each of PAIRS. `factor` of its usual 50 ms a step, and of delays of 40 ms.

    On a busy machine it takes up to `rounds_max` rounds, so that half of the rounds' turns are quiet ones.
    """
    kinds: Kinds = {
        "none": ("none", None, 0.0),
        "no loader": ("loader", None, -0.01 * factor),
        "loader of all": ("loader", None, 0.04 * factor),
        "loader of one": ("loader", ranks - 1, 0.04 * factor),
        "compute of one": ("forward", 0, 0.04 * factor),
        "checkpoint of one": ("checkpoint", 0, 0.2 * factor),
    }
    run = _train(kinds, ranks, (length, rounds, rounds_max or rounds, factor), directory)
    waits = [json.loads((directory / f"waits.{rank}.json").read_text()) for rank in range(ranks)]
    teams = _teams(kinds, run, length, [sum(turn) for turn in zip(*waits, strict=True)], (rounds + 1) // 2)
    found = {}
    for name, without in PAIRS.items():
        where = name.split()[0]
        change = state_gone(where)
        if name in ("loader of one", "compute of one"):
            (change,) = [one for one in slow_ranks(teams[name][0]) if one.rank == kinds[name][1]]
            assert change.state == {"compute": "productive"}.get(where, where), change
        found[name] = outcome(teams[name], change, teams[without])
    return found


def _teams(
    kinds: Kinds, run: Run, length: int, waits: list[float], turns_kept: int
) -> dict[str, tuple[Team, float]]:
    """The steps of each kind, of the turns in which ranks waited least for cores, and that wait in a step."""
    names, recorders = list(kinds), {name: Recorder() for name in kinds}
    kept: set[int] = set()
    waited: dict[str, float] = {}
    for kind, name in enumerate(names):
        turns = sorted(range(kind, len(waits), len(kinds)), key=waits.__getitem__)
        best = turns[:turns_kept]
        kept.update(best)
        waited[name] = sum(waits[turn] for turn in best) / len(best) / length
    for attempt in run.attempts.values():
        for recorder in recorders.values():  # which leaves out the first
            recorder.add(next(steps_in(run.name, attempt)))
        for step in steps_in(run.name, attempt):
            turn, place = divmod(step.step, length)
            if turn in kept and place >= SETTLING:
                recorders[names[turn % len(names)]].add(step)
    teams = {name: recorder.teams(False, 10**11) for name, recorder in recorders.items()}
    assert all(len(found) == 1 for found in teams.values()), teams
    return {name: (found[0], waited[name]) for name, found in teams.items()}


def outcome(slow: tuple[Team, float], change: Change, without: tuple[Team, float]) -> Outcome:
    """What `change` predicts for a team's steps, and what they took without the delay."""
    (team, waited), (other, other_waited) = slow, without
    lengths = change.lengths(team)
    assert lengths is not None
    real = replay.recorded(other)
    ahead = len(real) / len(lengths)  # The repetition has its own number of steps.
    predicted = savings.by_kind(
        team, lengths, lambda series: repetition_of(series, round(ahead * len(series)))
    )
    low, high = savings.bounds(predicted)
    recorded = float(replay.recorded(team).mean())
    seconds = (ns / 1e9 for ns in (recorded, predicted.value, low, high, float(real.mean())))
    return Outcome(*seconds, waited + other_waited, other_waited)


def _train(kinds: Kinds, ranks: int, rest: tuple[float, ...], directory: Path) -> Run:
    environ = {**os.environ, **ENVIRONMENT, "GOODPUT_DIR": str(directory / "pages")}
    environ = environment(environ, argparse.Namespace(name="whatif", directory=None, quiet=False))
    environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(ranks)}
    command = ["-m", "goodput.auto", f"{SUPPORT}/whatif/training.py", json.dumps(kinds), *map(str, rest)]
    processes = [(command, {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    ended = server_with("torch").run(*processes, seconds=TIMEOUT_SECONDS, directory=str(directory))
    assert not any(process.returncode for process in ended), ended
    runs, errors = runs_in(str(directory / "pages"), time.perf_counter_ns())
    assert errors == [] and len(runs) == 1, (errors, runs)
    return runs[0]
