"""The recorder: charges every nanosecond of the step thread to the phase it is in, in the rank page's words.

Where no page can be written the words are private memory, so that the calling code is the same.

Guarantee: the totals of all phases, "none" included, sum to the time since the rank's start, exactly, at every
boundary, also where a signal handler comes in between (plain.py says how). A boundary costs one clock reading and
four stores (about 0.3 us), a step's end about 2 us; nothing is allocated that survives. It never raises: what goes
wrong is counted in the page's `error` word.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from operator import index as _index
from time import perf_counter_ns

from goodput.histograms.histogram import OCTAVE, bin_of_ns
from goodput.rank_page import page
from goodput.sdk.recorder.hot_path import Clock
from goodput.user_exceptions import reraise_from_handler

TYPE_CHECKING = False  # See plain.py.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BACKGROUND_MAX = 4096  # records of other threads that may wait for the step thread's next step
STEP_MAX = 1 << 53  # of step indices, which JSON and the ledger can hold
# The built-in phases in which a call of a module is part of the phase: all but those of training, as bits by index.
OTHER_WORK = sum(
    1 << index
    for index, name in enumerate(page.PHASES)
    if name not in ("none", "forward", "backward", "optimizer")
)
SAMPLES_MAX = 1 << 40  # of one step, so that no sum of them overflows


class State:
    """Values of Recorder.state. Names instead of an enum.Enum, whose import would double that of goodput."""

    NOT_STARTED = "not started"  # starts at the first phase or step
    RECORDING = "recording"
    STOPPED = "stopped"  # by `goodput.stop` or at exit; `goodput.start` may follow
    FORKED = "forked"  # a child of a recording process; only an explicit start records here
    FORKED_EARLY = "forked early"  # a child whose parent had not started: a loader's worker, or a rank
    DISABLED = "disabled"


class Recorder(Clock):
    """The state of one rank process. `words` is a page as u64; only the thread `thread` moves the clock."""

    def __init__(self, starter: Callable[[], None] | None = None):
        """`starter` is called at the first phase or step, if nothing has started the recorder by then."""
        super().__init__()
        self.state = State.NOT_STARTED
        self.columns = len(page.PHASES)
        self.other_work = OTHER_WORK
        self.used: list[int] = [0]
        self.fd = -1
        self.starter = starter
        self.training: Any = None  # hot_path.TrainingState, once steps are detected
        self.collectives = None  # collectives.CollectiveRecords, if calls of process groups are recorded
        self.device_why = 0  # why the host's clock stands in for the device's: see sdk/device/

    def open(self, words: memoryview, start_ns: int, fd: int = -1) -> None:
        """Record into these words from `start_ns` (monotonic) on; the calling thread is the step thread.

        `fd` is the file that the words map, if they map one. Phases that are open stay open.
        """
        self.words, self.fd = words, fd
        words[page.W_PHASE] = self.charged - page.W_TOTALS
        self.last_ns = self.step_end_ns = start_ns
        self.steps = self.entries = 0
        self.step_start_ns = self.step_samples = self.step_next = 0
        self.raised = False
        self.costs.page_opened()
        if self.training is not None:
            self.training.page_opened()
        self.background: deque = deque(maxlen=BACKGROUND_MAX)
        # By thread, phases whose exit is expected there although another is the step thread now.
        self.left_open: dict[int, int] = {}
        self.state, self.thread = State.RECORDING, get_ident()
        words[page.W_DEVICE_STATE], words[page.W_DEVICE_WHY] = bool(self.device_why), self.device_why
        if self.collectives is not None:
            self.collectives.page_changed()
        if self.device is not None:
            self.notify_device_of("open")

    def set_device(self, device) -> None:
        """Report boundaries to this device clock from here on, to none if it is None."""
        self.device = device

    def set_device_why(self, why: int) -> None:
        """The host's clock stands in for the device's, for this reason (of page.DEVICE_WHYS)."""
        self.device_why = why
        if self.words is not None:
            self.words[page.W_DEVICE_WHY] = why

    def set_collectives(self, records) -> None:
        """Calls of process groups are recorded from here on; `records` are told of other pages."""
        self.collectives = records

    def set_training(self, training) -> None:
        """Steps are detected from here on, with this TrainingState, which is told of other pages and threads."""
        self.training = training
        self.set_gaps(training.gaps)
        training.set_other_work(self.other_work)

    def add_column(self, index: int) -> None:
        """The phase with this index is copied into the records of steps."""
        self.columns = max(self.columns, index + 1)

    def add_other_work(self, index: int) -> None:
        """Calls of modules inside the phase with this index are not training."""
        self.other_work |= 1 << index
        if self.training is not None:
            self.training.set_other_work(self.other_work)

    @property
    def is_recording(self) -> bool:
        return self.state == State.RECORDING

    def set_state(self, state: str) -> None:
        """Record nothing in this process, for the reason that the state gives; `open` records again."""
        self.state, self.thread = state, 0

    def ready(self) -> bool:
        """Whether the calling thread may move the clock; starts the recorder if it is not started."""
        if self.state == State.NOT_STARTED and self.starter is not None:
            self.starter()
        return self.thread == get_ident()

    def adopt(self) -> bool:
        """Make the calling thread the step thread, until that one has trained or if it is gone.

        A step that automatic instrumentation has begun for a fetch is no training.
        """
        if not self.is_recording:
            return False
        training = self.training
        passes, began = (0, 0) if training is None else (training.micro_batches, training.began)
        has_trained = self.steps or passes or self.step_start_ns != began
        if has_trained and self.thread in sys._current_frames():
            self.drop("step")
            return False
        self.take_over()
        return True

    def take_clock(self) -> None:
        """The calling thread, in which the process ends, is the step thread; phases stay open."""
        self.thread = get_ident()

    def take_over(self) -> None:
        """Make the calling thread the step thread. Phases that the other one has open are closed here."""
        self.charge(perf_counter_ns())
        self.abandon_step()
        self.reset()
        self.words[page.W_PHASE] = 0
        if self.training is not None:
            self.training.thread_changed()
        self.thread = get_ident()

    def drop(self, what: str) -> None:
        self.words[page.W_DROPS + page.DROPS.index(what)] += 1

    def charge(self, now_ns: int) -> None:
        """Bring the current phase's total and the beat up to `now_ns`."""
        words, charged, last_ns = self.words, self.charged, self.last_ns
        if now_ns > last_ns:
            words[charged] += now_ns - last_ns
            self.last_ns = words[page.W_LAST] = now_ns

    def charge_last(self, word: int) -> None:
        """Charge the time since the last boundary to another phase than the current one."""
        now_ns = perf_counter_ns()
        words, last_ns = self.words, self.last_ns
        if now_ns > last_ns:
            words[word] += now_ns - last_ns
            self.last_ns = words[page.W_LAST] = now_ns
        if self.device is not None:
            self.notify_device(word)

    def charge_until(self, word: int, until_ns: int) -> None:
        """Charge the time since the last boundary, up to an earlier moment than now, to another phase."""
        words, last_ns = self.words, self.last_ns
        if until_ns > last_ns:
            words[word] += until_ns - last_ns
            self.last_ns = words[page.W_LAST] = until_ns
            if self.device is not None:
                self.notify_device(word)

    def rename(self, phase) -> None:
        """The innermost phase turned out to be another one: charge the time since the last boundary to that, too."""
        self.current = phase.total
        self.words[page.W_PHASE] = self.charged - page.W_TOTALS

    def switch_phases(self, on: bool) -> None:
        """Charge time to phases from now on, or to none of them. What is open stays open."""
        self.charge(perf_counter_ns())
        self.phases_off = not on
        if self.gaps is not None:
            self.gaps.drop_claim()
        self.words[page.W_PHASE] = self.charged - page.W_TOTALS

    def count_first(self, word: int) -> None:
        """Count in a part of a histogram that was not used so far: give it its memory first."""
        if self.fd < 0 or page.reserve(self.fd, 8 * (word & -OCTAVE), 8 * OCTAVE):
            self.back(word)
            self.words[word] += 1
        else:
            self.drop("error")

    # -- steps: each makes its stores without a call in between, as plain.py explains

    def end_gap(self, now_ns: int) -> int:
        """A step may begin at `now_ns`: what was charged since the last completed step lay outside steps.

        Returns that moment, which is later where a signal handler has moved the clock past it.
        """
        if now_ns == self.step_end_ns or self.thread != get_ident():
            return now_ns
        words, charged, last_ns = self.words, self.charged, self.last_ns
        if now_ns < last_ns:
            now_ns = last_ns
        words[charged] += now_ns - last_ns
        self.last_ns = words[page.W_LAST] = now_ns
        if self.steps == 0:
            words[_OUTSIDE] = words[_TOTALS]
            if self.device is not None:
                self.notify_device_of("begin")
            return now_ns
        totals = [*words[_TOTALS]]
        record = page.W_STEP_RING + (self.steps - 1) % page.STEP_RING * page.STEP_WORDS
        for i in self.used:
            spent = totals[i] - words[record + page.R_TOTALS + i]
            words[page.W_OUTSIDE + i] = words[record + page.R_OUTSIDE + i] + spent
        if self.device is not None:
            self.notify_device_of("begin")
        return now_ns

    def begin_step(self, start_ns: int, step: int | None, samples: int) -> bool:
        """Open a step that began at `start_ns`, which `end_gap` returned.

        False if since then another began, or the page was closed or exchanged, or this thread lost the clock.
        """
        words = self.words
        index = None if step is None else checked_int(step, 0, STEP_MAX)
        if self.thread != get_ident() or self.step_start_ns or start_ns < self.step_end_ns:
            return False
        # An index that goes backwards or is no index: the count goes on from the last one.
        refused = step is not None and (index is None or index < self.step_next)
        if index is not None and not refused:
            self.step_next = index
        self.step_start_ns, self.step_samples = start_ns, samples
        words[page.W_STEP_START] = start_ns
        words[page.W_STEP_NEXT] = self.step_next + page.STEP_BIAS
        if refused:
            self.drop("step")
        return True

    def forget_raised(self) -> None:
        """Note from here on whether a phase's body raises."""
        self.raised = False

    def is_running(self, start_ns: int) -> bool:
        """Whether the step that began at `start_ns` is this thread's to end."""
        return self.step_start_ns == start_ns and self.thread == get_ident()

    def end_step(self, now_ns: int) -> int:
        """Close the running step: one record in the ring, sealed last, and one count in the histogram.

        Returns the moment of its end, as end_gap does.
        """
        now_ns = self.close_step(now_ns)
        self.step_ended()
        return now_ns

    def hold_step(self, samples: int) -> tuple[int, int, list[int]]:
        """The running step, which handled `samples`, may have ended now: what `record_steps` needs of it."""
        self.charge(perf_counter_ns())
        return self.last_ns, samples, self.words[_TOTALS].tolist()

    def record_steps(self, held: list[tuple[int, int, list[int]]]) -> int:
        """Record the steps that ended where `hold_step` was called; the running one begins with the last end."""
        words = self.words
        for end_ns, samples, totals in held:
            number, start_ns = self.steps + 1, self.step_start_ns
            at = page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS
            all_samples = words[page.W_SAMPLES] + samples
            words[at + page.R_SEAL] = 0
            words[at + page.R_STEP] = self.step_next + page.STEP_BIAS
            words[at + page.R_START], words[at + page.R_END] = start_ns, end_ns
            words[at + page.R_SAMPLES] = all_samples
            for i in range(self.columns):
                words[at + page.R_TOTALS + i] = totals[i]
                words[at + page.R_OUTSIDE + i] = words[page.W_OUTSIDE + i]
            words[at] = words[at + page.R_SEAL] = number
            words[page.W_STEPS] = self.steps = number
            words[page.W_SAMPLES] = all_samples
            self.step_start_ns = self.step_end_ns = words[page.W_STEP_START] = end_ns
            self.step_next += 1
            words[page.W_STEP_NEXT] = self.step_next + page.STEP_BIAS
            self.count(page.W_HISTOGRAMS + bin_of_ns(end_ns - start_ns))
        return self.step_start_ns

    def step_ended(self) -> None:
        """What else is to do at a step's end."""
        if self.device is not None:
            self.notify_device_of("end")
        if self.background:
            self.drain_background()

    def abandon_step(self) -> None:
        """The running step will not be completed; its time counts as outside steps."""
        self.step_start_ns = self.words[page.W_STEP_START] = 0

    def renumber(self, step: int) -> None:
        """The running or next step is the one after `step`, whose work was restored."""
        self.step_next = step + 1
        self.words[page.W_STEP_NEXT] = self.step_next + page.STEP_BIAS
        self.event("resumed", perf_counter_ns(), step)

    def notify_device_of(self, what: str) -> None:
        """Notify the device clock of more than boundaries: that a step may begin or has ended, or of another page."""
        try:
            getattr(self.device, what)(self.current)
        except Exception as error:
            reraise_from_handler(error)
            self.device = None

    # -- other threads

    def add_background(self, record: tuple) -> None:
        """Queue a record of another thread; the step thread enters it at its next step. Appending is atomic."""
        if len(self.background) >= BACKGROUND_MAX:
            self.drop("background")
        self.background.append(record)
        if self.training is not None:
            self.training.set_routine(False)

    def drain_background(self) -> None:
        """Enter what other threads queued: ("phase", index, ns) or ("event", kind, time, step, text)."""
        words, queue = self.words, self.background
        for _ in range(len(queue)):
            if not queue:  # A signal handler emptied it.
                return
            record = queue.popleft()
            if record[0] == "event":
                self.write_event(*record[1:])
                continue
            _, index, nanoseconds = record
            words[page.W_BACKGROUND] += 1
            words[page.W_BACKGROUND_TOTALS + index] += nanoseconds
            slot = page.PHASE_SLOTS + index
            self.count(page.W_HISTOGRAMS + slot * page.HISTOGRAM_WORDS + bin_of_ns(nanoseconds))

    # -- events and the end

    def event(self, kind: str, time_ns: int, step: int, text: str = "") -> None:
        """Record an event, from whichever thread."""
        if get_ident() == self.thread:
            self.write_event(kind, time_ns, step, text)
        else:
            self.add_background(("event", kind, time_ns, step, text))

    def write_event(self, kind: str, time_ns: int, step: int, text: str) -> None:
        raw = text.encode("utf-8", "replace")
        if len(raw) > page.EVENT_TEXT_BYTES:
            self.drop("event")
        page.write_event(self.words, kind, time_ns, step, raw)

    def end(self, now_ns: int, reason: str) -> None:
        """Close the page: the rank ended, it did not die. A later call changes nothing."""
        words = self.words
        if words[page.W_ENDED]:
            return
        self.drain_background()
        if self.device is not None:
            self.notify_device_of("finish")
        self.charge(now_ns)
        words[page.W_END] = now_ns
        words[page.W_ENDED] = page.END_REASONS.index(reason)

    def detach(self, words: memoryview, state: str) -> None:
        """Go on in private memory and record nothing: after a fork the page is the parent's alone."""
        self.reset()
        self.device, self.phases_off = None, False
        self.open(words, self.last_ns)
        self.set_state(state)


def checked_int(value, least: int, below: int) -> int | None:
    """`value` as an integer in least .. below - 1, None if it is none; whatever its own methods raise."""
    try:
        number = None if isinstance(value, bool) else _index(value)
    except Exception as error:
        reraise_from_handler(error)
        return None
    return number if number is not None and least <= number < below else None


_TOTALS = slice(page.W_TOTALS, page.W_TOTALS + page.PHASE_SLOTS)
_OUTSIDE = slice(page.W_OUTSIDE, page.W_OUTSIDE + page.PHASE_SLOTS)
