"""What several ranks say together: who waits for whom in collectives.

In: the devices of each rank, with steps by name. Out: exposed communication that even the rank that waited least paid,
step by step, and each rank's excess over it, which is waiting for a slower rank (as in the account, `docs/definitions.md`).
Only lengths are compared: clocks of different hosts are never subtracted.
"""

from __future__ import annotations

from collections import Counter


def waiting(ranks: list[dict]) -> dict | None:
    """None where no step has exposed communication on two ranks or more."""
    steps: dict[tuple[int, str], list[tuple[int, int | str]]] = {}
    for rank in ranks:
        seen: Counter = Counter()
        for device in rank["devices"]:
            for step in device["steps"]:
                # The mark's name may come again on another device of the rank: each is compared with its like.
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
