"""Hang detection for the runs in the store, and the stacks of the processes that are blamed.

The verdict is account.hang's, over the newest process of each rank. The responses to pushes request the stacks of at
most SUSPECTS_PER_HANG suspects until they arrive, and again STACK_AGE_SECONDS later. The newest stack of each is kept
while the hang lasts, STACKS_KEPT_MAX in all. A run with a recent step costs nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec.structs import astuple

from goodput.account import collective_verdict, document_types
from goodput.account.collective_verdict import (
    LINK_KINDS,
    CollectiveVerdict,
    NetworkFault,
    with_links,
    with_slow_link,
)
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls, has_rank
from goodput.account.collectives.ras_finding import ras_finding
from goodput.account.collectives.slow_link import stalled_link
from goodput.account.hang import Hang, RankStatus, Suspect, verdict, with_collective, with_ras
from goodput.account.rank_status import rank_status
from goodput.account.stall_threshold import PlannedLimits
from goodput.aggregator.ingest.connections import packed_connections, unpacked
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.known_ranks import KnownRank
from goodput.aggregator.ingest.store import Process, Store
from goodput.aggregator.records import own_stack_request
from goodput.slices import AT_A_TIME, Slices, result_of
from goodput.wire import schema

SUSPECTS_PER_HANG = 4
STACK_AGE_SECONDS = 300.0
STACKS_KEPT_MAX = 256
LINKS_BEFORE_NS = 300 * 10**9  # a link that fails breaks transfers at once, which the ranks may notice late


class HangDetector:
    """`counts` has the stacks that were accepted, and those ignored because they were not requested."""

    def __init__(
        self,
        store: Store,
        *,
        stall_seconds: float,
        stale_seconds: float,
        clock_ns=time.time_ns,
        health: HealthLog | None = None,
    ):
        self.counts: Counter = Counter(accepted=0, ignored=0)
        self._store, self._clock_ns = store, clock_ns
        self._health = HealthLog() if health is None else health
        self._least_ns, self._stale_ns = int(stall_seconds * 1e9), int(stale_seconds * 1e9)
        # Processes from the ledger have not reported to this aggregator; their silence counts from here.
        self._began_ns = clock_ns()
        self._requests: dict[str, list[schema.StackRequest]] = {}  # by run, while it hangs
        self._since_ns: dict[str, int] = {}  # by run, while it hangs
        self._answered_ns: dict[schema.StackRequest, int] = {}
        self._stacks: dict[schema.StackRequest, schema.Stack] = {}  # oldest first

    def may_hang(self, run: str, now_ns: int) -> bool:
        """False when a step completed so recently that evaluating the run is pointless."""
        return not 0 <= now_ns - self._store.progress_ns.get(run, 0) < self._least_ns // 2

    def is_hanging(self, run: str) -> bool:
        """Whether the last verdict on a run was that it hangs."""
        return run in self._since_ns

    def evaluate(
        self, run: str, now_ns: int, threshold_ns: int, world_size: int, planned: PlannedLimits | None = None
    ) -> Hang | None:
        """The verdict on a run that may hang; from now on its suspects' stacks are requested."""
        return result_of(self.evaluating(run, now_ns, threshold_ns, world_size, planned))

    def evaluating(
        self, run: str, now_ns: int, threshold_ns: int, world_size: int, planned: PlannedLimits | None = None
    ) -> Slices[Hang | None]:
        """As `evaluate`, in slices: 10 us a rank, and more of one that reports its collectives."""
        processes = dict(self._store.newest.get(run, {}))
        if self._awaits_reports(processes.values(), now_ns):
            return None
        limits = PlannedLimits() if planned is None else planned
        left_out, seen = self._store.runs[run].left_out(), []
        for at, (rank, one) in enumerate(processes.items()):
            if at % AT_A_TIME == 0:
                yield
            if rank not in left_out:
                seen.append(self._seen(one, limits))
        yield
        unseen = max(world_size - len(seen), 0)
        found = verdict(seen, now_ns, threshold_ns, stale_ns=self._stale_ns, unseen=unseen)
        yield
        collective = None if found is None else (yield from self._comparing(processes, seen, now_ns))
        if found is None or run not in self._store.runs:  # It was deleted meanwhile.
            self.clear(run)
            return None
        if collective is not None:
            link = stalled_link(unpacked(packed_connections(processes.values())))
            collective = with_slow_link(collective, link, _is_waiting(collective, seen))
            collective = with_links(collective, self._links(run, collective, found.since_ns))
            found = with_collective(found, collective, seen, now_ns)
        answers = [one.ras[1:] for one in processes.values() if one.ras is not None]
        if answers:
            pids = {rank: one.identity.pid for rank, one in processes.items()}
            ras = ras_finding(answers, pids, len(seen) + unseen)
            found = found if ras is None else with_ras(found, ras, seen, now_ns)
        alive = [one for one in found.suspects if one.kind in ("elsewhere", "behind")][:SUSPECTS_PER_HANG]
        self._requests[run] = [own_stack_request(processes[one.rank].identity) for one in alive]
        # Clients identify a hang by its start, which each evaluation computes slightly differently.
        return replace(found, since_ns=self._since_ns.setdefault(run, found.since_ns))

    def move(self, step_ns: int) -> None:
        """Our clock was set forward by so much."""
        self._began_ns += step_ns
        self._since_ns = {run: ns + step_ns for run, ns in self._since_ns.items()}
        self._answered_ns = {process: ns + step_ns for process, ns in self._answered_ns.items()}

    def clear(self, run: str) -> None:
        """Forget a hang of a run that does not hang (any more)."""
        self._since_ns.pop(run, None)
        if self._requests.pop(run, None) is None:
            return
        for kept in (self._answered_ns, self._stacks):
            for process in [process for process in kept if process.run == run]:
                del kept[process]

    def document(self, run: str, found: Hang) -> document_types.Hang:
        """The hang with the stack of its culprit, else of the first suspect that has one."""
        stack = next(filter(None, (self._stack(run, one) for one in found.suspects)), None)
        return {
            **found.document(),
            "stack": stack.text if stack else None,
            "stack_rank": stack.of.rank if stack else None,
            "stack_time": stack.time_ns / 1e9 if stack else None,
        }

    def stack_requests(self, reports: Sequence[schema.RankReport | KnownRank]) -> list[schema.StackRequest]:
        """The stacks to request from the agent that pushed these reports."""
        if not self._requests:
            return []
        now_ns = self._clock_ns()
        pushed = [
            schema.stack_request(report.identity)
            for report in reports
            if report.identity.run in self._requests
        ]
        due = [one for one in pushed if one in self._requests[one.run] and self._is_due(one, now_ns)]
        return due[: schema.STACK_REQUESTS_MAX]

    def add_stacks(self, stacks: Sequence[schema.Stack]) -> None:
        """Keep the stacks that were requested."""
        for stack in stacks[: schema.STACKS_MAX]:
            accepted = stack.of in self._requests.get(stack.of.run, ()) and schema.is_stack(stack)
            self.counts["accepted" if accepted else "ignored"] += 1
            if accepted:
                self._answered_ns[stack.of] = self._clock_ns()
                self._stacks.pop(stack.of, None)
                self._stacks[stack.of] = stack
        self.counts["ignored"] += len(stacks[schema.STACKS_MAX :])
        while len(self._stacks) > STACKS_KEPT_MAX:
            del self._stacks[next(iter(self._stacks))]

    def _awaits_reports(self, processes: Iterable[Process], now_ns: int) -> bool:
        """Whether a process that the ledger knows as alive may still report after a restart of the aggregator."""
        if now_ns - self._began_ns > self._stale_ns:
            return False
        return any(one.attempt.known_end_ns() is None and not one.attempt.received_ns for one in processes)

    def _is_due(self, process: schema.StackRequest, now_ns: int) -> bool:
        answered_ns = self._answered_ns.get(process)
        return answered_ns is None or not 0 <= now_ns - answered_ns < STACK_AGE_SECONDS * 1e9

    def _stack(self, run: str, suspect: Suspect) -> schema.Stack | None:
        return self._stacks.get(own_stack_request(self._store.newest[run][suspect.rank].identity))

    def _comparing(
        self, processes: dict[int, Process], seen: list[RankStatus], now_ns: int
    ) -> Slices[CollectiveVerdict | None]:
        """What is wrong with the collectives of these ranks, None if nothing is known of it."""
        if not any(one.collectives for one in processes.values()):
            return None
        calls = []
        for at, one in enumerate(seen):
            if at % AT_A_TIME == 0:
                yield
            calls.append(_calls_of(one, processes[one.rank], now_ns, self._stale_ns))
        yield
        return collective_verdict.verdict(calls)

    def _links(self, run: str, found: CollectiveVerdict, since_ns: int) -> list[NetworkFault]:
        """What agents reported of links of the group's nodes since shortly before the hang, the newest of each link."""
        newest: dict[tuple[str, str], NetworkFault] = {}
        for (node, _), event in sorted(self._health.of_run(run), key=lambda one: (one[1].time_ns, one[0])):
            if event.kind not in LINK_KINDS or event.time_ns < since_ns - LINKS_BEFORE_NS:
                continue
            if any(one == run and has_rank(found.group, rank) for one, rank in event.hits):
                text = "the link went down and came up again" if event.kind == "link_up" else event.text
                fault = NetworkFault(node, event.device, event.kind, text or event.kind, event.time_ns)
                newest[node, event.device] = fault
        return list(newest.values())

    def _seen(self, process: Process, limits: PlannedLimits) -> RankStatus:
        received_ns = max(process.attempt.received_ns, self._began_ns)
        return rank_status(process.attempt, process.last, limits, received_ns)


def _is_waiting(found: CollectiveVerdict, seen: Iterable[RankStatus]) -> bool:
    """Whether the rank that is named first lives and waits in a call itself."""
    named = next((one for one in seen if one.rank in found.culprits[:1]), None)
    return named is not None and named.alive and not named.ended and named.state == "communication"


def _calls_of(one: RankStatus, process: Process, now_ns: int, stale_ns: int) -> RankCalls:
    """A rank's collectives; where it reports none it is unknown which groups it uses."""
    reported, age_ns = process.collectives, max(now_ns - one.received_ns, 0)
    if one.ended == "finished":
        gone = "finished"
    elif one.ended or not one.alive:
        gone = "dead"
    else:
        gone = "silent" if age_ns > stale_ns else ""
    groups = tuple(
        GroupCalls(
            group.name,
            group.description,
            group.backend,
            group.size,
            group.ranks,
            group.calls,
            tuple(Call(*astuple(call)) for call in group.recent),
        )
        for group in (reported.groups if reported else ())
    )
    is_whole, is_stopped = (reported.is_whole, reported.is_stopped) if reported else (False, False)
    return RankCalls(one.rank, one.host, one.phase, gone, one.seen_ns, age_ns, groups, is_whole, is_stopped)
