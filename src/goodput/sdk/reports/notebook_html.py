"""`goodput.report()` and `goodput.window()` as HTML, for notebooks.

A fragment without scripts, style sheets or links. Text takes the notebook's own colour, so it is readable in light and dark
themes; only the bars have colours of their own, those of the built-in page's dark theme, which are seen on white as well.
"""

from __future__ import annotations

from html import escape

from goodput.account.text.state_colours import DARK
from goodput.sdk.recorder.messages import four_digits

TYPE_CHECKING = False  # See recorder/plain.py.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

CAUSES_SHOWN = 3
COLOURS = DARK
# Phases of one state have shades of their own; phases of the user have the colours that are left.
PHASE_COLOURS = {
    **COLOURS,
    "forward": COLOURS["productive"],
    "backward": "#5ea4ea",
    "optimizer": "#9cc8f5",
    "none": COLOURS["unattributed"],
}
_OTHERS = ("#1f8a68", "#b0508c", "#a58a3c", "#7f93a6")
_MUTED = "opacity:.72"
_EDGE = "1px solid rgba(128,128,128,.35)"
_LEFT, _NAME = "text-align:left", "text-align:left;white-space:nowrap"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap"


def report_html(account: Mapping[str, Any], notes: list[str]) -> str:
    """The account of `goodput.report()`: headline, a bar of the states, their table, and what to change first."""
    from goodput.account.text import duration, percent, state_rows, unit_of

    if not account:
        return _whole([_line("goodput: nothing is measured in this process"), *map(_line, notes)])
    rows = state_rows(account)
    factors, steps = account["factors"], account["steps"]
    head = [
        _figure("goodput", percent(factors["goodput"])),
        *(
            []
            if factors["mfu"] is None or account["mfu_unknown"]
            else [_figure("MFU", percent(factors["mfu"]))]
        ),
        _figure("steps kept", f"{steps['kept']:,}"),
        _figure("wall time", duration(account["end"] - account["start"])),
    ]
    table = [
        [
            (_swatch(COLOURS[state]) + escape(state), _NAME),
            (f"{seconds:,.2f}", _RIGHT),
            (f"{share} %", _RIGHT),
            (escape(meaning), f"{_LEFT};{_MUTED}"),
        ]
        for state, seconds, share, meaning in rows
    ]
    parts = [(seconds, COLOURS[state], f"{state}: {share} %") for state, seconds, share, _ in rows]
    world = account["world_size"]
    title = (
        f"<b>run {escape(account['run'])}</b>: {escape(account['status'])}, {world} rank{'s' * (world != 1)}"
    )
    return _whole(
        [
            _line(title, escaped=True),
            *map(_answer_line, account["answer"]["lines"]),
            f'<div style="display:flex;flex-wrap:wrap;gap:8px 28px;margin:8px 0">{"".join(head)}</div>',
            _bar(parts),
            _table(("state", f"{unit_of(account)}-seconds", "share", "what it is"), table),
            *_causes(account, {state: share for state, _, share, _ in rows}),
            *(_line(note.strip(), muted=True) for note in notes if note.strip()),
        ]
    )


def _causes(account: Mapping[str, Any], shares: Mapping[str, str]) -> Iterable[str]:
    by_state = {cause["state"]: cause for cause in account["causes"]}
    first = [by_state[state] for state in account["advice_order"] if state in by_state][:CAUSES_SHOWN]
    if first:
        items = [
            f'<li style="margin:3px 0"><b>{escape(one["state"])}</b> {shares[one["state"]]} %: {escape(one["advice"])}</li>'
            for one in first
        ]
        yield _line("<b>What to change first</b>", escaped=True)
        yield f'<ol style="margin:2px 0 8px 22px;padding:0;max-width:72ch">{"".join(items)}</ol>'


def _answer_line(line: str) -> str:
    name, _, said = line.partition(" ")
    return _line(f"<b>{escape(name)}</b> {escape(said)}", escaped=True)


