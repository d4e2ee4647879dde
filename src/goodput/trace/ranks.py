"""Compares ranks: exposed communication that all ranks paid, and waiting for slower ranks.

Per step, the smallest exposed communication among the ranks is what all paid; each rank's excess is waiting, as in the
account (docs/definitions.md). Only durations are compared: clocks of different hosts are never subtracted."""

from __future__ import annotations

from collections import Counter


def waiting(ranks: list[dict]) -> dict | None:
    """Totals over the steps that two or more ranks have; None if no such step has exposed communication."""
    steps: dict[tuple[int, str], list[tuple[int, int | str]]] = {}
    for rank in ranks:
        seen: Counter = Counter()
        for device in rank["devices"]:
            for step in device["steps"]:
                # Several devices of a rank have the same step names: number them, so that like is compared with like.
                key = (seen[device["device"], step["name"]], step["name"])
                seen[device["device"], step["name"]] += 1
                steps.setdefault(key, []).append((step["states_ns"]["communication"], rank["rank"]))
    compared = [found for found in steps.values() if len({rank for _, rank in found}) > 1]
    if not any(ns for found in compared for ns, _ in found):
        return None
    least = [min(found) for found in compared]
    slowest = Counter()
    for found, (ns, rank) in zip(compared, least, strict=True):
        slowest[rank] += sum(other - ns for other, _ in found)
    return {
        "steps": len(compared),
        "all_paid_ns": sum(ns * len(found) for found, (ns, _) in zip(compared, least, strict=True)),
        "waiting_ns": sum(slowest.values()),
        "waited_least": slowest.most_common(1)[0][0],
    }
