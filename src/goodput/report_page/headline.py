"""The top of a run: its name, its factors, what else is known, the chain from the peak, and the leading cause.

In: an account document. Out: elements. Computes no figure but differences of figures that are there.
"""

from __future__ import annotations

from goodput.report_page.nodes import Html, card, element, facts, muted, short
from goodput.report_page.numbers import GpuTime, count, dollars, duration, moment, percent, scaled, times
from goodput.report_page.pictures import swatch, waterfall

STATUSES = {
    "running": "its log ends while it runs",
    "finished": "every rank of its last attempt ended by itself",
    "failed": "it ended after its last attempt had died",
    "cancelled": "somebody said that it is over; work after its last checkpoint counts as lost",
    "down": "no process was alive at the log's end; work after its last checkpoint counts as lost",
    "unobserved": "nobody reported it at the log's end",
}
FACTORS = {
    "goodput": ("goodput", "share of all allocated GPU time that was useful work"),
    "availability": ("availability", "time in kept steps ÷ allocated time"),
    "step_efficiency": ("step efficiency", "productive time ÷ time in kept steps"),
    "mfu": ("MFU", "model FLOPs of kept steps ÷ (peak × allocated time)"),
    "compute_efficiency": ("compute efficiency", "model FLOPs ÷ (peak × productive time)"),
}
NO_FLOPS = "needs flops_per_step and peak_flops_per_second in the log"
NEXT_SHOWN = 4
IMPOSSIBLE = "cannot be of what was told: see above"


def head(found: dict, key: str, level: str) -> Html:
    status = short(found["status"])
    return element(
        "header",
        element(level, "run ", element("bdi", short(found["run"], 128) or "(no name)"), id=f"{key}-name"),
        element(
            "p",
            element("span", status, class_=f"status {status if status in STATUSES else ''}"),
            " ",
            element("span", STATUSES.get(status, ""), class_="muted"),
        ),
        class_="runhead",
    )


def errors(found: dict) -> Html | None:
    """What cannot be of the inputs."""
    if not found["errors"]:
        return None
    return element(
        "section",
        element("p", element("strong", "The inputs cannot be right")),
        [element("p", short(text, 1000)) for text in found["errors"][:5]],
        class_="notice",
        aria_label="Input errors",
    )


def figures(found: dict) -> Html:
    """The two equations."""
    return element(
        "section",
        _equation(found, "goodput", "availability", "step_efficiency"),
        _equation(found, "mfu", "goodput", "compute_efficiency"),
        class_="chain",
        aria_label="Headline figures",
    )


def _equation(found: dict, result: str, first: str, second: str) -> Html:
    said = f"{FACTORS[result][0]} = {FACTORS[first][0]} × {FACTORS[second][0]}"
    sign = {"class_": "sign", "aria_hidden": "true"}
    return element(
        "div",
        _figure(found, result, "figure lead"),
        element("b", "=", **sign),
        _figure(found, first, "figure", brief=first == "goodput"),
        element("b", "×", **sign),
        _figure(found, second, "figure"),
        class_="card equation",
        role="group",
        aria_label=said,
    )


def _figure(found: dict, factor: str, kind: str, brief: bool = False) -> Html:
    (name, meaning), ratio = FACTORS[factor], found["factors"][factor]
    if ratio is None:
        kind += " unknown"
        if factor in ("mfu", "compute_efficiency"):
            meaning = IMPOSSIBLE if found["errors"] else NO_FLOPS
    elif found["basis"].get(factor) == "estimated":
        meaning += " (an estimate)"
    small = None if brief else element("small", meaning)
    return element("div", element("span", name), element("strong", percent(ratio)), small, class_=kind)


def known(found: dict) -> Html:
    """The rest of what is known of the run, in a line of facts."""
    time, cost, energy = GpuTime(found["gpu_seconds"]), found["cost"], found["energy"]
    joules = "unknown" if energy is None else scaled(energy["total"], "J")
    steps, factors, spare = (
        found["steps"],
        found["factors"],
        found["gpu_seconds"] - found["states"]["productive"],
    )
    wasted = cost and cost["total"] - cost["states"]["productive"]
    estimated = "" if found["basis"].get("energy") == "measured" else ", estimated"
    return facts(
        [
            ("Ranks", count(found["world_size"])),
            ("Start", moment(found["start"])),
            ("End", moment(found["end"])),
            ("Duration", duration(found["end"] - found["start"])),
            (time.unit, time.text(found["gpu_seconds"])),
            ("Not productive", time.text(spare)),
            ("Cost", dollars(cost and cost["total"])),
            ("Cost of what was not productive", dollars(wasted, cost["total"])) if cost else None,
            (f"Energy{estimated}", joules),
            ("Rank-steps", f"{count(steps['kept'])} kept, {count(steps['lost'])} lost"),
            ("Samples done", count(samples_of(found, found["samples"]))),
            ("Restarts", count(len(found["restarts"]))),
            ("HFU", percent(factors["hfu"])),
            ("Observed", percent(found["coverage"]["time"])),
            ("On the device clock", percent(found["coverage"]["device_clock"])),
        ]
    )


def samples_of(found: dict, samples: float | None) -> float | None:
    """Steps without any sample are steps whose samples nobody told."""
    return None if not samples and found["steps"]["kept"] else samples


def chain_and_cause(found: dict, key: str) -> Html:
    return element(
        "div",
        card("From the peak to useful work", f"{key}-chain", waterfall(found)),
        card("Leading cause", f"{key}-cause", _cause(found)),
        class_="pair",
    )


def _cause(found: dict) -> list[Html]:
    if not found["causes"]:
        none = found["gpu_seconds"] > 0
        return [
            element("p", element("strong", "none" if none else "unknown"), class_="headline"),
            element("p", "All GPU time was productive." if none else "No GPU time is known."),
        ]
    first, time = found["causes"][0], GpuTime(found["gpu_seconds"])
    spent = [time.said(first["gpu_seconds"])]
    if first["cost"] is not None:
        spent.append(dollars(first["cost"], found["cost"] and found["cost"]["total"]))
    return [
        element(
            "p",
            swatch(first["state"], "strong"),
            f" {percent(first['share'])} of all GPU time",
            class_="headline",
        ),
        element("p", short(first["advice"], 1000)),
        muted(f"It took {' and '.join(spent)}. ", gain_said(first)),
        _next(found["causes"][1 : 1 + NEXT_SHOWN]),
    ]


def _next(others: list[dict]) -> list[Html] | None:
    if not others:
        return None
    rows = [element("li", swatch(cause["state"]), " ", percent(cause["share"])) for cause in others]
    return [element("p", "Next:"), element("ul", rows, class_="next")]


def gain_said(cause: dict) -> str:
    """What was not seen may have been useful, so no gain is promised for it."""
    if cause["gain"] is None or cause["state"] == "unobserved":
        return "What would be gained without it is unknown."
    return f"Without it the run would be at most {times(cause['gain'])} as fast."
