"""What is wrong with each rank, by the account document of its run.

troubles(document)[3]    # Trouble(5, "hangs in backward 75 s")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from goodput.account import FINAL_STATUSES
from goodput.account.states import PHASE_STATES, PLANNED
from goodput.account.text import duration
from goodput.top import collective

SILENT_SECONDS = 30.0
# A phase that is no planned one is long where it has lasted so many steps of the rank, and so many seconds.
LONG_STEPS, LONG_SECONDS = 10, 5.0


class Trouble(NamedTuple):
    """`severity` 0 is none, 5 the worst; `text` is short, for a column."""

    severity: int = 0
    text: str = ""


NONE = Trouble()


def troubles(document: Mapping[str, Any]) -> dict[int, Trouble]:
    """By rank, those that have one. A rank that the others wait for comes before one that is gone, before a slow one."""
    found: dict[int, Trouble] = {}
    straggler = document["straggler"]
    if straggler["culprit"] is not None:
        because = straggler["because_phase"] or straggler["because"]
        found[straggler["culprit"]] = Trouble(2, f"slow: {because}" if because else "slow")
    slow = straggler.get("slow_issue")
    if slow is not None and slow["rank"] not in found:
        found[slow["rank"]] = Trouble(2, f"slow: {slow['operation']}")
    link = straggler.get("slow_link")
    if link is not None and link["rank"] not in found:
        found[link["rank"]] = Trouble(2, "slow: its link")
    is_over = document["status"] in FINAL_STATUSES
    live = {one["rank"]: one for one in document["live"]}
    for rank in document["ranks"]:
        number = rank["rank"]
        trouble = _of_process(live[number], is_over) if number in live else Trouble(3, "never reported")
        if trouble.severity > found.get(number, NONE).severity:
            found[number] = trouble
    hang = document["hang"]
    for suspect in hang["suspects"] if hang else ():
        if suspect["rank"] == hang["culprit"]:
            found[suspect["rank"]] = Trouble(5, _hang_text(suspect))
        elif found.get(suspect["rank"], NONE).severity < 3:
            found[suspect["rank"]] = Trouble(3, f"suspect: {suspect['kind']}")
    verdict = hang.get("collective") if hang else None
    if verdict is None:
        return found
    for rank in verdict["culprits"]:
        trouble = found.get(rank, NONE)
        if trouble.severity < 4 or (hang["culprit"] == rank and _is_behind(hang, rank)):
            found[rank] = Trouble(
                5 if hang["culprit"] == rank else 4, f"hangs: {collective.short(verdict, rank)}"
            )
    return found


def _is_behind(hang: Mapping[str, Any], rank: int) -> bool:
    """Whether only its collective distinguishes it from the ranks that wait."""
    return any(one["rank"] == rank and one["kind"] == "behind" for one in hang["suspects"])


def _of_process(live: Mapping[str, Any], is_over: bool) -> Trouble:
    if live["ended"] in ("killed", "failed"):
        return Trouble(2 if is_over else 4, live["ended"])
    if live["alive"] and not is_over and live["report_age_seconds"] > SILENT_SECONDS:
        return Trouble(4, f"silent {duration(live['report_age_seconds'])}")
    seconds = live["phase_seconds"]
    is_waiting = PHASE_STATES.get(live["phase"]) in ("communication", *PLANNED)
    if live["alive"] and not is_over and not is_waiting and live["step_seconds"]:
        where = "no phase" if live["phase"] == "none" else live["phase"]
        if seconds > max(LONG_STEPS * live["step_seconds"], LONG_SECONDS):
            return Trouble(3, f"long {where} {duration(seconds)}")
    return NONE


def _hang_text(suspect: Mapping[str, Any]) -> str:
    where = "no phase" if suspect["phase"] == "none" else suspect["phase"]
    if suspect["kind"] in ("elsewhere", "behind"):
        return f"hangs: {where} {duration(suspect['seconds'])}"
    return f"hangs: {suspect['kind']}"
