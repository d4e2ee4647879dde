"""How long a run lives until its next failure, from how long it lived before: a posterior over three families of laws.

Failures come at random or by wear (Weibull), in bursts, one soon after another (hyperexponential), or after about the same
time, such as at a job's limit (log-normal). Each family has its parameters on a grid, weighed by the likelihood of what was
seen, except for those with a closed form given the others: the rate of a Weibull law (gamma posterior) and the mean
logarithm of a log-normal one (normal posterior). Times are in units of PRIOR_SECONDS, in which a first failure is expected.

Cost: a failure takes some 0.5 ms, a survival some 20 us.
"""

from __future__ import annotations

from math import erfc, exp, inf, lgamma, log, pi, sqrt

PRIOR_SECONDS = 8 * 3600.0
SECONDS_MIN = 1.0
SHAPES = tuple(2 ** (i / 4) for i in range(-5, 13))  # of Weibull, 0.42 to 8
SHAPE_SPREAD = 0.5  # of the logarithm of the shape, around 0
# Standard deviations of the logarithm, from 2 down to 0.0005, which are 10 s of 6 h.
SPREADS = (*(2 ** (-i / 4) for i in range(-4, 25)), *(2 ** (-i / 2) for i in range(13, 23)))
CENTRE_SPREAD = 1.5  # of the prior of the mean logarithm, and of that of the slow rate of bursts, around 0
RATES = tuple(2 ** (i / 2) for i in range(-8, 17))  # of bursts: 128 hours to 2 minutes
SOON = (0.1, 0.3, 0.5, 0.7, 0.9)  # shares of lives that end by the faster rate
RATIO_MIN = 4.0  # of the rates
SHARE_MIN = 1e-4  # of a law that counts
WEIGHTS = {"weibull": 0.4, "bursts": 0.35, "log-normal": 0.25}
_EXPONENT_MAX = 600.0


class FailureLaws:
    """`failed` and `lived` are what was seen; `survival` is the chance to live for so long."""

    def __init__(self) -> None:
        self._families = (_Weibull(), _Bursts(), _LogNormal())
        self._shares: list[float] = []
        self._whole = 1.0

    def failed(self, seconds: float) -> None:
        """A failure so many seconds after the start."""
        for family in self._families:
            family.failed(_units(seconds))
        self._shares = []

    def lived(self, seconds: float) -> None:
        """Note `seconds` without a failure, at whose end the run was stopped for another reason."""
        for family in self._families:
            family.lived(_units(seconds))
        self._shares = []

    def shares(self) -> list[float]:
        """The posterior probability of each family, in the order of WEIGHTS."""
        if not self._shares:
            logs = [
                log(prior) + one.evidence()
                for prior, one in zip(WEIGHTS.values(), self._families, strict=True)
            ]
            self._shares = _normalised(logs)
            self._whole = self._sum(1e-12)
        return self._shares

    def survival(self, seconds: float) -> float:
        """The posterior predictive probability of no failure within so many seconds of the start."""
        if seconds <= 0:
            return 1.0
        self.shares()
        # Of the laws that count, whose shares sum to a little less than one.
        return self._sum(seconds / PRIOR_SECONDS) / self._whole

    def _sum(self, units: float) -> float:
        pairs = zip(self._shares, self._families, strict=True)
        return sum(share * family.survival(units) for share, family in pairs if share > SHARE_MIN)


class _Weibull:
    """Given shape k, powers t**k are exponential: with a prior of one failure after one unit their rate is gamma."""

    def __init__(self) -> None:
        self._failures, self._logs = 0, 0.0
        self._powers = [1.0] * len(SHAPES)
        self._likely: list[tuple[float, float, float]] = []  # share, shape, logarithm of the powers

    def failed(self, units: float) -> None:
        self._failures += 1
        self._logs += log(units)
        self.lived(units)

    def lived(self, units: float) -> None:
        self._powers = [
            total + _power(units, shape) for total, shape in zip(self._powers, SHAPES, strict=True)
        ]

    def evidence(self) -> float:
        """The logarithm of the probability of what was seen."""
        n = self._failures
        logs = [
            -((log(shape) / SHAPE_SPREAD) ** 2) / 2
            + n * log(shape)
            + (shape - 1) * self._logs
            + lgamma(n + 1)
            - (n + 1) * log(total)
            for shape, total in zip(SHAPES, self._powers, strict=True)
        ]
        likely = zip(_normalised(logs), SHAPES, map(log, self._powers), strict=True)
        self._likely = [one for one in likely if one[0] > SHARE_MIN]
        prior = sum(exp(-((log(shape) / SHAPE_SPREAD) ** 2) / 2) for shape in SHAPES)
        return _log_sum(logs) - log(prior)

    def survival(self, units: float) -> float:
        n, at = self._failures + 1, log(units)
        return sum(
            share * (1 + exp(min(shape * at - scale, _EXPONENT_MAX / n))) ** -n
            for share, shape, scale in self._likely
        )


