"""When a deep look is taken and what it costs, with a simulated profiler."""

from __future__ import annotations

import functools
import json
import os
import sys
import types

import pytest
from support.servers.servers import wait_until

from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.automatic import deep_look, deep_look_child
from goodput.sdk.automatic.deep_look import DeepLook, interval_ns
from goodput.sdk.automatic.frameworks.torch import deep_look as patch
from goodput.sdk.automatic.overhead_budget import CHECK_STEPS, last_lengths_ns
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.startup.session import Session

S = 10**9
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "pid": 1, "tid": 1, "ts": 0, "dur": 100},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 20, "dur": 50},
]


class Optimizer:
    """Something that a weak reference can be made to."""


class Machine:
    """A training of one rank on simulated clocks, with a torch whose profiler takes `cost_ns` to stop."""

    def __init__(self, directory, monkeypatch, every_ns=60 * S, **environ):
        self.now_ns, self.spent_ns, self.cost_ns = 0, 0, 0
        self.calls: list[str] = []
        self.raises = ""
        self.enabled = False
        environ = {"GOODPUT_DIR": str(directory), "TMPDIR": str(directory), **environ}
        os.makedirs(directory, exist_ok=True)
        self.session = Session(environ)
        self.session.start(run="r", rank=0, world_size=1)
        self.auto = Automatic(self.session, functools.partial(self.session.phases.define, state=None))
        self.auto.budget.share = 0.005
        self.look = DeepLook(self.auto, self.torch(), every_ns, environ, clock_ns=lambda: self.now_ns)
        self.auto.deep_look = self.look
        self.auto.after_step.append(self.look.after_step)
        self.auto.periodic.append(self.look.poll)
        self.optimizer = Optimizer()
        monkeypatch.setattr(deep_look, "perf_counter_ns", lambda: self.spent_ns)

    def torch(self):
        machine = self

        class Profile:
            def __init__(self, activities):
                machine.calls.append(f"profile {activities}")

            def start(self):
                machine.does("start")
                machine.enabled = True

            def stop(self):
                machine.does("stop")
                machine.enabled = False
                machine.spent_ns += machine.cost_ns

            def export_chrome_trace(self, path):
                machine.does("export")
                with open(path, "w") as file:
                    json.dump({"traceEvents": EVENTS}, file)

        class Mark:
            def __init__(self, name):
                self.name = name

            def __enter__(self):
                machine.calls.append(self.name)

            def __exit__(self, *_):
                machine.calls.append("mark ends")

        def disable():
            machine.enabled = False

        kinds = types.SimpleNamespace(CPU="cpu", CUDA="cuda")
        flags = types.SimpleNamespace(_is_profiler_enabled=False)
        return types.SimpleNamespace(
            profiler=types.SimpleNamespace(profile=Profile, record_function=Mark, ProfilerActivity=kinds),
            cuda=types.SimpleNamespace(is_initialized=lambda: False),
            autograd=types.SimpleNamespace(
                profiler=flags, _profiler_enabled=lambda: self.enabled, _disable_profiler=disable
            ),
        )

    def does(self, what: str) -> None:
        self.calls.append(what)
        if what == self.raises:
            raise RuntimeError(f"{what} fails")

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.auto.open_step()
            self.auto.optimizer_stepped(self.optimizer)

    def round(self, seconds=None) -> None:
        """Steps until the next check whether a look is due, at this time."""
        if seconds is not None:
            self.now_ns = seconds * S
        self.steps(CHECK_STEPS - self.session.recorder.steps % CHECK_STEPS)

    def finish(self) -> None:
        """Wait for the child's result."""
        os.waitid(os.P_PID, self.look.analysis.child.pid, os.WEXITED | os.WNOWAIT)
        self.look.collect()

    def snapshot(self):
        return Reader(self.session.writer.path, self.session.writer.fd).snapshot()


@pytest.fixture
def machine(directory, monkeypatch):
    made = []

    def make(**given) -> Machine:
        made.append(Machine(directory, monkeypatch, **given))
        made[0].round()
        return made[0]

    yield make
    made[0].look.close()
    made[0].session.stop("finished")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 600), ("30s", 30), ("1h", 3600), ("0.001", 0.06), ("5m", 300), (" 2 ", 120), ("", 0), ("0", 0)],
)
def test_interval_is_minutes_or_has_a_unit(text, seconds):
    assert interval_ns(text, pytest.fail) == seconds * S


@pytest.mark.parametrize("text", ["often", "-1", "nan", "inf", "1e300h", "s", "10 minutes"])
def test_invalid_interval_warns_and_is_off(text):
    warnings = []
    assert interval_ns(text, warnings.append) == 0
    assert "GOODPUT_DEEP_LOOK" in warnings[0]


