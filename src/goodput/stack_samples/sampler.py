"""Which rank is sampled, and when: those that spend time in no phase, within a bounded share of one core.

A rank whose main thread was in no phase for IDLE_SHARE_MIN of its time since the last poll is sampled for
BURST_SECONDS, then after PAUSE_SECONDS again, after twice that, up to PAUSE_SECONDS_MAX between two bursts. One rank
is sampled at a time, and all py-spy processes together use at most CPU_SHARE_MAX of one core. Where no rank is idle,
`choose` costs some 5 us a rank.

    sampler = StackSampler(Recorder(find_py_spy()))
    path = sampler.choose([(path, snapshot), ...])     # at every poll
    if path is not None: sampler.sample(path, pid)     # takes BURST_SECONDS
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from goodput.defaults import BEFORE_FORWARD, ESTIMATED_LOADER, ESTIMATED_OPTIMIZER
from goodput.rank_page import page
from goodput.rank_page.reader import Reader, Snapshot
from goodput.stack_samples import sample_file
from goodput.stack_samples.places import places
from goodput.stack_samples.py_spy import Recorder, Recording
from goodput.wire.sampled_stacks import SampledStacks

STEPS_MIN, IDLE_SHARE_MIN, RANKS_MAX = 5, 0.02, 32
PAUSE_SECONDS, PAUSE_SECONDS_MAX, POLL_SECONDS, RETRY_SECONDS = 60.0, 3600.0, 60.0, 5.0
CPU_SHARE_MAX = 0.005
# Phases that look like no phase in a stack: a burst with more of them is not used.
BUILT_IN = (*page.PHASES, BEFORE_FORWARD, ESTIMATED_LOADER, ESTIMATED_OPTIMIZER)
OTHER_SHARE_MAX = 0.1
TAKEN, DISCARDED, FAILED, REFUSED = "taken", "discarded", "failed", "refused"

Totals = dict[str, int]  # ns by phase


@dataclass
class Followed:
    """A rank: its totals at the last poll, when that was, and when it may be sampled next (monotonic seconds)."""

    totals: Totals
    polled: float
    due: float
    bursts: int = 0


class StackSampler:
    """The ranks of one node or command. `choose` and `sample` may be called by different threads, one at a time."""

    def __init__(
        self,
        recorder: Recorder,
        delay_seconds: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """`delay_seconds` is the time from a rank's first poll to its first burst."""
        self._recorder, self._delay_seconds, self._monotonic = recorder, delay_seconds, monotonic
        self._followed: dict[str, Followed] = {}
        self._due = 0.0  # by the CPU time of the last burst
        self.outcomes: Counter[str] = Counter(dict.fromkeys((TAKEN, DISCARDED, FAILED, REFUSED), 0))
        self.cpu_seconds = 0.0

    def choose(self, ranks: Iterable[tuple[str, Snapshot]]) -> str | None:
        """The page of the rank to sample now: of the idle ones that are due the one sampled least, or None."""
        now, followed = self._monotonic(), {}
        found: list[tuple[int, str]] = []
        for path, snapshot in ranks:
            if snapshot.steps_done < STEPS_MIN or len(followed) >= RANKS_MAX:
                continue
            totals = totals_of(snapshot)
            one = followed[path] = self._followed.get(path) or Followed(
                totals, now, now + self._delay_seconds
            )
            if now >= one.due and shares(one.totals, totals)[0] >= IDLE_SHARE_MIN:
                found.append((one.bursts, path))
            elif now - one.polled >= POLL_SECONDS:
                one.totals, one.polled = totals, now
        self._followed = followed
        if now < self._due:
            return None
        return next((path for _, path in sorted(found) if not self._is_sampled_elsewhere(path, now)), None)

    def _is_sampled_elsewhere(self, path: str, now: float) -> bool:
        """Whether the agent and `goodput run` both see this rank and the other one sampled it just now."""
        age = time.time() - sample_file.written_ns(path) / 1e9
        if not 0 <= age < PAUSE_SECONDS:
            return False
        self._followed[path].due = now + PAUSE_SECONDS - age
        return True

    def sample(self, path: str, pid: int, problem: Callable[[], str] = str) -> None:
        """Sample the process of a page, and add the counts to its file. Raises PageError or OSError.

        `problem` returns why the process is not the page's, "" if it is. Where it has a reason, before the samples
        are taken or after, there are none.
        """
        one = self._followed.setdefault(path, Followed({}, self._monotonic(), 0.0))
        with Reader(path) as reader:
            start_ns = reader.identity["start_unix_ns"]
            before = totals_of(reader.snapshot(page.NS_MAX, page.NS_MAX))
            reason = problem()
            recording = Recording("") if reason else self._recorder.record(pid)
            reason = reason or (problem() if recording.raw else "")
            if reason:
                recording = Recording("", reason, recording.cpu_seconds)
            after = totals_of(reader.snapshot(page.NS_MAX, page.NS_MAX))
        now = self._monotonic()
        one.totals, one.polled = after, now
        self._due = now + recording.cpu_seconds / CPU_SHARE_MAX
        self.cpu_seconds += recording.cpu_seconds
        if not recording.reason and shares(before, after)[1] > OTHER_SHARE_MAX:
            one.due = now + RETRY_SECONDS
            self.outcomes[DISCARDED] += 1
            return
        pause = PAUSE_SECONDS_MAX if recording.reason else PAUSE_SECONDS * 2.0 ** min(one.bursts, 8)
        one.due = now + min(pause, PAUSE_SECONDS_MAX)
        one.bursts += 1
        if self._recorder.is_stopped:
            return
        self.outcomes[REFUSED if reason else FAILED if recording.reason else TAKEN] += 1
        add_samples(path, start_ns, recording)

    def stop(self) -> None:
        self._recorder.stop()


def add_samples(path: str, start_ns: int, recording: Recording) -> None:
    """Add a burst to the page's file. Raises OSError. Without samples, a file that has some stays as it is."""
    known = sample_file.read(path, start_ns)
    if recording.reason and known.samples:
        return
    new = places(recording.raw)
    counts = Counter(known.places) + new
    sample_file.write(path, start_ns, SampledStacks(counts, known.samples + new.total(), recording.reason))


def totals_of(snapshot: Snapshot) -> Totals:
    """Its totals up to now, the running phase included."""
    totals = dict(zip(snapshot.phases, snapshot.totals, strict=False))
    if not snapshot.ended and snapshot.phase in totals:
        totals[snapshot.phase] += max(time.monotonic_ns() - snapshot.last_ns, 0)
    return totals


def shares(before: Totals, after: Totals) -> tuple[float, float]:
    """Shares of the time between two polls in no phase, and in phases that stacks do not show."""
    spent = {name: ns - before.get(name, 0) for name, ns in after.items()}
    total = sum(spent.values())
    if total <= 0:
        return 0.0, 0.0
    idle = spent["none"] + spent.get(BEFORE_FORWARD, 0) + spent.get(ESTIMATED_LOADER, 0)
    other = sum(ns for name, ns in spent.items() if name not in BUILT_IN)
    other += sum(spent.get(name, 0) for name in ("checkpoint", "restore", "evaluation", "compile"))
    return idle / total, other / total
