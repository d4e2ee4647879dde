"""The GPUs that runs of one token have together while they report; a token may be limited to so many.

A run has its world size times the devices of a rank, which is what counts as allocated, observed or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from goodput.wire import schema

# A run that has not been reported for so long leaves its GPUs to the token's other runs.
REPORTING_NS = 120 * 10**9


class _RunGpus(NamedTuple):
    gpus: int
    attempt: int  # the newest, which has them
    reported_ns: int


@dataclass
class TokenGpus:
    """`limit_of(token_id)` is how many GPUs the token may have; None is no limit."""

    limit_of: Callable[[str], int | None] = lambda token: None
    _runs: dict[str, dict[str, _RunGpus]] = field(default_factory=dict)  # by token and run

    def add(self, token: str, identity: schema.Identity, now_ns: int) -> str | None:
        """Note that a rank reports by a token. Returns why it may not, None if it may."""
        most = self.limit_of(token)
        if most is None:
            self._runs.pop(token, None)
            return None
        runs = self._runs.setdefault(token, {})
        gpus, before = identity.world_size * identity.devices, runs.get(identity.run)
        newest = _RunGpus(gpus, identity.attempt, now_ns)
        if before is not None and before.attempt > newest.attempt:
            newest = before._replace(reported_ns=now_ns)
        elif before is not None and before.attempt == newest.attempt:
            newest = newest._replace(gpus=max(gpus, before.gpus))
        is_known = (
            before is not None
            and now_ns - before.reported_ns <= REPORTING_NS
            and max(gpus, newest.gpus) <= before.gpus
        )
        if not is_known:
            recent = {run: one for run, one in runs.items() if now_ns - one.reported_ns <= REPORTING_NS}
            others = sum(one.gpus for run, one in recent.items() if run != identity.run)
            if others + max(gpus, newest.gpus) > most:
                return (
                    f"run {identity.run!r} rank {identity.rank}: with the {max(gpus, newest.gpus)} GPUs of its run (world "
                    f"size times devices) the token would have {others + max(gpus, newest.gpus)}, at most {most} are "
                    "allowed (goodput token create --gpus)"
                )
            runs = self._runs[token] = recent
        runs[identity.run] = newest
        return None
