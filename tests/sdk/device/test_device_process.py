"""The device clock in a process of its own, on both implementations of the hot path: killed, ended, reported."""

from __future__ import annotations

import signal

import pytest
from support.sdk.checks import check_records
from support.sdk.sdk_process import PREAMBLE

from goodput.account import Run, compute, document
from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.reports.local_accounts import attempt_of

LOADER, FORWARD = page.PHASES.index("loader"), page.PHASES.index("forward")
# A device in real time. Its kernels are shorter than the host's step, or longer.
LOOP = """
from support.sdk.device import Backend, Device
from goodput.sdk.device.device_clock import DeviceClock
goodput.start(run="d")
device = Device(clock=time.perf_counter_ns)
clock = DeviceClock(goodput._session.recorder, Backend(device))
clock.attach()
def train(steps, host, kernel):
    for _ in goodput.steps(range(steps)):
        with goodput.phase("h2d"):
            spin(host)
        with goodput.phase("forward"):
            device.launch(1000 * kernel)
        with goodput.phase("optimizer"):
            spin(20)
"""
assert "def spin" in PREAMBLE


def test_a_killed_page_closes(sdk):
    out = sdk(
        LOOP + "train(200, 300, 100)\ntrain(3, 20, 10**7)\nos.kill(os.getpid(), 9)", status=-signal.SIGKILL
    )
    (path,) = out.paths()
    with Reader(str(path)) as reader:
        assert not reader.alive()
        snapshot = reader.snapshot(alive=False)
        early = reader.snapshot(page.NS_MAX, page.NS_MAX)
    check_records(snapshot)
    assert snapshot.device_state == "active" and snapshot.steps_done == 203
    assert [row.number for row in snapshot.steps] == list(range(1, 204)), "nobody waits for a dead rank"
    assert sum(snapshot.totals) == sum(snapshot.host_totals) and early.totals == snapshot.totals
    last, settled = snapshot.steps[-1], snapshot.steps[199]
    # The last three were never settled: they are the host's.
    assert last.device_ns == settled.device_ns > 0
    host = [snapshot.host_totals[i] - early.totals[i] for i in range(len(page.PHASES))]
    assert any(host), "the device had another view"
    attempt = attempt_of(snapshot, snapshot.last_ns, alive=False)
    run = Run("d", {(0, 1): attempt}, only_ranks=(0,))
    account = compute(run, attempt.end_ns)
    assert sum(account.ranks[0].states) == account.ranks[0].wall_ns and account.clamped == 0
    # A kernel of 0.1 ms runs while the host spins for 20 us, and the next step's copy phase is the rest's.
    found = document(account)["coverage"]["device_clock"]
    assert found == pytest.approx(settled.device_ns / account.ranks[0].wall_ns)


def test_ended_page_is_complete_and_report_names_the_clock(sdk):
    out = sdk(
        LOOP
        + """
train(150, 300, 200)
report = goodput.report()
emit(report.full)
emit(report.account["coverage"]["device_clock"])
goodput.stop()
emit(clock.error if hasattr(clock, "error") else None)
"""
    )
    text, share, error = out.emitted
    assert (
        error is None
        and 0 < share <= 1
        and f"{100 * share:.1f} % on the device clock" in " ".join(text.split())
    )
    snapshot = out.snapshot()
    check_records(snapshot)
    assert snapshot.drops["error"] == 0 and snapshot.steps_done == 150
    # The kernels, of 0.2 ms each, ran while the host was in other phases.
    inside = [snapshot.steps[-1].totals[i] - snapshot.steps[-1].outside[i] for i in range(len(page.PHASES))]
    assert inside[FORWARD] > 0.8 * 150 * 200_000
    assert snapshot.host_totals[FORWARD] < inside[FORWARD]


def test_a_callable_that_raises_is_dropped(sdk):
    out = sdk("""
goodput.start(run="d")
def bad(word):
    raise ValueError
goodput._session.recorder.device = bad
for _ in goodput.steps(range(3)):
    work()
emit(goodput._session.recorder.device is None)
goodput._session.recorder.device = [].append   # It has no `begin` and no `end`.
for _ in goodput.steps(range(3)):
    work()
emit(goodput._session.recorder.device is None)
""")
    assert out.emitted == [True, True] and out.snapshot().steps_done == 6


def test_a_child_records_nothing_on_the_device(sdk):
    out = sdk(
        LOOP
        + """
train(3, 50, 20)
if os.fork() == 0:
    made = clock.backend.recorded
    with goodput.phase("forward"):
        pass
    os._exit(0 if clock.backend.recorded == made and goodput._session.recorder.device is None else 7)
emit(os.wait()[1])
train(3, 50, 20)
"""
    )
    assert out.emitted == [0] and out.snapshot().steps_done == 6 and out.snapshot().device_ns > 0


# A `torch` whose events, like CUDA's, end a process that was forked after they were made, when they are destroyed.
EVENTS = """
from types import SimpleNamespace
from goodput.sdk.device.torch_events import device_clock
class Event:
    owner = os.getpid()
    def __init__(self, enable_timing): pass
    def record(self, stream): self.at = time.perf_counter_ns()
    def query(self): return True
    def elapsed_time(self, end): return (end.at - self.at) / 1e6
    def __del__(self):
        if os.getpid() != self.owner: os.abort()
cuda = SimpleNamespace(Event=Event, is_initialized=lambda: True, current_device=lambda: 0,
    current_stream=lambda _: SimpleNamespace(cuda_stream=7), is_current_stream_capturing=lambda: False)
torch = SimpleNamespace(_C=None, cuda=cuda, version=SimpleNamespace(cuda="13.0", hip=None))
goodput.start(run="d")
recorder = goodput._session.recorder
device_clock(recorder, torch)
for _ in goodput.steps(range(4)):
    work()
emit(snapshot().device_state)
def fork(in_child):
    child = os.fork()
    if not child:
        in_child()
    emit(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("parked", [False, True])
def test_forked_children_destroy_no_events(sdk, parked):
    code = EVENTS
    if (
        parked
    ):  # As by the overhead budget; a cycle, so that a collection in the child is what would destroy them.
        code += "recorder.device.cycle = recorder.device\nrecorder.device = None\n"
    code += "import gc\nfork(lambda: (gc.collect(), os._exit(0)))\nfork(sys.exit)\n"
    out = sdk(code)
    assert out.emitted == ["active", 0, 0], out.errors
