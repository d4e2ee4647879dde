"""The peer: Google's ml-goodput-measurement, run offline on the same history, with its terms mapped to ours.

A `Life` is one start of a job with one rank, in whole milliseconds. `processes` makes rank processes of lives, `ask`
the peer's log and its calculator's result, `mapped` that result in our terms. The peer is not patched except for its
clock, which stands still at the time of the query. What its log cannot hold, or what it defines differently, is moved
between figures in `moves`, each with its reason; there is no tolerance. Checked against ml-goodput-measurement 0.2.3,
which has no notion of several ranks.

    answer = ask(lives, query_ms=90_000, cache_dir=tmp_path); mapped(answer, lives, 90_000)["lost"]
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

from support.account.account_history import Process

# Near 0, since the peer adds up unix times as floats, and those of today are good to 0.2 us only.
BEGINNING = datetime.datetime(1970, 1, 2, tzinfo=datetime.timezone.utc)
DIED = ("killed", "failed", "silent")
# The peer's word for a part of the startup and our phase for it. What is "" goes unrecorded.
STARTUP = {"tpu_init": "none", "training_preparation": "restore", "": "none"}


@dataclass
class Step:
    """A completed step: its phases, and what came after it outside any step."""

    index: int
    parts_ms: dict[str, int]
    after_ms: dict[str, int] = field(default_factory=dict)

    def length_ms(self) -> int:
        return sum(self.parts_ms.values())


@dataclass
class Life:
    """One start of the job. `open_ms` is a step it began and did not complete; `silence_ms` lies before its end."""

    start_ms: int
    startup_ms: list[tuple[str, int]]  # (a key of STARTUP, ms)
    steps: list[Step]
    open_ms: dict[str, int] = field(default_factory=dict)
    silence_ms: int = 0
    # killed, failed, silent (no end was reported), finished (also: left on purpose and restarted) or alive
    end: str = "killed"
    resume: int | None = None  # declared by the attempt, else given by its first step
    saved: dict[int, bool] = field(default_factory=dict)  # step index: committed

    def named_ms(self) -> int:
        """Startup that the peer can see: both its ends are recorded. Of a life cut off in it the last part is not."""
        parts = self.startup_ms if self.recorded() else self.startup_ms[:-1]
        return sum(ms for name, ms in parts if name)

    def first_ms(self) -> int:
        return self.start_ms + sum(ms for _, ms in self.startup_ms)

    def timed(self) -> Iterator[tuple[Step, int]]:
        at = self.first_ms()
        for step in self.steps:
            yield step, at
            at += step.length_ms() + sum(step.after_ms.values())

    def recorded(self) -> list[tuple[int, int]]:
        """(index, start) of each step begun: all that the peer learns of steps."""
        found = [(step.index, at) for step, at in self.timed()]
        return [*found, (self.next_index(), self.open_at_ms())] if self.open_ms else found

    def next_index(self) -> int:
        return self.steps[-1].index + 1 if self.steps else (-1 if self.resume is None else self.resume) + 1

    def worked_ms(self) -> int:
        """The end of the last completed step, or of the startup."""
        return max((at + step.length_ms() for step, at in self.timed()), default=self.first_ms())

    def open_at_ms(self) -> int:
        return self.worked_ms() + (sum(self.steps[-1].after_ms.values()) if self.steps else 0)

    def end_ms(self) -> int:
        return self.open_at_ms() + sum(self.open_ms.values()) + self.silence_ms


def processes(lives: list[Life]) -> list[Process]:
    """The rank's processes as the account would learn of them."""
    return [_process(number, life) for number, life in enumerate(lives, 1)]


def _process(number: int, life: Life) -> Process:
    one = Process(attempt=number, start=life.start_ms / 1e3)
    for name, ms in life.startup_ms:
        one.between(**{STARTUP[name]: ms / 1e3})
    if life.resume is not None:
        one.resumed(life.resume)
    for step in life.steps:
        one.step(step.index, **seconds_of(step.parts_ms)).between(**seconds_of(step.after_ms))
        if step.index in life.saved:
            one.saved(step.index, committed=life.saved[step.index])
    one.begun(**seconds_of(life.open_ms))
    if life.end == "killed":
        return one.killed(after=life.silence_ms / 1e3)
    one.silent(after=life.silence_ms / 1e3)
    return one if life.end in ("alive", "silent") else one._over(life.end)


def seconds_of(parts_ms: dict[str, int]) -> dict[str, float]:
    return {phase: ms / 1e3 for phase, ms in parts_ms.items()}


class ListLogger:
    """Stands in for Cloud Logging: a list."""

    def __init__(self):
        self.entries: list[dict] = []

    def write_cloud_logging_entry(self, entry: dict) -> None:
        self.entries.append(entry)

    def read_cloud_logging_entries(self, start_time=None, end_time=None, last_entry_info=None):
        return list(self.entries), (BEGINNING, "0")


