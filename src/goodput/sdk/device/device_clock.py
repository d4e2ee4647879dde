"""The device clock: divides a step's time into phases as the device saw it.

At each phase boundary an event is recorded on the compute stream, except where a phase begins right after another has
ended. Some steps later, when the events have completed, the step's totals are written to the page's device ring: the
step is as long as on the host clock and divided as the device measured. A wait that the device did not feel, because
work was still queued, comes out as zero.

Nothing waits, synchronises or raises. A step that the device cannot divide completely (ring full, graph
capture, another stream or device at its bounds, events not complete after PENDING steps) is divided as the host
measured, so every step has a record. An error ends the clock. Times within a step are differences to the event that
began it, so that rounding errors cancel. Memory: 1024 events of about 100 bytes each in PyTorch, and 40 KiB.

The backend (torch_events.py, or a test's) has these methods:

    new_event() -> event          record(event)                 query(event) -> whether it has completed
    bind() -> whether a device is in use                        elapsed_ns(event, later event) -> int
    may_record() -> False on another stream or device and while a graph is captured      capturing() -> bool
"""

from __future__ import annotations

from array import array
from time import perf_counter_ns

from goodput.rank_page import page
from goodput.rank_page.device_steps import apportion
from goodput.user_exceptions import reraise_from_handler

EVENTS = 1024  # a power of two
PENDING = page.DEVICE_WAIT_STEPS
BIND_STEPS = 16  # steps without a device after which there is none
ADOPT_STEPS = 16  # steps on another stream after which that is the compute stream
RESOLVED_MAX = 4  # steps resolved at one boundary
_HOST, _ACTIVE, _GAVE_UP = (page.DEVICE_STATES.index(state) for state in ("host", "active", "gave up"))
# Between two boundaries that are as near nothing can be launched from Python, so the second one needs no event.
NEAR_NS = 3000
_NONE = page.W_TOTALS
# One in _TIMED boundaries is timed; at one in _RESOLVED completed steps are resolved.
_TIMED, _RESOLVED = 16, 8


