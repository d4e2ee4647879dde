"""The hang verdict: when no rank makes progress, which rank is where since when, and which one is the culprit.

Progress is a completed step and nothing less: a rank that changes phases without completing one (a retry loop) hangs.
Only for a process that makes rollouts and no steps each phase boundary is progress. So it is for one whose steps nobody
sees (nccl/): such ranks hang where one waits in communication and the others wait too or have done nothing for PROFILED_NS,
which may be a checkpoint.

Excused up to its limit (stall_threshold): a rank in a planned phase (states.PLANNED); one that was in such a phase since
its last step and still passes phase boundaries (an evaluation with its own loader); one before its first step, unless it
waits in communication or for other ranks to start (PEERS). A silent rank that was last seen in a planned phase is excused like this unless that phase is
over: ranks that report have completed a step since, or left the same phase after as long a time as the silent one was
seen in it.

Ranks in communication are victims, also one that is silent and had then waited there longer than steps take: it hung
with the others when its node was cut off. Ranks elsewhere, dead, or silent since the others stopped are suspects; the
culprit is the suspect with the fewest steps, among those the one longest in its phase. If all ranks wait in
communication, it is the only rank with fewer steps than the others, which waits in another collective. Where suspects
tie there is none: all ranks are in one phase after one step, or two stopped there at the same time. Where all ranks of the
culprit's host, of several, are dead or silent as it is, the host is the culprit, named once.

Clocks of two hosts are never subtracted: a duration is the rank's own up to its last report, plus the time since we
received that, on our clock. Cost: about 2 us a rank.

    found = verdict(ranks, time.time_ns(), threshold_ns=60 * 10**9); found.document() if found else None
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from goodput.account import document_types
from goodput.account.collective_verdict import CollectiveVerdict
from goodput.account.collectives.ras_finding import RasFinding
from goodput.account.slow_ranks.peers import ranks_text
from goodput.account.stall_threshold import PLANNED_LEAST_NS, TIMES
from goodput.account.states import PLANNED
from goodput.defaults import PEERS

STALE_NS = 30 * 10**9
PROFILED_NS = 600 * 10**9  # as long as NCCL's own users wait by default (PyTorch's timeout)
TIE_SECONDS = 1.0  # suspects that stopped within this time stopped together
SUSPECTS_SHOWN_MAX = 16
# In order of trust. `behind` applies only where all ranks wait in communication; the last two had gone while others
# still completed steps, so they do not explain the hang by themselves.
KINDS = ("dead", "elsewhere", "silent", "finished", "behind", "dead before", "silent before")
_TRUST = {"dead": 0, "elsewhere": 1, "silent": 1, "finished": 2, "behind": 3}


class RankStatus(NamedTuple):
    """A rank's newest process as last reported. `received_ns` is on our clock, all other times on its host's."""

    rank: int
    host: str
    attempt: int
    phase: str
    state: str  # the state that the phase maps to
    phase_since_ns: int  # its last phase or step boundary
    seen_ns: int
    received_ns: int
    last_progress_ns: int  # end of its last completed step, else its start
    step: int | None  # its last completed step
    # ns by planned state since its last progress, to its last boundary
    planned: Mapping[str, int] = MappingProxyType({})
    limit_ns: int = PLANNED_LEAST_NS  # how long that state excuses it, or any planned one if it is in none
    alive: bool = True
    ended: str = ""  # "", "finished", "failed", "resumed"; not alive and "" means killed
    generates: bool = False  # it has made rollouts and no step: a phase boundary is its progress
    is_profiled: bool = False  # NCCL's profiler plugin alone has recorded it: nobody sees its steps


class Suspect(NamedTuple):
    """`seconds`: how long in its phase, or since its last sign of life. `kind` is one of KINDS."""

    rank: int
    host: str
    attempt: int
    phase: str
    seconds: float
    step: int | None
    kind: str
    ended: str

    def document(self) -> document_types.Suspect:
        return {
            "rank": self.rank,
            "host": self.host,
            "phase": self.phase,
            "seconds": self.seconds,
            "step": self.step,
            "kind": self.kind,
        }


@dataclass(frozen=True)
class Hang:
    """No progress since `since_ns` (our clock). `suspects` come most suspect first."""

    since_ns: int
    seconds: float
    culprit: Suspect | None
    reason: str
    suspects: tuple[Suspect, ...]
    victims: int
    collective: CollectiveVerdict | None = None
    ras: RasFinding | None = None
    host_ranks: int = 0  # of the culprit's host, where all of them are as it is

    def document(self) -> document_types.HangVerdict:
        """The hang as a JSON-ready dictionary; without a culprit its fields are None."""
        who = self.culprit
        return {
            "since": self.since_ns / 1e9,
            "seconds": self.seconds,
            "culprit": who.rank if who else None,
            "host": who.host if who else None,
            "phase": who.phase if who else None,
            "phase_seconds": who.seconds if who else None,
            "attempt": who.attempt if who else None,
            "step": who.step if who else None,
            "reason": self.reason,
            "host_ranks": self.host_ranks,
            "suspects": [one.document() for one in self.suspects[:SUSPECTS_SHOWN_MAX]],
            "victims": self.victims,
            "collective": self.collective.document() if self.collective else None,
            "ras": self.ras.document() if self.ras else None,
        }


def without_stack(found: Hang) -> document_types.Hang:
    """The hang's document where no agent could take a stack."""
    return {**found.document(), "stack": None, "stack_rank": None, "stack_time": None}