class _Bursts:
    """A share of lives ends by a fast rate, the others by a slow one."""

    def __init__(self) -> None:
        self._laws = [
            (soon, fast, slow)
            for soon in SOON
            for slow in range(len(RATES))
            for fast in range(slow + 1, len(RATES))
            if RATES[fast] >= RATIO_MIN * RATES[slow]
        ]
        logs = [-((log(RATES[slow]) / CENTRE_SPREAD) ** 2) / 2 for _, _, slow in self._laws]
        whole = _log_sum(logs)
        self._logs = [one - whole for one in logs]
        self._likely: list[tuple[float, float]] = []  # share and rate

    def failed(self, units: float) -> None:
        self._weigh([rate * exp(-rate * units) for rate in RATES])

    def lived(self, units: float) -> None:
        self._weigh([exp(-rate * units) for rate in RATES])

    def _weigh(self, likelihoods: list[float]) -> None:
        self._logs = [
            known + log(soon * likelihoods[fast] + (1 - soon) * likelihoods[slow] + 1e-300)
            for known, (soon, fast, slow) in zip(self._logs, self._laws, strict=True)
        ]

    def evidence(self) -> float:
        terms = [0.0] * len(RATES)
        for share, (soon, fast, slow) in zip(_normalised(self._logs), self._laws, strict=True):
            terms[fast] += share * soon
            terms[slow] += share * (1 - soon)
        self._likely = [one for one in zip(terms, RATES, strict=True) if one[0] > SHARE_MIN]
        return _log_sum(self._logs)

    def survival(self, units: float) -> float:
        return sum(share * exp(-rate * units) for share, rate in self._likely)


class _LogNormal:
    """Given the spread of the logarithms, their mean is normal. Lives that did not fail weigh spreads alone."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self._lived = [0.0] * len(SPREADS)
        self._likely: list[tuple[float, float, float]] = []  # share, mean and sqrt(2) deviations

    def failed(self, units: float) -> None:
        at = log(units)
        self._count, self._sum, self._squares = self._count + 1, self._sum + at, self._squares + at * at

    def lived(self, units: float) -> None:
        for i, (mean, deviation) in enumerate(self._predicted()):
            self._lived[i] += log(_tail(log(units), mean, deviation) + 1e-300)

    def _predicted(self) -> list[tuple[float, float]]:
        """The mean and deviation of the next logarithm, given each spread."""
        found = []
        for spread in SPREADS:
            precision = 1 / CENTRE_SPREAD**2 + self._count / spread**2
            found.append((self._sum / spread**2 / precision, sqrt(spread**2 + 1 / precision)))
        return found

    def evidence(self) -> float:
        logs = []
        for spread, lived in zip(SPREADS, self._lived, strict=True):
            precision = 1 / CENTRE_SPREAD**2 + self._count / spread**2
            mean = self._sum / spread**2 / precision
            squares = self._squares / spread**2 - mean**2 * precision
            logs.append(
                -self._count / 2 * log(2 * pi * spread**2)
                - log(CENTRE_SPREAD**2 * precision) / 2
                - squares / 2
                - self._sum  # of the density of the time, not of its logarithm
                + lived
            )
        self._likely = [
            (share, mean, sqrt(2) * deviation)
            for share, (mean, deviation) in zip(_normalised(logs), self._predicted(), strict=True)
            if share > SHARE_MIN
        ]
        return _log_sum(logs) - log(len(SPREADS))

    def survival(self, units: float) -> float:
        at = log(units)
        return sum(share * erfc((at - mean) / width) for share, mean, width in self._likely) / 2


def _units(seconds: float) -> float:
    return max(seconds, SECONDS_MIN) / PRIOR_SECONDS


def _tail(at: float, mean: float, deviation: float) -> float:
    return erfc((at - mean) / deviation / sqrt(2)) / 2


def _power(units: float, shape: float) -> float:
    return exp(min(shape * log(units), _EXPONENT_MAX))


def _log_sum(logs: list[float]) -> float:
    most = max(logs)
    return -inf if most == -inf else most + log(sum(exp(one - most) for one in logs))


def _normalised(logs: list[float]) -> list[float]:
    whole = _log_sum(logs)
    return [exp(one - whole) for one in logs]
