"""A rank's GPU figures summed over restarts of the agent."""

from __future__ import annotations

import re

HARDWARE = ("compute_ns", "idle_ns", "energy_mj")
_OWN_FIGURES = {name: f"reported_{name}" for name in HARDWARE}  # those of the current agent alone
NOW = ("busy_ppm", "power_mw")  # not cumulative
_NOT_SUMMED = ("since_ns", *NOW)
_AGENTS_FIGURES = frozenset((*_NOT_SUMMED, *HARDWARE))


def sum_hardware(held: dict[str, int], reported: dict[str, int]) -> dict[str, int]:
    """A rank's GPU figures summed over restarts of the agent, each of which counts from its own start, `since_ns`.

    `reported_...` in the result are the current agent's own figures, so that a sum restored from the ledger can be
    continued. Ledgers of earlier versions have them as `said_...`.
    """
    if not reported:
        is_present = any(name in held for name in NOW)
        return {name: value for name, value in held.items() if name not in NOW} if is_present else held
    if not _AGENTS_FIGURES.issuperset(reported) and any(
        name.startswith(("reported_", "said_")) for name in reported
    ):
        return {re.sub("^said_", "reported_", name): value for name, value in reported.items()}
    is_same_agent, summed = held.get("since_ns") == reported.get("since_ns"), {}
    for name, own in _OWN_FIGURES.items():
        if held.get(own, 0) > reported.get(name, 0):
            is_same_agent = False
    for name in _NOT_SUMMED:
        if name in reported:
            summed[name] = reported[name]
    for name, own in _OWN_FIGURES.items():
        if name in reported or name in held:
            now = summed[own] = reported.get(name, 0)
            summed[name] = held.get(name, 0) + now - (held.get(own, 0) if is_same_agent else 0)
    return summed
