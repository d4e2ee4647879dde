"""`goodput.checkpoint_due()`: whether saving a checkpoint now is best; checkpoint_adviser.py has the arithmetic.

It knows the saves of this process from its own page, and failures from the pages of this rank's earlier attempts that
are still in the directory, HISTORY_MAX at most. A call looks at the clock; the page is read READS times in an interval,
which takes some 100 us, and the pages of earlier attempts at the first call, 100 us each. A plan of saves takes some 30 ms:
at the first call, after the first save, and once in half a plan, many intervals. Nothing raises, blocks or starts a thread:
where nothing is measured, no checkpoint is due. What cannot be used of the arguments is named once and left out, since a
training that is never told to save loses all its work with the first failure.

Where the job's end is known, the last save is begun early enough to be committed by then if it takes as long as the
slowest of the newest, a tenth of a save more, and is asked for SLACK_STEPS steps late.
"""

from __future__ import annotations

import os
import time
from math import inf, isfinite, nan
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.rank_page.own_pages import paths_of
from goodput.rank_page.page import PageError
from goodput.sdk.recorder.messages import short_repr
from goodput.sdk.reports.checkpoint_adviser import Adviser
from goodput.user_exceptions import reraise_from_handler

HISTORY_MAX = 64
READ_SECONDS_MIN = 0.5
READS = 20  # in an interval
GIVEN_MAX = 1000
ALL = page.NS_MAX - 1  # as the number of a step: none of the ring's are wanted
NO_FAILURE = ("finished", "resumed")
# Of Slurm, in seconds since the epoch: the limit of the job's time lies between them.
START_VARIABLE, END_VARIABLE = "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"
# An earlier attempt that lived as long as the limit, but for so much, was ended by it.
AT_LIMIT_SECONDS, AT_LIMIT_SHARE_MAX, AT_LIMIT_SHARE = 60.0, 0.1, 0.02
SLACK_STEPS = 2
SLACK_SAVES = 0.1
BEGUN_MAX = 64
SAVING_MAX = 3  # times as long as saves take, after which one has failed


class CheckpointDue:
    """One per process. `adviser` is None before the first call that finds a page."""

    def __init__(self, session):
        self._session = session
        self.adviser: Adviser | None = None
        self._process: tuple[str, int] | None = None  # path and attempt that the figures below are of
        self._is_due = self._has_failed = False
        self._next_ns = 0
        self._saved_age = 0.0  # in seconds, at the last save
        self._due_age: float | None = None
        self._event = 0
        self._saving_ns = 0  # in the checkpoint phase up to the last save
        self._begin_ns = 0
        self._begun: dict[int, int] = {}  # when saves that are not committed were begun, by step
        self._commit_seconds = 0.0  # from the begin of the last save until it was committed

    def is_due(self, failures=(), ends=None) -> bool:
        """Never raises. `failures` counts at the first call only."""
        try:
            now_ns = perf_counter_ns()
            writer = self._session.writer
            if now_ns < self._next_ns and not (self._is_due and writer.words[page.W_EVENTS] != self._event):
                return self._is_due
            if writer is None:
                return False
            return self._evaluate(now_ns, failures, ends)
        except Exception as error:
            reraise_from_handler(error)
            self._next_ns = perf_counter_ns() + 10**10
            if not self._has_failed:
                self._has_failed = True
                self._session.warn(
                    f"checkpoint_due does not work: {type(error).__name__}: {short_repr(error)}"
                )
            return False

    def _evaluate(self, now_ns: int, failures, ends) -> bool:
        writer = self._session.writer
        from goodput.rank_page.reader import Reader

        snapshot = Reader(writer.path or "this process's page", writer.fd).snapshot(ALL, self._event)
        process = (writer.path, snapshot.identity["attempt"])
        if self.adviser is None or process != self._process:
            self._begin_ns = snapshot.identity["start_mono_ns"]
            limits = _limits((now_ns - self._begin_ns) / 1e9, ends)
            given, unusable = _lives(failures)
            self.adviser = _informed(snapshot.identity, writer.path, given, limits)
            self._process = process
            if unusable:
                want = "want the seconds that each attempt lived; ignored"
                self._session.warn(f"checkpoint_due(failures=...): {short_repr(unusable[0])}: {want}")
            if ends is not None and not _is_to_come(ends):
                want = "want a time to come, in seconds since the epoch; ignored"
                self._session.warn(f"checkpoint_due(ends={short_repr(ends)}): {want}")
            self._saved_age, self._due_age, self._event, self._saving_ns = 0.0, None, 0, 0
            self._begun, self._commit_seconds = {}, 0.0
        self._follow(snapshot)
        age = (now_ns - self._begin_ns) / 1e9
        if self._due_age is None:
            self.adviser.end = self._end_age(age, snapshot.steps_done, ends)
            self._due_age = self._saved_age + self.adviser.interval(self._saved_age)
        is_saving = self._is_saving(now_ns)
        self._is_due = age >= self._due_age and not is_saving
        wait = READ_SECONDS_MIN
        if not is_saving:
            wait = max((self._due_age - self._saved_age) / READS, READ_SECONDS_MIN)
        if age < self._due_age:
            wait = min(wait, self._due_age - age)
        self._next_ns = now_ns + int(1e9 * wait)
        return self._is_due

    def _is_saving(self, now_ns: int) -> bool:
        """Whether a save was begun that is not committed yet; one that takes far too long has failed."""
        assert self.adviser is not None
        usual = max(self.adviser.save_cost, self.adviser.slowest_seconds, self._commit_seconds)
        return bool(self._begun) and now_ns - max(self._begun.values()) < 1e9 * SAVING_MAX * usual

    def _end_age(self, age: float, steps: int, ends) -> float:
        """The age of this attempt by which the last save has to end; inf where that is unknown."""
        assert self.adviser is not None
        save = self.adviser.save_cost
        slowest = max(self.adviser.slowest_seconds, self._commit_seconds, save)
        slack = slowest - save + SLACK_SAVES * save + SLACK_STEPS * age / max(steps, 1)
        # The two clocks are of one host, and read together.
        return age + _end(ends) - time.time() - slack

    def _follow(self, snapshot) -> None:
        """Note the checkpoints that were committed since the last time, and what they cost."""
        assert self.adviser is not None
        commits = [one for one in snapshot.events if one.kind == "checkpoint_committed"]
        self._event = max([self._event, *(one.number for one in snapshot.events)])
        begun = {one.step: one.time_ns for one in snapshot.events if one.kind == "checkpoint_begun"}
        self._begun = dict([*self._begun.items(), *begun.items()][-BEGUN_MAX:])
        if not commits:
            return
        saving_ns = dict(zip(snapshot.phases, snapshot.totals, strict=False)).get("checkpoint", 0)
        for one in commits:
            self.adviser.note_save((saving_ns - self._saving_ns) / 1e9 / len(commits))
            self._commit_seconds = (one.time_ns - self._begun.pop(one.step, one.time_ns)) / 1e9
        self._saving_ns = saving_ns
        self._saved_age = max((commits[-1].time_ns - self._begin_ns) / 1e9, self._saved_age)
        self._due_age = None


