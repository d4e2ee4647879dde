"""Deep looks: at times one training step is traced by torch.profiler, and a child process reduces the trace.

On if `GOODPUT_DEEP_LOOK` is set (frameworks/torch/deep_look.py); stopping the profiler waits for the device, which
nothing else of the SDK does. The result is `document`, also written beside the page (rank_page/deep_look.py).

The profiler is started and stopped between two steps, in the phase `deep_look`. All of it counts as cost: start,
stop, export, starting the child, reading its result, and what the traced step took beyond the median of the steps
before it. The next look comes no earlier than when that is half of the overhead budget. One rank looks, by default
rank 0, since the others wait for it in their collectives.

A profiler of the user has precedence. Where the traced step is interrupted (by an evaluation, a checkpoint, a
compilation, a fork) the look ends without a result, so the profiler never runs on.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from _thread import get_ident
from statistics import median
from time import monotonic_ns, perf_counter_ns, time_ns
from typing import Any

from goodput.rank_page import deep_look
from goodput.sdk.automatic.deep_look_child import Analysis
from goodput.sdk.automatic.overhead_budget import last_lengths_ns
from goodput.sdk.recorder.messages import short_repr
from goodput.user_exceptions import is_from_handler, reraise_from_handler

TRACE_BYTES_MAX = 512 << 20  # also what must be free where it is written
FAILURES_MAX = 3  # one after the other; then looks end
NEIGHBOURS = 8
EVERY_NS_MAX = 366 * 86400 * 10**9


def interval_ns(text: str, warn) -> int:
    """`GOODPUT_DEEP_LOOK` in ns: minutes, or a number with s, m or h. 0 and invalid texts turn deep looks off."""
    text = text.strip()
    if not text:
        return 0
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1])
    try:
        every_ns = float(text[:-1] if unit else text) * (unit or 60) * 1e9
        if 0 <= every_ns <= EVERY_NS_MAX:
            return round(every_ns)
    except ValueError:
        pass
    warn(f"GOODPUT_DEEP_LOOK={text[:40]!r}: want minutes, or a time such as 30s or 1h; no deep looks")
    return 0


class DeepLook:
    """The looks of one process. All methods are called on the step thread; none raises or waits for the child.

    profile   our running profiler, None between looks
    users     the user's profilers that are prepared and have not ended
    own       whether a profiler that starts now is ours
    wanted    whether the next step is to be traced
    off       whether too many looks failed
    """

    def __init__(self, auto, torch, every_ns: int, environ=os.environ, clock_ns=monotonic_ns):
        self.auto, self.torch, self.recorder, self.environ = auto, torch, auto.recorder, environ
        self.session, self.clock_ns = auto.session, clock_ns
        self.setting_ns = self.every_ns = every_ns
        self.rank = environ.get("GOODPUT_DEEP_LOOK_RANK", "").strip() or "0"
        self.keep = environ.get("GOODPUT_DEEP_LOOK_KEEP", "") not in ("", "0")
        self.users: weakref.WeakSet = weakref.WeakSet()
        self.profile: Any = None
        self.mark: Any = None
        self.analysis: Analysis | None = None
        self.seen: dict | None = None
        self.own = self.wanted = self.off = False
        self.thread = self.step = self.cost_ns = self.this_cost_ns = self.slowdown_ns = 0
        self.looks = self.skipped = self.failed = self.in_a_row = 0
        self.why, self.due_ns, self.ended_unix_ns = "", None, 0

    @property
    def directory(self) -> str:
        """For traces; not that of the pages, which is usually memory."""
        return self.environ.get("TMPDIR") or "/tmp"

    # -- the schedule

    def poll(self) -> None:
        """Take the child's result; have the next step traced if a look is due."""
        self.collect()
        now = self.clock_ns()
        if self.due_ns is None:
            self.due_ns = now + self.every_ns
        if self.off or self.wanted or self.profile or self.analysis or now < self.due_ns:
            return
        if self.rank not in ("all", str(self.session.identity.get("rank"))):
            return
        autograd = self.torch.autograd
        if self.users or autograd.profiler._is_profiler_enabled or autograd._profiler_enabled():
            self._schedule()
            self.skipped += 1
            self._write()
            return
        self.wanted = self.auto.needs_after_step = True
        self.auto.training.set_routine(False)

    def after_step(self) -> None:
        """Begin the look that is due, or end the one that runs."""
        if self.profile is not None:
            self._between_steps(self._finish)
        elif self.wanted:
            self.wanted = False
            self._between_steps(self._begin)
            if self.profile is not None:
                self.auto.needs_after_step = True

    def _schedule(self) -> None:
        """The next look is due after the setting's time, or later if this one's cost is above half of the budget."""
        needed_ns = round(self.this_cost_ns / (self.auto.budget.share / 2))
        self.every_ns = max(self.setting_ns, min(needed_ns, EVERY_NS_MAX))
        self.due_ns = self.clock_ns() + self.every_ns

    # -- one look

    def _between_steps(self, act) -> None:
        """Call `act` outside of steps: the step that has just begun begins when it returns."""
        auto, recorder, began_ns = self.auto, self.recorder, perf_counter_ns()
        recorder.abandon_step()
        auto.training.step_dropped()
        try:
            with self.session.phases.define("deep_look", "unattributed"):
                act()
        except BaseException as error:
            if isinstance(error, Exception) and not is_from_handler(error):
                self._fail(error)
            else:  # The user's interrupt passes; the profiler must not run on.
                self._drop()
                raise
        finally:
            auto.open_step()
            self._charge(perf_counter_ns() - began_ns)
            if self.profile is None:
                self._schedule()
                if self.analysis is None:
                    self._write()

    def _begin(self) -> None:
        self.this_cost_ns = 0
        space = os.statvfs(self.directory)
        if space.f_bavail * space.f_frsize < TRACE_BYTES_MAX:
            raise OSError(f"{self.directory}: less than {TRACE_BYTES_MAX >> 20} MiB free for a trace")
        profiler = self.torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if self.torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        self.thread, self.step = get_ident(), self.recorder.step_next
        self.own = True
        try:
            made = self.profile = profiler.profile(activities=activities)
            made.start()
            self.mark = profiler.record_function(f"ProfilerStep#{self.step}")
            self.mark.__enter__()
        finally:
            self.own = False

    def _finish(self) -> None:
        """The traced step has ended: stop the profiler, write the trace, and start its analysis."""
        length_ns, *before_ns = last_lengths_ns(self.recorder, 1 + NEIGHBOURS)
        self.slowdown_ns = max(length_ns - round(median(before_ns)), 0) if before_ns else 0
        self._charge(self.slowdown_ns)
        self.ended_unix_ns = time_ns()
        profile = self._stop()
        fd, path = tempfile.mkstemp(prefix="goodput-", suffix=".trace.json", dir=self.directory)
        try:
            profile.export_chrome_trace(path)
            # Kineto may have replaced the file.
            os.close(fd)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            size = os.fstat(fd).st_size
            if not 0 < size <= TRACE_BYTES_MAX:
                raise OSError(f"the trace has {size} bytes; at most {TRACE_BYTES_MAX} are read")
            self.analysis = Analysis(fd, self.environ)
            if self.keep:
                name = os.path.basename(self.session.writer.path or "goodput")
                os.replace(path, os.path.join(self.directory, f"{name}.trace.json"))
        finally:
            os.close(fd)
            try:
                os.unlink(path)
            except OSError as error:
                reraise_from_handler(error)  # Else it is kept under another name.

    def _stop(self):
        """Stop our profiler and return it. Raises what that raises."""
        profile, mark, self.profile, self.mark = self.profile, self.mark, None, None
        if self.thread != get_ident():
            raise RuntimeError("the step loop changed its thread during a deep look")
        try:
            if mark is not None:
                mark.__exit__(None, None, None)
            profile.stop()
        except BaseException:
            # It was started or stopped in part: what runs of it must not go on.
            autograd = self.torch.autograd
            if autograd._profiler_enabled():
                autograd._disable_profiler()
            autograd.profiler._is_profiler_enabled = False
            raise
        return profile

    def cancel(self) -> None:
        """End a running look without a result: its step is interrupted, or the process forks, ends or needs the profiler."""
        if self.profile is not None and self.thread == get_ident():
            began_ns = perf_counter_ns()
            try:
                self.skipped += 1
                self._drop()
                self._charge(perf_counter_ns() - began_ns)
                self._schedule()
            except Exception as error:
                reraise_from_handler(error)
                self._fail(error)

    def _drop(self) -> None:
        """Stop without a result and without waiting for the device."""
        if self.profile is None:
            return
        inner = getattr(self.profile, "profiler", None)
        if inner is not None:
            inner.use_device = None
        try:
            self._stop()
        except Exception as error:
            reraise_from_handler(error)  # It is off nevertheless.

    def _fail(self, error: Exception) -> None:
        self._drop()
        self.failed += 1
        self.in_a_row += 1
        self.why = f"{type(error).__name__}: {short_repr(error)}"
        self.off = self.in_a_row >= FAILURES_MAX
        self.session.warn(f"deep look: {self.why}")
        if self.off:
            self.session.warn(f"deep look: {FAILURES_MAX} failed one after the other; there will be no more")

    def _charge(self, ns: int) -> None:
        """Count a cost, apart from the one that the budget measures."""
        self.cost_ns += ns
        self.this_cost_ns += ns
        self.recorder.costs.add(ns)
        self.auto.budget.counted_ns += ns

    # -- results

    def collect(self) -> None:
        """Take the child's result if it has ended."""
        if self.analysis is None or self.analysis.owner != os.getpid():
            return
        began_ns = perf_counter_ns()
        try:
            done = self.analysis.poll()
            if done is None:
                return
            self.analysis = None
            raw, cpu_ns = done
            result = {
                **deep_look.result_of(json.loads(raw)),
                "unix_ns": self.ended_unix_ns,
                "step": self.step,
                "cost_ns": self.this_cost_ns,
                "slowdown_ns": self.slowdown_ns,
                "analysis_ns": cpu_ns,
            }
            self.seen = deep_look.checked_result(result)
            self.looks, self.in_a_row = self.looks + 1, 0
        except Exception as error:
            reraise_from_handler(error)
            self.analysis = None
            self._fail(error)
        self._write()
        self._charge(perf_counter_ns() - began_ns)

    def has_begun(self) -> bool:
        """Whether there was any look so far."""
        return self.looks + self.skipped + self.failed > 0 or self.analysis is not None

    def document(self) -> dict:
        """The look as rank_page/deep_look.py describes it."""
        identity = self.session.identity
        return {
            "version": 1,
            **{name: identity.get(name, 0) for name in ("run", "rank", "attempt")},
            **{name: getattr(self, name) for name in ("looks", "skipped", "failed", "cost_ns", "every_ns")},
            "unix_ns": time_ns(),
            "why": self.why,
            "seen": self.seen,
        }

    def _write(self) -> None:
        path = self.session.writer.path if self.session.writer is not None else None
        if path is None:
            return
        try:
            deep_look.write(path, self.document())
        except (OSError, ValueError) as error:
            reraise_from_handler(error)
            self.session.warn(f"deep look: cannot write the result: {short_repr(error)}")

    # -- the end, and other processes

    def close(self) -> None:
        """The measurement ends: stop the profiler and the child."""
        self.cancel()
        self.collect()
        self._forget()

    def after_fork(self) -> None:
        """In the forked process, which has neither the profiler (see `cancel`) nor the analysis."""
        self.profile = self.mark = self.due_ns = None
        self._forget()

    def _forget(self) -> None:
        self.wanted = False
        if self.analysis is not None:
            self.analysis.end()
            self.analysis = None
