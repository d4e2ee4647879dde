"""What each phase does to a GPU, learned from samples that met several: least squares, forgetting the past.

In: samples, each with the share of its time in every phase, and per unit the mean over the sample. Out: per unit and
phase the mean while in that phase. The model is mean = sum of share x rate; the normal equations are kept, decayed by
time, and solved with a ridge towards the mean of all, so that a phase of which nothing was learned is as the others
(Hoerl and Kennard 1970). Solved at most once in SOLVE_NS; with 11 phases and 6 units that takes about 1 ms.

    rates = Rates(); rates.learn({"forward": 0.4, "loader": 0.6}, {"sm": 0.3}, ns); rates.of("sm", "forward")
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

MEMORY_NS = 300 * 10**9
SOLVE_NS = 10 * 10**9
# How strongly rates are drawn to the mean, as the weight of so many samples: where phases come in the same mixture in
# all samples, what little they differ must not be taken for what phases do.
RIDGE = 0.5
# After each of the first samples it is solved anew, once.
EARLY = 8


class Rates:
    def __init__(self):
        self._at: dict[str, int] = {}  # phase: row of the equations
        self._products: list[list[float]] = []
        self._sums: dict[str, list[float]] = {}
        self._weight: dict[str, float] = {}
        self._means: dict[str, float] = {}
        self._solved: dict[str, list[float]] = {}
        self._due_ns, self._samples = 0, 0

    def learn(self, shares: dict[str, float], means: dict[str, float], spent_ns: int) -> None:
        """Take a sample: `shares` by phase sum to 1, `means` by unit."""
        kept = exp(-spent_ns / MEMORY_NS)
        for phase in shares:
            if phase not in self._at:
                self._widen(phase)
        self._products = [[kept * value for value in row] for row in self._products]
        places = [(self._at[phase], share) for phase, share in shares.items()]
        for i, share in places:
            row = self._products[i]
            for j, other in places:
                row[j] += share * other
        for unit, mean in means.items():
            sums = [kept * value for value in self._sums.get(unit, [0.0] * len(self._at))]
            for i, share in places:
                sums[i] += share * mean
            self._sums[unit] = sums
            weight = kept * self._weight.get(unit, 0.0)
            self._means[unit] = (weight * self._means.get(unit, 0.0) + mean) / (weight + 1)
            self._weight[unit] = weight + 1
        self._samples += 1
        self._due_ns -= spent_ns

    def of(self, unit: str, phase: str) -> float:
        """The mean of a unit in a phase. Raises KeyError for a unit that was never learned."""
        return self.of_each(unit, (phase,))[0]

    def of_each(self, unit: str, phases: Iterable[str]) -> list[float]:
        """The same for several phases."""
        if self._due_ns <= 0 or unit not in self._solved:
            self._solve()
        solved, mean = self._solved[unit], self._means[unit]
        places = [self._at.get(phase, len(solved)) for phase in phases]
        return [solved[at] if at < len(solved) else mean for at in places]

    def _widen(self, phase: str) -> None:
        self._at[phase] = len(self._at)
        for row in self._products:
            row.append(0.0)
        self._products.append([0.0] * len(self._at))
        for sums in self._sums.values():
            sums.append(0.0)
        self._due_ns = 0

    def _solve(self) -> None:
        units = list(self._sums)
        rows = [list(row) for row in self._products]
        for i, row in enumerate(rows):
            row[i] += RIDGE
            row.extend(self._sums[unit][i] + RIDGE * self._means[unit] for unit in units)
        # Gauss and Jordan without pivots: the matrix is symmetric and, by the ridge, positive definite.
        for i, pivot in enumerate(rows):
            scale = 1 / pivot[i]
            rows[i] = pivot = [value * scale for value in pivot]
            for k, row in enumerate(rows):
                if k != i and row[i]:
                    factor = row[i]
                    rows[k] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
        width = len(self._at)
        self._solved = {unit: [row[width + at] for row in rows] for at, unit in enumerate(units)}
        self._due_ns = SOLVE_NS if self._samples > EARLY else 1
