"""A comparison as text for a terminal, or as a Markdown table for a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from goodput.account.text import wrap
from goodput.compare.comparison import Comparison, Difference, Side
from goodput.compare.figures import DOLLARS, GOODPUT_OF_RUN, GOODPUT_OF_STEPS, Figure

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
FALLEN_MIN = 0.01  # of the goodput of a run, from which a reason is given
SHARE_SHOWN = 0.0005  # states that differ by less, and take less, of the step are one line


def render(found: Comparison) -> str:
    """Lines of at most 80 columns."""
    unit_ns, unit = unit_of(found.step.base_ns)
    width = max(len(one.name) for one in [*found.states, found.step])
    lines = [*map(wrap, heads(found)), "", wrap(verdict(found)), ""]
    lines.append(
        f"  {'':{width}}  {'base ' + unit:>11}  {'new ' + unit:>11}  {'change ' + unit:>11}  of the step, 95 %"
    )
    for one in shown(found):
        lines.append(
            f"  {one.name:{width}}  {one.base_ns / unit_ns:11,.2f}  {one.new_ns / unit_ns:11,.2f}"
            f"  {signed(one.change_ns / unit_ns, 2):>11}  {share(one)}"
        )
    lines += ["", *_figures(found), *map(wrap, notes(found))]
    return "\n".join(lines).rstrip()


def markdown(found: Comparison) -> str:
    unit_ns, unit = unit_of(found.step.base_ns)
    lines = [f"**{verdict(found)}**", ""]
    lines += [f"| | base {unit} | new {unit} | change {unit} | of the step, 95 % |", "|---|--:|--:|--:|--:|"]
    for one in shown(found):
        lines.append(
            f"| {one.name} | {one.base_ns / unit_ns:,.2f} | {one.new_ns / unit_ns:,.2f}"
            f" | {signed(one.change_ns / unit_ns, 2)} | {share(one).strip()} |"
        )
    ratios = ratios_of(found)
    if ratios:
        lines += ["", "| | base | new | change in points, 95 % |", "|---|--:|--:|--:|"]
        lines += [
            f"| {one.name} | {one.base:.1%} | {one.new:.1%} | {points(one).strip()} |" for one in ratios
        ]
    return "\n".join([*lines, "", *(f"- {line}" for line in [*heads(found), *notes(found)])])


def verdict(found: Comparison) -> str:
    """One sentence, such as `step -4.0 % ± 0.6 %: loader -5.1, communication +1.1`."""
    step = found.step
    size = f"{100 * step.share:+.1f} % ± {_half(step):.1f} %"
    if not step.is_significant:
        return f"{found.per} {size}: no difference beyond chance"
    parts = [one for one in found.states if one.is_significant and abs(one.share) >= SHARE_SHOWN][:4]
    named = ", ".join(f"{one.name} {100 * one.share:+.1f}" for one in parts)
    return f"{found.per} {size}" + (f": {named}" if named else "")


def ratios_of(found: Comparison) -> list[Figure]:
    """The figures that are shares, not dollars."""
    return [one for one in found.figures if one.name != DOLLARS]


def points(one: Figure) -> str:
    """The change in percentage points, with half of its interval."""
    text = f"{100 * one.change:+6.1f}"
    if one.low is None or one.high is None or one.low == one.high:
        return text
    return f"{text} ± {50 * (one.high - one.low):.1f}"


def _figures(found: Comparison) -> list[str]:
    """A table, and an empty line after it."""
    ratios = ratios_of(found)
    if not ratios:
        return []
    width = max(len(one.name) for one in ratios)
    lines = [f"  {'':{width}}  {'base':>8}  {'new':>8}  change in points, 95 %"]
    lines += [f"  {one.name:{width}}  {one.base:8.1%}  {one.new:8.1%}  {points(one)}" for one in ratios]
    return [*lines, ""]


def heads(found: Comparison) -> Iterator[str]:
    """A line for each run."""
    for name, sides in (("base", found.base), ("new", found.new)):
        for one in sides:
            yield f"{name:4}  {described(one)}"


def described(side: Side) -> str:
    """A run with its size and its steps."""
    left_out = side.first_steps_left_out + side.warm_up_steps_left_out
    more = f", {left_out} left out" if left_out else ""
    ranks = f"{side.ranks} rank{'s' if side.ranks > 1 else ''}"
    return f"{side.run}: {ranks}, {side.steps} steps{more}"


def notes(found: Comparison) -> Iterator[str]:
    for name, sides in (("base", found.base), ("new", found.new)):
        for one in sides:
            yield from changes_of(one, f"{name} ")
    yield from _shorter(found)
    for one in found.figures:
        if one.name == DOLLARS:
            yield f"a thousand {found.per}s: ${one.base:,.2f}, now ${one.new:,.2f} ({_dollar_change(one)})"


def _shorter(found: Comparison) -> Iterator[str]:
    """That the new runs' goodput fell since they are shorter, and not because of their steps."""
    by_name = {one.name: one for one in found.figures}
    steps, run = by_name.get(GOODPUT_OF_STEPS), by_name.get(GOODPUT_OF_RUN)
    made = [sum(one.steps for one in sides) / len(sides) for sides in (found.base, found.new)]
    if steps is None or run is None or run.change > -FALLEN_MIN or made[1] >= made[0]:
        return
    if not (steps.is_significant and steps.change < 0):
        yield (
            f"the goodput of the run fell, that of its steps did not: it made {made[1]:,.0f} steps, the base {made[0]:,.0f}, "
            "so starting up weighs more"
        )


def _dollar_change(one: Figure) -> str:
    """The change with half of its interval, to as many decimals as that needs."""
    if one.low is None or one.high is None:
        return f"{one.change:+,.2f}"
    half = (one.high - one.low) / 2
    places = min(max(2, -math.floor(math.log10(half))), 6) if half > 0 else 2
    return f"{one.change:+,.{places}f} ± {half:,.{places}f}"


def changes_of(side: Side, name: str = "") -> Iterator[str]:
    """A line if the run changes its pace."""
    if side.changes:
        listed = ", ".join(f"{100 * share:+.1f} % from step {step}" for step, share in side.changes)
        yield f"{name}{side.run} changes its pace: {listed}; the means are over all of it"


def shown(found: Comparison) -> Sequence[Difference]:
    """The states that are worth a line, the others together, and the step."""
    total = found.step.base_ns
    large = [one for one in found.states if max(one.base_ns, one.new_ns) >= SHARE_SHOWN * total]
    small = [one for one in found.states if one not in large]
    if len(small) > 1:
        base, new = (sum(getattr(one, name) for one in small) for name in ("base_ns", "new_ns"))
        share = (new - base) / total
        small = [Difference("others", base, new, new - base, share, share, share, False)]
    return [*large, *small, found.step]


def signed(value: float, digits: int) -> str:
    """With its sign; what is rounded to zero has a plus."""
    return f"{round(value, digits) + 0.0:+,.{digits}f}"


def share(one: Difference) -> str:
    """The change in % of the base's step, with half of its interval."""
    text = f"{signed(100 * one.share, 1):>6} %"
    return text if one.share_low == one.share_high else f"{text} ± {_half(one):.1f}"


def _half(one: Difference) -> float:
    return 100 * (one.share_high - one.share_low) / 2


def unit_of(ns: float) -> tuple[float, str]:
    """The largest unit of which this is at least one, and its name."""
    return next((size, name) for size, name in UNITS if ns >= size or size == 1.0)