def verdict(
    ranks: Iterable[RankStatus], now_ns: int, threshold_ns: int, *, stale_ns: int = STALE_NS, unseen: int = 0
) -> Hang | None:
    """The hang at `now_ns` (our clock); None if a rank makes progress or is excused, or if none reports.

    A rank without a report for over `stale_ns` is silent. `unseen` counts expected ranks that never reported.
    """
    ranks = sorted(ranks, key=lambda one: one.rank)
    live = [one for one in ranks if one.alive and not one.ended]
    fresh = [one for one in live if now_ns - one.received_ns <= stale_ns]
    if not fresh or not all(_is_stuck(one, threshold_ns) for one in fresh):
        return None
    if all(one.is_profiled and one.state != "communication" for one in fresh):
        return None  # They may wait for requests.
    silent = [one for one in live if now_ns - one.received_ns > stale_ns]
    if _is_excused_unseen(silent, fresh, now_ns):
        return None
    # No rank has completed a step since the last one that did.
    hung_ns = min(_idle_ns(one) + _age_ns(one, now_ns) for one in fresh)
    begun_ns = hung_ns + stale_ns
    hung_too = [one for one in silent if _had_waited(one, threshold_ns)]
    cut_off = {one.rank for one in hung_too}
    suspects = [
        _suspect(one, now_ns, kind)
        for one in ranks
        if (kind := _kind(one, _age_ns(one, now_ns), stale_ns, begun_ns)) is not None
        and (kind != "silent" or one.rank not in cut_off)
    ]
    waiting = [one for one in [*fresh, *hung_too] if _waits(one)]
    if not any(one.kind in _TRUST for one in suspects):
        suspects += [_suspect(one, now_ns, "behind") for one in _behind(waiting)]
    suspects.sort(key=_suspicion)
    tied = _tied(suspects, len(fresh))
    culprit = suspects[0] if suspects and suspects[0].kind in _TRUST and not tied else None
    victims = sum(culprit is None or one.rank != culprit.rank for one in waiting)
    on_host = _host_ranks(culprit, suspects, ranks)
    reason = (
        _tie_reason(tied, victims, unseen) if tied else _reason(culprit, suspects, victims, unseen, on_host)
    )
    if culprit is None and not tied and all(one.phase == PEERS for one in waiting):
        reason = _peers_reason(ranks, victims, unseen)
    return Hang(
        now_ns - hung_ns, hung_ns / 1e9, culprit, reason, tuple(suspects), victims, host_ranks=on_host
    )


def _host_ranks(culprit: Suspect | None, suspects: list[Suspect], ranks: list[RankStatus]) -> int:
    """How many ranks the culprit's host has, if all are dead or silent as it is, and others run elsewhere; else 0."""
    if culprit is None or culprit.kind not in ("dead", "silent") or not culprit.host:
        return 0
    there = {one.rank for one in ranks if one.host == culprit.host}
    alike = {one.rank for one in suspects if one.kind == culprit.kind}
    return len(there) if 1 < len(there) < len(ranks) and there <= alike else 0


def with_collective(
    found: Hang, collective: CollectiveVerdict, ranks: Iterable[RankStatus], now_ns: int
) -> Hang:
    """The hang with what is wrong with its collectives; a rank named there is the culprit where there was no sure one."""
    reason = f"{found.reason}. {collective.reason[0].upper()}{collective.reason[1:]}"
    named = collective.culprits[0] if collective.culprits else None
    found = replace(found, collective=collective)
    return _with_culprit(found, named, collective.reason, ranks, now_ns) or replace(found, reason=reason)


