"""The session: one per process. It opens the rank page, once, and closes it.

The page is opened at the first of: a loader is iterated, a process group is made, a phase or step begins, or
`goodput.start` is called. Run, rank and attempt are fixed from then on; device, dtype, FLOPs and the like are declared
fields, which may follow at any time. Where no page can be written the recorder uses private memory.

Nothing raises into user code: an invalid argument is replaced by its default, reported once on standard error and
counted in the page. Nothing blocks: a call that arrives while another is being handled (from another thread, or from a
signal handler) is queued and handled right after it.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident
from collections import deque

from goodput.rank_page import own_pages, page
from goodput.sdk.recorder.messages import Messages, short_repr
from goodput.sdk.recorder.recorder import SAMPLES_MAX, STEP_MAX, Recorder, State, checked_int
from goodput.sdk.startup import exit_status, exit_text, unranked, variables
from goodput.sdk.startup.calibration import calibrate
from goodput.sdk.startup.declared_fields import DeclaredFields
from goodput.sdk.startup.phase_table import PhaseTable
from goodput.sdk.startup.resolve_identity import contradicts, now, resolve_identity, valid_rank
from goodput.user_exceptions import drop_own_frames, is_from_handler, reraise_from_handler
from goodput.wire.identity import check_identity, clean_text

TYPE_CHECKING = False  # `typing` is not imported: it takes longer than all of goodput.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CALLS_MAX = 64  # queued while one is being handled
# Processes that start at once may choose the same number; all but one choose again.
NUMBERINGS_MAX = 1024
ENDS = ("finished", "failed")
INTERRUPTS_MAX = 4  # of one call, by signal handlers


class Session:
    """The process's recorder, its phases and its page."""

    def __init__(self, environ=os.environ, print_reports: Callable[[Session, bool], None] | None = None):
        """`print_reports(session, has_steps)` is called at exit where GOODPUT_REPORT is set."""
        self.environ = environ
        self._print_reports = print_reports
        self.recorder = Recorder(self.start_implicitly)
        self.messages = Messages()
        self.phases = PhaseTable(self.recorder, self.warn)
        self.identity: dict = {}
        self.writer: page.Writer | None = None
        self.errors = 0  # before there is a page to count them in
        self.automatic: Any = None  # automatic.step_detection.Automatic, once goodput.auto is imported
        self._process_frame: Any = None  # where multiprocessing runs this process
        self._reset()
        if environ.get("GOODPUT_DISABLE", "") not in ("", "0"):
            self.recorder.set_state(State.DISABLED)

    def _reset(self) -> None:
        self._is_handling = False
        self._calls: deque = deque(maxlen=CALLS_MAX)
        self.declared = DeclaredFields()
        self.group_rank: dict = {}  # rank and world size in the process group
        self._is_rank_given = False

    # -- start and end

    def start(self, **given) -> None:
        """`goodput.start`: open the page; if it is open already, take the declared fields."""
        self._handle(self._start, given)

    def start_implicitly(self) -> None:
        """The first loader, process group, phase or step: open the page."""
        # Calls of many threads must not crowd the user's own start out of the bounded queue.
        if not self._is_handling:
            self._handle(self._start_implicitly)

    def declare(self, **fields) -> None:
        """Take fields that were detected, such as device, dtype or FLOPs; the user's own values win over them."""
        self._handle(self._declare, fields)

    def set_rank(self, rank: int, world_size: int) -> None:
        """This process's rank in its process group, used where neither the user nor the launcher names one."""
        self._handle(self._set_rank, rank, world_size)

    def stop(self, reason) -> None:
        """Close the page with this reason; phases record nothing until the next `start`."""
        recorder = self.recorder
        if type(reason) is not str or reason not in ENDS:
            self.warn(f'stop({short_repr(reason)}): want "finished" or "failed"; taken as finished')
        if recorder.is_recording:
            if self.automatic is not None:
                self.automatic.end()
            failed = type(reason) is str and reason == "failed"
            recorder.end(time.perf_counter_ns(), "failed" if failed else "finished")
            recorder.set_state(State.STOPPED)
            if self.automatic is not None:
                self.automatic.ended()
            self.declared.forget_training()

    def resume(self, step) -> None:
        """The next step is `step + 1`. Going back over steps of this process begins a new attempt, with its own page."""
        recorder = self.recorder
        if not recorder.ready() and not recorder.adopt():
            return None
        index = checked_int(step, -1, STEP_MAX)
        if index is None:
            recorder.drop("step")
            return self.warn(
                f"resumed({short_repr(step)}): want the index of the last step done, -1 for none"
            )
        if self.automatic is not None:
            self.automatic.cancel_deep_look()
        attempt = None
        if recorder.steps and index + 1 < recorder.step_next:
            attempt = dict(self.identity, attempt=self.identity["attempt"] + 1, **now())
        self._complete(self._resume, index, attempt)

    def _resume(self, index: int, attempt: dict | None) -> None:
        """The next step is `index + 1`, in this attempt if it is another one."""
        recorder = self.recorder
        if attempt is not None and self.identity is not attempt:
            recorder.end(attempt["start_mono_ns"], "resumed")
            self._open_next_attempt(attempt)
        recorder.abandon_step()
        recorder.renumber(index)

    def mark(self, text) -> None:
        """Record an event with this text, from any thread."""
        recorder = self.recorder
        if not recorder.ready() and not recorder.is_recording:
            return None
        try:
            given, text = type(text), clean_text(text, page.EVENT_TEXT_BYTES + 1)
        except Exception as error:
            reraise_from_handler(error)
            return self.warn(f"mark: the argument has no text: {type(error).__name__}")
        if not issubclass(given, str):
            self.warn(f"mark: want text, not {given.__name__}; str() of it is recorded")
        recorder.event("mark", time.perf_counter_ns(), max(recorder.step_next - 1, -1), text)

    # -- one call at a time

    def _handle(self, call, *arguments) -> None:
        """Run this call; if one is running, in another thread or below this signal handler, run it after that one."""
        self._calls.append((call, arguments))
        # No call lies between this look and the next line, so no handler runs and no thread is switched to.
        while self._calls and not self._is_handling:
            try:
                self._is_handling = True
                next_call = self._calls[0] if self._calls else None  # The previous one may have run it.
                if next_call is not None:
                    self._complete(next_call[0], *next_call[1])
                if self._calls and self._calls[0] is next_call:  # Not if many others came meanwhile.
                    self._calls.popleft()
            finally:
                self._is_handling = False

    def _complete(self, call, *arguments) -> None:
        """Run this call to its end. What a signal handler of the user's raises meanwhile is raised after that.

        An interrupted call leaves nothing half-made, so it is run again; it is left undone where that is interrupted
        too, INTERRUPTS_MAX times.
        """
        interrupt = None
        for _ in range(INTERRUPTS_MAX):
            try:
                call(*arguments)
                break
            except BaseException as error:
                if isinstance(error, Exception) and not is_from_handler(error):
                    self._give_up(error)
                    break
                interrupt = interrupt or error
        if interrupt is not None:
            drop_own_frames(interrupt)
            raise interrupt

    def _start(self, given: dict) -> None:
        if self.recorder.state in (State.NOT_STARTED, State.STOPPED, State.FORKED, State.FORKED_EARLY):
            self._open_first(given)
        elif self.recorder.is_recording:
            self._start_again(given)

    def _start_again(self, given: dict) -> None:
        """`start` while the page is open: take what may still change, and report what may not."""
        _check_again(given, self.warn)
        other = contradicts(given, self.identity, self.writer and self.writer.path)
        given = {**given, "world_size": None} if other else given
        self.declared.declare(given, self.warn)
        self._publish()
        world_size = checked_int(given.get("world_size"), 0, page.NS_MAX)
        if other or world_size not in (None, self.identity["world_size"]):
            who = f"run {self.identity['run']!r}, rank {self.identity['rank']}"
            self.warn(
                "start was called with another run, rank, world size, attempt or directory, but this process is "
                f"already measured as {who}, which stays. Call goodput.start before the first loader, process "
                "group, phase or step"
            )

    def _start_implicitly(self) -> None:
        if self.recorder.state == State.NOT_STARTED:
            self._open_first({})

    def _declare(self, fields: dict) -> None:
        self.declared.detect(fields, self.warn)
        self._publish()

    def _set_rank(self, rank, world_size) -> None:
        found = valid_rank(rank, world_size)
        if not found:
            return self.warn(f"rank {short_repr(rank)} of {short_repr(world_size)} is invalid and ignored")
        self.group_rank = found
        if not self.recorder.is_recording:
            return None
        if found["rank"] == self.identity["rank"]:
            return self._declare({"world_size": found["world_size"]})
        if not self._is_rank_given:
            self.warn(
                f"the process group has rank {rank} of {world_size}, but this process is already measured as rank "
                f"{self.identity['rank']}, which stays. Make the process group, or call goodput.start(rank=...), "
                "before the first loader, phase or step"
            )

    # -- the page

    def _open_first(self, given: dict) -> None:
        fresh = self.recorder.state != State.STOPPED
        identity = resolve_identity(given, self.environ, self.warn, fresh, self.group_rank)
        if not identity["rank"]:  # One rank of a job says it for all.
            for text in variables.problems(self.environ):
                self.warn(text)
        self._is_rank_given = given.get("rank") is not None or identity["launcher"] != "none"
        self.declared.forget_user()
        self.declared.declare(given, _ignore)  # resolve_identity has reported what is invalid.
        identity.update(self.declared.values(identity["world_size"]))
        directory = given.get("directory") or page.default_directory(self.environ)
        if not self.recorder.costs.step_ns:
            calibrate(self.recorder)
        self.recorder.reset()
        self._close_before_exit()
        exit_text.watch_exit_calls(self.recorder)
        self._open(self._numbered_writer if identity.get("worker") else self._writer, identity, directory)

    def _open_next_attempt(self, identity: dict) -> None:
        """In the directory of the page before; open phases stay open."""
        path = self.writer and self.writer.path
        self._open(self._writer, identity, path and os.path.dirname(path))

    def _open(self, make_writer, identity: dict, directory) -> None:
        """Make a page and record in it; where this is interrupted, the page is removed."""
        writer, state = make_writer(identity, directory), self.recorder.state
        try:
            self._switch_to(writer, identity)
        finally:
            if self.writer is not writer:
                self.recorder.set_state(state)
                writer.discard()

    def _switch_to(self, writer: page.Writer, identity: dict) -> None:
        old, recorder = self.writer, self.recorder

        def switch() -> None:
            recorder.open(writer.words, identity["start_mono_ns"], writer.fd)
            self.identity, self.writer = identity, writer

        self.phases.switch_page(writer.words, switch)
        if old is not None:
            old.close()
        recorder.words[page.W_DROPS + page.DROPS.index("error")] += min(self.errors, 1000)
        self.errors = 0
        recorder.charge(time.perf_counter_ns())
        if recorder.device is None and "torch" in sys.modules:
            from goodput.sdk.device.torch_events import device_clock

            device_clock(recorder, sys.modules["torch"])

    def _numbered_writer(self, identity: dict, directory) -> page.Writer:
        """The page of a process without a rank, under the number that it takes, with which `identity` is completed."""
        group = identity["group"]
        try:
            page.make_directory(directory)
            for _ in range(NUMBERINGS_MAX):
                rank = unranked.number(directory, identity)
                identity.update(rank=rank, world_size=max(identity["world_size"], rank + 1))
                identity["group"] = group or (f"process {rank}" if rank else "")
                identity["attempt"] = own_pages.next_attempt(directory, identity)
                try:
                    return page.Writer(directory, identity)
                except page.Claimed:
                    continue
        except page.Claimed as claim:
            self._warn_of_claim(claim)
            return page.Writer(None, identity)
        except Exception as error:
            # Other errors are met by the writer of ranks too, which reports them.
            reraise_from_handler(error)
        return self._writer(identity, directory)

    def _writer(self, identity: dict, directory) -> page.Writer:
        """A page in the directory, or else, or without one, one in memory that only this process can read."""
        if directory is None:
            return page.Writer(None, identity)
        try:
            page.make_directory(directory)
            identity["attempt"] = own_pages.next_attempt(directory, identity)
            return page.Writer(directory, identity)
        except page.Claimed as claim:
            self._warn_of_claim(claim)
        except Exception as error:
            reraise_from_handler(error)
            why = getattr(error, "strerror", None) or short_repr(error)
            text = f"cannot write a page in {short_repr(directory)}: {why}"
            self.warn(f"{text}; only goodput.report() will see this process")
        return page.Writer(None, identity)

    def _warn_of_claim(self, claim: page.Claimed) -> None:
        self.warn(f"{claim}; this process is not reported. Give it its own rank= or run=")
        try:
            page.bump_drop(claim.path, "claim")
        except (OSError, ValueError) as error:
            reraise_from_handler(error)  # Else another user's page, or it was removed meanwhile.

    def _publish(self) -> None:
        """Write the declared fields that are new into the open page."""
        if not self.recorder.is_recording and self.recorder.state != State.STOPPED:
            return
        identity = {**self.identity, **self.declared.values(self.identity["world_size"])}
        if not self.recorder.is_recording:
            # What was detected since is the next training's.
            identity["total_steps"] = self.identity["total_steps"]
        if identity == self.identity:
            return
        try:
            page.rewrite_identity(self.recorder.words, check_identity(identity))
            self.identity = identity
        except (ValueError, page.PageError) as error:
            reraise_from_handler(error)
            self.warn(f"a declared field is not taken: {short_repr(error)}")

    def _give_up(self, error: Exception) -> None:
        self.warn(f"cannot start, this process is not measured: {short_repr(error)}")
        self.recorder.set_state(State.DISABLED)

    # -- arguments and warnings

    def step_index(self, value) -> int | None:
        """The argument `index` of a step; what is none is reported, and counted where the step begins."""
        if value is not None and checked_int(value, 0, STEP_MAX) is None:
            self.warn(f"step({short_repr(value)}): want a whole number from 0; taken as the next step")
        return value

    def samples(self, value) -> int:
        """The argument `samples=` as a count, 0 if it is none."""
        if type(value) is int and 0 <= value < SAMPLES_MAX:
            return value
        number = checked_int(value, 0, SAMPLES_MAX)
        if number is None:
            self.warn(f"samples={short_repr(value)}: want a whole number from 0; taken as 0")
        return number or 0

    def warn(self, text: str, is_error: bool = True) -> None:
        """Write one line to standard error, the same text once; errors are counted in the page."""
        if self.recorder.state == State.DISABLED:
            return
        if is_error and self.recorder.is_recording:
            self.recorder.drop("error")
        elif is_error:
            self.errors += 1
        self.messages.write(text)

    # -- fork and exit

    def after_fork(self) -> None:
        """In the child: the page is the parent's, so record nothing until `start` is called here."""
        device_events = sys.modules.get("goodput.sdk.device.torch_events")
        if device_events is not None:
            device_events.keep_in_child()
        self._reset()
        self.phases.after_fork()
        recorder = self.recorder
        if recorder.state == State.NOT_STARTED:
            recorder.set_state(State.FORKED_EARLY)
        if recorder.is_recording:
            recorder.detach(page.private_words(), State.FORKED)
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def at_exit(self) -> None:
        """Close the page, as failed when the interpreter exits because of an exception or with a status other than 0."""
        try:
            if self.recorder.state == State.DISABLED:
                self._say_why_disabled()
            raised = sys.exc_info()[1]
            if raised is None:
                raised = getattr(sys, "last_type", None)
            code = raised.code if isinstance(raised, SystemExit) else 0 if raised is None else 1
            frame = self._process_frame
            succeeded = not (code or (frame is not None and frame.f_locals.get("exitcode")))
            if self.recorder.is_recording and self.recorder.thread != get_ident():
                self.recorder.take_clock()
            is_open = self.recorder.is_recording
            steps = self.recorder.steps if is_open else 0
            is_interactive = hasattr(sys, "ps1")
            now_ns, last_exit = time.perf_counter_ns(), exit_text.last_exit_call()
            if is_open and not (succeeded or is_interactive):
                said = exit_text.raised_text() or last_exit.text
                self.recorder.write_event("failed", now_ns, exit_text.next_step(self.recorder), said)
            self.stop("finished" if succeeded or is_interactive else "failed")
            if is_open and succeeded and frame is None and not is_interactive and self.writer is not None:
                exit_status.fail_unless_zero(self.writer.fd, self.recorder.words, now_ns, last_exit)
            if self._print_reports and self.environ.get("GOODPUT_REPORT", "") not in ("", "0"):
                self._print_reports(self, bool(steps))
        except Exception as error:
            reraise_from_handler(error)

    def _say_why_disabled(self) -> None:
        """A value such as "no" turns measuring off, where `warn` says nothing."""
        text = variables.value_problem(self.environ, "GOODPUT_DISABLE")
        if text:
            self.messages.write(text)

    def _close_before_exit(self) -> None:
        """A child of multiprocessing ends without the interpreter's exit functions, but runs its own finalizers.

        Up to Python 3.12 they run while the exception that ends the process is handled. Later ones have handled it
        before, and what is left of it is the exit code in a local variable of the method that runs the process.
        """
        processes, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
        if processes is not None and util is not None and processes.parent_process() is not None:
            self._process_frame = _calling_frame(processes.BaseProcess._bootstrap)
            util.Finalize(None, self.at_exit, exitpriority=0)


def _check_again(given: dict, warn) -> None:
    """Report ranks and attempts of a later `start` that are none; only valid ones can contradict the page's."""
    for name in ("rank", "attempt"):
        value = given.get(name)
        if value is not None and checked_int(value, 0, page.NS_MAX) is None:
            warn(f"start({name}={short_repr(value)}): want a whole number; ignored")


def _calling_frame(function):
    """The frame of this thread in which the function runs, None if it does not."""
    code, frame = getattr(function, "__code__", None), sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def _ignore(_text: str) -> None:
    pass
