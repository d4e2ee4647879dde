"""When saving a checkpoint now is best, from the failures and saves that were seen.

Times between failures are taken to be Weibull distributed: of shape 1 failures come at random, below 1 in bursts, above 1
as something wears out or a job limit nears. The shape has a prior on a grid around 1; given the shape k, the k-th powers
of the times are exponential, so their rate has a gamma posterior: n failures whose powers sum to S, the time since the
last one included, and a prior of PRIOR_FAILURES after PRIOR_SECONDS. The posterior mean of the hazard h(t), given that
there was no failure for t seconds, is that of the posterior predictive law of the next failure.

A save of d seconds is then best after as much work as Daly's interval of a constant hazard h(t) has (equation 37 of "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006; sqrt(2 d / h) in Young's first
order, CACM 17, 1974); where the hazard changes meanwhile, once the integral of one over that interval since the last save
reaches 1 (Ling, Mi and Lin, "A variational calculus approach to optimal checkpoint placement", IEEE ToC 50, 2001).

Cost: some 20 us for the hazard at one moment, which is computed once in a twentieth of an interval.
"""

from __future__ import annotations

from math import exp, log, sqrt

# One failure in eight hours: a run that has seen none for days saves seldom, one that fails learns fast.
PRIOR_FAILURES, PRIOR_SECONDS = 1.0, 8 * 3600.0
SHAPES = tuple(2 ** (i / 4) for i in range(-5, 22))  # 0.42 to 38
SHAPE_SPREAD = 0.5  # of the logarithm of the shape, around 0
PRIOR_SAVE_SECONDS = 30.0  # until a save was seen
INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX = 10.0, 24 * 3600.0
SAVES_KEPT = 16  # the mean save is that of about so many of the newest
PARTS = 20  # of an interval, in which the hazard is taken to be constant
GAP_SECONDS_MIN = 1.0
_EXPONENT_MAX = 600.0


class Adviser:
    """`note_failure` and `note_save` say what was seen; `interval` is how long to work between saves."""

    def __init__(self) -> None:
        self.failures = 0
        self.saves, self.save_seconds = 0, 0.0
        self._powers = [1.0] * len(SHAPES)  # of the prior: PRIOR_FAILURES after PRIOR_SECONDS
        self._logs = 0.0

    def note_failure(self, seconds: float) -> None:
        """A failure so many seconds after the one before, or after the start."""
        self.failures += 1
        at = log(max(seconds, GAP_SECONDS_MIN) / PRIOR_SECONDS)
        self._logs += at
        for i, shape in enumerate(SHAPES):
            self._powers[i] += _power(at, shape)

    def note_alive(self, seconds: float) -> None:
        """So many seconds without a failure, at whose end the run was stopped for another reason."""
        at = log(max(seconds, GAP_SECONDS_MIN) / PRIOR_SECONDS)
        for i, shape in enumerate(SHAPES):
            self._powers[i] += _power(at, shape)

    def note_save(self, seconds: float) -> None:
        self.saves += 1
        weight = 1 / min(self.saves, SAVES_KEPT)
        self.save_seconds += weight * (max(seconds, 0.0) - self.save_seconds)

    @property
    def save_cost(self) -> float:
        return self.save_seconds if self.saves else PRIOR_SAVE_SECONDS

    def hazard(self, seconds: float) -> float:
        """Failures per second to expect now, if there was none for so many seconds."""
        at = log(max(seconds, GAP_SECONDS_MIN) / PRIOR_SECONDS)
        count = self.failures + PRIOR_FAILURES
        weights, hazards = [], []
        for shape, powers in zip(SHAPES, self._powers, strict=True):
            total = powers + _power(at, shape)
            prior = -((log(shape) / SHAPE_SPREAD) ** 2) / 2
            weights.append(prior + self.failures * log(shape) + (shape - 1) * self._logs - count * log(total))
            hazards.append(shape * exp(min((shape - 1) * at - log(total), _EXPONENT_MAX)) * count)
        most = max(weights)
        shares = [exp(weight - most) for weight in weights]
        mean = sum(share * one for share, one in zip(shares, hazards, strict=True)) / sum(shares)
        return mean / PRIOR_SECONDS

    def local_interval(self, seconds: float) -> float:
        """Seconds of work between saves while the hazard is as it is so many seconds after the last failure."""
        found = young_daly(self.save_cost, 1 / max(self.hazard(seconds), 1e-12))
        return min(max(found, self.save_cost, INTERVAL_SECONDS_MIN), INTERVAL_SECONDS_MAX)

    def interval(self, seconds: float) -> float:
        """Seconds of work until the next save, from so many seconds after the last failure, at which one was made."""
        work = part = 0.0
        while part < 1:
            local = self.local_interval(seconds + work)
            step = min(local / PARTS, (1 - part) * local)
            work += step
            part += max(step / local, 1e-9)
        return work


def _power(logarithm: float, shape: float) -> float:
    return exp(min(shape * logarithm, _EXPONENT_MAX))


def young_daly(save: float, between: float) -> float:
    """Seconds of work between saves of `save` seconds with failures `between` seconds apart on average (Daly, eq. 37)."""
    if save >= 2 * between:
        return between
    ratio = sqrt(save / (2 * between))
    return max(sqrt(2 * save * between) * (1 + ratio / 3 + ratio**2 / 9) - save, 0.0)
