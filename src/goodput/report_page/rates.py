"""What the run did with its time: throughput, checkpoints, the pipeline's bubble, what a dollar and a joule bought.

In: an account document. Out: elements. Names its sources where the document does.
"""

from __future__ import annotations

from goodput.report_page.headline import samples_of
from goodput.report_page.nodes import Html, card, element, facts, muted, short
from goodput.report_page.numbers import amount, count, duration, percent, scaled


def section(found: dict, key: str) -> Html:
    return element(
        "div",
        _throughput(found, key),
        _checkpoints(found, key),
        _pipeline(found, key),
        _bought(found, key),
        class_="grid",
    )


def _throughput(found: dict, key: str) -> Html:
    rates = found["throughput"]
    basis = {"given": "as the log says", "best shown": "the run's own fastest stretch"}
    return card(
        "Throughput",
        f"{key}-throughput",
        facts(
            [
                ("Kept samples", count(samples_of(found, rates["samples"]))),
                ("Samples per second", amount(rates["samples_per_second"])),
                ("Ideal samples per second", amount(rates["ideal_samples_per_second"])),
                ("Ideal is", basis.get(rates["ideal_basis"], "unknown")),
                ("Part of the ideal", percent(rates["goodput"])),
            ]
        ),
    )


def _checkpoints(found: dict, key: str) -> Html:
    saved = found["checkpoints"]
    return card(
        "Checkpoints",
        f"{key}-checkpoints",
        facts(
            [
                ("Committed", count(saved["committed"])),
                ("One not committed", "yes" if saved["unfinished"] else "no"),
                ("Time to save one", duration(saved["save_seconds"])),
                ("One every", duration(saved["interval_seconds"])),
                ("Failures", count(saved["failures"])),
                ("Time between failures", duration(saved["seconds_between_failures"])),
                ("Best: one every", duration(saved["best_interval_seconds"])),
            ]
        ),
        muted(f"Best interval after {short(saved['source'], 300)}."),
    )


def _pipeline(found: dict, key: str) -> Html:
    stages = found["pipeline"]
    if stages is None:
        return card("Pipeline", f"{key}-pipeline", muted("No pipeline: the log names fewer than two stages."))
    return card(
        "Pipeline",
        f"{key}-pipeline",
        facts(
            [
                ("Stages", count(stages["stages"])),
                ("Microbatches", count(stages["microbatches"])),
                ("Bubble, of kept steps", percent(stages["bubble"])),
                ("What cannot be avoided", percent(stages["ideal_bubble"])),
                ("Beyond that", percent(stages["excess"])),
            ]
        ),
        muted("With p stages and m microbatches (p - 1) / (m + p - 1) of a step is idle at best."),
    )


def _bought(found: dict, key: str) -> Html:
    """Useful work for a dollar and for a joule."""
    pairs = []
    for each, name in (("dollar", "per_dollar"), ("joule", "per_joule")):
        bought = found[name] or {"productive_gpu_seconds": None, "samples": None, "flops": None}
        pairs += [
            (f"Productive GPU-seconds per {each}", amount(bought["productive_gpu_seconds"])),
            (f"Kept samples per {each}", amount(bought["samples"])),
            (f"Model FLOPs per {each}", scaled(bought["flops"], "FLOP")),
        ]
    return card("Per dollar and per joule", f"{key}-bought", facts(pairs))