def with_ras(found: Hang, ras: RasFinding, ranks: Iterable[RankStatus], now_ns: int) -> Hang:
    """The hang with what NCCL's RAS says; a rank that it names is the culprit where nothing else names one."""
    found = replace(found, ras=ras)
    if found.collective is None or not found.collective.culprits:
        changed = _with_culprit(found, ras.named(), f"{ras.reason()}. {found.reason}", ranks, now_ns)
        if changed is not None:
            return changed
    return replace(found, reason=f"{found.reason}. {ras.reason()}")


def _with_culprit(
    found: Hang, named: int | None, reason: str, ranks: Iterable[RankStatus], now_ns: int
) -> Hang | None:
    """The hang with this rank as its culprit, None where it is not known or there is a sure one."""
    known = next((one for one in ranks if one.rank == named), None)
    if known is None or (found.culprit is not None and found.culprit.kind != "behind"):
        return None
    kept = next((one for one in found.suspects if one.rank == named), None)
    culprit = kept or _suspect(known, now_ns, "behind")
    others = tuple(one for one in found.suspects if one.rank != named)
    victims = found.victims - (found.culprit is None and known.state == "communication")
    return replace(found, culprit=culprit, suspects=(culprit, *others), victims=victims, reason=reason)


def _is_excused_unseen(silent: list[RankStatus], fresh: list[RankStatus], now_ns: int) -> bool:
    """Whether a silent rank may still be in the planned phase where it was last seen, so that the others rightly wait."""
    newest = max(map(_progress, fresh))
    left_ns = {state: max(one.planned.get(state, 0) for one in fresh) for state in {s.state for s in silent}}
    for one in silent:
        spent_ns = 0 if one.generates else _planned_ns(one)
        if one.state not in PLANNED or spent_ns + _age_ns(one, now_ns) > one.limit_ns:
            continue
        is_over = _progress(one) < newest or left_ns[one.state] >= max(spent_ns, 1)
        if one.generates or not is_over:
            return True
    return False


def _progress(one: RankStatus) -> tuple[int, int]:
    return one.attempt, -1 if one.step is None else one.step


def _age_ns(one: RankStatus, now_ns: int) -> int:
    return max(now_ns - one.received_ns, 0)


def _idle_ns(one: RankStatus) -> int:
    return max(one.seen_ns - one.last_progress_ns, 0)


def _is_stuck(one: RankStatus, threshold_ns: int) -> bool:
    """Whether it had been without progress for too long at its last report."""
    idle_ns, there_ns = _idle_ns(one), max(one.seen_ns - one.phase_since_ns, 0)
    limit_ns = max(PROFILED_NS if one.is_profiled else one.limit_ns, threshold_ns)
    if one.generates or one.is_profiled:
        return there_ns > (threshold_ns if one.state == "communication" else limit_ns)
    if one.state in PLANNED:
        return _planned_ns(one) > limit_ns
    if idle_ns > limit_ns:
        return True
    if one.step is None:
        return _waits(one) and there_ns > threshold_ns
    return (there_ns if any(one.planned.values()) else idle_ns) > threshold_ns


def _had_waited(one: RankStatus, threshold_ns: int) -> bool:
    """Whether at its last report it had waited in a collective for longer than nearly all steps take."""
    waited_ns = min(one.seen_ns - one.phase_since_ns, _idle_ns(one))
    return one.state == "communication" and waited_ns > threshold_ns // TIMES


def _planned_ns(one: RankStatus) -> int:
    """How long it had been in its present planned state since its last progress, at its last report."""
    return one.planned.get(one.state, 0) + min(max(one.seen_ns - one.phase_since_ns, 0), _idle_ns(one))


def _kind(one: RankStatus, age_ns: int, stale_ns: int, begun_ns: int) -> str | None:
    """What it is suspected of. The culprit's last report cannot be much older than the hang."""
    if one.ended == "finished":
        return "finished" if age_ns <= begun_ns else None
    if one.ended or not one.alive:
        return "dead" if age_ns <= begun_ns else "dead before"
    if age_ns > stale_ns:
        return "silent" if age_ns <= begun_ns else "silent before"
    return None if _waits(one) else "elsewhere"


