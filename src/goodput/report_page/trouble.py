"""What cost the run its time: causes with advice, restarts, and slow ranks.

In: an account document. Out: elements. Lists are bounded: the restarts that cost most, the newest slow stretches.
"""

from __future__ import annotations

from goodput.account.states import MEANINGS
from goodput.report_page.nodes import Html, card, element, muted, short, table
from goodput.report_page.numbers import GpuTime, count, dollars, duration, moment, percent, times
from goodput.report_page.pictures import swatch

ADVICE_LENGTH_MAX = 400
STRETCHES_SHOWN = 20


def causes(found: dict, key: str) -> Html:
    """All causes, largest first."""
    time, total = GpuTime(found["gpu_seconds"]), found["cost"] and found["cost"]["total"]
    rows = [
        [
            swatch(cause["state"]),
            percent(cause["share"]),
            time.text(cause["gpu_seconds"]),
            dollars(cause["cost"], total),
            "unknown" if cause["state"] == "unobserved" else times(cause["gain"]),
            short(cause["advice"], ADVICE_LENGTH_MAX),
        ]
        for cause in found["causes"]
    ]
    heads = ["Cause", ">Share", f">{time.unit}", ">Cost", ">At most as fast without it", "Advice"]
    return card(
        "Causes and advice",
        f"{key}-causes",
        table(heads, rows, wide=(5,), label="Causes, largest first") if rows else muted("None."),
    )


def restarts(found: dict, key: str, most: int) -> Html:
    """What each restart cost, at most `most` of them."""
    all_, time = found["restarts"], GpuTime(found["gpu_seconds"])
    total = found["cost"] and found["cost"]["total"]
    largest = sorted(all_, key=lambda restart: -restart["gpu_seconds"])[:most]
    rows = [
        [
            count(restart["attempt"]),
            moment(restart["time"]),
            duration(restart["time"] - found["start"]),
            duration(restart["down_seconds"]),
            count(restart["lost_steps"]),
            time.text(restart["lost_gpu_seconds"]),
            time.text(restart["startup_gpu_seconds"]),
            time.text(restart["gpu_seconds"]),
            dollars(restart["cost"], total),
            _resumed(restart["resume_step"]),
        ]
        for restart in sorted(largest, key=lambda restart: restart["attempt"])
    ]
    heads = ["Attempt", ">Time", ">After the start", ">Down, per GPU", ">Lost rank-steps"]
    heads += [f">{name}" for name in (*_parts(time.unit), "Cost", "Resumed")]
    if not rows:
        return card("Restarts", f"{key}-restarts", muted("None."))
    said = f"The {most} restarts that cost most, of {count(len(all_))}."
    return card(
        "Restarts",
        f"{key}-restarts",
        muted(said) if len(all_) > most else None,
        table(heads, rows, label="Restarts and what each cost", foot=_restarts_foot(all_, time, total)),
    )


def _parts(unit: str) -> tuple[str, str, str]:
    return f"{unit} lost", f"{unit} to start again", f"{unit} in all"


def _restarts_foot(all_: list[dict], time: GpuTime, total: float | None) -> list:
    costs = [restart["cost"] for restart in all_]
    sums = {
        name: sum(restart[name] for restart in all_)
        for name in ("lost_steps", "lost_gpu_seconds", "startup_gpu_seconds", "gpu_seconds")
    }
    return [
        f"all {count(len(all_))}",
        "",
        "",
        "",
        count(sums["lost_steps"]),
        time.text(sums["lost_gpu_seconds"]),
        time.text(sums["startup_gpu_seconds"]),
        time.text(sums["gpu_seconds"]),
        "unknown" if None in costs else dollars(sum(costs), total),
        "",
    ]


def _resumed(step: int | None) -> str:
    if step is None:
        return "unknown"
    return "from the beginning" if step < 0 else f"after step {count(step)}"


def slow_ranks(found: dict, key: str) -> Html:
    """Who made the others wait, since when, and how much that cost."""
    straggler = found["straggler"]
    columns = [
        _shares("rank", "By rank", straggler["shares"]),
        _shares("host", "By host", straggler["hosts"]),
        _shares("stage", "By pipeline stage", straggler["stages"]),
        _stretches(straggler["onsets"]),
    ]
    return card(
        "Slow ranks",
        f"{key}-slow",
        element("p", _verdict(found), class_="headline"),
        muted(_slowdown(straggler["slowdown"])),
        element("div", columns, class_="columns"),
    )


def _verdict(found: dict) -> list:
    straggler = found["straggler"]
    culprit, because = straggler["culprit"], short(straggler["because"])
    if culprit is None:
        if straggler["slowdown"] is None:
            return [element("strong", "unknown"), ": no step was reported by two ranks of a group."]
        return [element("strong", "none"), ": no single rank explains the waiting."]
    host = next((rank["host"] for rank in found["ranks"] if rank["rank"] == culprit), "")
    since = straggler["since_step"]
    return [
        element("strong", f"rank {count(culprit)}"),
        " on ",
        element("bdi", short(host) or "an unnamed host"),
        f": it spends more time in {because} ({MEANINGS.get(because, 'unknown')}) than the median of its group. ",
        "Since which step is unknown: none stands out."
        if since is None
        else f"It has been slow since step {count(since)}.",
    ]


def _slowdown(ratio: float | None) -> str:
    if ratio is None:
        return "Slowdown: unknown."
    return f"Slowdown, estimated: steps take {times(ratio)} as long as if their work were spread evenly."


def _shares(name: str, title: str, shares: list[dict]) -> Html | None:
    """Who explains which share of the waiting."""
    if not shares:
        return None
    rows = []
    for share in shares:
        who = share[name]
        said = count(who) if isinstance(who, int) else element("bdi", short(who) or "unnamed")
        width = f"{100 * min(max(share['share'], 0), 1):.1f}%"
        meter = element(
            "svg", element("rect", width=width, height="100%"), class_="meter", aria_hidden="true"
        )
        rows.append([said, [meter, percent(share["share"])]])
    return table([name.capitalize(), ">Share of the waiting"], rows, label=title)


def _stretches(onsets: list[dict]) -> Html | None:
    if not onsets:
        return None
    newest = sorted(onsets, key=lambda one: (one["last_step"] is not None, -one["first_step"], one["rank"]))
    rows = [
        [
            count(one["rank"]),
            count(one["first_step"]),
            "slow still" if one["last_step"] is None else count(one["last_step"]),
        ]
        for one in newest[:STRETCHES_SHOWN]
    ]
    some = f"{STRETCHES_SHOWN} of {count(len(onsets))} stretches: those that go on, then the newest."
    return element(
        "div",
        table(["Rank", ">Slow from step", ">To step"], rows, label="Stretches in which a rank was slow"),
        muted(some) if len(onsets) > STRETCHES_SHOWN else None,
    )
