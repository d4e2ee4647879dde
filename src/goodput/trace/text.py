"""Renders a trace document as text of at most 80 columns, in a table whose shares sum to 100.0 %.

One device has a row per step, several have a row each; both are cut at ROWS_MAX. Names come from files and go to a
terminal: unprintable characters become "?"."""

from __future__ import annotations

from goodput.account.text import bytes_text, duration_ns, tenths, wrap
from goodput.trace import collectives_text
from goodput.trace.states import STATES

ROWS_MAX, TOP_MAX, BAR_CELLS, CLOCKS_MAX = 16, 8, 72, 8
_CELLS = {"compute": "█", "communication": "▓", "copy": "▒", "loader": "◆", "host": "░", "idle": "·"}
_COLOURS = {"compute": 32, "communication": 31, "copy": 35, "loader": 33, "host": 36, "idle": 90}
_HEADS = ("compute", "comm", "copy", "loader", "host", "idle")
_NAME_MAX = 18


def render(document: dict, colour: bool = False) -> str:
    """The whole text of a document."""
    lanes = [(rank, device) for rank in document["ranks"] for device in rank["devices"]]
    if not lanes:
        return "nothing to analyze"
    head = _steps_of(*lanes[0]) if len(lanes) == 1 else _devices_of(document, lanes)
    rest = [*_figures(document, lanes), "", *collectives_text.lines(document)]
    rest += [*_tops([device for _, device in lanes]), *_causes(document)]
    # Only the bar may have escapes: names in a trace are anybody's.
    bar = "\n".join(_bar(document["total"]["states_ns"], colour))
    parts = _lines([*head, ""]), bar if colour else _lines(bar.split("\n")), _lines(["", *rest])
    return "\n".join(parts)


def _lines(lines: list[str]) -> str:
    return "\n".join(wrap(clean(line)) for line in lines)


def clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _steps_of(rank: dict, device: dict) -> list[str]:
    """A row per step of the only device."""
    model = f" ({device['model']})" if device["model"] else ""
    title = f"{_rank(rank)}, {device['device']}{model}, {_steps(device)}"
    rows = [(step["name"], step) for step in device["steps"]]
    return [rank["file"], title, "", *_table("step", rows, device["total"])]


def _devices_of(document: dict, lanes: list[tuple[dict, dict]]) -> list[str]:
    """A row per device."""
    ranks = len(document["ranks"])
    sources = ", ".join(sorted({device["steps_from"] for _, device in lanes}))
    title = f"{ranks} rank{'s' * (ranks != 1)}, {len(lanes)} devices, steps by {sources}"
    rows = [(f"{rank['rank']}, {device['device']}", device["total"]) for rank, device in lanes]
    return [title, "", *_table("rank, device", rows, document["total"])]


def _table(first: str, rows: list[tuple[str, dict]], total: dict) -> list[str]:
    return [
        f"  {first:<{_NAME_MAX}}{'wall':>9} {''.join(f'{head:>7}' for head in _HEADS)}{'overlap':>8}",
        *[_row(_short(name, _NAME_MAX), row) for name, row in rows[:ROWS_MAX]],
        *[f"  … and {len(rows) - ROWS_MAX} more"] * (len(rows) > ROWS_MAX),
        _row("total", total),
    ]


def _row(name: str, row: dict) -> str:
    shares = tenths([row["states_ns"][state] for state in STATES])
    overlap = row["overlap_percent"]
    return (
        f"  {name:<{_NAME_MAX}}{duration_ns(row['wall_ns']):>9} "
        + "".join(f"{share // 10:>4}.{share % 10}%" for share in shares)
        + f"{'-' if overlap is None else f'{overlap:.1f}%':>8}"
    )


def _bar(states: dict, colour: bool) -> list[str]:
    shares = tenths([states[state] for state in STATES])
    cells, done, spent = [], 0, 0
    for state, share in zip(STATES, shares, strict=True):
        spent += share
        until = round(spent * BAR_CELLS / 1000)
        cells.append(_painted(_CELLS[state] * (until - done), state, colour))
        done = until
    legend = "  ".join(f"{_painted(_CELLS[state], state, colour)} {state}" for state in STATES)
    return ["  " + "".join(cells), "  " + legend]


