"""Estimates each phase's mean GPU activity from samples that span several phases, by least squares with decay.

The model is mean = sum of share x rate. The normal equations are kept, decayed by time, and solved with a ridge
towards the overall mean, so that a phase about which nothing was learned gets that mean (Hoerl and Kennard 1970).
Solved at most once per SOLVE_NS; with 11 phases and 6 units that takes about 1 ms.

    model = ActivityModel(); rows = model.learn(["forward", "loader"], [0.4, 0.6], {"sm": 0.3}, 10**9)
    model.rates("sm", rows)
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

MEMORY_NS = 300 * 10**9
SOLVE_NS = 10 * 10**9
# Weight of the ridge, in samples: where all samples have the same mixture of phases, their small differences must
# not be taken for differences between the phases.
RIDGE = 0.5
# After each of the first samples the equations are solved again.
EARLY_SAMPLES = 8
SCALE_MIN = 1e-9


class ActivityModel:
    def __init__(self):
        self._rows: dict[str, int] = {}  # row of each phase in the equations
        # Products and sums are those at the present once multiplied by `_scale`, which decays in their place.
        self._scale = 1.0
        self._products: list[list[float]] = []
        self._sums: dict[str, list[float]] = {}
        self._weight: dict[str, float] = {}
        self._means: dict[str, float] = {}
        self._solved: dict[str, list[float]] = {}
        self._due_ns, self._samples = 0, 0

    def learn(
        self, phases: Iterable[str], shares: Iterable[float], means: dict[str, float], spent_ns: int
    ) -> list[int]:
        """Add a sample: the shares of the phases sum to 1, `means` are by unit. Returns the phases' rows."""
        decay = exp(-spent_ns / MEMORY_NS)
        for phase in phases:
            if phase not in self._rows:
                self._add_row(phase)
        rows = [self._rows[phase] for phase in phases]
        self._scale *= decay
        if self._scale < SCALE_MIN:
            self._rescale()
        at_row = [(row, share, share / self._scale) for row, share in zip(rows, shares, strict=True)]
        for i, _, scaled in at_row:
            products = self._products[i]
            for j, other, _ in at_row:
                products[j] += scaled * other
        for unit, mean in means.items():
            sums = self._sums.get(unit)
            if sums is None:
                sums = self._sums[unit] = [0.0] * len(self._rows)
            for i, _, scaled in at_row:
                sums[i] += scaled * mean
            weight = decay * self._weight.get(unit, 0.0)
            self._means[unit] = (weight * self._means.get(unit, 0.0) + mean) / (weight + 1)
            self._weight[unit] = weight + 1
        self._samples += 1
        self._due_ns -= spent_ns
        return rows

    def rates(self, unit: str, rows: Iterable[int]) -> list[float]:
        """The unit's mean in each of the phases. Raises KeyError for a unit that was never learned."""
        if self._due_ns <= 0 or unit not in self._solved:
            self._solve()
        solved, mean = self._solved[unit], self._means[unit]
        return [solved[row] if row < len(solved) else mean for row in rows]

    def _rescale(self) -> None:
        scale, self._scale = self._scale, 1.0
        for row in (*self._products, *self._sums.values()):
            row[:] = [scale * value for value in row]

    def _add_row(self, phase: str) -> None:
        self._rows[phase] = len(self._rows)
        for row in self._products:
            row.append(0.0)
        self._products.append([0.0] * len(self._rows))
        for sums in self._sums.values():
            sums.append(0.0)
        self._due_ns = 0

    def _solve(self) -> None:
        units = list(self._sums)
        self._rescale()
        rows = [list(row) for row in self._products]
        for i, row in enumerate(rows):
            row[i] += RIDGE
            row.extend(self._sums[unit][i] + RIDGE * self._means[unit] for unit in units)
        # Gauss-Jordan without pivoting: the matrix is symmetric and, by the ridge, positive definite.
        for i, pivot in enumerate(rows):
            scale = 1 / pivot[i]
            rows[i] = pivot = [value * scale for value in pivot]
            for k, row in enumerate(rows):
                if k != i and row[i]:
                    factor = row[i]
                    rows[k] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
        width = len(self._rows)
        self._solved = {unit: [row[width + at] for row in rows] for at, unit in enumerate(units)}
        self._due_ns = SOLVE_NS if self._samples > EARLY_SAMPLES else 1
