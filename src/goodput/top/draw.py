"""A frame as lines of text: the same on the screen, where they fill it, and printed, where they are as many as needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from goodput.account.states import STATES
from goodput.account.text import digits, duration, percent
from goodput.progress.line import eta_text
from goodput.top.glyphs import Glyphs
from goodput.top.model import Frame, RankRow, RunRow, RunView
from goodput.top.rank_lines import rank_lines, step_times
from goodput.top.view import RANK, RUN, RUNS, View

STATUS_STYLES = {"running": "green", "finished": "cyan", "cancelled": "cyan", "abandoned": "bright_black"}
SEVERITY_STYLES = ("", "", "yellow", "yellow", "red", "bold red")
HOST_WIDTH, PHASE_WIDTH, TROUBLE_WIDTH, BAR_WIDTH_MIN, BAR_WIDTH_MAX = 16, 18, 22, 9, 48
LEGEND_STATES, LEGEND_GAP = 6, 2
# On a low screen the ranks keep so many lines, and the run's last lines are left out.
RANK_LINES_MIN = 6


class Column(NamedTuple):
    title: str
    width: int
    is_right: bool = False


def table_line(columns: Sequence[Column], cells: Sequence[Text | str], glyphs: Glyphs) -> Text:
    """Cells cut or padded to their columns, one space between them."""
    found = Text(no_wrap=True)
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        text = cell.copy() if isinstance(cell, Text) else Text(cell)
        if text.cell_len > column.width:
            text.truncate(max(column.width - 1, 0))
            text.append(glyphs.ellipsis)
        blank = " " * (column.width - text.cell_len)
        found.append(" " if at else "")
        found.append_text(Text(blank).append_text(text) if column.is_right else text.append(blank))
    return found


def header(frame: Frame | None, title: str, glyphs: Glyphs) -> Text:
    moment = time.strftime("%H:%M:%S", time.localtime(frame.time if frame else None))
    return Text(glyphs.separator.join((f"goodput top {moment}", title)), style="bold", no_wrap=True)


def body(frame: Frame, view: View, width: int, glyphs: Glyphs, rows_max: int | None = None) -> list[Text]:
    """The lines of the view without header and footer; of a table at most so many lines in all."""
    if view.level == RANK:
        row = view.opened_rank(frame)
        lines = (
            [Text(f"rank {view.rank} is not in run {view.run}")]
            if row is None
            else rank_lines(row, width, glyphs)
        )
        if rows_max is not None:
            view.offset = max(min(view.offset, len(lines) - rows_max), 0)
        return lines[view.offset :][:rows_max]
    if view.level == RUNS:
        return _runs(frame, view, width, glyphs, rows_max)
    opened = frame.opened
    if opened is None or opened.progress.run != view.run:
        return [Text(f"reading {view.run} {glyphs.ellipsis}")]
    lines = run_lines(opened, width, glyphs)
    if rows_max is not None:
        lines = lines[: max(rows_max - RANK_LINES_MIN, 2)]
    return lines + _ranks(opened, view, width, glyphs, rows_max and max(rows_max - len(lines), 2))


def _window(rows: list, at: int, rows_max: int | None) -> tuple[int, list]:
    """The part of the rows that fits, with row `at` in it, and the index of its first one."""
    if rows_max is None or len(rows) <= rows_max:
        return 0, rows
    first = min(max(at - rows_max // 2, 0), len(rows) - rows_max)
    return first, rows[first : first + rows_max]


# -- the list of runs


def _runs(frame: Frame, view: View, width: int, glyphs: Glyphs, rows_max: int | None) -> list[Text]:
    rows = view.rows(frame)
    if not rows:
        return [Text("no run" + (f" with {view.filters[RUNS]!r}" if view.filters[RUNS] else " yet"))]
    columns = [
        Column("", 1),
        Column("RUN", max(width - 60, 12)),
        Column("STATUS", 10),
        Column("RANKS", 6, True),
        Column("FOR", 7, True),
        Column("GOODPUT", 8, True),
        Column("RESTARTS", 8, True),
        Column("LARGEST LOSS", 12),
    ]
    selected = view.selected(rows)
    first, shown = _window(rows, selected, None if rows_max is None else max(rows_max - 1, 1))
    lines = [_titles(columns, glyphs)]
    for at, row in enumerate(shown, first):
        is_selected = rows_max is not None and at == selected
        lines.append(
            _selected(table_line(columns, _run_cells(row, is_selected, glyphs), glyphs), is_selected)
        )
    return lines


def _run_cells(row: RunRow, is_selected: bool, glyphs: Glyphs) -> list[Text | str]:
    status = (
        Text("hangs", style="bold red") if row.hang else Text(row.status, style=_status_style(row.status))
    )
    goodput = "" if row.goodput is None else percent(row.goodput)
    restarts = str(row.restarts) if row.restarts else ""
    cursor = glyphs.cursor if is_selected else ""
    return [
        cursor,
        row.run,
        status,
        str(row.ranks),
        duration(row.seconds),
        goodput,
        restarts,
        row.cause or "",
    ]


def _titles(columns: Sequence[Column], glyphs: Glyphs) -> Text:
    line = table_line(columns, [column.title for column in columns], glyphs)
    line.stylize("bold bright_black")
    return line


def _selected(line: Text, is_selected: bool) -> Text:
    if is_selected:
        line.stylize("reverse")
    return line


def _status_style(status: str) -> str:
    return STATUS_STYLES.get(status, "red")


# -- one run


def run_lines(view: RunView, width: int, glyphs: Glyphs) -> list[Text]:
    """What is known of the run as a whole."""
    progress, pace = view.progress, view.pace
    first = Text(no_wrap=True).append(progress.run, "bold").append("  ")
    first.append(
        "hangs" if view.hang else progress.status, "bold red" if view.hang else _status_style(progress.status)
    )
    hosts = f" on {view.hosts} hosts" if view.hosts > 1 else ""
    first.append(f"  {view.world_size} rank{'s' * (view.world_size != 1)}{hosts}")
    parts = [] if view.answer else [f"goodput {percent(progress.goodput)}"]
    if view.mfu is not None:
        parts.append(f"MFU {percent(view.mfu)}")
    if progress.restarts:
        parts.append(f"{progress.restarts} restart{'s' * (progress.restarts > 1)}")
    if progress.slowest_rank is not None:
        parts.append(f"slowest rank {progress.slowest_rank}")
    first.append("".join(f"  {part}" for part in parts))
    lines = [first, _progress_line(view)]
    for line in view.answer:
        if view.hang and line.startswith("why: "):
            lines += _hang_lines(view, width)
        else:
            name, _, said = line.partition(" ")
            lines += _wrapped(Text.assemble((name, "bold"), f" {said}"), width, 2)
    if view.hang and not view.answer:
        lines += _hang_lines(view, width)
    lines += [glyphs.bar(view.states, width), _legend(view, width, glyphs)]
    times = step_times(pace.step_seconds, pace.basis, width, glyphs)
    if times:
        lines.append(times)
    return [*lines, Text("")]


def _hang_lines(view: RunView, width: int) -> list[Text]:
    lines = _wrapped(Text(f"HANG {view.hang}", style="bold red"), width, 3)
    if view.collective:
        lines += _wrapped(Text(f"in {view.collective}", style="bold red"), width, 2)
    return lines


def _wrapped(text: Text, width: int, lines_max: int) -> list[Text]:
    from rich.console import Console

    lines = list(text.wrap(Console(width=width), width))
    if len(lines) > lines_max:
        lines = lines[:lines_max]
        lines[-1].truncate(width - 3)
        lines[-1].append("...")
    return lines


def _progress_line(view: RunView) -> Text:
    progress = view.progress
    line = Text(no_wrap=True)
    if progress.done is None:
        return line.append("no step yet")
    if progress.total:
        line.append(f"{progress.done} of {progress.total} steps ({percent(progress.share)})")
    else:
        line.append(f"{progress.done} steps")
    if progress.steps_per_second:
        line.append(f"  {digits(progress.steps_per_second)} steps/s")
    eta = eta_text(progress)
    return line.append(f"  {eta}", "bold") if eta else line


def _legend(view: RunView, width: int, glyphs: Glyphs) -> Text:
    """The largest states, as many as fit, in the order of the bar."""
    total, left = sum(view.states.values()), width
    parts: dict[str, Text] = {}
    for state in sorted(view.states, key=lambda state: -view.states[state])[:LEGEND_STATES]:
        share = view.states[state] / total if total else 0.0
        part = Text.assemble(glyphs.mark(state), f" {state} {percent(share)}")
        gap = LEGEND_GAP if parts else 0
        if share < 0.0005 or part.cell_len + gap > left:
            break
        parts[state], left = part, left - part.cell_len - gap
    return Text(" " * LEGEND_GAP, no_wrap=True).join(parts[state] for state in STATES if state in parts)


def _ranks(view: RunView, ui: View, width: int, glyphs: Glyphs, rows_max: int | None) -> list[Text]:
    rows = ui.rows(Frame("", 0.0, [], view))
    has_gpus = any(row.gpu is not None or row.watts is not None for row in view.ranks)
    columns = _rank_columns(view, width, has_gpus)
    more = [Text(f"{view.unseen} more ranks never reported")] if view.unseen else []
    if not rows:
        return [_titles(columns, glyphs), Text(f"no rank with {ui.filters[RUN]!r}"), *more]
    at = ui.selected(rows)
    first, shown = _window(rows, at, None if rows_max is None else max(rows_max - 1 - len(more), 1))
    lines = [_titles(columns, glyphs)]
    for index, row in enumerate(shown, first):
        is_selected = rows_max is not None and index == at
        cells = _rank_cells(row, columns, is_selected, glyphs)
        lines.append(_selected(table_line(columns, cells, glyphs), is_selected))
    return lines + more


def _rank_columns(view: RunView, width: int, has_gpus: bool) -> list[Column]:
    """RANK, HOST where there are several, STEP, TIME, PHASE, GPU and POWER where known, a bar, TROUBLE."""
    window = next((row.window_seconds for row in view.ranks if row.window_seconds), None)
    columns = [Column("", 1), Column("RANK", 5, True)]
    if view.hosts > 1:
        columns.append(
            Column(
                "HOST",
                min(
                    max(4, *(len(row.host) for row in view.ranks)),
                    HOST_WIDTH if width > 100 else HOST_WIDTH - 4,
                ),
            )
        )
    phase = PHASE_WIDTH - 2 * (has_gpus and width < 100)
    columns += [Column("STEP", 7, True), Column("TIME", 7, True), Column("PHASE", phase)]
    if has_gpus:
        columns += [Column("GPU", 5, True), Column("POWER", 6, True)]
    left = width - sum(column.width + 1 for column in columns)
    longest = max((len(row.trouble) for row in view.ranks), default=0)
    if longest and left < BAR_WIDTH_MIN + 8:
        # A trouble cannot be guessed from its first letters.
        return [*columns, Column("TROUBLE", max(left, 6))]
    trouble = min(max(longest, 7), TROUBLE_WIDTH, max(left - BAR_WIDTH_MIN - 1, 7))
    bar = max(min(left - trouble - 1, BAR_WIDTH_MAX), 4)
    title = "SO FAR" if window is None else f"LAST {window:.0f} S"
    return [*columns, Column(title, bar), Column("TROUBLE", max(left - bar - 1, 6))]


def _rank_cells(
    row: RankRow, columns: Sequence[Column], is_selected: bool, glyphs: Glyphs
) -> list[Text | str]:
    cells: dict[str, Text | str] = {
        "": glyphs.cursor if is_selected else "",
        "RANK": str(row.rank),
        "HOST": row.host,
        "STEP": "" if row.step is None else str(row.step),
        "TIME": "" if row.step_seconds is None else duration(row.step_seconds),
        "PHASE": phase_text(row),
        "GPU": "" if row.gpu is None else f"{100 * row.gpu:.0f} %",
        "POWER": "" if row.watts is None else f"{row.watts:.0f} W",
        "TROUBLE": Text(row.trouble, style=SEVERITY_STYLES[row.severity]),
    }
    return [cells[c.title] if c.title in cells else glyphs.bar(row.states, c.width) for c in columns]


def phase_text(row: RankRow) -> str:
    """The phase, and for how long where that is a second or more."""
    name = "no phase" if row.phase == "none" else row.phase
    long = row.phase_seconds is not None and row.phase_seconds >= 1
    return f"{name} {duration(row.phase_seconds or 0.0)}" if long else name
