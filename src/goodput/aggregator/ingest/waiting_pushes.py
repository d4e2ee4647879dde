"""Pushes that wait to be merged, round-robin over tokens: a push of many rows delays only others of its token."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from goodput.aggregator.clock import Offset
from goodput.aggregator.ingest.pushed_steps import PushedSteps
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
# Pushes that are answered in one turn of the event loop.
ANSWERED_AT_ONCE = 128
# What a rank costs beside its rows and events, in rows.
RANK_ROWS = 8
# A page that was read longer before it was sent is taken for one whose agent does not say when.
PAGE_AGE_NS_MAX = 30 * 86_400 * 10**9


class Part(NamedTuple):
    """A rank report, or some of the steps of one, to be merged; `steps` None are not decoded yet."""

    report: schema.RankReport
    steps: PushedSteps | None = None

    @property
    def weight(self) -> int:
        """What merging it costs, in rows."""
        rows = (
            sum([block.count for block in self.report.blocks])
            if self.steps is None
            else self.steps.values.shape[1]
        )
        return rows + len(self.report.events) + RANK_ROWS

    def runs(self) -> set[str]:
        return {self.report.identity.run}


class SomeRanks(Protocol):
    """Part, or known_ranks.KnownPart."""

    @property
    def weight(self) -> int: ...

    def runs(self) -> set[str]: ...


@dataclass
class Push:
    """A push that waits to be merged: its parts that are left, the next one last, and the rejections of its ranks.

    `token` is the id of a token for some runs, whose share of the bounds is limited, else ""; pushes of each `owner`, also
    of a token for all runs, wait in turns with those of others.
    """

    parts: list[SomeRanks]
    token: str
    rejected: list[schema.Rejection]
    refused: set[schema.Identity] = field(default_factory=set)  # reports of which a part was rejected
    owner: str = ""
    error: BaseException | None = None  # why the push failed
    batch: int = 0  # the transaction with what was merged last
    seconds: float = 0.0  # of CPU time that it took
    since: float = field(default_factory=time.monotonic)
    sent_ns: int = 0  # by the node's clock
    arrived_ns: int = 0  # by ours
    offset: Offset | None = None  # of the node's clock, as known with this push

    def page_age_ns(self, sequence: int) -> int | None:
        """How old the page of a report was when it was sent, by the node's clock; None if its agent does not say."""
        age_ns = self.sent_ns - sequence
        return age_ns if self.sent_ns > 0 and 0 <= age_ns <= PAGE_AGE_NS_MAX else None

    def read_ns(self, sequence: int, now_ns: int) -> int:
        """When the agent read the page of a report, on our clock; `now_ns` if it does not say when."""
        age_ns = self.page_age_ns(sequence)
        return now_ns if age_ns is None else min(self.arrived_ns - age_ns, now_ns)


class WaitingPushes:
    """Of each token the pushes in the order of their arrival."""

    def __init__(self):
        # No queue is empty; the token in front is next.
        self._queues: OrderedDict[str, deque[Push]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, push: Push) -> None:
        if push.parts:
            self._queues.setdefault(push.owner, deque()).append(push)

    def discard(self, push: Push) -> None:
        """Forget what was not merged of a push."""
        push.parts.clear()
        queue = self._queues.get(push.owner)
        if queue and push in queue:
            queue.remove(push)
            if not queue:
                del self._queues[push.owner]

    def since(self) -> float:
        """When the one that waits longest began to."""
        return min((queue[0].since for queue in self._queues.values()), default=time.monotonic())

    def runs(self) -> set[str]:
        pushes = [push for queue in self._queues.values() for push in queue]
        return set().union(*[part.runs() for push in pushes for part in push.parts])

    def take(self, weight_max: int) -> list[tuple[Push, SomeRanks]]:
        """The next parts, of about this weight: of each token in turn its share of what is left, and at least one."""
        found, left = [], weight_max
        while self._queues and left > 0:
            share = max(left // len(self._queues), 1)
            token, queue = self._queues.popitem(last=False)
            while queue and share > 0:
                push = queue[0]
                part = push.parts.pop()
                if not push.parts:
                    queue.popleft()
                found.append((push, part))
                weight = part.weight
                share, left = share - weight, left - weight
            if queue:
                self._queues[token] = queue
        return found


def call_in_turns(answers: list[Callable[[], object]]) -> None:
    """Call these, each of which answers a push: ANSWERED_AT_ONCE in each turn of the event loop."""
    for answer in answers[:ANSWERED_AT_ONCE]:
        try:
            answer()
        except Exception:
            log.exception("a push was not answered")  # The others are.
    if len(answers) > ANSWERED_AT_ONCE:
        asyncio.get_running_loop().call_soon(call_in_turns, answers[ANSWERED_AT_ONCE:])
