"""A comparison, or how runs scale, as one HTML file: no scripts, no network, light and dark, readable on a phone.

A Content-Security-Policy with the hash of its style sheet, the page's own and STYLE, forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence

from goodput.account.states import INDEX
from goodput.compare import pictures, scaling_text, text
from goodput.compare.comparison import Comparison
from goodput.compare.pictures import Bar, Line, Span, escape
from goodput.compare.scaling import Scaling, Size
from goodput.compare.steps import Steps
from goodput.web import FOLDER
from goodput.wire.identity import clean_text

STYLE = """
main { padding-top: 18px; padding-bottom: 32px; max-width: 1060px; }
h1 { margin-bottom: 14px; }
.picture svg { width: 100%; max-width: 540px; height: auto; font-size: 15px; }
.picture .middle { text-anchor: middle; }
.picture .beyond { fill: var(--bad); }
.picture .grid { stroke: var(--line); }
.picture .axis { stroke: var(--muted); stroke-dasharray: 3 3; }
.picture .whisker { stroke: var(--muted); stroke-width: 3; }
.picture .dot { fill: var(--bar); }
.picture .line { fill: none; stroke-width: 2; background: none; }
.picture .line-0 { stroke: var(--muted); }
.picture .line-1 { stroke: var(--bar); }
.key-0 { background: var(--muted); } .key-1 { background: var(--bar); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; margin: 10px 0 0; padding: 0; }
.table { overflow-x: auto; }
.table thead td { border-top: 0; }
.pair { grid-template-columns: 1fr 1fr; }
.runs { margin: 0; padding-left: 20px; overflow-wrap: anywhere; }
.scope { color: var(--muted); font-size: .88rem; margin: 10px 0 0; }
@media (max-width: 860px) { .pair { grid-template-columns: 1fr; } }
@media (max-width: 520px) { .table th, .table td { padding: 6px 3px; font-size: .8rem; white-space: normal; } }
"""


def comparison_page(found: Comparison, base: Sequence[Steps], new: Sequence[Steps]) -> str:
    """The page of a comparison of these runs."""
    unit_ns, unit = text.unit_of(found.step.base_ns)

    def shown(ns: float) -> str:
        return f"{ns / unit_ns:,.1f} {unit}"

    def ticks_shown(ns: float) -> str:
        return f"{ns / unit_ns:,.4g} {unit}"

    changed = sorted(found.states, key=lambda one: -abs(one.change_ns))[:8]
    spans = [
        Span(one.name, 100 * one.share, 100 * one.share_low, 100 * one.share_high, text.share(one).strip())
        for one in [found.step, *changed]
    ]
    bars = [
        Bar(f"{side}: {name}", [(one.name, getattr(one, f"{side}_ns")) for one in _in_order(found.states)])
        for side, name in (("base", _names(base)), ("new", _names(new)))
    ]
    paces = [Line(one.name, one.lengths) for one in (base[0], new[0])]
    rows = [
        [one.name, *(f"{ns / unit_ns:,.2f}" for ns in (one.base_ns, one.new_ns)),
         text.signed(one.change_ns / unit_ns, 2), text.share(one).strip()]
        for one in text.shown(found)
    ]  # fmt: skip
    heads = ["", f"base, {unit}", f"new, {unit}", f"change, {unit}", "of the step, 95 %"]
    ratios = [
        [one.name, f"{one.base:.1%}", f"{one.new:.1%}", text.points(one).strip()]
        for one in text.ratios_of(found)
    ]
    body = [
        f'<div class="card"><p class="sentence">{_unbroken(speed(found, shown))}</p><p>{_unbroken(text.verdict(found))}</p></div>',
        '<div class="pair">',
        _card(f"Where a {found.per}'s time goes", _picture(
            pictures.stacked_bars(bars, shown, f"time of a {found.per} by state, base and new", ticks_shown), _legend(found.states))),
        _card(f"Change, % of the base's {found.per}, with 95 % intervals", _picture(
            pictures.intervals(spans, "change of each state, in % of the base"))),
        "</div>",
        _card(f"The {found.per} by state", _table(heads, rows)),
        '<div class="pair">' if ratios else "",
        _card("Goodput and MFU", _table(["", "base", "new", "points, 95 %"], ratios, has_total=False)
              + '<p class="scope">Of the steps: those compared. Of the run: its whole time, with starts, restarts and '
              "lost work.</p>") if ratios else "",
        _card("Length of the steps, base and new", _picture(
            pictures.lines(paces, ticks_shown, "length of steps over the run"),
            _keys([f"base: {base[0].name}", f"new: {new[0].name}"]))),
        "</div>" if ratios else "",
        _card("Runs", _list([*text.heads(found), *text.notes(found)])),
    ]  # fmt: skip
    return _page(f"{_names(new)} against {_names(base)}", body)


def speed(found: Comparison, shown: Callable[[float], str]) -> str:
    """How many times faster or slower, such as `1.93× faster: a step takes 500.1 ms instead of 965.2 ms`."""
    base, new = found.step.base_ns, found.step.new_ns
    times = f"a {found.per} takes {shown(new)} instead of {shown(base)}"
    if not found.step.is_significant or not base or not new:
        return f"No difference beyond chance: {times}"
    return f"{max(base, new) / min(base, new):.2f}× {'faster' if new < base else 'slower'}: {times}"


def _names(runs: Sequence[Steps]) -> str:
    first = clean_text(runs[0].name, 200)
    return first if len(runs) == 1 else f"{first} and {len(runs) - 1} more"


def scaling_page(found: Scaling) -> str:
    """The page of runs of several sizes."""
    base = found.sizes[0]
    unit_ns, unit = text.unit_of(base.work.ns)

    def shown(ns: float) -> str:
        return f"{ns / unit_ns:,.1f} {unit}"

    def ticks_shown(ns: float) -> str:
        return f"{ns / unit_ns:,.4g} {unit}"

    spans = [
        Span(f"{one.gpus} GPUs", one.efficiency, one.low, one.high, scaling_text.efficiency(one))
        for one in found.sizes
    ]
    bars = [
        Bar(f"{one.gpus:,} GPUs", [(part.name, part.ns) for part in _in_order(one.parts)])
        for one in found.sizes
    ]
    states = {part.name: part for one in found.sizes for part in one.parts}
    body = [
        f'<p class="card sentence">{_unbroken(scaling_text.verdict(found, found.sizes[-1]))}</p>',
        '<div class="pair">',
        _card("Efficiency over GPUs, with 95 % intervals", _picture(
            pictures.over_sizes([one.gpus for one in found.sizes], spans, "efficiency over the number of GPUs"))),
        _card(f"GPU time of a {found.unit}, by state", _picture(
            pictures.stacked_bars(bars, shown, f"GPU time of a {found.unit} by state and size", ticks_shown), _legend(states.values()))),
        "</div>",
        _card(scaling_text.KINDS[found.kind], _sizes(found)),
        *(_card(scaling_text.verdict(found, one), _parts(found, one)) for one in found.sizes[1:]),
        _card("Runs", _list([*scaling_text.heads(found), *scaling_text.notes(found)])),
    ]  # fmt: skip
    return _page("Scaling of runs", body)


def _sizes(found: Scaling) -> str:
    unit_ns, unit = text.unit_of(found.sizes[0].step_ns)
    priced = scaling_text.is_priced(found)
    heads = ["GPUs", f"step, {unit}", "efficiency, 95 %", "speed-up", *["per dollar", "$ of 1,000"] * priced]
    rows = [
        [f"{one.gpus:,}", f"{one.step_ns / unit_ns:,.2f}", scaling_text.efficiency(one), f"{one.speed_up:.2f}×",
         *[f"{one.per_dollar or 0:.1%}", scaling_text.cost(one)] * priced]
        for one in found.sizes
    ]  # fmt: skip
    return _table(heads, rows, has_total=False)


def _parts(found: Scaling, size: Size) -> str:
    base = found.sizes[0]
    unit_ns, unit = text.unit_of(base.work.ns)
    heads = ["", f"{base.gpus:,} GPUs, {unit}", f"{size.gpus:,} GPUs, {unit}", "points, 95 %"]
    rows = [
        [one.name, f"{(one.ns - one.change_ns) / unit_ns:,.2f}", f"{one.ns / unit_ns:,.2f}", scaling_text.lost(one).strip()]
        for one in scaling_text.shown(size)
    ]  # fmt: skip
    return _table(heads, rows)


def _in_order(states: Iterable) -> list:
    """In the order of STATES, as in all pictures."""
    return sorted(states, key=lambda one: INDEX[one.name])


def _legend(states: Iterable) -> str:
    items = (
        f'<li><span class="swatch s-{escape(one.name)}"></span>{escape(one.name)}</li>'
        for one in _in_order(states)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _keys(names: Sequence[str]) -> str:
    items = (
        f'<li><span class="swatch key-{number}"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _picture(svg: str, legend: str = "") -> str:
    return f'<div class="picture">{svg}</div>{legend}'


def _card(title: str, body: str) -> str:
    return f'<section class="card"><h2>{_unbroken(title)}</h2>{body}</section>'


def _list(lines: Iterable[str]) -> str:
    return f'<ul class="runs">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], has_total: bool = True) -> str:
    """The first column names the rows; the last row is the sum, if there is one."""

    def row(cells: Sequence[str]) -> str:
        first, *rest = cells
        values = "".join(f'<td class="n">{_unbroken(cell)}</td>' for cell in rest)
        return f'<tr><th scope="row">{escape(first)}</th>{values}</tr>'

    top = "".join(
        f'<th scope="col"{"" if number == 0 else " class=n"}>{escape(head)}</th>' if head else "<td></td>"
        for number, head in enumerate(heads)
    )
    body, foot = (rows[:-1], rows[-1:]) if has_total else (rows, [])
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="table of {escape(rows[0][0])} and more"><table><thead><tr>{top}</tr></thead><tbody>{"".join(map(row, body))}</tbody>'
        f"<tfoot>{''.join(map(row, foot))}</tfoot></table></div>"
    )


def _unbroken(text: str) -> str:
    """Text that may break before an interval, not within it, nor between a number and its percent sign."""
    return escape(text).replace("± ", "±&nbsp;").replace(" %", "&nbsp;%")


def _page(title: str, body: Iterable[str]) -> str:
    style = (FOLDER / "page.css").read_text(encoding="utf-8") + STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>goodput: {escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n<div>{chr(10).join(body)}</div>\n</main>\n</body>\n</html>\n"
    )
