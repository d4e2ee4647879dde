"""One recorder per process: how it starts, what it is told, and what happens at fork and at exit.

In: the calls of the front door (goodput/__init__.py), what is found out about this process, and the environment. Out:
an open Recorder, on a rank page where one can be written and on private memory where not. What is told of a process
that is measured already goes into its page; until its first step it can still become another rank or run. Nothing
raises into user code: a wrong argument is replaced by its default, and said once on standard error and counted in the
page. Nobody waits: a call that finds another one under way leaves its work to that one.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock, get_ident
from collections import deque

from goodput.rank_page import page
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import (
    DISABLED,
    FORKED,
    FORKED_EARLY,
    NOT_STARTED,
    SAMPLES_MAX,
    STEP_MAX,
    STOPPED,
    Recorder,
    whole,
)
from goodput.sdk.startup import startup
from goodput.sdk.startup.declared_fields import Told
from goodput.sdk.startup.page_rename import move, withdraw
from goodput.sdk.startup.resolve_identity import now, shown
from goodput.wire.identity import check_identity, clean_text

MESSAGES_MAX = 20
MESSAGE_CHARACTERS_MAX = 400
LOCK_SECONDS_MAX = 0.1
CALLS_MAX = 64  # that may wait for the one that is under way


class Session:
    """The process's recorder, its phases and its page."""

    def __init__(self, environ=os.environ):
        self.environ = environ
        self.recorder = Recorder()
        self.recorder.starter = self.start
        self.phases: dict[str, Phase] = {}
        self.states: dict[str, str] = {}
        self.identity: dict = {}
        self.writer: page.Writer | None = None
        self.said: set[str] = set()
        self.errors = 0
        self.automatic = (
            None  # goodput.sdk.automatic.step_detection.Automatic, where goodput.auto was imported
        )
        self._forget()
        if environ.get("GOODPUT_DISABLE", "") not in ("", "0"):
            self.recorder.thread = DISABLED

    def _forget(self) -> None:
        """Nothing is under way and nothing was told: this is a new process."""
        self._starting, self._table = allocate_lock(), allocate_lock()
        self._calls: deque = deque(maxlen=CALLS_MAX)
        self.told, self.placed, self.named = Told(), {}, {}
        self.explicit = False  # whether the user called `start`
        self.settled = False  # whether steps were done under this rank, also in an attempt before

    # -- start and end

    def start(self, explicit: bool = False, **given) -> None:
        """Open the page; see goodput.start. Does nothing when disabled or forked without a call.

        Where the session had started by itself the user's call still tells who this process is.
        """
        # Phases that come meanwhile must not crowd out what the user says.
        if explicit or not self._starting.locked():
            self._in_turn(startup.start, explicit, given)

    def tell(self, **fields) -> None:
        """What was found out about this process: arguments of goodput.start, but for who it is.

        The user's own word holds over it. A world can be found to be larger, not smaller.
        """
        self._in_turn(startup.tell, fields)

    def place(self, rank: int, world_size: int, run: str | None = None) -> None:
        """Rank and world size as they were found out, and a name that all ranks of the run would choose.

        They count where neither the user nor the launcher says otherwise, and until the first step is done.
        """
        placed = {"rank": rank, "world_size": world_size, "run": run}
        self._in_turn(startup.place, {name: value for name, value in placed.items() if value is not None})

    def stop(self, reason) -> None:
        """Close the page with this reason; later phases record nothing until the next `start`."""
        recorder = self.recorder
        if recorder.thread > 0:
            if self.automatic is not None:
                self.automatic.ends()
            failed = type(reason) is str and reason == "failed"
            recorder.end(time.perf_counter_ns(), "failed" if failed else "finished")
            recorder.thread = STOPPED

    def resume(self, step) -> None:
        """The next step is `step + 1`. Going back over steps of this process begins a new attempt."""
        recorder = self.recorder
        if not recorder.ready() and not recorder.adopt():
            return None
        index = whole(step, -1, STEP_MAX)
        if index is None:
            recorder.drop("step")
            return self.say(f"resumed({shown(step)}): want the index of the last step done, -1 for none")
        if self.automatic is not None:
            self.automatic.end_deep_look()
        if recorder.steps and index + 1 < recorder.step_next:
            self.settled = True
            again = dict(self.identity, attempt=self.identity["attempt"] + 1, **now())
            recorder.end(again["start_mono_ns"], "resumed")
            try:
                self.open(again, os.path.dirname(self.writer.path) if self.writer.path else None, again=True)
            except Exception as error:
                return self._give_up(error)
        recorder.abandon_step()
        recorder.step_next = index + 1
        recorder.words[page.W_STEP_NEXT] = index + 1 + page.STEP_BIAS
        recorder.event("resumed", time.perf_counter_ns(), index)

    def mark(self, text) -> None:
        """Record an event with this text, from whichever thread."""
        recorder = self.recorder
        if not recorder.ready() and recorder.thread <= 0:
            return None
        try:
            text = clean_text(text, page.EVENT_TEXT_BYTES + 1)
        except Exception as error:
            return self.say(f"mark: no text: {type(error).__name__}")
        recorder.event("mark", time.perf_counter_ns(), max(recorder.step_next - 1, -1), text)

    def open(self, identity: dict, directory, again: bool = False) -> None:
        """Record into a page of this identity; `again` is for an attempt that follows in the same process."""
        old, recorder = self.writer, self.recorder
        if again and directory is None:
            writer = page.Writer(None, identity)
        else:
            writer = self._writer(identity, directory or page.default_directory(self.environ))
        if not recorder.step_cost_ns:
            _calibrate(recorder)
        if not again:
            recorder.reset()
        locked = self._table.acquire(True, LOCK_SECONDS_MAX)
        try:
            for index, (name, state) in enumerate(self.states.items()):
                page.write_user_phase(writer.words, index, name.encode(), state.encode())
            self.identity, self.writer = identity, writer
            recorder.open(writer.words, identity["start_mono_ns"], writer.fd)
        finally:
            if locked:
                self._table.release()
        if old is not None:
            old.close()
        recorder.words[page.W_PROVISIONAL] = not (self.explicit or again)
        recorder.words[page.W_DROPS + page.DROPS.index("error")] += min(self.errors, 1000)
        self.errors = 0
        recorder.charge(time.perf_counter_ns())
        if recorder.device is None and "torch" in sys.modules:
            self._start_device_clock()

    def _start_device_clock(self) -> None:
        """Where the training uses a device, time on it, too."""
        from goodput.sdk.device.torch_events import device_clock

        device_clock(self.recorder, sys.modules["torch"])

    def _writer(self, identity: dict, directory) -> page.Writer:
        """A page in the directory; where that cannot be, one in memory that only this process can read."""
        try:
            page.make_directory(directory)
            identity["attempt"] = page.next_attempt(directory, identity)
            return page.Writer(directory, identity)
        except page.Claimed as claim:
            self._refused(claim)
        except Exception as error:
            text = f"cannot write a page in {shown(directory)}: {shown(error)}"
            self.say(f"{text}; only goodput.report() will see this process")
        return page.Writer(None, identity)

    def _refused(self, claim: page.Claimed) -> None:
        self.say(f"{claim}; this process is not reported. Give it its own rank= or run=")
        try:
            page.bump_drop(claim.path, "claim")
        except (OSError, ValueError):
            pass  # Another user's page, or it went away.

    def _in_turn(self, act, *arguments) -> None:
        """Do this now; or, where another thread or the code that a signal handler interrupted is at it, right after."""
        self._calls.append((act, arguments))
        while self._calls and self._starting.acquire(False):
            try:
                if self._calls:  # Whoever had the lock may have done it.
                    act, arguments = self._calls.popleft()
                    act(self, *arguments)
            except Exception as error:
                self._give_up(error)
            finally:
                self._starting.release()

    def become(self, identity: dict, directory) -> None:
        """Be this rank from the start of the process on: the page gets its identity, then its name."""
        writer = self.writer
        if writer.path is None:
            return self._name(identity)
        here = os.path.dirname(writer.path)
        for place in (directory, here):
            try:
                page.make_directory(place)
                self._name({**identity, "attempt": page.next_attempt(place, identity)})
                return move(writer, self.identity, place)
            except page.Claimed as claim:
                self._refused(claim)
                return withdraw(writer)
            except (OSError, TypeError, ValueError) as error:
                # Another file system, or no directory: it stays where it lies.
                self.say(f"cannot move the page to {shown(place)}: {shown(error)}")

    def _name(self, identity: dict) -> None:
        page.rewrite_identity(self.writer.words, check_identity(identity))
        self.identity = identity

    def _give_up(self, error: Exception) -> None:
        self.say(f"cannot start, this process is not measured: {shown(error)}")
        self.recorder.thread = DISABLED

    # -- other arguments

    def samples(self, value) -> int:
        """What `samples=` says, 0 where that is no count."""
        if type(value) is int and 0 <= value < SAMPLES_MAX:
            return value
        number = whole(value, 0, SAMPLES_MAX)
        if number is None:
            self.say(f"samples={shown(value)}: want a whole number from 0; taken as 0")
        return number or 0

    # -- phases

    def define(self, name, state) -> Phase:
        """A phase, made on first use. One of the user's own beyond the bound, or with a bad name, is no phase."""
        if not self._table.acquire(True, LOCK_SECONDS_MAX):
            return self._nowhere()
        try:
            return self._define(name, state)
        except Exception as error:
            self.say(f"phase({shown(name)}): {type(error).__name__}; counted as no phase")
            return self._nowhere()
        finally:
            self._table.release()

    def _define(self, name, state) -> Phase:
        known = self.phases.get(name) if isinstance(name, str) else None
        if known is not None:
            return known
        if isinstance(name, str) and name in page.PHASES[1:]:
            return self._add(name, page.PHASES.index(name))
        raw = name.encode("utf-8", "replace") if isinstance(name, str) else b""
        if not 0 < len(raw) <= page.NAME_BYTES_MAX or not name.isprintable() or name == "none":
            self.say(
                f"phase({shown(name)}): want 1 to {page.NAME_BYTES_MAX} printable bytes; counted as no phase"
            )
            return self._nowhere()
        if len(self.states) >= page.USER_PHASES_MAX:
            self.say(
                f"phase({name!r}): {page.USER_PHASES_MAX} phases of your own at most; counted as no phase"
            )
            return self._nowhere()
        if not isinstance(state, str) or state not in page.USER_STATES:
            if state is not None:
                self.say(f"phase({name!r}, state={shown(state)}): want one of {', '.join(page.USER_STATES)}")
            state = "unattributed"
        index = len(self.states)
        self.states[name] = state
        if self.recorder.thread > 0:
            page.write_user_phase(self.recorder.words, index, raw, state.encode())
        return self._add(name, len(page.PHASES) + index)

    def _add(self, name: str, index: int) -> Phase:
        self.recorder.used.append(index)
        return self.phases.setdefault(name, Phase(self.recorder, name, index))

    def _nowhere(self) -> Phase:
        """A phase whose time is that of no phase, so that the account stays whole."""
        if self.recorder.thread > 0:
            self.recorder.drop("phase")
        return Phase(self.recorder, "none", 0)

    # -- trouble

    def say(self, text: str, is_error: bool = True) -> None:
        """One line on standard error, each text once and a bounded number; errors are counted in the page."""
        if self.recorder.thread == DISABLED:
            return
        if not is_error:
            pass
        elif self.recorder.thread > 0:
            self.recorder.drop("error")
        else:
            self.errors += 1
        if text in self.said or len(self.said) >= MESSAGES_MAX:
            return
        self.said.add(text)
        try:
            sys.stderr.write(f"goodput: {text[:MESSAGE_CHARACTERS_MAX]}\n")
        except Exception:
            pass

    def after_fork(self) -> None:
        """In the child: the page is the parent's; record nothing until `start` is called here."""
        self._forget()
        recorder = self.recorder
        if recorder.thread == NOT_STARTED:
            recorder.thread = FORKED_EARLY
        if recorder.thread > 0:
            recorder.detach(page.private_words(), FORKED)
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def at_exit(self) -> None:
        """Close the page, as failed when the interpreter is leaving because of an exception."""
        try:
            raised = sys.exc_info()[1]
            if raised is None:
                raised = getattr(sys, "last_type", None)
            well = raised is None or (isinstance(raised, SystemExit) and raised.code in (None, 0))
            if self.recorder.thread > 0 and self.recorder.thread != get_ident():
                self.recorder.thread = get_ident()
            steps = self.recorder.steps if self.recorder.thread > 0 else 0
            self.stop("finished" if well or hasattr(sys, "ps1") else "failed")
            if steps and self.environ.get("GOODPUT_REPORT", "") not in ("", "0"):
                self._print_report()
        except Exception:
            pass

    def _print_report(self) -> None:
        """What `goodput run` prints when the training ends: rank 0 shows what lies on this host of the run.

        In a process of its own: what is imported here would change how an interrupt ends this one.
        """
        if self.identity["rank"] == 0 and self.writer is not None and self.writer.path is not None:
            where = ["--directory", os.path.dirname(self.writer.path), "--run", self.identity["run"]]
            environ = {name: value for name, value in self.environ.items() if name != "GOODPUT_AUTO"}
            command = [sys.executable, "-m", "goodput", "report", *where]
            sys.stdout.flush()
            sys.stderr.write("\n")
            sys.stderr.flush()
            child = os.posix_spawn(
                sys.executable, command, environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)]
            )
            os.waitpid(child, 0)
            cost, spent = (
                self.recorder.words[page.W_COST],
                self.recorder.last_ns - self.identity["start_mono_ns"],
            )
            share = 100 * cost / max(spent, 1)
            sys.stderr.write(
                f"  goodput itself cost {cost / 1e9:.4f} s ({share:.3f} % of all time) in rank 0\n"
            )


def _calibrate(recorder: Recorder) -> None:
    """Measure what a phase and a step cost here, on a recorder of its own (about 0.3 ms, once).

    The least of some rounds, since any of them may be interrupted by other processes.
    """
    trial = Recorder()
    trial.open(page.private_words(), time.perf_counter_ns())
    phase = Phase(trial, "forward", 3)

    def phases() -> None:
        for _ in range(16):
            with phase:
                pass

    def steps() -> None:
        for _ in range(16):
            now = time.perf_counter_ns()
            trial.end_gap(now)
            trial.begin_step(now, None, 0)
            trial.end_step(now)

    least = [1 << 60] * 3
    for _ in range(6):  # The first round warms the memory up.
        for at, (work, measuring) in enumerate(((phases, True), (phases, False), (steps, False))):
            trial.measuring = measuring
            began = time.perf_counter_ns()
            work()
            least[at] = min(least[at], (time.perf_counter_ns() - began) // 16)
    measured_ns, recorder.phase_cost_ns, recorder.step_cost_ns = least
    recorder.reading_ns = max(measured_ns - recorder.phase_cost_ns, 0) // 2
