"""When saving a checkpoint now is best, from the failures and saves that were seen.

`failure_laws` has the chance S(t) that the run lives for t seconds. When a failure comes does not depend on the saves, so
the best saves are those that keep most work: from a save at age a, the next one ends at the age b > a that maximises
S(b) (b - a - d) + W(b), of which d is the time of a save and W(b) the same sum of all saves after b. It is found from the
last age backwards, over ages that lie closer where failures are likelier: PARTS of them in Daly's interval for the mean
hazard between them (equation 37 of "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22,
2006). A plan reaches to the age at which SURVIVAL_MIN of the runs that live now still do.

Cost: a plan takes some 10 ms; it is made once a life, again when the time of a save changes, and when the run lives long.
"""

from __future__ import annotations

from bisect import bisect_right
from math import log, sqrt
from typing import NamedTuple

from goodput.sdk.reports.failure_laws import FailureLaws

PRIOR_SAVE_SECONDS = 30.0  # until a save was seen
INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX = 10.0, 24 * 3600.0
SAVES_KEPT = 16  # the mean save is that of about so many of the newest
PARTS = 6  # ages in an interval
REACH = 80  # ages among which the next save is sought
POINTS_MAX = 400
SURVIVAL_MIN = 0.04
STEEP, RISK_MIN = 1.25, 0.005
SAVE_CHANGE = 1.2  # a save that takes so many times as long needs another plan


class Plan(NamedTuple):
    """Ages in seconds, the chance to reach each, and the work that saves after each are expected to keep."""

    save: float
    ages: list[float]
    survivals: list[float]
    kept: list[float]


class Adviser:
    """`note_failure` and `note_save` say what was seen; `interval` is how long to work between saves."""

    def __init__(self) -> None:
        self.failures = 0
        self.saves, self.save_seconds = 0, 0.0
        self._laws = FailureLaws()
        self._plan: Plan | None = None

    def note_failure(self, seconds: float) -> None:
        """A failure so many seconds after the one before, or after the start."""
        self.failures += 1
        self._laws.failed(seconds)
        self._plan = None

    def note_alive(self, seconds: float) -> None:
        """Note `seconds` without a failure, at whose end the run was stopped for another reason."""
        self._laws.lived(seconds)
        self._plan = None

    def note_save(self, seconds: float) -> None:
        self.saves += 1
        weight = 1 / min(self.saves, SAVES_KEPT)
        self.save_seconds += weight * (max(seconds, 0.0) - self.save_seconds)

    @property
    def save_cost(self) -> float:
        return self.save_seconds if self.saves else PRIOR_SAVE_SECONDS

    def hazard(self, seconds: float) -> float:
        """Failures per second to expect at this age, if there was none until then."""
        step = max(seconds, 1.0) / 1000
        return _hazard(self._laws.survival(seconds), self._laws.survival(seconds + step), step)

    def interval(self, seconds: float) -> float:
        """Seconds of work until the next save, from so many seconds after the last failure, at which one was made."""
        save = max(self.save_cost, 0.01)
        plan = self._plan
        if (
            plan is None
            or not plan.save / SAVE_CHANGE <= save <= plan.save * SAVE_CHANGE
            or _is_behind(plan, seconds)
        ):
            plan = self._plan = planned(self._laws, save, seconds)
        first = bisect_right(plan.ages, seconds + plan.save)
        best, at = -1.0, None
        for j in range(first, min(first + REACH, len(plan.ages))):
            kept = plan.survivals[j] * (plan.ages[j] - seconds - plan.save) + plan.kept[j]
            if kept > best:
                best, at = kept, j
        work = INTERVAL_SECONDS_MAX if at is None else plan.ages[at] - seconds - save
        return min(max(work, save, INTERVAL_SECONDS_MIN), INTERVAL_SECONDS_MAX)


def planned(laws: FailureLaws, save: float, begin: float) -> Plan:
    """For a run that has lived for `begin` seconds, at which it saved."""
    ages, survivals = _ages(laws, save, begin)
    kept = [0.0] * len(ages)
    for i in range(len(ages) - 2, -1, -1):
        start, best = ages[i] + save, 0.0
        for j in range(i + 1, min(i + 1 + REACH, len(ages))):
            found = survivals[j] * (ages[j] - start) + kept[j]
            if found > best:
                best = found
        kept[i] = best
    return Plan(save, ages, survivals, kept)


def _ages(laws: FailureLaws, save: float, begin: float) -> tuple[list[float], list[float]]:
    now = max(laws.survival(begin), 1e-300)
    ages, survivals, hazard = [begin], [1.0], 0.0
    least = max(save, INTERVAL_SECONDS_MIN) / PARTS
    step = least
    while survivals[-1] > SURVIVAL_MIN and len(ages) < POINTS_MAX:
        step *= 1.25
        while True:
            survival = laws.survival(ages[-1] + step) / now
            found = _hazard(survivals[-1], survival, step)
            most = _local_interval(save, found) / PARTS
            # Where a failure nears, the best save is within a fraction of the time in which the hazard doubles.
            is_steep = found > STEEP * hazard and found * (ages[-1] - begin) > RISK_MIN
            if step <= least or (step <= most and not is_steep):
                break
            # Not less than half of it, since what is hazardous may be all in the second half.
            step = max(min(most, step / 1.5 if is_steep else most), step / 2, least)
        ages.append(ages[-1] + step)
        survivals.append(survival)
        hazard = found
    return ages, survivals


def _hazard(before: float, after: float, seconds: float) -> float:
    """The mean hazard between two survivals."""
    return log(max(before, 1e-300) / max(after, 1e-300)) / seconds if after < before else 0.0


def _is_behind(plan: Plan, seconds: float) -> bool:
    """Whether so much of the plan is over that its end, beyond which no save counts, would matter."""
    at = bisect_right(plan.ages, seconds) - 1
    return at < 0 or at > len(plan.ages) // 2 or plan.survivals[at] < sqrt(SURVIVAL_MIN)


def _local_interval(save: float, hazard: float) -> float:
    """Seconds of work between saves at a constant hazard."""
    found = young_daly(save, 1 / max(hazard, 1e-12))
    return min(max(found, save, INTERVAL_SECONDS_MIN), INTERVAL_SECONDS_MAX)


def young_daly(save: float, between: float) -> float:
    """Seconds of work between saves of `save` seconds with failures `between` seconds apart on average (Daly, eq. 37)."""
    if save >= 2 * between:
        return between
    ratio = sqrt(save / (2 * between))
    return max(sqrt(2 * save * between) * (1 + ratio / 3 + ratio**2 / 9) - save, 0.0)
