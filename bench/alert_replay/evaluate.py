"""Evaluates rules over scraped series of the past, and returns the alerts that fired.

Prometheus evaluates every expression by query_range; this module does what Prometheus does around expressions: results
of recording rules are written back with staleness marks, a rule that reads its own last result gets it, and alerts
become pending and firing by `for` and `keep_firing_for`. tests/replay compares it with `promtool test rules`.
A group's interval is kept where it is longer than that of the ticks. A rule reads results of the same moment; in a real Prometheus, whose groups run side by side, it may read those of the
evaluation before. Two results with the same labels are an error, as in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.alert_replay.rules import Rule, RuleError, remembered
from bench.alert_replay.server import Server
from bench.alert_replay.ticks import Ticks
from bench.alert_replay.wire import STALE
from goodput.simulate.scenario import EPOCH_SECONDS

LOOKBACK_SECONDS = 300.0


@dataclass(frozen=True)
class Firing:
    """An alert that fired, in seconds from 0. `resolved` is infinite where it fired to the end."""

    alert: str
    labels: dict[str, str]
    active: float  # since when its expression held
    at: float
    resolved: float

    @property
    def severity(self) -> str:
        return self.labels.get("severity", "")


class Evaluation:
    """Of the series in one server. `mask` is True at the ticks at which Prometheus was running."""

    def __init__(self, server: Server, ticks: Ticks, mask: np.ndarray):
        self._server = server
        self.times = ticks.times[mask]
        self._stretches = ticks.stretches()

    def run(self, rules: list[Rule], progress: Callable[[float], None] = lambda _: None) -> list[Firing]:
        """`rules` must be in the order of rules.ordered."""
        found: list[Firing] = []
        for done, rule in enumerate(rules):
            if rule.alert:
                found += self._alert(rule)
            else:
                self._record(rule)
            progress((done + 1) / len(rules))
        return sorted(found, key=lambda one: (one.at, one.alert, sorted(one.labels.items())))

    def results(self, expr: str) -> dict[tuple, tuple[np.ndarray, np.ndarray]]:
        """By labels (sorted pairs, without the name): the positions among `times`, and the values there."""
        ranges = [(low + EPOCH_SECONDS, high + EPOCH_SECONDS, step) for low, high, step in self._stretches]
        parts: dict[tuple, list[tuple[np.ndarray, np.ndarray]]] = {}
        matrices = [self._server.matrix(expr, *ranges[0])]
        matrices += self._server.matrices([(expr, *one) for one in ranges[1:]])
        for matrix in matrices:
            once: dict[tuple, list[np.ndarray]] = {}
            for metric, at, values in matrix:
                # Results that differ in the name alone are one series, as long as they never overlap.
                key = tuple(sorted((name, v) for name, v in metric.items() if name != "__name__"))
                once.setdefault(key, []).append(at)
                parts.setdefault(key, []).append((np.round(at - EPOCH_SECONDS, 3), values))
            for key, found in once.items():
                moments = np.concatenate(found)
                if len(found) > 1 and len(np.unique(moments)) < len(moments):
                    raise RuleError(f"two results with the labels {dict(key)} of {expr}")
        return {key: joined for key, found in parts.items() if len((joined := self._joined(found))[0])}

    def _joined(self, found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        at, first = np.unique(np.concatenate([one for one, _ in found]), return_index=True)
        values = np.concatenate([one for _, one in found])[first]
        positions = np.searchsorted(self.times, at)
        there = (positions < len(self.times)) & (self.times[np.minimum(positions, len(self.times) - 1)] == at)
        return positions[there], values[there]

    def _record(self, rule: Rule) -> None:
        memory = remembered(rule)
        found = self.results(memory[0] if memory else rule.expr)
        if memory:
            found = {key: self._remember(*one, memory[1]) for key, one in found.items()}
        due = self._due(rule.interval_seconds)
        unix = self.times[due] + EPOCH_SECONDS

        def rows():
            for key, (at_ticks, at_values) in found.items():
                there = np.isin(at_ticks, due)
                positions, values = np.searchsorted(due, at_ticks[there]), at_values[there]
                after = positions + 1
                ends = after[~np.isin(after, positions) & (after < len(unix))]
                at = np.concatenate([positions, ends])
                order = np.argsort(at, kind="stable")
                written = np.concatenate([values, np.full(len(ends), STALE)])[order]
                yield {**dict(key), **rule.labels, "__name__": rule.name}, unix[at[order]], written

        self._server.write(rows())

    def _due(self, interval_seconds: float) -> np.ndarray:
        """The positions at which a rule is evaluated whose group has this interval, 0 for all."""
        if not interval_seconds:
            return np.arange(len(self.times))
        return np.unique(np.floor_divide(self.times, interval_seconds), return_index=True)[1]

    def _remember(self, positions: np.ndarray, values: np.ndarray, keep: float):
        """`A or itself > time() - N`: when A has ended its last value stays while it is newer than that."""
        fresh = dict(zip(positions.tolist(), values.tolist(), strict=True))
        held, out = None, {}
        for tick in range(int(positions[0]), len(self.times)):
            now = self.times[tick] + EPOCH_SECONDS
            gap = tick > 0 and self.times[tick] - self.times[tick - 1] > LOOKBACK_SECONDS
            held = fresh.get(tick, held if not gap else None)
            if tick not in fresh and held is not None and not held > now - keep:
                held = None
            if held is not None:
                out[tick] = held
        return np.array(list(out), int), np.array(list(out.values()))

    def _alert(self, rule: Rule) -> list[Firing]:
        found: dict[tuple, np.ndarray] = {}
        for key, (positions, _) in self.results(rule.expr).items():
            labels = tuple(sorted({**dict(key), **rule.labels}.items()))
            if labels in found:
                raise RuleError(f"{rule.name}: two alerts with the labels {dict(labels)}")
            found[labels] = positions
        return [one for labels, positions in found.items() for one in self._firings(rule, labels, positions)]

    def _firings(self, rule: Rule, labels: tuple, positions: np.ndarray) -> list[Firing]:
        """The alert's firings, from the positions at which its expression had a result."""
        fired: list[Firing] = []
        breaks = np.flatnonzero(np.diff(positions) != 1)
        begins = np.concatenate([[0], breaks + 1])
        for first, last in zip(begins, np.concatenate([breaks, [len(positions) - 1]]), strict=True):
            low, high = int(positions[first]), int(positions[last])
            active, end = self.times[low], self._gone(high, rule.keep_seconds)
            if fired and fired[-1].resolved > active:
                # It was still firing by keep_firing_for when the expression held again.
                fired[-1] = Firing(rule.name, dict(labels), fired[-1].active, fired[-1].at, end)
                continue
            due = np.searchsorted(self.times, active + rule.hold_seconds)
            if due <= high:
                at = float(self.times[due])
                fired.append(Firing(rule.name, dict(labels), float(active), at, end))
        return fired

    def _gone(self, last: int, keep: float) -> float:
        """When an alert is resolved whose expression held last at this position."""
        if last + 1 >= len(self.times):
            return float("inf")
        due = int(np.searchsorted(self.times, self.times[last + 1] + keep))
        return float(self.times[due]) if due < len(self.times) else float("inf")