def test_one_step_is_traced_when_due(machine):
    one = machine()
    one.round()
    assert one.calls == []
    one.round(61)
    number = one.session.recorder.steps
    assert one.calls == ["profile ['cpu']", "start", f"ProfilerStep#{number}"]
    one.steps(1)
    assert one.calls[3:] == ["mark ends", "stop", "export"]
    one.finish()
    assert one.look.looks == 1
    assert one.look.seen["wall_ns"] == 100_000
    assert one.look.seen["step"] == number
    one.steps(3 * CHECK_STEPS)
    assert one.look.looks == 1


def test_next_look_costs_at_most_half_the_budget(machine):
    one = machine()
    one.cost_ns = 2 * S
    one.round(61)
    one.steps(1)
    assert one.look.every_ns == pytest.approx(2 * S / 0.0025, rel=0.01)
    assert one.look.due_ns == pytest.approx(61 * S + 800 * S, rel=0.01)
    one.finish()
    one.cost_ns = 0
    one.round(800)
    assert one.calls.count("start") == 1
    one.round(862)
    assert one.calls.count("start") == 2
    one.steps(1)
    assert one.look.every_ns == 60 * S


def test_cost_is_counted_apart_from_the_budgets(machine):
    one = machine()
    one.round()
    before, counted_ns = one.session.recorder.costs.extra_ns, one.auto.budget.counted_ns
    one.cost_ns = 2 * S
    one.round(61)
    one.steps(2)
    assert one.snapshot().cost_ns >= 2 * S
    assert one.look.cost_ns >= 2 * S
    assert one.auto.budget.counted_ns - counted_ns >= 2 * S
    # The budget's next check neither counts it again nor leaves out its own cost.
    one.finish()
    one.steps(3 * CHECK_STEPS)
    assert 2 * S <= one.session.recorder.costs.extra_ns - before < 2.2 * S
    assert one.auto.budget.counted_ns == pytest.approx(one.session.recorder.words[page.W_COST], abs=1e7)


def test_profiler_starts_and_stops_between_steps(machine):
    one = machine()
    one.round(61)
    one.steps(2)
    found = one.snapshot()
    index = found.phases.index("deep_look")
    assert found.totals[index] == found.steps[-1].outside[index] > 0
    assert [step.step for step in found.steps] == list(range(len(found.steps)))
    assert found.phase_states["deep_look"] == "unattributed"
    assert sum(found.totals) == found.last_ns - found.identity["start_mono_ns"]


def test_a_step_is_traced_while_phases_are_off(machine):
    one = machine()
    one.now_ns = 61 * S
    one.auto.budget.phases_ns = 3600 * S
    one.auto.budget.switch_phases(False)
    before = one.snapshot().totals
    while "start" not in one.calls:
        one.steps(1)
    assert one.auto.training.routine is False
    one.steps(1)
    assert "stop" in one.calls
    assert sum(one.snapshot().totals[1:]) == sum(before[1:])


def test_only_the_configured_rank_looks(machine):
    one = machine(GOODPUT_DEEP_LOOK_RANK="1")
    one.round(61)
    assert one.calls == []
    one.look.rank = "all"
    one.round()
    assert "start" in one.calls


def test_running_profiler_skips_the_look(machine):
    one = machine()
    one.enabled = True
    one.round(61)
    assert one.calls == []
    assert one.look.skipped == 1
    assert one.look.due_ns == 121 * S


@pytest.mark.parametrize("what", ["start", "stop", "export"])
def test_three_failures_in_a_row_end_looks(machine, capsys, what):
    one = machine()
    one.raises = what
    for turn in range(1, 6):
        one.round(turn * 100)
        one.steps(1)
        assert not one.enabled
    assert one.look.failed == 3
    assert one.calls.count("start") == 3
    errors = capsys.readouterr().err
    assert f"{what} fails" in errors
    assert "there will be no more" in errors
    assert one.snapshot().steps[-1].number > 5 * CHECK_STEPS


def test_unusable_trace_is_a_failure_with_reason(machine, monkeypatch):
    one = machine()
    monkeypatch.setattr(sys.modules[__name__], "EVENTS", [])
    one.round(61)
    one.steps(1)
    one.finish()
    assert (one.look.looks, one.look.failed, one.look.seen) == (0, 1, None)
    assert "no usable event" in one.look.why
    with open(one.session.writer.path + ".look.json") as file:
        assert json.load(file)["failed"] == 1


def test_nothing_is_patched_without_the_setting(directory):
    session = Session({"GOODPUT_DIR": str(directory)})
    auto = Automatic(session, functools.partial(session.phases.define, state=None))
    before = len(auto.periodic), len(auto.after_step)
    for setting in ("", " ", "0"):
        session.environ["GOODPUT_DEEP_LOOK"] = setting
        patch.apply(None, auto)
    assert auto.deep_look is None
    assert (len(auto.periodic), len(auto.after_step)) == before


def test_full_disk_fails_before_tracing(machine, monkeypatch):
    one = machine()
    monkeypatch.setattr(deep_look, "TRACE_BYTES_MAX", 1 << 62)
    one.round(61)
    assert one.calls == []
    assert "MiB free" in one.look.why


