"""One recorder per process: how it starts, what it is told, and what happens at fork and at exit.

In: the calls of the front door (goodput/__init__.py) and the environment. Out: an open Recorder, on a rank page
where one can be written and on private memory where not. Nothing raises into user code: a wrong argument is
replaced by its default, and said once on standard error and counted in the page.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

from goodput import page
from goodput.identity import check_identity, clean_text, from_environment
from goodput.sdk.phase import Phase
from goodput.sdk.recorder import DISABLED, FORKED, NOT_STARTED, STOPPED, Recorder

# A process older than this when it calls `start` was not started for the run (a notebook, a server).
STARTUP_SECONDS_MAX = 900.0
MESSAGES_MAX = 20


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
        if environ.get("GOODPUT_DISABLE", "") not in ("", "0"):
            self.recorder.thread = DISABLED

    # -- start and end

    def start(self, **given) -> None:
        """Open the page; see goodput.start. Does nothing when disabled, forked without a call, or started."""
        recorder = self.recorder
        if recorder.thread in (NOT_STARTED, STOPPED) or (recorder.thread == FORKED and given.pop("explicit", 0)):
            given.pop("explicit", None)
            try:
                self._open(self._identity(given), given.get("directory"))
            except Exception as error:
                self.say(f"cannot start, this process is not measured: {error}")
                recorder.thread = DISABLED
        elif recorder.thread > 0 and self._differs(given):
            self.say("start was called again with another run, rank or world size; the first call holds")

    def stop(self, reason: str) -> None:
        """Close the page with this reason; later phases record nothing until the next `start`."""
        recorder = self.recorder
        if recorder.thread > 0:
            recorder.end(time.perf_counter_ns(), reason)
            recorder.thread = STOPPED

    def resume(self, step: int) -> None:
        """The next step is `step + 1`. Going back over steps of this process begins a new attempt."""
        recorder = self.recorder
        if not recorder.ready() and not recorder.adopt():
            return None
        if type(step) is not int or not -1 <= step < page.NS_MAX:
            recorder.drop("step")
            return self.say(f"resumed({step!r}): want the index of the last step done, -1 for none")
        if recorder.steps and step + 1 < recorder.step_next:
            recorder.end(time.perf_counter_ns(), "resumed")
            now = _now()
            again = dict(self.identity, attempt=self.identity["attempt"] + 1, **now)
            self._open(again, os.path.dirname(self.writer.path) if self.writer else None)
        recorder.abandon_step()
        recorder.step_next = step + 1
        recorder.words[page.W_STEP_NEXT] = step + 1 + page.STEP_BIAS
        recorder.event("resumed", time.perf_counter_ns(), step)

    def _open(self, identity: dict, directory: str | None) -> None:
        self.identity = identity
        self.writer = self._writer(directory or page.default_directory(self.environ))
        recorder = self.recorder
        start = self.identity["start_mono_ns"]
        recorder.open(self.writer.words, start)
        for index, (name, state) in enumerate(self.states.items()):
            page.write_user_phase(recorder.words, index, name.encode(), state.encode())
        for _ in range(min(self.errors, 1000)):
            recorder.drop("error")
        if not recorder.step_cost_ns:
            _calibrate(recorder)
        recorder.charge(time.perf_counter_ns())

    def _writer(self, directory: str) -> page.Writer:
        """A page in the directory; where that cannot be, one in memory that only this process can read."""
        try:
            page.make_directory(directory)
            self.identity["attempt"] = page.next_attempt(directory, self.identity)
            return page.Writer(directory, self.identity)
        except page.Claimed as claim:
            page.bump_drop(claim.path, "claim")
            self.say(f"{claim}; this process is not reported. Give it its own rank= or run=")
        except (OSError, page.PageError) as error:
            self.say(f"cannot write a page in {directory}: {error}; only goodput.report() will see this process")
        return page.Writer(None, self.identity)

    # -- who we are

    def _identity(self, given: dict) -> dict:
        launched = from_environment(self.environ)
        for text in launched["ignored"]:
            self.say(f"ignored: {text}")
        rank = self._integer(given, "rank", 0, launched.get("rank", 0))
        identity = {
            "run": self._text(given, "run", 128, launched.get("run") or _script_name()),
            "rank": rank,
            "world_size": max(self._integer(given, "world_size", 1, launched.get("world_size", 1)), rank + 1),
            "attempt": self._integer(given, "attempt", 1, launched.get("attempt", 1)),
            "local_rank": launched.get("local_rank", 0),
            "launcher": launched["launcher"],
            "host": clean_text(os.uname().nodename, 255),
            "pid": os.getpid(),
            "pid_start_ticks": page.process_start_ticks(),
            "devices": self._integer(given, "devices", 1, 1),
            "stage": self._integer(given, "stage", 0, None),
            **{name: self._text(given, name, 64, "") for name in ("group", "device", "device_uuid")},
            **{name: self._rate(given, name) for name in _RATES},
            **(_now() if self.recorder.thread == STOPPED else _process_start()),
        }
        return check_identity(identity)

    def _integer(self, given: dict, name: str, least: int, default):
        value = given.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= int(value) < 1 << 20:
            self.say(f"start({name}={value!r}): want a whole number from {least}; using {default}")
            return default
        return int(value)

    def _rate(self, given: dict, name: str) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        try:
            if 0 < float(value) < 1e30:
                return float(value)
        except (TypeError, ValueError):
            pass
        self.say(f"start({name}={value!r}): want a positive number; taken as unknown")
        return None

    def _text(self, given: dict, name: str, most: int, default: str) -> str:
        value = given.get(name)
        return clean_text(default if value is None or value == "" else value, most)

    def _differs(self, given: dict) -> bool:
        return any(
            given.get(name) is not None and given[name] != self.identity.get(name)
            for name in ("run", "rank", "world_size")
        )

    # -- phases

    def define(self, name: str, state: str | None) -> Phase:
        """A phase, made on first use. One of the user's own beyond the bound, or with a bad name, is no phase."""
        known = self.phases.get(name) if isinstance(name, str) else None
        if known is not None:
            return known
        if isinstance(name, str) and name in page.PHASES[1:]:
            return self._add(name, page.PHASES.index(name))
        raw = name.encode("utf-8", "replace") if isinstance(name, str) else b""
        if not 0 < len(raw) <= page.NAME_BYTES_MAX or not name.isprintable() or name == "none":
            self.say(f"phase({name!r}): want 1 to {page.NAME_BYTES_MAX} printable bytes; counted as no phase")
            return self._nowhere()
        if len(self.states) >= page.USER_PHASES_MAX:
            self.say(f"phase({name!r}): {page.USER_PHASES_MAX} phases of your own at most; counted as no phase")
            return self._nowhere()
        if state not in page.USER_STATES:
            if state is not None:
                self.say(f"phase({name!r}, state={state!r}): want one of {', '.join(page.USER_STATES)}")
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

    def say(self, text: str) -> None:
        """One line on standard error, each text once and a bounded number; counted in the page."""
        self.errors += 1
        if self.recorder.thread > 0:
            self.recorder.drop("error")
        if text in self.said or len(self.said) >= MESSAGES_MAX:
            return
        self.said.add(text)
        try:
            sys.stderr.write(f"goodput: {text}\n")
        except Exception:
            pass

    def after_fork(self) -> None:
        """In the child: the page is the parent's; record nothing until `start` is called here."""
        if self.recorder.thread > 0:
            self.recorder.detach(page.private_words(), FORKED)
            self.writer = None

    def at_exit(self) -> None:
        """Close the page, as failed when the interpreter is leaving because of an exception."""
        try:
            failed = getattr(sys, "last_type", None) is not None and not hasattr(sys, "ps1")
            if self.recorder.thread > 0 and self.recorder.thread != get_ident():
                self.recorder.thread = get_ident()
            self.stop("failed" if failed else "finished")
        except Exception:
            pass