def window_html(window: Any) -> str:
    """A Window of sdk.reports.window: rates, a bar of the phases, and their quantiles."""
    if not window.steps:
        return _whole([_line(str(window))])
    rates = [
        _figure("goodput", _percent(window.goodput)),
        _figure("so far", _percent(window.goodput_so_far)),
        _figure("steps/s", four_digits(window.steps_per_second)),
    ]
    if window.samples_per_second is not None:
        rates.append(_figure("samples/s", four_digits(window.samples_per_second)))
    phases = sorted(window.phases.items(), key=lambda pair: -pair[1].seconds)
    own = iter(_OTHERS * len(phases))
    colours = {name: PHASE_COLOURS.get(name) or next(own) for name, _ in phases}
    rows = [[("step", _NAME), *_spent(window.step)]]
    rows += [[(_swatch(colours[name]) + escape(name), _NAME), *_spent(spent)] for name, spent in phases]
    bar = [(spent.seconds, colours[name], f"{name}: {_percent(spent.share)}") for name, spent in phases]
    return _whole(
        [
            _line(f"<b>last {four_digits(window.seconds)} s</b>: {window.steps:,} steps", escaped=True),
            f'<div style="display:flex;flex-wrap:wrap;gap:8px 28px;margin:8px 0">{"".join(rates)}</div>',
            _bar(bar),
            _table(("phase", "p50", "p95", "p99", "share"), rows),
        ]
    )


def _spent(spent) -> list[tuple[str, str]]:
    from goodput.account.text import duration_ns

    quantiles = ["unknown" if value is None else duration_ns(1e9 * value) for value in spent[:3]]
    return [(text, _RIGHT) for text in (*quantiles, _percent(spent.share))]


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def _whole(parts: list[str]) -> str:
    return f'<div style="line-height:1.4;max-width:860px">{"".join(parts)}</div>'


def _line(text: str, escaped: bool = False, muted: bool = False) -> str:
    style = f"margin:4px 0;{_MUTED}" if muted else "margin:4px 0"
    return f'<div style="{style}">{text if escaped else escape(text)}</div>'


def _figure(name: str, value: str) -> str:
    return (
        f'<div><div style="font-size:1.5em;line-height:1.2">{escape(value)}</div>'
        f'<div style="{_MUTED}">{escape(name)}</div></div>'
    )


def _swatch(colour: str) -> str:
    style = (
        f"display:inline-block;width:10px;height:10px;border-radius:2px;background:{colour};margin-right:7px"
    )
    return f'<span style="{style}"></span>'


def _bar(parts: list[tuple[float, str, str]]) -> str:
    """`parts` are (length, colour, title)."""
    whole = sum(length for length, _, _ in parts) or 1.0
    slices = [
        f'<div title="{escape(title)}" style="width:{100 * length / whole:.3f}%;background:{colour}"></div>'
        for length, colour, title in parts
    ]
    style = f"display:flex;height:18px;border-radius:4px;overflow:hidden;border:{_EDGE};margin:8px 0"
    return f'<div style="{style}">{"".join(slices)}</div>'


def _table(heads: tuple[str, ...], rows: list[list[tuple[str, str]]]) -> str:
    """Rows of (escaped text, style); a notebook's own rules for tables are overridden where they matter."""
    styles = [style for _, style in rows[0]] if rows else []
    top = "".join(
        f'<th style="{style};padding:2px 14px 2px 0;{_MUTED}">{escape(head)}</th>'
        for head, style in zip(heads, styles, strict=True)
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{style};padding:2px 14px 2px 0">{text}</td>' for text, style in row)
        + "</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;margin:6px 0;color:inherit;font-size:1em"
    head = f'<thead><tr style="background:none">{top}</tr></thead>'
    return f'<div style="overflow-x:auto"><table style="{style}">{head}<tbody>{body}</tbody></table></div>'
