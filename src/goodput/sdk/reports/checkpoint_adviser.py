"""When saving a checkpoint now is best, from the failures and saves that were seen.

`failure_laws` has the chance S(t) that the run lives for t seconds. When a failure comes does not depend on the saves, so
the best saves are those that keep most work: from a save at age a, the next one ends at the age b > a that maximises
S(b) (b - a - d) + W(b), of which d is the time of a save and W(b) the same sum of all saves after b. It is found from the
last age backwards, over ages that lie closer where failures are likelier: PARTS of them in Daly's interval for the mean
hazard between them (equation 37 of "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22,
2006). A plan reaches to the age at which SURVIVAL_MIN of the runs that live now still do, or to the known end of the job.

The first lives say little, and a plan made from them may be worse than a save each USUAL_SECONDS. So these are left only
where the plan is expected to waste less by the share EVIDENCE / n**3 after n failures: 20 % after five, 2.5 % after ten. With
that, no law of bench/trainer/checkpoint_adviser.py has a number of failures after which a save each USUAL_SECONDS would waste less
by over 1 %. Before the first failure intervals become longer with the time lived: they are the best for the highest rate of
failures at which none would be seen for so long with a chance of 10 %.

Cost: a plan takes some 10 ms; it is made once a life, again when the time of a save changes, and when the run lives long.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf, log, sqrt
from typing import NamedTuple

from goodput.sdk.reports.failure_laws import FailureLaws

PRIOR_SAVE_SECONDS = 30.0  # until a save was seen
INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX = 10.0, 24 * 3600.0
USUAL_SECONDS = 1800.0  # of work between saves, until there is evidence for another interval
EVIDENCE = 25.0
NONE_SEEN = log(10)  # failures, of which none is seen with a chance of 10 %
SAVES_KEPT = 16  # the mean save is that of about so many of the newest
PARTS = 6  # ages in an interval
REACH = 80  # ages among which the next save is sought
POINTS_MAX = 400
SURVIVAL_MIN = 0.04
STEEP, RISK_MIN = 1.25, 0.005
SAVE_CHANGE = 1.2  # a save that takes so many times as long needs another plan


class Plan(NamedTuple):
    """Ages in seconds, the chance to reach each, and the work that saves after each are expected to keep.

    `advantage` is by what share of its own waste it wastes less than a save each USUAL_SECONDS is expected to.
    """

    save: float
    end: float
    ages: list[float]
    survivals: list[float]
    kept: list[float]
    advantage: float


class Adviser:
    """`note_failure` and `note_save` say what was seen; `interval` is how long to work between saves."""

    def __init__(self) -> None:
        self.failures = 0
        self.saves, self.save_seconds, self.slowest_seconds = 0, 0.0, 0.0
        self.end = inf  # the age at which the job is ended, where that is known
        self._lived = 0.0
        self._laws = FailureLaws()
        self._plan: Plan | None = None

    def note_failure(self, seconds: float) -> None:
        """A failure so many seconds after the one before, or after the start."""
        self.failures += 1
        self._laws.failed(seconds)
        self._lived += max(seconds, 0.0)
        self._plan = None

    def note_alive(self, seconds: float) -> None:
        """Note `seconds` without a failure, at whose end the run was stopped for another reason."""
        self._laws.lived(seconds)
        self._lived += max(seconds, 0.0)
        self._plan = None

    def note_save(self, seconds: float) -> None:
        self.saves += 1
        weight = 1 / min(self.saves, SAVES_KEPT)
        seconds = max(seconds, 0.0)
        self.save_seconds += weight * (seconds - self.save_seconds)
        self.slowest_seconds = max(seconds, self.save_seconds, (1 - weight) * self.slowest_seconds)

    @property
    def save_cost(self) -> float:
        return self.save_seconds if self.saves else PRIOR_SAVE_SECONDS

    def hazard(self, seconds: float) -> float:
        """Failures per second to expect at this age, if there was none until then."""
        step = max(seconds, 1.0) / 1000
        return _hazard(self._laws.survival(seconds), self._laws.survival(seconds + step), step)

    def interval(self, seconds: float) -> float:
        """Seconds of work until the next save, from so many seconds after the last failure, at which one was made.

        The last save before the known end is done by then; once none fits before it, the next one is due USUAL_SECONDS
        after it, for a job whose time was extended.
        """
        save, end = max(self.save_cost, 0.01), self.end if seconds < self.end else inf
        left = end - seconds - save
        if left < INTERVAL_SECONDS_MIN:
            return end - seconds + USUAL_SECONDS
        plan = self._current_plan(save, seconds, end) if self.failures else None
        if plan is not None and plan.advantage > EVIDENCE / self.failures**3:
            work = _planned_work(plan, seconds)
        else:
            work = self._usual_work(save, seconds)
            if (
                work + save > left
            ):  # No other save would fit after this one, which keeps more if it is the last.
                return left
        return min(max(work, save, INTERVAL_SECONDS_MIN), INTERVAL_SECONDS_MAX, left)

    def _usual_work(self, save: float, seconds: float) -> float:
        """Without evidence for another interval."""
        if self.failures:
            return USUAL_SECONDS
        return max(USUAL_SECONDS, young_daly(save, (self._lived + seconds) / NONE_SEEN))

    def _current_plan(self, save: float, seconds: float, end: float) -> Plan:
        plan = self._plan
        if (
            plan is None
            or not plan.save / SAVE_CHANGE <= save <= plan.save * SAVE_CHANGE
            or (plan.end != end and abs(plan.end - end) > save)
            or _is_behind(plan, seconds)
        ):
            plan = self._plan = planned(self._laws, save, seconds, end)
        return plan


def planned(laws: FailureLaws, save: float, begin: float, end: float = inf) -> Plan:
    """For a run that has lived for `begin` seconds, at which it saved, and is ended at the age `end`."""
    ages, survivals = _ages(laws, save, begin, end)
    kept = [0.0] * len(ages)
    for i in range(len(ages) - 2, -1, -1):
        start, best = ages[i] + save, 0.0
        for j in range(i + 1, min(i + 1 + REACH, len(ages))):
            found = survivals[j] * (ages[j] - start) + kept[j]
            if found > best:
                best = found
        kept[i] = best
    return Plan(save, end, ages, survivals, kept, _advantage(ages, survivals, save, kept[0], end))


def _planned_work(plan: Plan, seconds: float) -> float:
    first = bisect_right(plan.ages, seconds + plan.save)
    best, at = -1.0, None
    for j in range(first, min(first + REACH, len(plan.ages))):
        kept = plan.survivals[j] * (plan.ages[j] - seconds - plan.save) + plan.kept[j]
        if kept > best:
            best, at = kept, j
    return INTERVAL_SECONDS_MAX if at is None else plan.ages[at] - seconds - plan.save


def _advantage(ages: list[float], survivals: list[float], save: float, kept: float, end: float) -> float:
    """By what share more a save each USUAL_SECONDS, and one at the end, wastes than one that keeps `kept`."""
    lived = usual = 0.0
    saved, next_age = ages[0], ages[0] + USUAL_SECONDS + save
    for i in range(1, len(ages)):
        width = ages[i] - ages[i - 1]
        lived += (survivals[i] + survivals[i - 1]) / 2 * width
        while next_age <= ages[i]:
            part = (next_age - ages[i - 1]) / width
            usual += USUAL_SECONDS * (survivals[i - 1] + part * (survivals[i] - survivals[i - 1]))
            saved, next_age = next_age, next_age + USUAL_SECONDS + save
    if ages[-1] >= end:
        usual += survivals[-1] * max(end - saved - save, 0.0)
    return (lived - usual) / (lived - kept) - 1 if kept < lived else 0.0


def _ages(laws: FailureLaws, save: float, begin: float, end: float) -> tuple[list[float], list[float]]:
    now = max(laws.survival(begin), 1e-300)
    ages, survivals, hazard = [begin], [1.0], 0.0
    least = max(save, INTERVAL_SECONDS_MIN) / PARTS
    step = least
    while survivals[-1] > SURVIVAL_MIN and len(ages) < POINTS_MAX and ages[-1] < end:
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
        if ages[-1] + step > end:
            step = end - ages[-1]
            survival = laws.survival(end) / now
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
