"""The node agents of a scenario: they push what its runs do, and some pushes are lost, late, repeated or unanswered.

with Cluster(scenario, url) as cluster:
    for now in ...:
        cluster.advance(now); cluster.push(now)
    truth = cluster.truth(now)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from random import Random
from threading import local

import msgspec

from goodput.simulate.reports import acknowledge, pending
from goodput.simulate.run import Attempt, SimulatedRun
from goodput.simulate.scenario import EPOCH_SECONDS, gpu_uuid, nanoseconds, unix_ns, within
from goodput.simulate.scenario_file import RunEntry, ScenarioFile, largest
from goodput.simulate.truth import RunTruth
from goodput.wire import schema

PUSHES_AT_ONCE = 4
TRIES_MAX = 100
Post = Callable[[bytes], "bytes | None"]  # the answer's body, None where there is none


@dataclass
class _Push:
    node: str
    ranks: list[tuple[Attempt, int]]
    health: int
    body: bytes
    sent_ns: int
    outcome: str = ""


class Cluster:
    """`connect` makes a `Post` for a thread; `start_unix` is when the scenario begins, on the nodes' clocks."""

    def __init__(
        self, scenario: ScenarioFile, connect: Callable[[], Post], start_unix: float = EPOCH_SECONDS
    ):
        self.scenario, self._connect, self._shift_ns = (
            scenario,
            connect,
            nanoseconds(start_unix - EPOCH_SECONDS),
        )
        self.truths, self.runs = [], []
        for entry in scenario.runs:
            truth = RunTruth(entry.plan())
            self.truths.append(truth)
            self.runs.append(SimulatedRun(truth.plan, on_span=truth.on_span, on_end=truth.on_end))
        self.nodes = [
            run.node(rank) for run in scenario.runs for rank in range(0, largest(run), run.gpus_per_node)
        ]
        self._agent_version = version("goodput-telemetry")  # which is read from a file
        self.counts: Counter[str] = Counter()
        self.refusals: list[str] = []
        self._places = {node: at for at, node in enumerate(self.nodes)}
        self._outages = {
            node: [(o.start, o.end) for o in scenario.outages if o.node == node] for node in self.nodes
        }
        self._clocks = {
            node: sorted((c.start, c.ahead) for c in scenario.clocks if c.node == node) for node in self.nodes
        }
        self._health, self._known_health = _health_of(scenario, self._shift_ns), dict.fromkeys(self.nodes, 0)
        self._sent_ns: dict[str, int] = {}
        self._late: list[tuple[float, bytes]] = []
        self._random, self._threads, self._local = Random(scenario.seed), None, local()

    def __enter__(self) -> Cluster:
        self._threads = ThreadPoolExecutor(PUSHES_AT_ONCE)
        return self

    def __exit__(self, *_) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def advance(self, now: float) -> None:
        for run in self.runs:
            run.advance(now)

    def is_delivered(self) -> bool:
        return all(run.finished() and not run.unreported for run in self.runs) and not self._late

    def push(self, now: float, share: int = 0, of: int = 1) -> None:
        """Let the agents of every `of`-th node push, beginning with node `share`."""
        assert self._threads is not None
        due = [node for node in self.nodes if self._places[node] % of == share and self._reaches(node, now)]
        ranks: dict[str, list] = {node: [] for node in due}
        for run in self.runs:
            for attempt, rank, report in pending(
                run, now, ranks.__contains__, self._ahead_ns, self._shift_ns
            ):
                ranks[attempt.plan.places[rank][0]].append((attempt, rank, report))
        late = [body for at, body in self._late if at <= now]
        self._late = [one for one in self._late if one[0] > now]
        pushes = [one for node in due if (one := self._push_of(node, ranks[node], now)) is not None]
        for push, answer in zip(pushes, self._threads.map(self._deliver, pushes), strict=True):
            self._take(push, answer, now)
        list(self._threads.map(self._post, late))

    def truth(self, now: float) -> dict:
        """As JSON: what all runs truly did up to now."""
        unseen = frozenset(
            node for node in self.nodes if any(a <= 0 and b >= now for a, b in self._outages[node])
        )
        runs = []
        for truth, run in zip(self.truths, self.runs, strict=True):
            end_ns = truth.end_ns()
            runs.append(truth.document(run, nanoseconds(now) if end_ns is None else end_ns, unseen))
        return {
            "scenario": msgspec.to_builtins(self.scenario),
            "start_unix_seconds": EPOCH_SECONDS + self._shift_ns / 1e9,
            "runs": runs,
            "health": [
                {"run": run, "kind": event.kind, "severity": event.severity}
                for events in self._health.values()
                for event in events
                for run in sorted({run for run, _ in event.hits})
            ],
        }

    # ---- Parts

    def _reaches(self, node: str, now: float) -> bool:
        return not within(now, self._outages[node])

    def _ahead_ns(self, node: str, at: float) -> int:
        ahead = [seconds for start, seconds in self._clocks[node] if start <= at]
        return self._shift_ns + nanoseconds(ahead[-1] if ahead else 0.0)

    def _push_of(self, node: str, ranks: list, now: float) -> _Push | None:
        """None where there is nothing to push."""
        until_ns = unix_ns(nanoseconds(now)) + self._shift_ns
        events = [one for one in self._health[node][self._known_health[node] :] if one.time_ns <= until_ns]
        if not ranks and not events:
            return None
        sent_ns = unix_ns(nanoseconds(now)) + self._ahead_ns(node, now)
        report = schema.NodeReport(
            node=node,
            sent_ns=sent_ns,
            ranks=[schema.in_blocks(report) for _, _, report in ranks],
            health=events,
            previous_sent_ns=self._sent_ns.get(node, 0),
            previous_took_ns=5_000_000,
            agent=self._agent_version,
        )
        known = [(attempt, rank) for attempt, rank, _ in ranks]
        push = _Push(node, known, len(events), schema.encode(report), sent_ns)
        chance, delivery = self._random.random(), self.scenario.delivery
        for outcome in ("lost", "unanswered", "repeated", "late"):
            share = getattr(delivery, outcome)
            if chance < share:
                push.outcome = outcome
                break
            chance -= share
        return push

    def _deliver(self, push: _Push) -> bytes | None:
        """The answer that the agent gets; in a thread."""
        if push.outcome in ("lost", "late"):
            return None
        answer = self._post(push.body)
        if push.outcome == "repeated":
            answer = self._post(push.body)
        return None if push.outcome == "unanswered" else answer

    def _post(self, body: bytes) -> bytes | None:
        if not hasattr(self._local, "post"):
            self._local.post = self._connect()
        return self._local.post(body)

    def _take(self, push: _Push, answer: bytes | None, now: float) -> None:
        self.counts[push.outcome or ("accepted" if answer is not None else "failed")] += 1
        if push.outcome == "late":
            self._late.append((now + self._random.uniform(1, 3) * self.scenario.push_every, push.body))
        if answer is None:
            return
        ack = schema.decode_ack(answer)
        rejected = {(one.run, one.rank) for one in ack.rejected}
        self.refusals += [f"{one.run} rank {one.rank}: {one.reason}: {one.text}" for one in ack.rejected]
        self._sent_ns[push.node] = push.sent_ns
        self._known_health[push.node] += push.health
        names = {id(one): run.name for run in self.runs for one in run.unreported}
        for attempt, rank in push.ranks:
            if (names.get(id(attempt)), rank) not in rejected:
                acknowledge(attempt, rank, now)


def _health_of(scenario: ScenarioFile, shift_ns: int) -> dict[str, list[schema.Health]]:
    """The events of each node, in order, with the ranks that use the device."""
    found: dict[str, list[schema.Health]] = {
        run.node(rank): [] for run in scenario.runs for rank in range(largest(run))
    }
    for one in sorted(scenario.health, key=lambda entry: entry.time):
        events = found[one.node]
        hits = [(run.run, rank) for run in scenario.runs for rank in _ranks_on(run, one.node, one.gpu)]
        events.append(
            schema.Health(
                number=len(events) + 1,
                kind=one.kind,
                device=one.link if one.gpu is None else gpu_uuid(one.node, one.gpu),
                time_ns=unix_ns(nanoseconds(one.time)) + shift_ns,
                code=one.code,
                name=one.name,
                severity=one.severity,
                hits=hits,
            )
        )
    return found


def _ranks_on(run: RunEntry, node: str, gpu: int | None) -> list[int]:
    return [
        rank
        for rank in range(largest(run))
        if run.node(rank) == node and gpu in (None, rank % run.gpus_per_node)
    ]
