"""What a reader wants to know first, from an account's document: how much was lost, why, and what to do next.

Three lines of text, the same wherever an account is shown. What cannot be avoided (the schedule's bubble, what is paid
once) comes first only where nothing avoidable is worth 1 % of the run, which is the document's `advice_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from goodput.account.document_types import Answer
from goodput.account.text.formats import dollars, duration, interval, on, percent, unit_of, work_time
from goodput.account.text.states_table import more_than_rank
from goodput.defaults import AVOIDABLE_SHARE_MIN

# One rank or host has to have this share of a loss to be named for it.
OWN_SHARE_MIN = 0.8
# A run of which this share is paid once says what it would be at its full length.
ONCE_SHARE_MIN = 0.1
# Ranks wait for others in these states, so who spends time in them did not cause it.
_CAUSED_BY_OTHERS = ("communication", "straggler", "bubble")


class Culprit(NamedTuple):
    """Who caused a loss: a rank on a host, a host, a stage, or nobody by name."""

    rank: int | None = None
    host: str | None = None
    stage: int | None = None
    phase: str | None = None
    since_step: int | None = None
    since_start: bool = False


def answer(document: Mapping[str, Any]) -> Answer:
    """The answer of an account document, whose own `answer` is not read."""
    cost, states = document["cost"], document["states"]
    lost = document["gpu_seconds"] - states["productive"]
    by_state = {cause["state"]: cause for cause in document["causes"]}
    cause = by_state.get(next(iter(document["advice_order"]), ""))
    culprit = Culprit() if cause is None else _culprit(document, cause["state"])
    return {
        "lost_gpu_seconds": lost,
        "lost_cost": None if cost is None else cost["total"] - cost["states"]["productive"],
        "state": cause and cause["state"],
        "is_avoidable": cause is not None and _is_avoidable(document, cause),
        "share": cause and cause["share"],
        "gpu_seconds": cause and cause["gpu_seconds"],
        "cost": cause and cause["cost"],
        "rank": culprit.rank,
        "host": culprit.host,
        "stage": culprit.stage,
        "since_step": culprit.since_step,
        "since_start": culprit.since_start,
        "lines": [_lost_line(document, lost), *_why_lines(document, cause, culprit)],
    }


def with_hang(document: Mapping[str, Any], hang: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of a document, which has none yet, with this hang and the answer that follows."""
    found = {**document, "hang": hang}
    return found if hang is None else {**found, "answer": answer(found)}


def _is_avoidable(document: Mapping[str, Any], cause: Mapping[str, Any]) -> bool:
    """Whether the part of it that can be avoided is worth acting on, at the run's full length."""
    total = (document["whole_run"] or document)["gpu_seconds"]
    return cause["avoidable_gpu_seconds"] * _growth(document) >= AVOIDABLE_SHARE_MIN * total


def _paid_once(document: Mapping[str, Any]) -> float:
    """GPU-seconds."""
    return sum(one["once_gpu_seconds"] for one in document["causes"])


def _growth(document: Mapping[str, Any]) -> float:
    """How many times as long all that recurs takes at the run's full length; 1.0 where that is not known."""
    whole, recurring = document["whole_run"], document["gpu_seconds"] - _paid_once(document)
    if whole is None or recurring <= 0:
        return 1.0
    return (whole["gpu_seconds"] - _paid_once(document)) / recurring


# ---- Who


def _culprit(document: Mapping[str, Any], state: str) -> Culprit:
    if state == "straggler":
        return _slow_one(document)
    return Culprit() if state in _CAUSED_BY_OTHERS else _holder(document, state)


def _slow_one(document: Mapping[str, Any]) -> Culprit:
    """Whom the others wait for: the host or stage that explains more than the rank does, where there is one."""
    found, ranks = document["straggler"], document["ranks"]
    rank, stage = found["culprit"], found["culprit_stage"]
    if rank is None:
        return Culprit() if stage is None else Culprit(stage=stage, phase=found["stage_because_phase"])
    one = next(one for one in found["shares"] if one["rank"] == rank)
    hosts = [(host["host"], host["share"]) for host in found["hosts"]]
    more = more_than_rank(one["share"], hosts, len({each["host"] for each in ranks}))
    since = {"since_step": found["since_step"], "since_start": found["since_start"]}
    phase = found["because_phase"] or found["because"]
    if more is not None:
        return Culprit(host=more[0], phase=phase, **since)
    return Culprit(rank=rank, host=one["host"], phase=phase, **since)


def _holder(document: Mapping[str, Any], state: str) -> Culprit:
    """The rank or host that has nearly all of a state's time, of several."""
    by_rank = {one["rank"]: one["states"][state] for one in document["ranks"]}
    if len(by_rank) < 2:
        return Culprit()
    hosts = {one["rank"]: one["host"] for one in document["ranks"]}
    least = OWN_SHARE_MIN * document["states"][state]
    rank = max(by_rank, key=lambda one: by_rank[one])
    if by_rank[rank] >= least:
        return Culprit(rank=rank, host=hosts[rank])
    by_host = dict.fromkeys(hosts.values(), 0.0)
    for one, seconds in by_rank.items():
        by_host[hosts[one]] += seconds
    host = max(by_host, key=lambda one: by_host[one])
    return Culprit(host=host) if len(by_host) > 1 and by_host[host] >= least else Culprit()


