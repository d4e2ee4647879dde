"""An account for people: a table that closes to 100.0 %, the factors, and one line of advice.

In: an account document. Out: text of at most 100 columns, without colour.
"""

from __future__ import annotations

import math
import textwrap

from goodput.account.states import MEANINGS, STATES

COLUMNS = 100


def tenths(parts: list[float]) -> list[int]:
    """Shares of `parts` in tenths of a percent that sum to exactly 1000; all 0 if empty.

    Each is rounded by itself, so that it reads as it does elsewhere; what is then missing or too much goes to the
    parts that were furthest from their rounding, and never to the first.
    """
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    exact = [1000 * part / total for part in parts]
    rounded = [math.floor(value + 0.5) for value in exact]
    short = 1000 - sum(rounded)
    sign = 1 if short > 0 else -1
    others = [i for i in range(1, len(parts)) if parts[i] > 0 and (sign > 0 or rounded[i] > 0)]
    others.sort(key=lambda i: (sign * (rounded[i] - exact[i]), i))
    for i in others[: abs(short)]:
        rounded[i] += sign
    return rounded


def state_rows(document: dict) -> list[tuple[str, float, str, str]]:
    """(state, GPU-seconds, percent, meaning) of the states that have time; the percents sum to 100.0."""
    states = [(state, document["states"][state]) for state in STATES]
    shares = tenths([seconds for _, seconds in states])
    return [
        (state, seconds, f"{share // 10}.{share % 10}", MEANINGS[state])
        for (state, seconds), share in zip(states, shares, strict=True)
        if seconds > 0
    ]


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * ratio:.1f} %"


def render(document: dict) -> str:
    """The whole account as text."""
    lines = [
        f"run {document['run']}: {document['status']}, {document['world_size']} rank{'s' * (document['world_size'] != 1)}, "
        f"{document['end'] - document['start']:.1f} s, {document['gpu_seconds']:.1f} GPU-seconds",
        "",
        f"  {'state':<14}{'GPU-seconds':>12}{'percent':>9}   what it is",
    ]
    lines += [
        f"  {s:<14}{seconds:>12.2f}{share:>8}%   {what}" for s, seconds, share, what in state_rows(document)
    ]
    lines += [f"  {'total':<14}{document['gpu_seconds']:>12.2f}{'100.0':>8}%", ""]
    for line in [*_factor_lines(document), *_trouble_lines(document)]:
        lines.append(wrap(line))
    return "\n".join(lines)


def wrap(line: str) -> str:
    """A long line over several, each continued a little further in."""
    return (
        textwrap.fill(line, COLUMNS, subsequent_indent="    ", break_long_words=False)
        if line.strip()
        else line
    )


def _factor_lines(document: dict) -> list[str]:
    f, steps = document["factors"], document["steps"]
    return [
        f"  goodput {percent(f['goodput'])} = availability {percent(f['availability'])}"
        f" x step efficiency {percent(f['step_efficiency'])}",
        f"  MFU {percent(f['mfu'])} = goodput x compute efficiency {percent(f['compute_efficiency'])}",
        f"  steps of all ranks: {steps['kept']} kept, {steps['lost']} lost;"
        f" ranks observed {percent(document['coverage']['ranks'])}",
    ]


def _trouble_lines(document: dict) -> list[str]:
    lines = []
    straggler = document["straggler"]
    if straggler["culprit"] is not None:
        first = straggler["shares"][0]
        lines.append(
            f"  slow rank: {straggler['culprit']} on {first['host']} ({straggler['because']}), which explains"
            f" {percent(first['share'])} of the waiting; steps take {straggler['slowdown']:.2f}x as long as if their work were spread evenly"
        )
    for restart in document["restarts"]:
        down, point = restart["down_seconds"], restart["resume_step"]
        resumed = {None: "at an unknown step", -1: "from the beginning"}.get(point, f"after step {point}")
        lines.append(
            f"  restart {restart['attempt'] - 1}: down {'unknown' if down is None else f'{down:.2f} s'}, "
            f"{restart['lost_steps']} steps lost ({restart['lost_gpu_seconds']:.2f} GPU-seconds), "
            f"resumed {resumed}"
        )
    if document["causes"]:
        cause = document["causes"][0]
        gain = (
            ""
            if cause["gain"] is None
            else f"; without it the run would be at most {cause['gain']:.2f}x as fast"
        )
        lines += [
            "",
            f"  largest cause: {cause['state']}, {percent(cause['share'])} of all GPU time{gain}",
            f"  advice: {cause['advice']}",
        ]
    return lines
