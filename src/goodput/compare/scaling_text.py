"""How runs scale, as text for a terminal, or as Markdown tables for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from goodput.account.text import wrap
from goodput.compare.scaling import Part, Scaling, Size
from goodput.compare.text import SHARE_SHOWN, changes_of, described, unit_of

KINDS = {
    "strong": "strong scaling: a step does the same work at every size",
    "weak": "weak scaling: a GPU's step does the same work at every size",
    "samples": "scaling of the time of a sample",
}
NAMED = 3  # states that a sentence names


def render(found: Scaling) -> str:
    """Lines of at most 80 columns."""
    unit_ns, unit = unit_of(found.sizes[0].step_ns)
    lines = [*map(wrap, heads(found)), "", KINDS[found.kind], ""]
    lines.append(
        f"  {'GPUs':>6}  {'step ' + unit:>11}  {'efficiency, 95 %':>18}  {'speed-up':>8}{_priced_heads(found)}"
    )
    for one in found.sizes:
        lines.append(
            f"  {one.gpus:6,}  {one.step_ns / unit_ns:11,.2f}  {efficiency(one):>18}  {one.speed_up:7.2f}×{_priced(one)}"
        )
    for one in found.sizes[1:]:
        lines += ["", wrap(verdict(found, one)), "", *_parts(found, one)]
    lines += ["", *map(wrap, notes(found))]
    return "\n".join(lines).rstrip()


def markdown(found: Scaling) -> str:
    unit_ns, unit = unit_of(found.sizes[0].step_ns)
    priced = is_priced(found)
    lines = [f"**{verdict(found, found.sizes[-1])}**", ""]
    lines.append(
        f"| GPUs | step {unit} | efficiency, 95 % | speed-up |{' per dollar | $ of 1,000 |' * priced}"
    )
    lines.append("|--:|--:|--:|--:|" + "--:|--:|" * priced)
    for one in found.sizes:
        dollar = f" {one.per_dollar:.1%} | {cost(one)} |" if priced and one.per_dollar is not None else ""
        lines.append(
            f"| {one.gpus:,} | {one.step_ns / unit_ns:,.2f} | {efficiency(one)} | {one.speed_up:.2f}× |{dollar}"
        )
    base = found.sizes[0]
    for one in found.sizes[1:]:
        unit_ns, unit = unit_of(base.work.ns)
        lines += [
            "",
            f"| GPU time of a {found.unit} | {base.gpus} GPUs, {unit} | {one.gpus} GPUs, {unit} | lost, 95 % |",
        ]
        lines.append("|---|--:|--:|--:|")
        for part in shown(one):
            old, new = ((ns / unit_ns) for ns in (part.ns - part.change_ns, part.ns))
            lines.append(f"| {part.name} | {old:,.2f} | {new:,.2f} | {lost(part).strip()} |")
    facts = [KINDS[found.kind], *heads(found), *notes(found)]
    return "\n".join([*lines, "", *(f"- {line}" for line in facts)])


def verdict(found: Scaling, size: Size) -> str:
    """One sentence, such as `8 GPUs: efficiency 85.1 % ± 0.5 % of that of 2: communication -11.0, loader -3.1`."""
    base = found.sizes[0].gpus
    text = f"{size.gpus:,} GPUs: efficiency {efficiency(size)} of that of {base:,}"
    if not size.work.is_significant:
        return f"{text}: no difference beyond chance"
    named = [one for one in size.parts if one.is_significant and abs(one.lost) >= SHARE_SHOWN]
    named = sorted(named, key=lambda one: -abs(one.lost))[:NAMED]
    return text + (": " + ", ".join(f"{one.name} {-100 * one.lost:+.1f}" for one in named) if named else "")


def efficiency(size: Size) -> str:
    text = f"{100 * size.efficiency:.1f} %"
    return text if size.low == size.high else f"{text} ± {50 * (size.high - size.low):.1f} %"


def lost(part: Part) -> str:
    """Points of efficiency, with half of the interval; a loss is negative."""
    text = f"{-100 * part.lost:+6.1f}"
    return text if part.low == part.high else f"{text} ± {50 * (part.high - part.low):.1f}"


def shown(size: Size) -> list[Part]:
    """The states that are worth a line, the others together, and all."""
    large = [one for one in size.parts if max(one.ns, one.ns - one.change_ns) >= SHARE_SHOWN * size.work.ns]
    small = [one for one in size.parts if one not in large]
    if len(small) > 1:
        ns, change_ns = (sum(getattr(one, name) for one in small) for name in ("ns", "change_ns"))
        share = change_ns / size.work.ns
        small = [Part("others", ns, change_ns, share, share, share, False)]
    return [*large, *small, size.work]


def is_priced(found: Scaling) -> bool:
    return all(one.per_dollar is not None for one in found.sizes)


def heads(found: Scaling) -> Iterator[str]:
    """A line for each run."""
    for size in found.sizes:
        for one in size.runs:
            yield f"{size.gpus:,} GPUs  {described(one)}"


def notes(found: Scaling) -> Iterator[str]:
    for size in found.sizes:
        for one in size.runs:
            yield from changes_of(one)


def cost(size: Size) -> str:
    """Dollars of a thousand units of work."""
    return "" if size.dollars is None else f"{size.dollars:,.2f}"


def _priced_heads(found: Scaling) -> str:
    return f"  {'per dollar':>10}  {'$ of 1,000':>10}" if is_priced(found) else ""


def _priced(size: Size) -> str:
    return "" if size.per_dollar is None else f"  {size.per_dollar:10.1%}  {cost(size):>10}"


def _parts(found: Scaling, size: Size) -> Iterator[str]:
    base = found.sizes[0]
    unit_ns, unit = unit_of(base.work.ns)
    rows = shown(size)
    width = max(len(one.name) for one in rows)
    yield (
        f"  {'':{width}}  {f'{base.gpus:,} GPUs {unit}':>13}  {f'{size.gpus:,} GPUs {unit}':>13}  {'change ' + unit:>11}"
        "  points, 95 %"
    )
    for one in rows:
        old, new, change = (ns / unit_ns for ns in (one.ns - one.change_ns, one.ns, one.change_ns))
        yield f"  {one.name:{width}}  {old:13,.2f}  {new:13,.2f}  {change:+11,.2f}  {lost(one)}"