def _painted(text: str, state: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if colour and text else text


def _figures(document: dict, lanes: list[tuple[dict, dict]]) -> list[str]:
    total = document["total"]
    lines = [f"  kernels {duration_ns(total['kernel_ns'])} of {duration_ns(total['wall_ns'])}"]
    if all(device["device"].startswith("CPU") for _, device in lanes):
        lines = [
            f"  operators and collectives {duration_ns(total['kernel_ns'])} of {duration_ns(total['wall_ns'])}; a CPU is its own device"
        ]
    for what, name in (("communication", "communication"), ("copies", "copy")):
        if total[f"{name}_ns"]:
            lines.append(
                f"  {what} {duration_ns(total[f'{name}_ns'])}: {duration_ns(total['states_ns'][name])} exposed, "
                f"{duration_ns(total[f'{name}_hidden_ns'])} hidden"
            )
    if total["h2d_bytes"] and total["h2d_ns"]:
        lines.append(
            f"  copies to the device: {bytes_text(total['h2d_bytes'])} at "
            f"{bytes_text(total['h2d_bytes'] / total['h2d_ns'] * 1e9)}/s"
        )
    gaps = [device["gaps"] for _, device in lanes]
    sums = {name: sum(one[name] for one in gaps) for name in gaps[0]}
    lines.append(
        f"  {sums['count']} gaps with nothing running: {duration_ns(sums['late_ns'])} until the host launched more, "
        f"{duration_ns(sums['queued_ns'])} with work queued, {duration_ns(sums['unknown_ns'])} not known; "
        f"longest {duration_ns(max(one['longest_ns'] for one in gaps))}"
    )
    outside = sum(device["total"]["outside_steps_ns"] for _, device in lanes)
    if outside:
        lines.append(
            f"  outside the steps the devices worked {duration_ns(outside)} more, which counts nowhere above"
        )
    lines += _clocks(lanes)
    lines += _around_work([device["total"] for _, device in lanes])
    waits = document["waiting"]
    if waits:
        lines.append(
            f"  exposed communication over {waits['steps']} steps: {duration_ns(waits['all_paid_ns'])} that all ranks paid, "
            f"{duration_ns(waits['waiting_ns'])} waiting for slower ranks, mostly rank {waits['waited_least']}"
        )
    return lines


def _clocks(lanes: list[tuple[dict, dict]]) -> list[str]:
    """A line for each device whose clock is known to differ from its host's."""
    lines = []
    for rank, device in lanes:
        ns, early = device["clock_shift_ns"], device["events_before_launch"]
        where = device["device"] if len(lanes) == 1 else f"rank {rank['rank']}, {device['device']}"
        if ns > 0:
            lines.append(
                f"  the clock of {where} is at least {duration_ns(ns)} behind the host's: {early} of "
                f"{device['launches_known']} events began before their launches. All are taken that much later, so gaps "
                "may be shorter or longer by what is not known of it"
            )
        elif ns < 0:
            lines.append(
                f"  the clock of {where} is at least {duration_ns(-ns)} ahead of the host's: work ended after the host had "
                "waited for it. All is taken that much earlier, so gaps may be shorter or longer by what is not known of it"
            )
    more = len(lines) - CLOCKS_MAX
    return lines if more <= 0 else [*lines[:CLOCKS_MAX], f"  … and the clocks of {more} more devices"]


def _around_work(totals: list[dict]) -> list[str]:
    """A line about the time before the first work and after the last, where no mark says that it is a step's."""
    before, after = (sum(one[name] for one in totals) for name in ("before_work_ns", "after_work_ns"))
    parts = [f"before the first work {duration_ns(before)}"] * (before > 0)
    parts += [
        f"after the last {duration_ns(after)}" if parts else f"after the last work {duration_ns(after)}"
    ] * (after > 0)
    return [f"  {', '.join(parts)}: in no step, which counts nowhere above"] if parts else []


def _tops(devices: list[dict]) -> list[str]:
    """The longest kernels or operators over all devices, by name."""
    sums: dict[tuple[str, str], list[int]] = {}
    for device in devices:
        for row in device["top"]:
            found = sums.setdefault((row["name"], row["kind"]), [0, 0])
            found[0] += row["count"]
            found[1] += row["ns"]
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))[:TOP_MAX]
    return [
        f"  {duration_ns(ns):>9} {count:>7} x  {kind:<14} {_short(clean(name), 42)}"
        for (name, kind), (count, ns) in ordered
    ]


def _causes(document: dict) -> list[str]:
    causes = document["causes"]
    if any(rank["cut_off"] for rank in document["ranks"]):
        return ["", "  no cause: a file is cut off, so that any of its steps may lack work"]
    if not causes:
        return ["", "  no cause above 2 %: computing takes all but that"]
    states = document["total"]["states_ns"]
    # The same tenths as in the table, which are not always the nearest ones.
    shares = dict(zip(STATES, tenths([states[state] for state in STATES]), strict=True))
    lines = [""]
    for i, cause in enumerate(causes):
        share, gain = shares[cause["state"]], ""
        if cause["gain"] is not None:
            gain = f"; by its share {cause['gain']:.2f}x as fast without it"
        which = "near it" if i else "largest cause"
        lines.append(f"  {which}: {cause['state']}, {share // 10}.{share % 10} % of the steps' time{gain}")
        lines.append(f"  advice: {cause['advice']}")
    return lines


def _rank(rank: dict) -> str:
    if not rank["rank_known"]:
        return "rank not known"
    world = f" of {rank['world_size']}" if rank["world_size"] else ""
    return f"rank {rank['rank']}{world}"


def _steps(device: dict) -> str:
    count = len(device["steps"])
    if device["steps_from"] == "whole trace":
        return "no step marks: one step, from the first work to the last"
    counted = f"{count} step{'s' * (count != 1)} by {device['steps_from']}"
    if device["steps_from"] == "Optimizer.step":
        return f"{counted}, each to its end; the time before and after is left out"
    return counted


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
