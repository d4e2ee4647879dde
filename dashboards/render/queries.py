"""Asks Prometheus what a panel asks: the interval, the macros, the HTTP calls.

In: a panel's JSON, a time range, filled variables, the address of a Prometheus. Out: per target an `Answer`
dictionary as page/document.ts describes it; an error of Prometheus stands in it in Prometheus's own words, and
the other targets are asked all the same. The step follows Grafana's documentation: the range divided by the
panel's width in points, rounded to a round length, at least the panel's `interval`; $__rate_interval is the
larger of $__interval plus the scrape interval and four scrape intervals.

    range_ = Range(from_ms=0, to_ms=3_600_000)
    answers = ask_panel(panel, "http://127.0.0.1:9090", range_, variables, points_max=800)
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

ASK_SECONDS_MAX = 30
POINTS_MAX = 11_000  # More than these Prometheus refuses in one series.
UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
# Up to the first number of milliseconds an interval becomes the second.
ROUND_MS = (
    *((15, 10), (35, 20), (75, 50), (150, 100), (350, 200), (750, 500), (1500, 1000), (3500, 2000)),
    *((7500, 5000), (12_500, 10_000), (17_500, 15_000), (25_000, 20_000), (45_000, 30_000)),
    *((90_000, 60_000), (210_000, 120_000), (450_000, 300_000), (750_000, 600_000), (1_050_000, 900_000)),
    *((1_500_000, 1_200_000), (2_700_000, 1_800_000), (5_400_000, 3_600_000), (9_000_000, 7_200_000)),
    *((16_200_000, 10_800_000), (32_400_000, 21_600_000), (86_400_000, 43_200_000)),
)
# A proxy of the environment would be asked for loopback too.
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
    parts = re.findall(r"(\d+)(ms|[smhdwy])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no length of time such as 15s, 5m or 1h")
    return sum(int(number) * UNITS_MS[unit] for number, unit in parts)


def interval_ms(range_: Range, points_max: int, least_ms: int) -> int:
    """The step of a query: the range spread over the points, made round, not below the least."""
    raw = range_.milliseconds / max(points_max, 1)
    rounded = next((to for below, to in ROUND_MS if raw < below), 86_400_000)
    return max(rounded, least_ms)


def specials(range_: Range, step_ms: int, scrape_ms: int) -> dict[str, str]:
    """Grafana's own variables for one query."""
    rate_ms = max(step_ms + scrape_ms, 4 * scrape_ms)
    seconds = round(range_.milliseconds / 1000)
    return {
        "__interval": _length(step_ms),
        "__interval_ms": str(step_ms),
        "__rate_interval": _length(rate_ms),
        "__rate_interval_ms": str(rate_ms),
        "__range": f"{seconds}s",
        "__range_s": str(seconds),
        "__range_ms": str(range_.milliseconds),
        "__from": str(range_.from_ms),
        "__to": str(range_.to_ms),
    }


def _length(ms: int) -> str:
    """The largest unit that divides it: 60000 is 1m, 90000 is 90s."""
    for unit in ("d", "h", "m", "s"):
        if ms % UNITS_MS[unit] == 0:
            return f"{ms // UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def get(prometheus: str, path: str, parameters: Mapping[str, str] | Sequence[tuple[str, str]]):
    """The `data` of an answer of Prometheus's HTTP API; ValueError in its own words when it refuses."""
    url = f"{prometheus.rstrip('/')}{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with OPENER.open(url, timeout=ASK_SECONDS_MAX) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as problem:
        text = problem.read().decode(errors="replace")
        try:
            body = json.loads(text)
        except ValueError:
            raise ValueError(f"{prometheus}: HTTP {problem.code}: {text[:200]}") from None
    if body.get("status") != "success":
        raise ValueError(body.get("error", "no reason given"))
    return body["data"]


def label_values(prometheus: str, range_: Range, selector: str | None, label: str) -> list[str]:
    """The values a label had in the range, of the series that a selector matches."""
    parameters = [("start", str(range_.from_ms / 1000)), ("end", str(range_.to_ms / 1000))]
    if selector is not None:
        parameters.append(("match[]", selector))
    return get(prometheus, f"/api/v1/label/{label}/values", parameters)


def ask_panel(
    panel: Mapping,
    prometheus: str,
    range_: Range,
    variables: Sequence[Variable],
    *,
    points_max: int,
    scrape_ms: int = 5000,
) -> list[dict]:
    """The answers to a panel's targets, those that are hidden left out."""
    answers = []
    for target in panel.get("targets", []):
        if target.get("hide"):
            continue
        own = target.get("interval") or panel.get("interval") or ""
        own = fill(own, variables, {})
        # A panel that names its least interval is taken at its word, also for $__rate_interval.
        scrape = milliseconds(own) if target.get("interval") else scrape_ms
        points = panel.get("maxDataPoints") or points_max
        step = interval_ms(range_, points, milliseconds(own) if own else scrape_ms)
        step = max(step, -(-range_.milliseconds // POINTS_MAX))
        expr = fill(target["expr"], variables, specials(range_, step, scrape))
        answers.append(_ask(target, expr, prometheus, range_, step))
    return answers


def _ask(target: Mapping, expr: str, prometheus: str, range_: Range, step_ms: int) -> dict:
    instant = bool(target.get("instant")) and not target.get("range")
    answer = {
        "refId": target.get("refId", "A"),
        "expr": expr,
        "legend": target.get("legendFormat") or "",
        "format": target.get("format") or "time_series",
        "instant": instant,
        "step_ms": step_ms,
        "error": "",
        "series": [],
    }
    try:
        answer["series"] = (
            instant_series(prometheus, expr, range_)
            if instant
            else range_series(prometheus, expr, range_, step_ms)
        )
    except (ValueError, OSError) as problem:
        answer["error"] = str(problem)
    return answer


def instant_series(prometheus: str, expr: str, range_: Range) -> list[dict]:
    """One pair per series, at the end of the range."""
    data = get(prometheus, "/api/v1/query", {"query": expr, "time": str(range_.to_ms / 1000)})
    if data["resultType"] in ("scalar", "string"):
        return [{"metric": {}, "values": [data["result"]]}]
    return [{"metric": one["metric"], "values": [one["value"]]} for one in data["result"]]


def range_series(prometheus: str, expr: str, range_: Range, step_ms: int) -> list[dict]:
    """Pairs at whole multiples of the step, as Grafana asks for them, so that pictures do not shiver."""
    parameters = {
        "query": expr,
        "start": str(range_.from_ms // step_ms * step_ms / 1000),
        "end": str(range_.to_ms // step_ms * step_ms / 1000),
        "step": str(step_ms / 1000),
    }
    return get(prometheus, "/api/v1/query_range", parameters)["result"]
