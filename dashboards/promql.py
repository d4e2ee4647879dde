"""PromQL that several boards share."""

from __future__ import annotations

RATE = "$__rate_interval"


def rate_of(series: str, by: str = "", selector: str = "", window: str = RATE) -> str:
    """The sum of a counter's rates, by these labels."""
    braces = f"{{{selector}}}" if selector else ""
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{braces}[{window}]))"


def top_over_range(count: int, expr: str, by: str, choose: str = "topk") -> str:
    """The same few series over the whole time range: those with the largest mean, by these labels.

    topk() in a range query chooses anew at each moment, and would draw broken lines of any number of series.
    """
    return f"{expr} and on ({by}) {choose}({count}, avg_over_time(({expr})[$__range:$__interval] @ end()))"


def quantiles(series: str, selector: str, by: str = "") -> dict[str, str]:
    """p50, p95 and p99 of a series that has them by the label q."""
    braces = f"max{f' by ({by}) ' if by else ''}({series}{{{selector},q="
    return {q: f'{braces}"{q}"}})' for q in ("p50", "p95", "p99")}
