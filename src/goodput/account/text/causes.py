"""The causes of an account as text: the leading one with its advice, the one inside the steps, and what is paid once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goodput.account.text.formats import duration, interval, percent, unit_of
from goodput.account.text.states_table import state_rows

# If the largest cause lies outside the steps, the largest one inside has a line too, from this share on.
OUTSIDE_STEPS = {"startup", "compile", "down", "queue"}
INSIDE_STEPS = {"loader", "h2d", "communication", "straggler", "bubble", "launch", "unattributed"}
INSIDE_SHARE_MIN = 0.01


def cause_lines(document: Mapping[str, Any]) -> list[str]:
    """The leading cause in the order of advice, the one in the steps if it is another, and what is paid once."""
    if not document["causes"]:
        return []
    first, *others = _ordered_causes(document)
    name = "largest cause" if first is document["causes"][0] else "largest recurring cause"
    gain = _faster(first["gain"], "; without it the run would be") + (_interval(first) or _by_share(first))
    lines = ["", f"  {name}: {_cause(document, first)}{gain}", *_advice_lines(document, first)]
    inside = next((one for one in others if one["state"] in INSIDE_STEPS), None)
    if first["state"] in OUTSIDE_STEPS and inside is not None and inside["share"] >= INSIDE_SHARE_MIN:
        lines += [f"  in the steps: {_cause(document, inside)}", *_advice_lines(document, inside)]
    return [*lines, *_once_lines(document, others)]


def _ordered_causes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """In the order of advice; a document of an earlier version has only the order by size."""
    place = {state: i for i, state in enumerate(document.get("advice_order", ()))}
    return sorted(document["causes"], key=lambda cause: place.get(cause["state"], len(place)))


def _cause(document: Mapping[str, Any], cause: Mapping[str, Any]) -> str:
    share = next(share for state, _, share, _ in state_rows(document) if state == cause["state"])
    return f"{cause['state']}, {share} % of all {unit_of(document)} time"


def _by_share(cause: Mapping[str, Any]) -> str:
    """Where other ranks wait for those in the state, its share is not what they would gain."""
    is_known = cause["gain"] is not None and cause.get("gain_basis") != "replay"
    return ", by its share alone" if is_known else ""


def _interval(cause: Mapping[str, Any]) -> str:
    low, high = cause.get("gain_low"), cause.get("gain_high")
    return "" if low is None or high is None else interval(low, high)


def _faster(gain: float | None, what: str) -> str:
    return "" if gain is None else f"{what} {gain:.2f}x as fast"


def _advice_lines(document: Mapping[str, Any], cause: Mapping[str, Any]) -> list[str]:
    """What a cause costs over the whole run, if the run has steps to make, and its advice.

    Over a typical length its share is shown only if it differs.
    """
    advice, length = f"  advice: {cause['advice']}", _length(document)
    if not length:
        return [advice]
    share, seconds = cause["whole_run_share"], cause["whole_run_gpu_seconds"]
    is_typical = document["whole_run"]["basis"] == "typical"
    if is_typical and percent(share) == percent(cause["share"]):
        return [advice]
    # A replay knows who waits for whom, so what it found is not followed by another figure from the share alone.
    by_share = 1 / (1 - share) if share < 1 and cause.get("gain_basis") != "replay" else None
    basis = " (a typical length, since total_steps is not declared)" if is_typical else ""
    return [
        f"    {length}{basis}: {percent(share)}, {duration(seconds)} of"
        f" {duration(document['whole_run']['gpu_seconds'])} {unit_of(document)} time"
        f"{_faster(by_share, '; by that share without it')} (an estimate)",
        advice,
    ]


def _length(document: Mapping[str, Any]) -> str:
    """The run's full length in words, "" where it is unknown or reached."""
    found = document.get("whole_run")
    if found is None or found["done"] >= found["steps"]:
        return ""
    run = "over the whole run of" if found["basis"] == "declared" else "in a run of"
    return f"{run} {found['steps']:,} steps"


def _once_lines(document: Mapping[str, Any], causes: list[Mapping[str, Any]]) -> list[str]:
    """What is paid once, with advice on its largest part where that matters over the whole run."""
    least = INSIDE_SHARE_MIN * document["gpu_seconds"]
    once = [(cause.get("once_gpu_seconds", 0.0), cause) for cause in causes]
    once = sorted((one for one in once if one[0] >= least), key=lambda one: -one[0])
    if not once:
        return []
    parts = [f"{cause['state']} {percent(seconds / document['gpu_seconds'])}" for seconds, cause in once]
    line, found = f"  paid once, at the run's start and end: {', '.join(parts)}", document["whole_run"]
    if length := _length(document):
        share = sum(seconds for seconds, _ in once) / found["gpu_seconds"]
        line += f"; {length}, {percent(share)} (an estimate)"
    largest, cause = once[0]
    is_worth_it = found is not None and largest >= INSIDE_SHARE_MIN * found["gpu_seconds"]
    return [line, f"  advice: {cause['advice']}"] if is_worth_it else [line]
