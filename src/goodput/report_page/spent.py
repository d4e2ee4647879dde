"""Where the GPU time went: the states of the whole run, and those of its ranks.

In: an account document. Out: elements. Percents of the whole run are account/text.py's, which close to 100.0.
Of many ranks those with the lowest goodput are shown, and the section says so.
"""

from __future__ import annotations

from statistics import median

from goodput.account.text import state_rows
from goodput.report_page.nodes import Html, card, element, muted, short, table
from goodput.report_page.numbers import Energy, GpuTime, count, dollars, percent
from goodput.report_page.pictures import bar, swatch


def states(found: dict, key: str) -> Html:
    """The bar and the table of states."""
    time, cost, joules = GpuTime(found["gpu_seconds"]), found["cost"], found["energy"]
    energy = joules and Energy(joules["total"])
    heads = ["State", f">{time.unit}", ">Percent"]
    heads += [">Cost"] if cost else []
    estimated = "" if found["basis"].get("energy") == "measured" else ", estimated"
    heads += [f">{energy.unit}{estimated}"] if energy else []
    heads.append("What it is")

    def cells(first: object, seconds: float, share: str, meaning: str, state: str | None) -> list:
        part = [first, time.text(seconds), share]
        for sums, text in ((cost, _dollars(cost)), (joules, energy and energy.text)):
            if sums:
                part.append(text(sums["total"] if state is None else sums["states"][state]))
        return [*part, element("span", meaning, class_="muted")]

    rows = [
        cells(swatch(state), seconds, share, meaning + _estimated(found, state), state)
        for state, seconds, share, meaning in state_rows(found)
    ]
    foot = cells("total", found["gpu_seconds"], "100.0" if rows else "unknown", "", None)
    return card(
        "Where the GPU time went",
        f"{key}-states",
        bar(found["states"], "all ranks together", labels=True),
        table(heads, rows, foot=foot, wide=(len(heads) - 1,), label="GPU time by state"),
    )


def _estimated(found: dict, state: str) -> str:
    return " (an estimate)" if found["basis"].get(state) == "estimated" else ""


def _dollars(cost: dict | None):
    return lambda value: dollars(value, cost["total"])


def ranks(found: dict, key: str, most: int) -> Html:
    """One bar per rank, worst first, at most `most`."""
    rated = sorted(
        ((_goodput(rank), rank) for rank in found["ranks"]),
        key=lambda pair: (-1 if pair[0] is None else round(pair[0], 3), pair[1]["rank"]),
    )
    culprit = found["straggler"]["culprit"]
    rows = [
        [
            count(rank["rank"])
            if rank["rank"] != culprit
            else [element("b", "slow", class_="tag"), str(rank["rank"])],
            element("bdi", short(rank["host"]) or "unknown"),
            bar(rank["states"], f"rank {rank['rank']}"),
            percent(ratio),
            f"{count(rank['steps']['kept'])} / {count(rank['steps']['lost'])}",
        ]
        for ratio, rank in rated[:most]
    ]
    heads = [">Rank", "Host", "Time by state", ">Goodput", ">Steps kept / lost"]
    return card(
        "Ranks",
        f"{key}-ranks",
        muted(_ranks_said([ratio for ratio, _ in rated], most)),
        element("div", table(heads, rows, label="GPU time by rank", wide=(2,)), class_="ranks"),
    )


def _goodput(rank: dict) -> float | None:
    """None where nobody saw the rank: its work is unknown, not 0."""
    total = sum(rank["states"].values())
    return rank["states"]["productive"] / total if total > rank["states"]["unobserved"] else None


def _ranks_said(ratios: list[float | None], most: int) -> str:
    """Which ranks are shown, and how all of them lie."""
    known = sorted(ratio for ratio in ratios if ratio is not None)
    shown = (
        f"The {most} ranks with the lowest goodput, of {count(len(ratios))}."
        if len(ratios) > most
        else f"{count(len(ratios))} rank{'s' * (len(ratios) != 1)}, the lowest goodput first."
    )
    if len(known) < len(ratios):
        unseen = len(ratios) - len(known)
        shown += f" Of {count(unseen)} it is unknown: nobody reported {'them' if unseen > 1 else 'it'}."
    if len(known) < 2:
        return shown
    return (
        f"{shown} Goodput of all ranks: lowest {percent(known[0])}, median {percent(median(known))},"
        f" highest {percent(known[-1])}."
    )
