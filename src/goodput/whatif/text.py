"""What changes would be worth, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from goodput.account.text import wrap
from goodput.whatif.answers import Answers

CHANGE_WIDTH = 41
UNEXPLAINED_SHARE = 0.01  # from which it is printed
INTERVALS = "95 %: where the gain is if the run is repeated with the change"


def render(found: Answers) -> str:
    """Lines of at most 80 columns."""
    return "\n".join([*map(wrap, _head(found)), "", *_table(found), *map(wrap, _unknown(found))])


def _head(found: Answers) -> Iterator[str]:
    cost = "" if found.dollars is None else f", ${found.dollars:,.2f}"
    ranks = f"{found.ranks} rank{'s' * (found.ranks > 1)}"
    yield f"{found.run}: {ranks}, {_hours(found.gpu_hours)} {found.worker}-hours{cost}"
    if found.step_seconds is not None and found.unexplained is not None:
        yield f"{found.steps_replayed:,} of {found.steps:,} steps replayed, {_seconds(found.step_seconds)} each"
        if found.unexplained >= UNEXPLAINED_SHARE:
            yield (
                f"own times and waits of ranks differ by {100 * found.unexplained:.1f} % of a step: "
                "not all was measured"
            )
    yield from _core_waits(found.core_waits)


def _core_waits(shares: dict[str, float]) -> Iterator[str]:
    if shares:
        worst = max(shares, key=lambda host: shares[host])
        others = f" (on {len(shares)} nodes over 2 %)" if len(shares) > 1 else ""
        yield f"ranks on {worst} waited {100 * shares[worst]:.0f} % of their time for a core{others}:"
        yield "  how long they work depends on who works beside them, so gains may differ"


def _table(found: Answers) -> Iterator[str]:
    if not found.answers:
        yield "no change that is known would make the run faster by 0.1 %"
        return
    yield _row("what if", "faster", "95 %", "GPU-h" if found.worker == "GPU" else "hours", "dollars")
    for one in found.answers:
        text = one.change
        if len(text) > CHANGE_WIDTH:
            yield wrap(text)
            text = ""
        dollars = "" if one.dollars is None else f"{one.dollars:,.2f}"
        bounds = f"[{_percent(one.gain_low)}, {_percent(one.gain_high)}]"
        yield _row(text, f"{100 * one.gain:+.1f} %", bounds, _hours(one.gpu_hours), dollars)
        if one.note:
            yield wrap(f"  {one.note}")
    yield ""
    yield INTERVALS


def _row(text: str, gain: str, bounds: str, hours: str, dollars: str) -> str:
    return f"{text:{CHANGE_WIDTH}} {gain:>8} {bounds:>14} {hours:>6} {dollars:>7}".rstrip()


def _percent(share: float) -> str:
    return f"{min(100 * share, 9999):.1f}"


def _unknown(found: Answers) -> Iterator[str]:
    if found.unknown:
        yield ""
        yield "unknown:"
    for one in found.unknown:
        yield f"  {one.change}: {one.reason}"


def _hours(hours: float) -> str:
    if 0 < hours < 0.001:
        return "<0.001"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}" if hours >= 1 else f"{hours:.2g}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
