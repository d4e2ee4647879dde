"""A comparison as text for a terminal, or as a Markdown table for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from goodput.compare.comparison import Comparison, Difference, Side

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
SHARE_SHOWN = 0.0005  # states that differ by less, and take less, of the step are one line


def render(found: Comparison) -> str:
    """Lines of at most 80 columns."""
    unit_ns, unit = _unit(found)
    width = max(len(one.name) for one in [*found.states, found.step])
    lines = [*_heads(found), "", f"{verdict(found)}", ""]
    lines.append(
        f"  {'':{width}}  {'base ' + unit:>11}  {'new ' + unit:>11}  {'change ' + unit:>11}  of the step, 95 %"
    )
    for one in _shown(found):
        lines.append(
            f"  {one.name:{width}}  {one.base_ns / unit_ns:11,.2f}  {one.new_ns / unit_ns:11,.2f}"
            f"  {one.change_ns / unit_ns:+11,.2f}  {_share(one)}"
        )
    lines += ["", *_notes(found)]
    return "\n".join(lines).rstrip()


def markdown(found: Comparison) -> str:
    unit_ns, unit = _unit(found)
    lines = [f"**{verdict(found)}**", ""]
    lines += [f"| | base {unit} | new {unit} | change {unit} | of the step, 95 % |", "|---|--:|--:|--:|--:|"]
    for one in _shown(found):
        lines.append(
            f"| {one.name} | {one.base_ns / unit_ns:,.2f} | {one.new_ns / unit_ns:,.2f}"
            f" | {one.change_ns / unit_ns:+,.2f} | {_share(one).strip()} |"
        )
    return "\n".join([*lines, "", *(f"- {line}" for line in [*_heads(found), *_notes(found)])])


def verdict(found: Comparison) -> str:
    """One sentence, such as `step -4.0 % ± 0.6 %: loader -5.1, communication +1.1`."""
    step = found.step
    size = f"{100 * step.share:+.1f} % ± {_half(step):.1f} %"
    if not step.is_significant:
        return f"{found.per} {size}: no difference beyond chance"
    parts = [one for one in found.states if one.is_significant and abs(one.share) >= SHARE_SHOWN][:4]
    named = ", ".join(f"{one.name} {100 * one.share:+.1f}" for one in parts)
    return f"{found.per} {size}" + (f": {named}" if named else "")


def _heads(found: Comparison) -> Iterator[str]:
    for name, sides in (("base", found.base), ("new", found.new)):
        for one in sides:
            left_out = one.first_steps_left_out + one.warm_up_steps_left_out
            more = f", {left_out} left out" if left_out else ""
            ranks = f"{one.ranks} rank{'s' if one.ranks > 1 else ''}"
            yield f"{name:4}  {one.run}: {ranks}, {one.steps} steps{more}"


def _notes(found: Comparison) -> Iterator[str]:
    for name, sides in (("base", found.base), ("new", found.new)):
        for one in sides:
            yield from _changes(name, one)
    if found.dollars:
        base, new = found.dollars
        yield f"a thousand {found.per}s: ${base:,.2f}, now ${new:,.2f} ({new - base:+,.2f})"


def _changes(name: str, side: Side) -> Iterator[str]:
    if side.changes:
        listed = ", ".join(f"{100 * share:+.1f} % from step {step}" for step, share in side.changes)
        yield f"{name} {side.run} changes its pace: {listed}; the means are over all of it"


def _shown(found: Comparison) -> Sequence[Difference]:
    total = found.step.base_ns
    large = [one for one in found.states if max(one.base_ns, one.new_ns) >= SHARE_SHOWN * total]
    small = [one for one in found.states if one not in large]
    if len(small) > 1:
        base, new = (sum(getattr(one, name) for one in small) for name in ("base_ns", "new_ns"))
        share = (new - base) / total
        small = [Difference("others", base, new, new - base, share, share, share, False)]
    return [*large, *small, found.step]


def _share(one: Difference) -> str:
    text = f"{100 * one.share:+6.1f} %"
    return text if one.share_low == one.share_high else f"{text} ± {_half(one):.1f}"


def _half(one: Difference) -> float:
    return 100 * (one.share_high - one.share_low) / 2


def _unit(found: Comparison) -> tuple[float, str]:
    return next((size, name) for size, name in UNITS if found.step.base_ns >= size or size == 1.0)