def test_large_trace_is_not_analysed(machine, monkeypatch):
    one = machine()
    one.round(61)
    monkeypatch.setattr(deep_look, "TRACE_BYTES_MAX", 10)
    one.steps(1)
    assert one.look.analysis is None
    assert "at most 10 are read" in one.look.why
    assert [name for name in os.listdir(one.session.environ["TMPDIR"]) if "trace" in name] == []


def test_last_trace_is_kept_on_request(machine):
    one = machine(GOODPUT_DEEP_LOOK_KEEP="1")
    for turn in (1, 2):
        one.round(turn * 1000)
        one.steps(1)
        one.finish()
    kept = [name for name in os.listdir(one.session.environ["TMPDIR"]) if "trace" in name]
    assert kept == ["r.0.1.page.trace.json"]


def test_interrupted_step_stops_the_profiler(machine):
    one = machine()
    for turn, leave in enumerate((one.auto.cancel_deep_look, one.auto.leave_step, one.look.close), 1):
        one.round(turn * 1000)
        assert one.enabled
        leave()
        assert not one.enabled
        assert one.look.skipped == turn
        one.steps(1)
    assert "export" not in one.calls
    assert one.look.failed == 0


def test_keyboard_interrupt_stops_the_profiler(machine, monkeypatch):
    one = machine()
    one.now_ns = 61 * S

    def interrupted(what):
        if what == "export":
            raise KeyboardInterrupt

    monkeypatch.setattr(one, "does", interrupted)
    one.round()
    with pytest.raises(KeyboardInterrupt):
        one.steps(1)
    assert not one.enabled
    one.steps(CHECK_STEPS)
    assert one.snapshot().steps[-1].number >= 3 * CHECK_STEPS


def test_last_step_lengths_are_newest_first(machine):
    recorder = machine().session.recorder
    words, ring = recorder.words, page.W_STEP_RING
    for number in range(1, recorder.steps + 1):
        at = ring + (number - 1) * page.STEP_WORDS
        words[at + page.R_START], words[at + page.R_END] = 1000 * number, 1000 * number + 500 + number
    newest = recorder.steps
    assert last_lengths_ns(recorder, 3) == [500 + newest, 499 + newest, 498 + newest]
    recorder.steps = 1
    assert last_lengths_ns(recorder, 3) == [501]
    recorder.steps = 0
    assert last_lengths_ns(recorder, 3) == [0]


# -- the child


def analysis(monkeypatch, program: str, environ=os.environ) -> deep_look_child.Analysis:
    monkeypatch.setattr(deep_look_child, "command", lambda: [sys.executable, "-I", "-c", program])
    with open("/dev/null") as file:
        return deep_look_child.Analysis(file.fileno(), environ)


def test_child_has_its_own_environment(monkeypatch):
    program = (
        "import os, json; print(json.dumps([dict(os.environ), os.getsid(0) == os.getpid(), os.nice(0)]))"
    )
    environ = {**os.environ, "GOODPUT_AUTO": "1", "LOCAL_RANK": "3", "PYTHONPATH": "/x", "RANK": "3"}
    child = analysis(monkeypatch, program, environ)
    os.waitid(os.P_PID, child.child.pid, os.WEXITED | os.WNOWAIT)
    raw, cpu_ns = child.poll()
    seen, own_session, nice = json.loads(raw)
    assert own_session
    assert nice in (0, 19)  # 19 once the parent has set it
    assert seen["GOODPUT_DISABLE"] == "1"
    assert not {"GOODPUT_AUTO", "LOCAL_RANK", "PYTHONPATH", "RANK"} & set(seen)
    assert cpu_ns > 0
    assert not os.path.exists(f"/proc/{child.child.pid}")


def test_slow_child_is_killed(monkeypatch):
    child = analysis(monkeypatch, "import time; time.sleep(60)")
    assert child.poll() is None
    monkeypatch.setattr(deep_look_child, "SECONDS_MAX", 0)
    assert child.poll() is None
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, child.child.pid, flags), 60, "the child's death", 0.01)
    with pytest.raises(ValueError, match="longer than"):
        child.poll()
    assert not os.path.exists(f"/proc/{child.child.pid}")


def test_reaped_child_still_has_its_result(monkeypatch):
    child = analysis(monkeypatch, "print(5)")
    os.waitpid(child.child.pid, 0)
    assert child.poll() == (b"5\n", 0)


def test_end_kills_and_reaps_the_child(monkeypatch):
    # Also where its priority, the lowest, leaves it no core to end on for a while.
    monkeypatch.setattr(deep_look_child, "REAP_SECONDS_MAX", 60)
    child = analysis(monkeypatch, "import time; time.sleep(60)")
    child.end()
    assert not os.path.exists(f"/proc/{child.child.pid}")
    child.end()