def _lives(failures) -> tuple[list[float], list]:
    """Of the newest GIVEN_MAX lives those in seconds, and the others."""
    try:
        given = list(failures)[-GIVEN_MAX:] if failures is not None else []
    except TypeError:
        return [], [failures]
    is_life = [0 <= _number(one) < inf for one in given]
    lives = [_number(one) for one, is_good in zip(given, is_life, strict=True) if is_good]
    return lives, [one for one, is_good in zip(given, is_life, strict=True) if not is_good]


def _number(given) -> float:
    """NaN for what is none."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return nan


def _informed(identity: dict, path: str, given: list[float], limits: tuple[float, ...]) -> Adviser:
    """An adviser that knows this rank's earlier attempts, or those that are given. `limits` as of `_limits`."""
    adviser = Adviser()
    for seconds in given:
        adviser.note_failure(seconds)
    for earlier in () if given or not path else _earlier(identity, path):
        lived_ns = (earlier.end_ns if earlier.ended else earlier.last_ns) - earlier.identity["start_mono_ns"]
        seconds = max(lived_ns, 0) / 1e9
        has_failed = earlier.ended not in NO_FAILURE and not _is_at_limit(seconds, limits)
        note = adviser.note_failure if has_failed else adviser.note_alive
        note(seconds)
    return adviser


def _is_at_limit(seconds: float, limits: tuple[float, ...]) -> bool:
    """Whether a life was ended by one of the limits."""
    return any(
        abs(seconds - limit) <= max(AT_LIMIT_SHARE * limit, min(AT_LIMIT_SECONDS, AT_LIMIT_SHARE_MAX * limit))
        for limit in limits
    )


def _end(ends) -> float:
    """When the job is ended, in seconds since the epoch; inf where that is unknown."""
    found = _number(os.environ.get(END_VARIABLE, "inf") if ends is None else ends)
    return found if isfinite(found) else inf


def _is_to_come(ends) -> bool:
    return _number(ends) > time.time()


def _limits(age: float, ends) -> tuple[float, ...]:
    """How long an attempt lives that the known end of the job ends: this one, and one from the job's start on."""
    end = _end(ends)
    if end == inf:
        return ()
    start = _number(os.environ.get(START_VARIABLE, "inf"))
    return tuple(limit for limit in (age + end - time.time(), end - start) if limit > 0)


def _earlier(identity: dict, path: str) -> list:
    """Snapshots of this user's pages of this rank's earlier attempts, the newest HISTORY_MAX."""
    from goodput.rank_page.reader import Reader

    found = []
    for (rank, attempt), earlier in paths_of(os.path.dirname(path), identity["run"]).items():
        if rank != identity["rank"] or attempt >= identity["attempt"]:
            continue
        try:
            with Reader(earlier) as reader:
                found.append(reader.snapshot(ALL, ALL))
        except PageError:
            continue
    found.sort(key=lambda one: one.identity["attempt"])
    return found[-HISTORY_MAX:]
