"""A scenario as it happens: `World.advance` moves every run on, and keeps what the nodes' hardware does meanwhile."""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np

from goodput.metrics import CATALOGUE
from goodput.simulate import ranks, reports
from goodput.simulate.node import Key, NodeSeries, key_of
from goodput.simulate.run import PHASES, Attempt, SimulatedRun
from goodput.simulate.scenario import Scenario, within
from goodput.wire import schema

# How busy a GPU looks while its rank is in a phase; in a collective it spins.
BUSY = {"checkpoint": 0.05, "restore": 0.05, "evaluation": 0.6, "compile": 0.1, "loader": 0.2, "h2d": 0.5}
BUSY_IN_STARTUP = 0.02
FORGOTTEN_AFTER_SECONDS = 3600.0  # a run that ended so long ago is not simulated any more


class World:
    """`times` are the moments at which it is observed, ascending; `wanted` the names of the series that are made."""

    def __init__(self, scenario: Scenario, times: np.ndarray, wanted: Container[str] = CATALOGUE):
        self.scenario, self.times, self.wanted = scenario, times, wanted
        self.runs = [SimulatedRun(plan) for plan in scenario.runs]
        count = len(times)
        self._busy = {node: np.zeros((gpus, count)) for node, gpus in scenario.nodes.items()}
        self._saving = {node: np.zeros(count) for node in scenario.nodes}
        # Seconds of each phase that a GPU's rank has spent, where the series by phase are wanted.
        self._phases = None
        if "goodput_gpu_phase_seconds_total" in wanted:
            shape = {node: (gpus, len(PHASES), count) for node, gpus in scenario.nodes.items()}
            self._phases = {node: np.zeros(shape[node], np.float32) for node in scenario.nodes}
            self._totals_before: dict[tuple, np.ndarray] = {}

    def advance(self, tick: int) -> None:
        """Simulate everything up to the moment with this number."""
        now = float(self.times[tick])
        for run in self.current(now):
            run.advance(now)
            if run.attempt is not None and run.attempt.alive:
                self._note_load(run, run.attempt, tick)

    def current(self, now: float) -> Iterator[SimulatedRun]:
        """Runs that are not over, or not for long."""
        for run in self.runs:
            last = run.attempt
            if not run.finished() or last is None or now - last.end_ns / 1e9 <= FORGOTTEN_AFTER_SECONDS:
                yield run

    def reports(self, run: SimulatedRun, now: float) -> Iterator[tuple[Attempt, int, schema.RankReport]]:
        """What agents push of a run now; `reports.acknowledge` what was accepted."""
        return reports.pending(run, now, lambda node: self._can_push(node, now))

    def rank_series(self, node: str, now: float) -> dict[Key, float]:
        """What the node's agent exposes of its ranks."""
        found = {}
        for run in self.runs:
            for name, labels, value in ranks.series(run, now, node, self.wanted):
                if name in self.wanted or name.rpartition("_")[0] in self.wanted:
                    found[key_of(name, labels)] = value
        return found

    def node_series(self, name: str) -> dict[Key, np.ndarray]:
        """What the node's agent has exposed of the node at each moment, NaN where a series was absent."""
        phases = None if self._phases is None else self._phases[name]
        busy, saving = self._busy[name], self._saving[name]
        node = NodeSeries(name, self.times, busy, saving, phases)
        for change in self.scenario.changes:
            if change.node == name:
                node.apply(change)
        found = node.series([end for _, end in self.scenario.agent_outages.get(name, [])])
        return {key: values for key, values in found.items() if key[0] in self.wanted}

    def _can_push(self, node: str, at: float) -> bool:
        outages = (self.scenario.agent_outages, self.scenario.push_outages)
        return not any(within(at, spans.get(node, [])) for spans in outages)

    def _note_load(self, run: SimulatedRun, attempt: Attempt, tick: int) -> None:
        for rank, (node, gpu) in enumerate(attempt.plan.places):
            phase, _, totals = attempt.live[rank]
            busy = BUSY.get(phase, 1.0) if attempt.steps_done or phase != "none" else BUSY_IN_STARTUP
            self._busy[node][gpu, tick] = busy
            self._saving[node][tick] = max(self._saving[node][tick], phase == "checkpoint")
            if self._phases is not None:
                totals = np.array(totals)
                before = self._totals_before.get((run.name, attempt.number, rank), totals)
                self._phases[node][gpu, :, tick] = (totals - before) / 1e9
                self._totals_before[run.name, attempt.number, rank] = totals
