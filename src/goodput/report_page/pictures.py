"""The page's pictures, as inline SVG: bars of states, and the chain from the peak down to useful work.

In: an account document's states and factors. Out: SVG elements. Widths are percents of whatever room there is and
texts keep their size, so nothing is stretched. Every picture says in words what it shows. Colours are classes of
page.css. Cost: about 70 bytes per segment.
"""

from __future__ import annotations

from goodput.account.states import STATES
from goodput.account.text import tenths
from goodput.report_page.nodes import Html, element
from goodput.report_page.numbers import GpuTime, percent

LABEL_TENTHS_MIN = 130  # a narrower segment has no room for its name
ROW_PIXELS, BAR_PIXELS, TEXT_PIXELS = 46, 20, 15
_HATCHED = ("lost", "unobserved")


def defs() -> Html:
    """The hatches, once per page, for states that shall differ by more than colour."""
    patterns = [
        element(
            "pattern",
            element("rect", width=8, height=8, class_=f"p-{state}"),
            element("rect", width=2.5, height=8, class_="hatch"),
            id=f"hatch-{state}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )
        for state in _HATCHED
    ]
    return element("svg", element("defs", patterns), width=0, height=0, aria_hidden="true", class_="defs")


def swatch(state: str, name: str = "span") -> Html:
    """A state's name after its colour."""
    fill = element("rect", class_=_class(state), width="100%", height="100%")
    colour = element("svg", fill, class_="swatch", aria_hidden="true")
    return element(name, colour, state, class_="state")


def bar(states: dict[str, float], who: str, *, labels: bool = False) -> Html:
    """States as shares of a whole, side by side."""
    names = [state for state in STATES if states.get(state, 0) > 0]
    shares = tenths([states.get(state, 0.0) for state in STATES])
    share_of = dict(zip(STATES, shares, strict=True))
    said = ", ".join(f"{name} {_tenths(share_of[name])}" for name in names) or "no time"
    parts, at = [], 0
    for name in names:
        share = share_of[name]
        if share:
            parts.append(
                element("rect", class_=_class(name), x=_percents(at), width=_percents(share), height="100%")
            )
            if labels and share >= LABEL_TENTHS_MIN:
                parts.append(_label(name, at, share))
        at += share
    kind = "bar tall" if labels else "bar"
    return element("svg", element("title", f"{who}: {said}"), parts, class_=kind, role="img")


def _label(name: str, at: int, share: int) -> Html:
    text = element("text", f"{name} {_tenths(share)}", x=9, y="50%", dy="0.35em", class_=f"on-{name}")
    # A drawing of its own cuts the text off at the segment's end.
    return element("svg", text, x=_percents(at), width=_percents(share), height="100%")


def waterfall(document: dict) -> Html:
    """From all GPU time at its peak down to useful work, and what is gone between."""
    time, total, factors = GpuTime(document["gpu_seconds"]), document["gpu_seconds"], document["factors"]
    rows = chain(factors)
    said = "; ".join(
        f"{before}{name}: {_amount(time, total, low, high)}" for before, name, low, high, _ in rows
    )
    parts, y, below = [element("title", f"From the peak to useful work. {said}.")], 0, None
    for before, name, low, high, kind in rows:
        if below is not None and high is not None:
            parts.append(_drop(below, y))
        parts.append(_texts(before, name, _amount(time, total, low, high), y, kind))
        top = y + TEXT_PIXELS + 5
        parts.append(element("rect", class_="track", y=top, width="100%", height=BAR_PIXELS))
        if low is not None and high is not None and high > low:
            place = {"x": _exact(low), "width": _exact(high - low), "y": top, "height": BAR_PIXELS}
            parts.append(element("rect", class_=kind, **place))
        below = (low if kind == "gone" else high, top + BAR_PIXELS)
        below = None if below[0] is None else below
        y += ROW_PIXELS
    return element("svg", parts, class_="waterfall", role="img", height=y)


def chain(factors: dict) -> list[tuple[str, str, float | None, float | None, str]]:
    """(what by, what, from, to, kind) as parts of the allocated GPU time; None where that is unknown."""
    kept, useful, mfu = factors["availability"], factors["goodput"], factors["mfu"]
    step, compute = percent(factors["step_efficiency"]), percent(factors["compute_efficiency"])
    return [
        ("", "allocated", 0.0, 1.0, "left"),
        ("lost to: ", "not in kept steps", kept, 1.0, "gone"),
        ("", "availability", _zero(kept), kept, "left"),
        ("lost to: ", "waiting inside steps", useful if kept is not None else None, kept, "gone"),
        (f"× step efficiency {step} = ", "goodput", _zero(useful), useful, "left"),
        ("lost to: ", "slower than the peak", mfu, useful if mfu is not None else None, "gone"),
        (f"× compute efficiency {compute} = ", "MFU", _zero(mfu), mfu, "left most"),
    ]


def _zero(value: float | None) -> float | None:
    return None if value is None else 0.0


def _amount(time: GpuTime, total: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "unknown"
    return f"{percent(high - low)}, {time.said(total * (high - low))}"


def _texts(before: str, name: str, amount: str, y: int, kind: str) -> list[Html]:
    at = y + TEXT_PIXELS
    # On a narrow screen the first part gives way.
    first = element("tspan", before, class_="prefix") if before else None
    return [
        element("text", [first, name], x=0, y=at, class_=f"t-{kind.split()[0]}"),
        element("text", amount, x="100%", y=at, text_anchor="end", class_=f"t-{kind.split()[0]}"),
    ]


def _drop(below: tuple[float, int], y: int) -> Html:
    """A thin line from where one bar ends to the bar under it."""
    x = _exact(below[0])
    return element("line", x1=x, x2=x, y1=below[1], y2=y + TEXT_PIXELS + 5, class_="drop")


def _class(state: str) -> str:
    return f"s-{state if state in STATES else 'other'}"


def _percents(share: int) -> str:
    return f"{share / 10:g}%"


def _exact(ratio: float) -> str:
    return f"{100 * ratio:.4g}%"


def _tenths(share: int) -> str:
    return f"{share // 10}.{share % 10} %"
