"""The collective verdict of a hang (account.collective_verdict) as text: of the run, and of one of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from goodput.account.text import duration

RANKS_MAX = 6
_BETWEEN_TWO = ("send", "recv")
_DIFFERENT = {
    "operation": "ranks call different operations",
    "dtype": "ranks give different dtypes",
    "size": "ranks give different sizes",
    "root": "ranks give different roots",
    "order": "ranks make the same calls in another order",
}


def of_run(verdict: Mapping[str, Any]) -> str:
    """Which call hangs, how many ranks are in it, and who is named."""
    kind, named = verdict["kind"], verdict["culprits"]
    if kind in _DIFFERENT:
        what, who = _DIFFERENT[kind], "named"
    elif kind == "deadlock":
        chain = [one["rank"] for one in verdict["cycle"][:RANKS_MAX]]
        rest = ", which waits for ".join(map(str, [*chain[1:], chain[0]]))
        return f"{_call(verdict)}: a cycle, rank {chain[0]} waits for {rest}"
    else:
        what = f"{_entered(verdict)} entered it, {duration(verdict['seconds'])} ago"
        who = {"missing": "missing", "network": "nothing comes through the link of"}.get(
            kind, "stopped or gone"
        )
    return f"{_call(verdict)}: {what}" + (f"; {who}: {_ranks(named)}" if named else "")


def _entered(verdict: Mapping[str, Any]) -> str:
    if verdict["kind"] != "missing":
        return "all ranks have"
    if verdict["operation"] in _BETWEEN_TWO and verdict["calls"]:
        return f"rank {verdict['calls'][0]['rank']} has"
    return f"{verdict['entered']} of {verdict['size']} ranks have"


def of_rank(verdict: Mapping[str, Any], rank: int) -> str:
    """What a rank does in the call, "" where that is not known."""
    own = next((call for call in verdict["calls"] if call["rank"] == rank), None)
    link = next((one for one in verdict["cycle"] if one["rank"] == rank), None)
    if link is not None:
        return f"waits in {link['operation']} {link['sequence']} of {link['group']} for rank {link['waits_for']}, in a cycle"
    if verdict["kind"] in _DIFFERENT and own is not None:
        others = "" if rank in verdict["culprits"] else f", {_ranks(verdict['culprits'])} otherwise"
        return f"calls {_signature(own)} as {_call(verdict)}{others if verdict['culprits'] else ''}"
    if rank in verdict["culprits"]:
        if verdict["kind"] == "missing":
            waits = f"{verdict['entered']} ranks wait for {duration(verdict['seconds'])}"
            return f"has not come to {_call(verdict)}, in which {waits}"
        if verdict["kind"] == "network":
            return f"nothing comes through its link in {_call(verdict)}"
        return f"is stopped or gone in {_call(verdict)}"
    return f"waits in {_call(verdict)}" if own is not None else ""


def short(verdict: Mapping[str, Any], rank: int) -> str:
    """As `of_rank`, short enough for a column, for a rank that is named; "" for others."""
    if rank not in verdict["culprits"]:
        return ""
    if verdict["kind"] in _DIFFERENT:
        own = next((call for call in verdict["calls"] if call["rank"] == rank), None)
        return (
            f"calls {own['operation']}"
            if own is not None and verdict["kind"] == "operation"
            else f"other {verdict['kind']}"
        )
    does = {"missing": "not in", "network": "link stalled in"}.get(verdict["kind"], "stopped in")
    return f"{does} {verdict['operation']}"


def _call(verdict: Mapping[str, Any]) -> str:
    ranks = f" (ranks {verdict['ranks']})" if verdict["ranks"] else ""
    return (
        f"{verdict['operation']} {verdict['sequence']} of {verdict['description'] or verdict['group']}{ranks}"
    )


def _signature(call: Mapping[str, Any]) -> str:
    parts = [f"{call['bytes']:,} bytes"] if call["bytes"] else []
    parts += [call["dtype"]] if call["dtype"] else []
    return call["operation"] + (f" ({', '.join(parts)})" if parts else "")


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:RANKS_MAX]))
    more = len(ranks) - RANKS_MAX
    return f"rank{'s' * (len(ranks) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")