class DeviceClock:
    """The device clock of one recorder.

    events   ring of events, reused: `head` is the next position, those from `tail` on are still needed, those from
             `kept` on belong to no step that has ended
    begun    position of the event that began the running step, -1 for none
    done     steps up to this one are in the page
    ended    steps up to this one have ended; `begins` and `ends` have the positions of their events
    weights  device ns per phase of the oldest step not in the page, up to position `at`, as differences to `anchor`
    """

    def __init__(self, recorder, backend, now=perf_counter_ns):
        self.recorder, self.backend, self._now = recorder, backend, now
        self.cost_ns = 0
        self.events: list = [None] * EVENTS
        self.columns = bytearray(EVENTS)
        self.begins, self.ends = array("q", [-1]) * PENDING, array("q", [0]) * PENDING
        self.totals = array("Q", [0]) * page.PHASE_SLOTS
        self.weights, self.before = [0] * page.PHASE_SLOTS, 0
        self._busy, self._on, self._bound, self._tick = False, False, False, 0
        self._put_ns = 0  # when the last event was recorded
        self._open(0)

    def attach(self) -> None:
        self._open(0)
        self.recorder.set_device(self)

    def __call__(self, word: int) -> None:
        """A boundary: the host charged the time since the last one to the page's word `word`."""
        if self._busy or not self._on:
            return
        if word == _NONE and self._now() - self._put_ns < NEAR_NS:
            return
        self._busy = True
        try:
            tick = self._tick = self._tick + 1
            if not tick % _TIMED:
                began = perf_counter_ns()
                self._put(word)
                self.cost_ns += _TIMED * (perf_counter_ns() - began)
            else:
                self._put(word)
            if not tick % _RESOLVED and (self.done < self.ended or self.head - self.tail > EVENTS // 2):
                began = perf_counter_ns()
                self._resolve()
                self.cost_ns += perf_counter_ns() - began
        except Exception as error:
            reraise_from_handler(error)
            self._give_up(error)
        finally:
            self._busy = False

    def begin(self, word: int) -> None:
        """A step may begin here: the time since the last one ended was outside steps."""
        self._guarded(self._begin, word)

    def end(self, word: int) -> None:
        """A step has ended here, and its record is in the page."""
        self._guarded(self._end, word)

    def finish(self, word: int) -> None:
        """The page is about to be closed: steps that are not complete are divided as the host measured."""
        self._guarded(self._finish, word)

    def open(self, word: int) -> None:
        """The recorder has begun a new page."""
        self._guarded(self._open, word)

    # -- the methods below are never re-entered

    def _guarded(self, what, word: int) -> None:
        if self._busy:  # A step of a signal handler inside a call: it is divided as the host measured.
            return
        self._busy = True
        try:
            began = perf_counter_ns()
            # A new page was opened while the overhead budget had parked the clock.
            if self._words is not self.recorder.words:
                self._open(0)
            what(word)
            self.cost_ns += perf_counter_ns() - began
        except Exception as error:
            reraise_from_handler(error)
            self._give_up(error)
        finally:
            self._busy = False

    def _open(self, _: int) -> None:
        words = self._words = self.recorder.words
        self.head = self.tail = self.kept = self.lacking = self.device_ns = self.steps = 0
        self.begun, self.at, self.anchor, self._on = -1, -1, None, False
        self.done = self.ended = 0 if words is None else words[page.W_STEPS]
        if words is None:
            return
        self.host = _host(words, self.done) if self.done else [0] * (2 * page.PHASE_SLOTS)
        self.totals[:] = array("Q", self.host[: page.PHASE_SLOTS])
        words[page.W_DEVICE_BASE] = words[page.W_DEVICE_DONE] = self.done
        words[page.W_DEVICE_STEPS], words[page.W_DEVICE_COST] = 0, self.cost_ns
        if self._bound:
            words[page.W_DEVICE_STATE], words[page.W_DEVICE_WHY] = _ACTIVE, 0
        else:
            use_host_clock(self.recorder, "unused")

    def _put(self, word: int) -> bool:
        """Record an event here; False if that is impossible. With a full ring the running step is given up."""
        backend = self.backend
        if not backend.may_record():
            if backend.capturing():
                self._abandon()
            return False
        head = self.head
        if head - self.tail >= EVENTS:
            self._abandon()
            return False
        slot = head % EVENTS
        event = self.events[slot]
        if event is None:
            event = self.events[slot] = backend.new_event()
        backend.record(event)
        self.columns[slot] = word - page.W_TOTALS
        self.head = head + 1
        self._put_ns = self._now()
        return True

    def _abandon(self) -> None:
        self._roll_back()
        self.begun, self._on = -1, False

    def _roll_back(self) -> None:
        """Forget the boundaries since the last step ended."""
        if self.done == self.ended:
            self._release()
        self.head = self.kept = max(self.kept, self.tail)

    def _begin(self, word: int) -> None:
        if not self._bound and not self._bind():
            return
        self._roll_back()
        self._start(word)

    def _start(self, word: int) -> None:
        self._on = self._put(word)
        self._follow_stream()
        self.begun = self.head - 1 if self._on else -1

    def _end(self, word: int) -> None:
        if not self._bound and not self._bind():
            self.lacking += 1
            if self.lacking >= BIND_STEPS:
                self.recorder.set_device(None)
            return
        complete = self.ended + 1 >= self.recorder.steps
        if self.ended + PENDING < self.recorder.steps:
            self._skip_to(self.recorder.steps - 1)
        while self.ended + 1 < self.recorder.steps:  # Steps whose ends were not reported.
            self._note(-1)
        if complete and self._on and self._put(word):
            self._note(self.begun)
            self.begun = self.head - 1
        else:
            self._roll_back()
            self._start(word)
            if self.ended < self.recorder.steps:
                self._note(-1)
        self.kept = self.head
        self._resolve()

    def _skip_to(self, last: int) -> None:
        """After steps that were not reported: one record, divided as the host measured, covers all up to `last`."""
        # The host's records of older steps are overwritten.
        while self.done < self.ended and self.recorder.steps - self.done < page.STEP_RING:
            self._settle(None)
        self.done = self.ended = last - 1
        self._note(-1)
        self._settle(None)

    def _note(self, begun: int) -> None:
        """The next step has ended; its events begin at `begun`, -1 to divide it as the host measured."""
        if self.ended - self.done >= PENDING:
            self._settle(None)
        self.ended += 1
        self.begins[self.ended % PENDING], self.ends[self.ended % PENDING] = begun, self.head - 1

    def _follow_stream(self) -> None:
        """After ADOPT_STEPS steps that began on another stream, that one becomes the compute stream."""
        elsewhere = not self._on and self.head - self.tail < EVENTS and not self.backend.capturing()
        self.lacking = self.lacking + 1 if elsewhere else 0
        if self.lacking >= ADOPT_STEPS:
            self.lacking = 0
            self.backend.bind()

    def _bind(self) -> bool:
        """Whether the device is in use by now. The first stream and device found are the clock's."""
        self._bound = self.backend.bind()
        if self._bound:
            self._open(0)
        return self._bound

    # -- resolving

    def _resolve(self) -> None:
        """Write the oldest steps whose events have completed."""
        # A query would break a graph capture. If step ends were not reported, the host's records may be overwritten.
        if self.backend.capturing() or self.ended != self.recorder.steps:
            return
        for _ in range(RESOLVED_MAX):
            if self.done >= self.ended:
                self._make_room()
                return
            number = (self.done + 1) % PENDING
            begin, end = self.begins[number], self.ends[number]
            if begin >= 0 and not self.backend.query(self.events[end % EVENTS]):
                return
            self._settle(None if begin < 0 else self._take(begin, end))

    def _take(self, begin: int, end: int) -> list[int] | None:
        """Device ns per phase of the oldest step up to position `end`, whose event has completed."""
        if self.anchor is None:
            self.anchor, self.at, self.before = self.events[begin % EVENTS], begin, 0
            self.weights = [0] * page.PHASE_SLOTS
        events, elapsed_ns, anchor, before = self.events, self.backend.elapsed_ns, self.anchor, self.before
        for position in range(self.at + 1, end + 1):
            slot = position % EVENTS
            time_ns = elapsed_ns(anchor, events[slot])
            if time_ns > before:
                self.weights[self.columns[slot]] += time_ns - before
                before = time_ns
        self.at, self.before = end, before
        return self.weights if before else None

    def _make_room(self) -> None:
        """Resolve the completed part of a running step that fills over half of the ring."""
        if self.begun < 0 or self.head - self.tail <= EVENTS // 2:
            return
        end = min(self.head - 1, max(self.at, self.begun) + EVENTS // 8)
        if self.backend.query(self.events[end % EVENTS]):
            self._take(self.begun, end)
            slot = self.begun % EVENTS
            if self.events[slot] is self.anchor:  # Needed until the step's end, so it must not be reused.
                self.events[slot] = None
            self.tail = end

    def _release(self) -> None:
        self.anchor, self.at = None, -1

    def _settle(self, weights: list[int] | None) -> None:
        """Write the oldest ended step to the page's ring, divided by weights or as the host measured."""
        words, number, used = self.recorder.words, self.done + 1, self.recorder.used
        before, self.host = self.host, _host(words, number)
        inside, outside = _spent(before, self.host, used)
        if weights is not None:
            length = sum(inside)
            inside = apportion(length, [weights[i] for i in used])
            self.device_ns += length
            self.steps += 1
        at = page.W_DEVICE_RING + (number - 1) % page.DEVICE_RING * page.DEVICE_WORDS
        words[at + page.D_SEAL] = 0
        words[at + page.D_DEVICE_NS] = self.device_ns
        totals, to = self.totals, at + page.D_TOTALS
        for i, within, beyond in zip(used, inside, outside, strict=False):
            totals[i] = words[to + i] = totals[i] + within + beyond
        words[at + page.D_NUMBER] = number
        words[at + page.D_SEAL] = number
        words[page.W_DEVICE_DONE] = self.done = number
        words[page.W_DEVICE_STEPS] = self.steps
        words[page.W_DEVICE_COST] = self.cost_ns
        # The event that ends a step may begin the next one.
        self.tail = max(self.tail, self.ends[number % PENDING])
        self._release()

    def _finish(self, _: int) -> None:
        if self._bound:
            if self.ended < self.recorder.steps:
                self._skip_to(self.recorder.steps)
            while self.done < self.ended:
                before = self.done
                self._resolve()
                if self.done == before:
                    self._settle(None)
        self._on = False

    def _give_up(self, error: Exception) -> None:
        """Stop for good: readers continue from the last record on the host's clock."""
        recorder = self.recorder
        recorder.set_device(None)
        self._on, self.error = False, f"{type(error).__name__}: {error}"
        recorder.words[page.W_DEVICE_STATE] = _GAVE_UP
        recorder.set_device_why(page.DEVICE_WHYS.index("error"))
        recorder.drop("error")


def use_host_clock(recorder, why: str) -> None:
    """Record in this page and later ones that there is only the host's clock, and why (one of page.DEVICE_WHYS)."""
    recorder.set_device_why(page.DEVICE_WHYS.index(why))
    if recorder.words is not None:
        recorder.words[page.W_DEVICE_STATE] = _HOST


def _step_at(number: int) -> int:
    return page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS


def _host(words, number: int) -> list[int]:
    """The host's totals at a step's end, followed by their part outside steps."""
    at = _step_at(number) + page.R_TOTALS
    return words[at : at + 2 * page.PHASE_SLOTS].tolist()


def _spent(before: list[int], now: list[int], used: list[int]) -> tuple[list[int], list[int]]:
    """ns of the used phases inside steps, and outside."""
    slots = page.PHASE_SLOTS
    outside = [now[slots + i] - before[slots + i] for i in used]
    return [now[i] - before[i] - out for i, out in zip(used, outside, strict=True)], outside