_RATES = ("flops_per_step", "peak_flops_per_second", "gpu_hour_cost")


def _script_name() -> str:
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None) or "python"
    return f"{os.path.splitext(os.path.basename(path))[0]}-{os.getpid()}"


def _now() -> dict:
    return {"start_unix_ns": time.time_ns(), "start_mono_ns": time.perf_counter_ns()}


def _process_start() -> dict:
    """The process's own start on both clocks, so that imports count as startup; now, if that is long past."""
    now = _now()
    ticks = page.process_start_ticks()
    if ticks is None or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return now
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    if not 0 <= age_seconds <= STARTUP_SECONDS_MAX:
        return now
    return {clock: ns - int(age_seconds * 1e9) for clock, ns in now.items()}


def _calibrate(recorder: Recorder) -> None:
    """Measure what a phase and a step cost here, on a recorder of its own (about 0.3 ms, once)."""
    trial = Recorder()
    trial.open(page.private_words(), time.perf_counter_ns())
    phase = Phase(trial, "forward", 3)
    for _ in range(2):  # The first round warms the memory up.
        began = time.perf_counter_ns()
        for _ in range(64):
            with phase:
                pass
        phase_ns = (time.perf_counter_ns() - began) // 64
        began = time.perf_counter_ns()
        for _ in range(32):
            now = time.perf_counter_ns()
            trial.end_gap(now)
            trial.begin_step(now, None, 0)
            trial.end_step(now)
        step_ns = (time.perf_counter_ns() - began) // 32
    recorder.phase_cost_ns, recorder.step_cost_ns = phase_ns, step_ns
