"""One world, from its plan to the alerts that fired.

In: a World, rules. Out: Replay: the alerts, the moments, what it took. Everything it makes lies in a temporary
directory, which is removed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.alert_replay.evaluate import Evaluation, Firing
from bench.alert_replay.rules import Rule, load, ordered, raw
from bench.alert_replay.server import Server
from bench.alert_replay.world import Recorder, World

Progress = Callable[[str, float], None]


@dataclass
class Replay:
    """Of one world. `seconds` is what it took, by part."""

    world: World
    firings: list[Firing]
    samples: int
    queries: int
    seconds: dict[str, float]

    def pages(self) -> list[Firing]:
        return [one for one in self.firings if one.severity == "critical"]


def replay(
    world: World, rules: list[Rule] | None = None, progress: Progress = lambda what, part: None
) -> Replay:
    """Record the world, evaluate the rules on it."""
    rules = ordered(load() if rules is None else rules)
    recorder = Recorder(world, raw(rules), lambda part: progress("live", part))
    directory = Path(tempfile.mkdtemp(prefix="goodput-replay-"))
    began = time.monotonic()
    try:
        with Server(directory) as server:
            server.write(recorder.series())
            lived = time.monotonic()
            evaluation = Evaluation(server, world.ticks, recorder.evaluated)
            firings = evaluation.run(rules, lambda part: progress("evaluate", part))
            seconds = {"live": lived - began, "evaluate": time.monotonic() - lived}
            return Replay(world, firings, server.written, server.asked, seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
