"""The result of a deep look as text."""

from __future__ import annotations

from goodput.account.text import bytes_text, duration, duration_ns, wrap
from goodput.rank_page.deep_look import h2d_rate


def deep_look_lines(look: dict, now_unix_ns: int, h2d_reached: float | None = None) -> list[str]:
    """A look for people, at most account.text.COLUMNS wide; `h2d_reached` is bytes a second of copies that this node can do."""
    result, count = look["seen"], look["looks"]
    text = [] if result is None else _result_lines(look, result, now_unix_ns, h2d_reached)
    others = ", ".join(f"{look[name]} {name}" for name in ("skipped", "failed") if look[name])
    text.append(
        f"  {count} deep look{'s' * (count != 1)} cost {duration_ns(look['cost_ns'])} in all, at most one each "
        f"{duration(look['every_ns'] / 1e9)}{f' ({others})' if others else ''}"
        + (f"; last failure: {look['why']}" if look["why"] else "")
    )
    return [wrap(line, 6) for line in text]


def _result_lines(look: dict, result: dict, now_unix_ns: int, h2d_reached: float | None) -> list[str]:
    wall, cause = result["wall_ns"] or 1, result["cause"]
    parts = [f"{state} {100 * ns / wall:.1f} %" for state, ns in result["states_ns"].items() if ns]
    age, length = duration(max(now_unix_ns - result["unix_ns"], 0) / 1e9), duration_ns(result["wall_ns"])
    text = [
        f"  deep look of rank {look['rank']} at step {result['step']}, {age} ago: {length} "
        f"({duration_ns(result['slowdown_ns'])} of it by being traced): {', '.join(parts)}"
    ]
    for name, what in (("communication", "communication"), ("copy", "copies")):
        if result[f"{name}_ns"]:
            share = 100 * result[f"{name}_hidden_ns"] / result[f"{name}_ns"]
            text.append(f"    {what} {duration_ns(result[f'{name}_ns'])}, {share:.0f} % hidden by computing")
    rate = h2d_rate(result)
    if rate is not None:
        share = f", {rate / h2d_reached:.0%} of what this node can do" if h2d_reached else ""
        text.append(f"    to the device: {bytes_text(result['h2d_bytes'])} at {bytes_text(rate)}/s{share}")
    top = [f"{row['name']} ({row['count']} times, {duration_ns(row['ns'])})" for row in result["top"][:3]]
    if top:
        text.append(f"    longest: {', '.join(top)}")
    if cause is not None:
        text.append(f"    largest cause: {cause['state']}. {cause['advice']}")
    return text