# ---- Lines


def _lost_line(document: Mapping[str, Any], lost: float) -> str:
    total, unit, cost = document["gpu_seconds"], unit_of(document), document["cost"]
    line = f"goodput {percent(document['factors']['goodput'])}: lost {work_time(lost, total, unit)}"
    if cost is not None:
        line += f", {dollars(cost['total'] - cost['states']['productive'])} of {dollars(cost['total'])}"
    return line + _at_full_length(document)


def _at_full_length(document: Mapping[str, Any]) -> str:
    """That a short run lost much in what is paid once, and its goodput without that shortness."""
    whole, total, once = document["whole_run"], document["gpu_seconds"], _paid_once(document)
    if whole is None or not total or once < ONCE_SHARE_MIN * total or whole["done"] >= whole["steps"]:
        return ""
    goodput = document["states"]["productive"] * _growth(document) / whole["gpu_seconds"]
    return (
        f"; {percent(once / total)} of the time is paid once: over {whole['steps']:,} steps goodput would be"
        f" {percent(goodput)} (an estimate)"
    )


def _why_lines(
    document: Mapping[str, Any], cause: Mapping[str, Any] | None, culprit: Culprit
) -> Iterable[str]:
    """Why, and what to do next."""
    if document["hang"]:
        yield from _hang_lines(document)
    elif document["failure"]:
        yield from _failure_lines(document)
    elif cause is not None:
        name = f"{cause['state']}, {percent(cause['share'])} of all {unit_of(document)} time"
        nothing = (
            "" if _is_avoidable(document, cause) else "nothing that can be avoided is worth 1 %; most is "
        )
        yield f"why: {nothing}{name}{_named(cause['state'], culprit)}{_gain(cause)}"
        yield f"next: {cause['advice']}"


def _gain(cause: Mapping[str, Any]) -> str:
    """What the run would gain, where its steps were replayed without the cause."""
    if cause["gain"] is None or cause["gain_basis"] != "replay":
        return ""
    return f"; without it {cause['gain']:.2f}x as fast{interval(cause['gain_low'], cause['gain_high'])}"


def _named(state: str, culprit: Culprit) -> str:
    """The culprit in words."""
    who = culprit.host and f"host {culprit.host}"
    if culprit.rank is not None:
        who = f"rank {culprit.rank}{on(culprit.host or '')}"
    elif culprit.stage is not None:
        who = f"stage {culprit.stage}"
    if not who:
        return ""
    phase = f" ({culprit.phase})" if culprit.phase else ""
    since = "" if culprit.since_step is None else f" since step {culprit.since_step}"
    since = " from the start" if culprit.since_start else since
    verb = "waiting for" if state == "straggler" else "nearly all on"
    return f": {verb} {who}{phase}{since}"


def _failure_lines(document: Mapping[str, Any]) -> Iterable[str]:
    """How the run failed, and from where it can go on."""
    found, world = document["failure"], document["world_size"]
    step, since, committed = found["step"], found["steps_since_checkpoint"], found["committed_step"]
    who = f" on rank {found['rank']}{on(found['host'])}" if world > 1 else ""
    where = "before its first step" if step is None else f"in step {step}"
    said = f": {found['text']}" if found["text"] else ""
    kept = "" if since is None else f"; {since} steps since the last committed checkpoint"
    kept = "; no checkpoint was committed" if committed is None and step else kept
    yield f"why: failed {where}{who}{said}{kept}"
    again = (
        "start it again"
        if committed is None
        else f"start it again from the checkpoint after step {committed}"
    )
    yield f"next: fix what ended it, then {again}"


_TO_DO = {
    "dead": "read the log of {who}, whose process is gone, and start the run again",
    "dead host": "look at {who}, whose processes of this run are all gone, and start the run again",
    "elsewhere": "see in its stack where {who} is: goodput top and the page have it",
    "silent": "look at {who}, which reports nothing: the node, its agent and its network",
    "finished": "give all ranks the same number of steps: {who} has ended before the others",
    "behind": "compare what {who} calls with the others: it waits in another collective",
}


def _hang_lines(document: Mapping[str, Any]) -> Iterable[str]:
    hang = document["hang"]
    what = "hangs" if document["status"] == "running" else "hung until it ended"
    yield f"why: {what}, no step for {duration(hang['seconds'])}: {hang['reason']}"
    kinds = {one["rank"]: one["kind"] for one in hang["suspects"]}
    kind = kinds.get(hang["culprit"], "").split(" ")[0]
    who = f"rank {hang['culprit']}{on(hang['host'] or '')}"
    if hang.get("host_ranks"):  # A document of an earlier version has none.
        kind, who = ("silent" if kind == "silent" else "dead host"), f"host {hang['host']}"
    advice = _TO_DO.get(kind, "look at the ranks that stopped first: goodput top and the page list them")
    yield f"next: {advice.format(who=who)}"
