"""Pictures of comparisons as inline SVG, in the colours of the page's style sheet; figures are plain functions to text.

A picture is WIDTH units wide and scales with its card, up to a bound in the style sheet, so its text is readable on a
phone. Each has a label that says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html
from typing import NamedTuple

import numpy as np

from goodput.wire.identity import clean_text

WIDTH = 420
ROW, BAR = 34, 18
NAMED_ROW = 48  # with the name above the bar
AXIS = 26
LEFT = 120
CHARS_MAX = 52  # of a name above its bar
# A line is cut off at this multiple of the 95th percentile of all lines, so that one long step does not flatten the rest.
OUTLIER = 2.0
POINTS_MAX = 140  # of a line


class Bar(NamedTuple):
    """A label, and the length of each segment by state."""

    label: str
    segments: list[tuple[str, float]]


class Span(NamedTuple):
    """A value with its interval, and the text beside it."""

    label: str
    value: float
    low: float
    high: float
    text: str


class Line(NamedTuple):
    """A name and a series."""

    name: str
    values: np.ndarray


def stacked_bars(bars: Sequence[Bar], text_of, label: str, tick_text_of=None) -> str:
    """A bar a row below its name, all on one scale with an axis, its total beside it as `text_of` has it."""
    most = max((sum(length for _, length in one.segments) for one in bars), default=0) or 1.0
    room = WIDTH - 92
    high = len(bars) * NAMED_ROW + 4
    parts = []
    for tick in ticks(most):
        at = room * tick / most
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{high}"/>')
        parts.append(
            _text(
                at,
                high + 17,
                (tick_text_of or text_of)(tick) if tick else "0",
                "tick middle" if tick else "tick",
            )
        )
    for row, one in enumerate(bars):
        y, x = row * NAMED_ROW + 23, 0.0
        parts.append(_text(0, y - 7, shortened(one.label)))
        for state, length in one.segments:
            wide = room * length / most
            parts.append(
                f'<rect class="s-{escape(state)}" x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{BAR}">'
                f"<title>{escape(state)}: {escape(text_of(length))}</title></rect>"
            )
            x += wide
        parts.append(_text(x + 6, y + 14, text_of(sum(length for _, length in one.segments))))
    return _svg(parts, high + AXIS, label)


def intervals(spans: Sequence[Span], label: str) -> str:
    """A row for each value: a dot with its interval, on one scale that includes zero."""
    low = min([0.0, *(one.low for one in spans)])
    high = max([0.0, *(one.high for one in spans)])
    size = (high - low) or 1.0
    left, room = LEFT + 8, WIDTH - LEFT - 134

    def x(value: float) -> float:
        return left + room * (value - low) / size

    high_px = len(spans) * ROW
    parts = [f'<line class="axis" x1="{x(0):.2f}" x2="{x(0):.2f}" y1="2" y2="{high_px}"/>']
    for end in {0.0, low, high}:
        if end == 0.0 or abs(x(end) - x(0)) > 46:
            parts.append(_text(x(end), high_px + 17, f"{end:+.0f} %" if end else "0", "tick middle"))
    for row, one in enumerate(spans):
        y = row * ROW + 18
        parts.append(_text(0, y + 5, one.label))
        parts.append(
            f'<line class="whisker" x1="{x(one.low):.2f}" x2="{x(one.high):.2f}" y1="{y}" y2="{y}"/>'
        )
        parts.append(f'<circle class="dot" cx="{x(one.value):.2f}" cy="{y}" r="5"/>')
        parts.append(_text(WIDTH, y + 5, one.text, "figure-end"))
    return _svg(parts, high_px + AXIS, label)


def lines(series: Sequence[Line], text_of, label: str) -> str:
    """Each series over its own steps, as medians of up to POINTS_MAX stretches, on one scale from zero.

    What is longer than OUTLIER times the 95th percentile is drawn at the top, with a mark.
    """
    drawn = [_medians(one.values) for one in series]
    every = [value for values in drawn for value in values]
    usual = OUTLIER * float(np.quantile(every, 0.95)) if every else 0.0
    top = 1.1 * min(max(every, default=0.0), usual) or 1.0
    high, left, below = 170, 84, 24
    parts = []
    for tick in ticks(top):
        y = 6 + high * (1 - tick / top)
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 5, text_of(tick), "figure-end tick"))
    for number, values in enumerate(drawn):
        wide = (WIDTH - left) / max(len(values), 1)
        dots = " ".join(
            f"{left + wide * (i + 0.5):.1f},{6 + high * (1 - min(value, top) / top):.1f}"
            for i, value in enumerate(values)
        )
        for i, value in enumerate(values):
            if value > top:
                x = left + wide * (i + 0.5)
                parts.append(f'<path class="beyond" d="M{x - 5:.1f},8 h10 l-5,-8 Z"><title>{escape(text_of(value))}, beyond this scale</title></path>')  # fmt: skip
        parts.append(
            f'<polyline class="line line-{min(number, 1)}" points="{dots}"><title>{escape(series[number].name)}</title></polyline>'
        )
    parts.append(_text(left, high + below, "first step", "tick"))
    parts.append(_text(WIDTH, high + below, "last step", "figure-end tick"))
    return _svg(parts, high + below + 8, label)


def over_sizes(sizes: Sequence[int], spans: Sequence[Span], label: str) -> str:
    """Efficiency (1 is ideal) over the number of GPUs, which is on a logarithmic scale, with intervals."""
    logs = np.log2(np.array(sizes, float))
    high, left, below = 190, 62, 40
    top = max(1.0, *(one.high for one in spans)) * 1.05
    room = WIDTH - left - 50

    def x(at: int) -> float:
        return left + 20 + room * float((logs[at] - logs[0]) / (logs[-1] - logs[0]))

    def y(value: float) -> float:
        return 6 + high * (1 - value / top)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        kind = "axis" if share == 1.0 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{left}" x2="{WIDTH}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>'
        )
        parts.append(_text(left - 6, y(share) + 5, f"{share:.0%}", "figure-end"))
    dots = " ".join(f"{x(at):.1f},{y(one.value):.1f}" for at, one in enumerate(spans))
    parts.append(f'<polyline class="line line-1" points="{dots}"/>')
    for at, one in enumerate(spans):
        parts.append(
            f'<line class="whisker" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(one.low):.1f}" y2="{y(one.high):.1f}"/>'
        )
        parts.append(f'<circle class="dot" cx="{x(at):.1f}" cy="{y(one.value):.1f}" r="5"><title>{escape(one.label)}: {escape(one.text)}</title></circle>')  # fmt: skip
    last = -100.0
    for at in [len(sizes) - 1, *range(len(sizes) - 1)]:
        if at == len(sizes) - 1 or (x(len(sizes) - 1) - x(at) > 44 and x(at) - last > 44):
            parts.append(_text(x(at), high + 24, f"{sizes[at]:,}", "middle"))
            last = last if at == len(sizes) - 1 else x(at)
    parts.append(_text(left + (WIDTH - left) / 2, high + below + 2, "GPUs", "middle"))
    return _svg(parts, high + below + 8, label)


def ticks(top: float) -> list[float]:
    """Two to five round values from 0 up to `top`: multiples of 1, 2 or 5 times a power of ten."""
    base = 10.0 ** np.floor(np.log10(top))
    step = next(size * base for size in (0.2, 0.5, 1.0, 2.0) if top / (size * base) < 5)
    return [float(step * i) for i in range(int(top / step * (1 + 1e-9)) + 1)]


def shortened(name: str) -> str:
    """A name that fits above its bar; the middle of a longer one is left out."""
    half = CHARS_MAX // 2 - 1
    return name if len(name) <= CHARS_MAX else f"{name[:half]} … {name[-half:]}"


def _medians(values: np.ndarray) -> list[float]:
    parts = np.array_split(values, min(POINTS_MAX, max(len(values), 1)))
    return [float(np.median(part)) for part in parts if len(part)]


def escape(text: str) -> str:
    """Names of runs come from logs."""
    return escape_html(clean_text(text, 200))


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'


def _svg(parts: Iterable[str], high: int, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {high}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