def record(lives: list[Life]) -> ListLogger:
    """What a trainer with the peer's recorder would have logged.

    Steps count from 1 there: the peer gives up a segment that is started again from a step 0 and forgets its waste.
    """
    from ml_goodput_measurement.src import goodput as peer  # Takes seconds.

    logger = ListLogger()
    recorder = peer.GoodputRecorder("job", "log", True, logger)
    for life in lives:
        recorder.record_job_start_time(_date(life.start_ms))
        at = life.start_ms
        for position, (name, ms) in enumerate(life.startup_ms, 1):
            if name:
                getattr(recorder, f"record_{name}_start_time")(_date(at))
                if life.recorded() or position < len(life.startup_ms):
                    getattr(recorder, f"record_{name}_end_time")(_date(at + ms))
            at += ms
        for step, at in life.timed():
            _record_step(recorder, logger, step, at)
        if life.open_ms:
            recorder.record_step_start_time(life.next_index() + 1, _date(life.open_at_ms()))
    if lives[-1].end == "finished":
        recorder.record_job_end_time(_date(lives[-1].end_ms()))
    return logger


def _record_step(recorder, logger: ListLogger, step: Step, at_ms: int) -> None:
    recorder.record_step_start_time(step.index + 1, _date(at_ms))
    if "loader" in step.parts_ms:
        recorder.record_data_loading_start_time(_date(at_ms))
        recorder.record_data_loading_end_time(_date(at_ms + step.parts_ms["loader"]))
    at_ms += step.length_ms()
    saving_ms = step.parts_ms.get("checkpoint", 0) + step.after_ms.get("checkpoint", 0)
    if saving_ms:
        logger.write_cloud_logging_entry(_save(step.index + 1, saving_ms))
    for phase, ms in step.after_ms.items():
        if phase == "evaluation":
            recorder.record_custom_badput_event_start_time(_date(at_ms), "evaluation")
            recorder.record_custom_badput_event_end_time(_date(at_ms + ms), "evaluation")
        at_ms += ms


def _save(step: int, ms: int) -> dict:
    """An entry as Orbax's checkpoint manager writes it."""
    durations = ("wait_for_prev", "checkpointer_blocking", "get_old_steps", "checkpoint_manager_blocking")
    return {
        "job_name": "job",
        "step": step,
        "event_type": "save",
        "directory": "gs://bucket/run",
        **{f"{name}_duration_secs": ms / 1e3 for name in durations},
    }


def _date(ms: int) -> datetime.datetime:
    return BEGINNING + datetime.timedelta(milliseconds=ms)


def ask(lives: list[Life], query_ms: int, cache_dir) -> dict:
    """The peer's answer at that time: seconds by its own words, and the disruptions it counted."""
    from ml_goodput_measurement.src import goodput as peer

    calculator = peer.GoodputCalculator("job", "log", record(lives), cache_dir=str(cache_dir))

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return _date(query_ms)

    stopped = SimpleNamespace(datetime=Stopped, timedelta=datetime.timedelta, timezone=datetime.timezone)
    with mock.patch.object(peer, "datetime", stopped):
        goodput_percent, _, _ = calculator.get_job_goodput()
        details = calculator.get_job_goodput_details()
    badput = {kind.name: value for kind, value in details["badput_time"].items()}
    badput["CUSTOM_BADPUT_EVENTS"] = sum(badput.get("CUSTOM_BADPUT_EVENTS", {}).values())
    return {
        "goodput": goodput_percent / 100,
        "total": details["total_elapsed_time"],
        "productive": details["goodput_time"][peer.GoodputType.TOTAL],
        "disruptions": details["disruption_count"],
        **badput,
    }


def mapped(answer: dict, lives: list[Life], query_ms: int) -> dict[str, float]:
    """The peer's seconds in our words: `kept` (steps, with the first one's excess), `lost`, and `pause`.

    The excess of a first step is taken over the mean there, over the median here, and blocking saves and custom
    events are taken out of its productive time wherever they lay. All three are put back before comparing. Its pause
    is down, startup and restore. Its data loading is no gap in its productive time, so it is left out.
    """
    found = {
        "kept": answer["productive"]
        + sum(answer.get(kind, 0.0) for kind in ("PROGRAM_STARTUP", "CUSTOM_BADPUT_EVENTS"))
        + answer["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"],
        "lost": answer.get("WASTED_PROGRESS_FROM_DISRUPTION", 0.0),
        "pause": answer.get("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", 0.0)
        + answer["TPU_INITIALIZATION"]
        + answer["TRAINING_PREP"],
    }
    for _, source, target, ms in moves(lives, query_ms):
        for figure, sign in ((source, -1), (target, 1)):
            if figure:
                found[figure] += sign * ms / 1e3
    return found


Move = tuple[str, str, str, int]  # (reason, from, to, ms); "" is what neither side compares