def _waits(one: RankStatus) -> bool:
    """Whether it waits for other ranks: in a collective, or for them to start."""
    return one.state == "communication" or one.phase == PEERS


def _suspect(one: RankStatus, now_ns: int, kind: str) -> Suspect:
    seconds = (max(one.seen_ns - one.phase_since_ns, 0) + _age_ns(one, now_ns)) / 1e9
    return Suspect(one.rank, one.host, one.attempt, one.phase, seconds, one.step, kind, one.ended)


def _suspicion(one: Suspect) -> tuple:
    step = -1 if one.step is None else one.step
    return _TRUST.get(one.kind, len(KINDS)), step, -one.seconds, one.rank


def _tied(suspects: list[Suspect], ranks: int) -> list[Suspect]:
    """The leading suspects between which nothing decides; empty if the first one stands out."""
    first = suspects[0] if suspects else None
    if first is None or first.kind != "elsewhere":
        return []
    alike = [
        one for one in suspects if (one.kind, one.phase, one.step) == (first.kind, first.phase, first.step)
    ]
    if len(alike) < 2:
        return []
    is_everybody = len(alike) == len(suspects) == ranks
    return alike if is_everybody or first.seconds - alike[1].seconds <= TIE_SECONDS else []


def _tie_reason(tied: list[Suspect], victims: int, unseen: int) -> str:
    where = "no phase" if tied[0].phase == "none" else tied[0].phase
    after = "before their first step" if tied[0].step is None else f"after step {tied[0].step}"
    text = f"undecided: {_ranks(len(tied))} are in {where} {after}, so none of them stands out"
    waits = f"; {_ranks(victims)} wait{'s' * (victims == 1)} in communication" if victims else ""
    return text + waits + (f"; {_ranks(unseen)} never reported" if unseen else "")


def _behind(waiting: list[RankStatus]) -> list[RankStatus]:
    """The one rank with fewer steps than all others that wait, if there is one."""
    steps = sorted((-1 if one.step is None else one.step, one.rank) for one in waiting)
    if len(steps) < 2 or steps[0][0] == steps[1][0]:
        return []
    return [one for one in waiting if one.rank == steps[0][1]]


def _reason(culprit: Suspect | None, suspects: list[Suspect], victims: int, unseen: int, on_host: int) -> str:
    if culprit is None:
        before = [one for one in suspects if one.kind not in _TRUST]
        text = f"undecided: {_ranks(victims)} wait{'s' * (victims == 1)} in communication and no rank is elsewhere, "
        text += "so it may be the network, or a collective that not all ranks entered in the same order"
        if before:
            text += f"; {_who(before[0])} was {before[0].kind} the others stopped"
        return text + (f"; {_ranks(unseen)} never reported" if unseen else "")
    waits = f"{_ranks(victims)} wait{'s' * (victims == 1)} in communication"
    if not victims:
        waits = "no rank waits in communication, it stopped first"
    if culprit.kind == "behind":
        done = "no step" if culprit.step is None else f"step {culprit.step}"
        return (
            f"all wait in communication, but {_who(culprit)} has completed {done} and the others more: "
            "it waits in another collective than they do"
        )
    if on_host:
        return f"host {culprit.host} {_does(culprit)}: all {on_host} of its ranks; {waits}"
    return f"{_who(culprit)} {_does(culprit)}; {waits}"


def _peers_reason(ranks: list[RankStatus], victims: int, unseen: int) -> str:
    """Why ranks wait for others to start; those that never reported are named where the numbers of all are known."""
    text = f"{_ranks(victims)} wait{'s' * (victims == 1)} in init_process_group for the other ranks to start"
    known = {one.rank for one in ranks}
    missing = tuple(rank for rank in range(len(known) + unseen) if rank not in known)
    if not missing:
        return f"{text}, and all ranks have reported: look at the address and the network of the rendezvous"
    has = "has" if len(missing) == 1 else "have"
    return f"{text}; {ranks_text(missing)} of {len(known) + unseen} {has} never reported"


def _does(one: Suspect) -> str:
    where = "no phase" if one.phase == "none" else one.phase
    if one.kind == "finished":
        return "has finished" if one.step is None else f"has finished after step {one.step}"
    if one.kind == "dead":
        return f"is dead ({one.ended or 'killed'}), last in {where}"
    if one.kind == "silent":
        return f"is not reported any more, last seen in {where}"
    return f"is in {where}"


def _who(one: Suspect) -> str:
    return f"rank {one.rank} on {one.host or 'an unnamed host'}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"
