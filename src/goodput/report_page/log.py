"""What was wrong with the log that the page is from.

In: the documents' `log`, the same for all runs of one file and then shown once. Out: elements, or None without one.
"""

from __future__ import annotations

from goodput.report_page.nodes import Html, card, element, facts, muted, short, table
from goodput.report_page.numbers import count

PROBLEM_LENGTH_MAX = 150
LISTED_MAX = 100
LOGS_SHOWN = 2


def section(documents: list[dict]) -> Html | None:
    logs: list[dict] = []
    for found in documents:
        if found.get("log") is not None and found["log"] not in logs[:LOGS_SHOWN]:
            logs.append(found["log"])
    shown = [_log(log, f"log{i}") for i, log in enumerate(logs[:LOGS_SHOWN], 1)]
    left_out = (
        muted(f"{LOGS_SHOWN} of {count(len(logs))} logs are shown.") if len(logs) > LOGS_SHOWN else None
    )
    return element("div", shown, left_out) if shown else None


def _log(log: dict, key: str) -> Html:
    listed, ignored = log["problems"][:LISTED_MAX], list(log["ignored"].items())
    rows = [[count(one["line"]), short(one["problem"], PROBLEM_LENGTH_MAX)] for one in listed]
    names = [[short(what, PROBLEM_LENGTH_MAX), count(times)] for what, times in ignored[:LISTED_MAX]]
    return card(
        "The log",
        key,
        element("p", element("strong", log["broken"]), class_="notice") if log["broken"] else None,
        facts(
            [
                ("Lines", count(log["lines"])),
                ("Problems", count(log["problem_count"])),
                ("Lines not used for their times", count(log["dropped"])),
                ("Steps there twice, counted once", count(log["repeated"])),
                ("Steps cut for overlapping", count(log["overlapping"])),
            ]
        ),
        muted("Nothing is wrong with it.") if _clean(log) else None,
        muted(f"The first {count(len(listed))} problems.") if len(listed) < log["problem_count"] else None,
        table([">Line", "Problem"], rows, wide=(1,), label="Problems") if rows else None,
        table(["Ignored, as nothing here knows it", ">Times"], names, label="Ignored") if names else None,
    )


def _clean(log: dict) -> bool:
    return not (log["problem_count"] or log["dropped"] or log["repeated"] or log["ignored"] or log["broken"])
