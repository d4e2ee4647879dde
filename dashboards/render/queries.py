"""Runs the queries of a panel against Prometheus as Grafana does: step, built-in variables, HTTP.

The step is the time range divided by the panel's width in points, rounded to a round duration, at least the panel's
`interval`; $__rate_interval is the larger of the step plus the scrape interval and four scrape intervals.

    range_ = Range(from_ms=0, to_ms=3_600_000)
    answers = query_panel(panel, "http://127.0.0.1:9090", range_, variables, points_max=800)
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.render.variables import Variable, fill

TIMEOUT_SECONDS = 30
SCRAPE_MS = 5000
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
# Up to the first number of milliseconds a step becomes the second.
ROUND_MS = (
    *((15, 10), (35, 20), (75, 50), (150, 100), (350, 200), (750, 500), (1500, 1000), (3500, 2000)),
    *((7500, 5000), (12_500, 10_000), (17_500, 15_000), (25_000, 20_000), (45_000, 30_000)),
    *((90_000, 60_000), (210_000, 120_000), (450_000, 300_000), (750_000, 600_000), (1_050_000, 900_000)),
    *((1_500_000, 1_200_000), (2_700_000, 1_800_000), (5_400_000, 3_600_000), (9_000_000, 7_200_000)),
    *((16_200_000, 10_800_000), (32_400_000, 21_600_000), (86_400_000, 43_200_000)),
)
# Without the environment's proxy, which would also be used for loopback.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Range:
    """A time range in milliseconds since the epoch."""

    from_ms: int
    to_ms: int

    @property
    def milliseconds(self) -> int:
        return self.to_ms - self.from_ms


def milliseconds(text: str) -> int:
    """ "15s", "1h", "1m30s" as milliseconds; ValueError for anything else."""
    parts = re.findall(r"(\d+)(ms|[smhdw])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 15s, 5m or 1h")
    return sum(int(number) * UNITS_MS[unit] for number, unit in parts)


def step_ms(range_: Range, points_max: int, least_ms: int) -> int:
    """The range divided by the number of points, rounded, and at least `least_ms`."""
    raw = range_.milliseconds / max(points_max, 1)
    return max(next((to for below, to in ROUND_MS if raw < below), 86_400_000), least_ms)


def builtin_variables(range_: Range, step: int) -> dict[str, str]:
    """Grafana's own variables for one query with this step in milliseconds."""
    return {
        "__interval": _duration(step),
        "__rate_interval": _duration(max(step + SCRAPE_MS, 4 * SCRAPE_MS)),
        "__range": f"{round(range_.milliseconds / 1000)}s",
    }


def _duration(ms: int) -> str:
    """In the largest unit that divides it: 60000 is 1m, 90000 is 90s."""
    unit = next(unit for unit in reversed(UNITS_MS) if ms % UNITS_MS[unit] == 0)
    return f"{ms // UNITS_MS[unit]}{unit}"


def get(prometheus: str, path: str, parameters: Mapping[str, str]):
    """The `data` of a response of Prometheus's HTTP API; ValueError with its error message when it refuses."""
    url = f"{prometheus.rstrip('/')}{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with OPENER.open(url, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as problem:
        text = problem.read().decode(errors="replace")
        try:
            raise ValueError(json.loads(text)["error"]) from None
        except (json.JSONDecodeError, KeyError):
            raise ValueError(f"{prometheus}: HTTP {problem.code}: {text[:200]}") from None


def label_values(prometheus: str, range_: Range, selector: str, label: str) -> list[str]:
    """The values that a label had in the range, in the series that a selector matches."""
    times = {"start": str(range_.from_ms / 1000), "end": str(range_.to_ms / 1000)}
    return get(prometheus, f"/api/v1/label/{label}/values", times | {"match[]": selector})


def query_panel(
    panel: Mapping, prometheus: str, range_: Range, variables: Sequence[Variable], points_max: int
) -> list[dict]:
    """The answers to a panel's targets, as page/document.ts describes them; an error is part of its answer."""
    step = step_ms(range_, points_max, milliseconds(panel.get("interval", "5s")))
    builtin = builtin_variables(range_, step)
    return [
        _query(target, fill(target["expr"], variables, builtin), prometheus, range_, step)
        for target in panel["targets"]
    ]


def _query(target: Mapping, expr: str, prometheus: str, range_: Range, step: int) -> dict:
    instant = target.get("instant", False)
    answer = {
        "refId": target["refId"],
        "expr": expr,
        "legend": target["legendFormat"],
        "format": target.get("format", "time_series"),
        "step_ms": step,
        "error": "",
        "series": [],
    }
    try:
        answer["series"] = (
            instant_series(prometheus, expr, range_)
            if instant
            else range_series(prometheus, expr, range_, step)
        )
    except (ValueError, OSError) as problem:
        answer["error"] = str(problem)
    return answer


def instant_series(prometheus: str, expr: str, range_: Range) -> list[dict]:
    """One [seconds, "value"] pair per series, at the end of the range."""
    data = get(prometheus, "/api/v1/query", {"query": expr, "time": str(range_.to_ms / 1000)})
    if data["resultType"] == "scalar":
        return [{"metric": {}, "values": [data["result"]]}]
    return [{"metric": one["metric"], "values": [one["value"]]} for one in data["result"]]


def range_series(prometheus: str, expr: str, range_: Range, step: int) -> list[dict]:
    """Pairs at whole multiples of the step, like Grafana's, so that consecutive pictures agree."""
    parameters = {
        "query": expr,
        "start": str(range_.from_ms // step * step / 1000),
        "end": str(range_.to_ms // step * step / 1000),
        "step": str(step / 1000),
    }
    return get(prometheus, "/api/v1/query_range", parameters)["result"]