def moves(lives: list[Life], query_ms: int) -> list[Move]:
    """Every difference between the peer's figures and ours, as time moved from one to another."""
    seen = [life for life in lives if life.recorded()]
    found = _before_the_first_step(lives, seen[0])
    for life in seen:
        limit = kept_until(lives, life)
        # Nobody tells the peer what happens between these two.
        found.append(("startup in no phase", "", "pause", life.first_ms() - life.start_ms - life.named_ms()))
        for step, _ in zip(life.steps, life.recorded()[1:], strict=False):
            # Steps have no end there: what lies between two belongs to the first.
            figure, gap = "kept" if step.index <= limit else "lost", sum(step.after_ms.values())
            if step is not life.steps[-1]:
                found.append(("before the next step", figure, "", gap))
            else:
                # Here it belongs to what follows the last completed step, and that is lost with the process.
                target = "lost" if life.end in DIED else "kept"
                found.append(("before the open step", figure, target, gap))
    for before, after in pairwise(seen):
        found += _restart(lives, before, after)
    return [move for move in found + _last(lives, seen[-1], query_ms) if move[3]]


def kept_until(lives: list[Life], life: Life) -> int:
    """The last step of `life` that no later life did again."""
    later = lives[lives.index(life) + 1 :]
    return min((other.recorded()[0][0] - 1 for other in later if other.recorded()), default=1 << 60)


def is_seen(before: Life, after: Life) -> bool:
    """Whether the peer notices the restart: only a step index that comes again tells it of one."""
    return after.recorded()[0][0] <= before.recorded()[-1][0]


def _before_the_first_step(lives: list[Life], first: Life) -> list[Move]:
    """Starts that came to nothing before any step: the peer has no disruption to charge the pauses to."""
    none = lives[: lives.index(first)]
    unseen = first.start_ms - lives[0].start_ms - sum(life.named_ms() for life in none)
    return [("starts before the first step", "", "pause", unseen)]


def _restart(lives: list[Life], before: Life, after: Life) -> list[Move]:
    between = lives[lives.index(before) + 1 : lives.index(after)]
    named = sum(life.named_ms() for life in between)
    died = "lost" if before.end in DIED else ""
    tail = before.end_ms() - before.worked_ms()
    if not before.steps:
        return [("starts counted twice", "pause", "", named)]
    if is_seen(before, after):
        # No death is logged: recovery begins with the last step begun, which was lost until the death. And it ends
        # with the last start, so a start in between that reached no step is in it, besides what it recorded itself.
        last_step = before.end_ms() - before.recorded()[-1][1]
        if not before.open_ms:
            return [
                ("death", "pause", "lost", last_step - tail),
                ("death", "pause", died, tail),
                ("starts counted twice", "pause", "", named),
            ]
        return [("death", "pause", died, last_step), ("starts counted twice", "pause", "", named)]
    # Started again right after the last step begun: no index comes twice, and the whole pause is taken for a part of
    # that step. What the starts recorded of themselves is in their own figures besides.
    step = "kept" if before.steps[-1].index <= kept_until(lives, before) else "lost"
    return [
        ("restart not seen", step, died, tail),
        ("restart not seen", step, "pause", after.start_ms - before.end_ms() - named),
        ("restart not seen", step, "", named + after.first_ms() - after.start_ms),
    ]


def _last(lives: list[Life], life: Life, query_ms: int) -> list[Move]:
    tail = life.end_ms() - life.worked_ms()
    if life.end == "finished":
        # There the last step lasts until the job's end.
        return [("after the last step", "kept", "", tail)]
    begun = life.end_ms() - life.recorded()[-1][1]
    assert life.steps, "an attempt that completed no step has no last step to speak of"
    if life.end == "alive":
        # A step counts there once the next has begun; a running step counts here for now.
        return [("running step", "", "kept", begun)]
    # A run that has failed: the peer counts on all steps but the last; here what no checkpoint holds is lost for now.
    limit = last_checkpoint(lives)
    found: list[Move] = []
    if not life.open_ms:
        last_kept = life.steps[-1].index <= limit
        found = [
            ("failed at the end", "", "kept" if last_kept else "lost", begun - tail),
            ("failed at the end", "", "lost", tail),
        ]
    else:
        found.append(("failed at the end", "", "lost", begun))
    for other in lives:
        steps = other.steps if other is not life or life.open_ms else other.steps[:-1]
        undone = [step for step in steps if limit < step.index <= kept_until(lives, other)]
        found.append(("not in a checkpoint", "kept", "lost", sum(step.length_ms() for step in undone)))
    return found


def last_checkpoint(lives: list[Life]) -> int:
    """The last step that a committed checkpoint of the work that stands holds; all without a reported checkpoint."""
    last, known = -1, False
    for life in lives:
        if life.recorded():
            last = min(last, life.recorded()[0][0] - 1)
        known = known or bool(life.saved)
        last = max([last, *(step for step, committed in life.saved.items() if committed)])
    return last if known else 1 << 60
