"""An opened rank as lines: where it is, its time by state, its step times, its stack."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from goodput.account.states import MEANINGS, STATES
from goodput.account.text import duration, percent
from goodput.top.glyphs import Glyphs
from goodput.top.model import RankRow

BAR_WIDTH, SPARKS_MAX = 16, 60


def rank_lines(row: RankRow, width: int, glyphs: Glyphs) -> list[Text]:
    """All lines; the caller shows a part of them where the screen is lower."""
    first = (
        Text(no_wrap=True).append(f"rank {row.rank}", "bold").append(f" on {row.host or 'an unnamed host'}")
    )
    if row.attempt is not None:
        first.append(f"  attempt {row.attempt}")
    if row.pid is not None:
        first.append(f"  pid {row.pid}")
    lines = [first, _now(row)]
    if row.trouble:
        lines.append(Text(row.trouble, style="bold red"))
    lines += [Text(line) for line in textwrap.wrap(row.collective, width)]
    if row.recent:
        lines.append(step_times(row.recent, f"last {len(row.recent)}", width, glyphs))
    lines += [Text(""), *_states(row, width, glyphs)]
    if row.places:
        lines += [Text(""), Text("in no phase, its main thread was sampled in", style="bold")]
        lines += [Text(f"  {place}", no_wrap=True) for place in row.places]
    return [*lines, Text(""), *_stack(row)] if row.stack or not row.has_ended else lines


def step_times(seconds: Sequence[float | None], basis: str, width: int, glyphs: Glyphs) -> Text:
    """A sparkline of step times with their median and maximum; empty where all are gaps."""
    known = sorted(one for one in seconds if one is not None)
    if not known:
        return Text("")
    figures = f" median {duration(known[len(known) // 2])}, max {duration(known[-1])} ({basis})"
    sparks = glyphs.sparkline(seconds, max(min(width - len("step time ") - len(figures), SPARKS_MAX), 8))
    return Text("step time ", no_wrap=True).append(sparks, "cyan").append(figures)


def _now(row: RankRow) -> Text:
    where = row.phase if row.has_ended else f"in {'no phase' if row.phase == 'none' else row.phase}"
    parts = [where if row.phase else "no process seen"]
    if row.phase_seconds is not None:
        parts[0] += f" for {duration(row.phase_seconds)}"
    if row.step is not None:
        parts.append(f"last step {row.step}")
    if row.step_seconds is not None:
        parts.append(f"which took {duration(row.step_seconds)}")
    if row.gpu is not None:
        parts.append(f"GPU {100 * row.gpu:.0f} %")
    if row.watts is not None:
        parts.append(f"{row.watts:.0f} W")
    return Text(", ".join(parts), no_wrap=True)


def _states(row: RankRow, width: int, glyphs: Glyphs) -> list[Text]:
    total = sum(row.states.values())
    since = "since the start" if row.window_seconds is None else f"in the last {row.window_seconds:.0f} s"
    lines = [Text(f"its time {since}", style="bold")]
    for state in STATES:
        seconds = row.states.get(state, 0.0)
        if total and seconds / total >= 0.0005:
            line = Text(f"  {state:<14}{percent(seconds / total):>8}  ", no_wrap=True)
            mark = glyphs.mark(state)
            cells = round(BAR_WIDTH * seconds / total)
            line.append(mark.plain * cells, mark.style).append(" " * (BAR_WIDTH - cells + 2))
            meaning = MEANINGS[state]
            if line.cell_len + len(meaning) > width:
                meaning = meaning[: max(width - line.cell_len - 1, 0)] + glyphs.ellipsis
            lines.append(line.append(meaning, "bright_black"))
    return lines


def _stack(row: RankRow) -> list[Text]:
    if row.stack:
        return [Text("stack", style="bold"), *(Text(line, no_wrap=True) for line in row.stack.split("\n"))]
    if row.pid is not None:
        return [Text("t takes its stack with py-spy", style="bright_black")]
    return [
        Text(
            f"its stack: run goodput top on {row.host or 'its host'} and press t there;", style="bright_black"
        ),
        Text("of a hang, agents with goodput node --py-spy send it", style="bright_black"),
    ]
