"""How a process ends, and what its children by fork may do: exit, exceptions, signals, fork, multiprocessing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check

from goodput.rank_page import page
from goodput.rank_page.reader import Reader

STEPS = "\nfor i in goodput.steps(range(3)): work()\n"


@pytest.mark.parametrize(
    ("end", "status", "ended"),
    [
        ("", 0, "finished"),
        ("sys.exit()", 0, "finished"),
        ("sys.exit(0)", 0, "finished"),
        ("raise ValueError('mine')", 1, "failed"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "failed"),
        ("with goodput.phase('forward'): 1 / 0", 1, "failed"),
        ("goodput.stop('failed')", 0, "failed"),
        ("sys.excepthook = lambda *_: None\n1 / 0", 1, "failed"),
        ("os._exit(5)", 5, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_the_end_of_a_process(sdk, end, status, ended):
    out = sdk(f"{STEPS}{end}", status=status)
    snapshot = check(out.snapshot())
    assert (snapshot.ended, snapshot.steps_done) == (ended, 3)
    (path,) = out.paths()
    with Reader(str(path)) as reader:
        assert not reader.alive()


@pytest.mark.parametrize(
    ("end", "step", "text"),
    [
        ("raise ValueError('mine')", 3, "ValueError: mine"),
        ("for i in goodput.steps([1]): 1 / 0", 3, "ZeroDivisionError: division by zero"),
        ("raise RuntimeError('long ' * 60)", 3, "RuntimeError: " + ("long " * 60)[: 216 - 14 - 3] + "..."),
        ("raise RuntimeError('\x1b[31m\\nred')", 3, "RuntimeError: ?[31m?red"),
        ("raise KeyError", 3, "KeyError"),
        ("class Mine(Exception):\n    def __str__(self): return 1 / 0\nraise Mine", 3, "Mine"),
    ],
)
def test_exception_and_step_are_recorded(sdk, end, step, text):
    snapshot = check(sdk(f"{STEPS}{end}", status=1).snapshot())
    (event,) = [one for one in snapshot.events if one.kind == "failed"]
    assert (event.step, event.text) == (step, text)
    assert not any(snapshot.drops.values())


def test_no_failure_is_recorded_of_a_program_that_finishes(sdk):
    snapshot = check(sdk(f"{STEPS}\ntry: 1 / 0\nexcept ZeroDivisionError: pass").snapshot())
    assert snapshot.ended == "finished" and not [one for one in snapshot.events if one.kind == "failed"]


CAUGHT = """
try:
    1 / 0
except ZeroDivisionError:
    sys.exit(3)
"""
FORKED = """
if os.fork() == 0:
    sys.exit(1)
os.wait()
"""


@pytest.mark.parametrize(
    ("end", "status", "ended"),
    [
        ("sys.exit(1)", 1, "failed"),
        ("sys.exit('wrong configuration')", 1, "failed"),
        ("raise SystemExit(137)", 137, "failed"),
        (CAUGHT, 3, "failed"),
        ("signal.signal(15, lambda *_: sys.exit(143)); os.kill(os.getpid(), 15)", 143, "failed"),
        ("sys.exit(256)", 0, "finished"),
        ("raise SystemExit", 0, "finished"),
        ("threading.Thread(target=sys.exit, args=(1,)).start()", 0, "finished"),
        ("goodput.stop(); sys.exit(1)", 1, "finished"),
        (FORKED, 0, "finished"),
    ],
)
def test_the_exit_status_decides(sdk, pure, end, status, ended):
    """Exit functions do not see it, so the implementation in Python does not know it."""
    snapshot = check(sdk(f"{STEPS}{end}", status=status).snapshot())
    assert snapshot.ended == ("finished" if pure else ended)


EXIT_AND_GO_ON = """
try: sys.exit('caught')
except SystemExit: pass
"""


@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("sys.exit('wrong configuration')", 1, "SystemExit: wrong configuration"),
        ("sys.exit(ValueError('mine'))", 1, "SystemExit: mine"),
        ("sys.exit('long ' * 60)", 1, "SystemExit: " + ("long " * 60)[: page.EVENT_TEXT_BYTES - 12 - 3] + "..."),
        ("class Mine:\n    def __str__(self): return 1 / 0\nsys.exit(Mine())", 1, "SystemExit"),
        ("sys.exit(1)", 1, "exit status 1"),
        ("raise SystemExit(137)", 137, "exit status 137"),
        ("raise SystemExit('not seen')", 1, "exit status 1"),
        (CAUGHT, 3, "exit status 3"),
        (f"{EXIT_AND_GO_ON}raise SystemExit(3)", 3, "exit status 3"),
        (f"{EXIT_AND_GO_ON}sys.exit(1)", 1, "exit status 1"),
        ("thread = threading.Thread(target=sys.exit, args=('other',)); thread.start(); thread.join(); raise SystemExit(1)",
         1, "exit status 1"),
        (f"{EXIT_AND_GO_ON}1 / 0", 1, "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_the_argument_of_exit_is_recorded(sdk, pure, end, status, text):
    """Python prints it and forgets it; it counts only where the process exits with the status that a text gives."""
    snapshot = check(sdk(f"{STEPS}goodput.mark('last')\n{end}", status=status).snapshot())
    texts = [one.text for one in snapshot.events]
    if pure and not text.startswith("ZeroDivisionError"):  # The exit status is unknown.
        assert (snapshot.ended, texts) == ("finished", ["last"])
        return
    assert (snapshot.ended, texts) == ("failed", ["last", text])
    assert snapshot.events[-1].kind == "failed" and snapshot.events[-1].step == 3
    assert not any(snapshot.drops.values())


@pytest.mark.parametrize(
    ("end", "status", "step"),
    [
        ("sys.exit('text')", 1, 3),
        ("sys.exit(7)", 7, 3),
        (f"{EXIT_AND_GO_ON}raise SystemExit(5)".replace("\n", "\n    "), 5, 4),
    ],
)
def test_the_step_of_an_exit_is_the_running_one(sdk, pure, end, status, step):
    """Leaving the loop completes its step, as `break` does, before exit functions run."""
    snapshot = check(
        sdk(f"{STEPS}for i in goodput.steps([1]):\n    work()\n    {end}", status=status).snapshot()
    )
    assert [one.step for one in snapshot.events if one.kind == "failed"] == ([] if pure else [step])


def test_exit_text_of_a_program_that_goes_on_is_not_recorded(sdk):
    snapshot = check(sdk(f"{STEPS}{EXIT_AND_GO_ON}").snapshot())
    assert snapshot.ended == "finished" and snapshot.events == []


def test_an_exception_inside_a_step_leaves_it_unfinished(sdk):
    snapshot = check(sdk(f"{STEPS}for i in goodput.steps([1]): 1 / 0", status=1).snapshot())
    assert (snapshot.ended, snapshot.steps_done) == ("failed", 3)


def test_the_end_comes_while_the_step_thread_still_runs(sdk):
    out = sdk("""
        def train():
            for i in goodput.steps(iter(int, 1)): work()
        threading.Thread(target=train, daemon=True).start()
        while not goodput._session.recorder.is_recording or goodput._session.recorder.steps < 5: time.sleep(0.001)
    """)
    snapshot = out.snapshot()
    assert snapshot.ended == "finished" and snapshot.steps_done >= 5


def test_a_live_process_is_alive_and_an_unreaped_one_is_dead(directory, pure):
    process = subprocess.Popen(
        sdk_process.command("goodput.start(run='r')\nemit(1)\nsys.stdin.read()"),
        env=sdk_process.environment(directory, pure, {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.readline()
    (path,) = directory.glob("r.*.page")
    with Reader(str(path)) as reader:
        assert reader.alive() and reader.alive(procfs="/nowhere")  # the second by its lock alone
        process.kill()
        # It is a zombie until it is waited for. Its pipe closes when it is one.
        process.stdout.read()
        assert process.returncode is None and wait_until(lambda: not reader.alive())
        process.communicate()
        assert not reader.alive()


def wait_until(holds, seconds: float = 10.0) -> bool:
    import time

    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.001)
    return holds()


# -- fork


CHILD = """
def in_child(act):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            os.write(write, b"well")
        except BaseException as error:
            os.write(write, repr(error).encode())
        os._exit(0)
    os.close(write)
    output = os.read(read, 1000).decode()
    os.close(read); os.waitpid(child, 0)
    return output
"""


def test_a_forked_child_records_nothing_in_its_parents_page(sdk):
    out = sdk(f"""{CHILD}
def everything():
    for i in goodput.steps(range(3)): work()
    with goodput.step(5), goodput.phase("h2d"), goodput.phase("mine"): pass
    goodput.mark("child"); goodput.resumed(7); goodput.stop("failed")
    with goodput.checkpoint(3): pass
    assert goodput.report().account == {{}} and not goodput._session.recorder.is_recording
for i in goodput.steps(range(3)):
    with goodput.phase("forward"):
        before = snapshot()
        emit(in_child(everything))
        after = snapshot()
        emit(before.totals == after.totals and before.events == after.events and before.last_ns == after.last_ns)
""")
    assert out.emitted == ["well", True] * 3
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 3 and snapshot.events == [] and sum(snapshot.drops.values()) == 0
    assert snapshot.phase_states == {}


def test_a_forked_child_may_start_a_page_of_its_own(sdk):
    out = sdk(f"""{CHILD}
def rank(number):
    goodput.start(run="r", rank=number, world_size=3)
    for i in goodput.steps(range(number)): work()
    assert snapshot().steps_done == number
    goodput.stop()
goodput.start(run="r", rank=0, world_size=3)
with goodput.phase("h2d"):
    emit([in_child(lambda: rank(1)), in_child(lambda: rank(2)), in_child(lambda: rank(0))])
with goodput.step(): pass
""")
    assert out.emitted == [["well"] * 3]
    snapshots = [check(snapshot) for snapshot in out.snapshots()]
    assert [(s.identity["rank"], s.steps_done, s.ended) for s in snapshots] == [
        (0, 1, "finished"), (1, 1, "finished"), (2, 2, "finished"),
    ]  # fmt: skip
    assert snapshots[0].drops["claim"] == 1 and snapshots[1].identity["pid"] != snapshots[0].identity["pid"]
    assert snapshots[1].identity["start_mono_ns"] >= snapshots[0].identity["start_mono_ns"]


def test_forked_loader_workers_do_not_take_the_rank(sdk):
    """Nothing is started yet when a loader forks its workers, whose phases run before those of the rank."""
    out = sdk(f"""{CHILD}
class Loader:
    def __iter__(self):
        def work_in_worker():
            with goodput.phase("decode"): pass
            goodput.mark("worker"); goodput.checkpoint(3); goodput.resumed(3)
        emit(in_child(work_in_worker))
        return iter(range(3))
loader = iter(Loader())
for i in loader: work()
for i in goodput.steps(Loader()): work()
""")
    assert out.emitted == ["well"] * 2
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 3 and not out.errors and snapshot.drops["claim"] == 0


def test_ranks_forked_by_a_launcher_start_themselves(sdk):
    out = sdk(f"""{CHILD}
def rank(number):
    os.environ["RANK"] = str(number)
    with goodput.phase("h2d"): pass
    for i in goodput.steps(range(4)): work()
    goodput.stop()
emit([in_child(lambda: rank(0)), in_child(lambda: rank(1))])
""")
    assert out.emitted == [["well"] * 2]
    assert [check(s).steps_done for s in out.snapshots()] == [4, 4]


def test_a_fork_inside_a_loop_over_steps(sdk):
    out = sdk("""
        for i in goodput.steps(range(4)):
            work()
            if i == 1 and os.fork() == 0:
                for j in range(3): work()
                continue
        if goodput._session.recorder.is_recording:
            os.wait()
            emit("parent")
        else:
            os._exit(0)
    """)
    assert out.emitted == ["parent"] and check(out.snapshot()).steps_done == 4


def test_a_fork_while_another_thread_defines_a_phase(sdk):
    """A lock that is held at the fork stays held in the child: its phases must not wait for it."""
    out = sdk(f"""{CHILD}
goodput.start(run="r")
goodput._session.phases._lock.acquire(); goodput._session._is_handling = True
def child():
    began = time.monotonic()
    goodput.start(run="r", rank=1)
    for i in goodput.steps(range(2)): work()
    assert snapshot().steps_done == 2 and time.monotonic() - began < 5
emit(in_child(child))
goodput._session.phases._lock.release(); goodput._session._is_handling = False
""")
    assert out.emitted == ["well"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("end", "ended"),
    [("", "finished"), ("1 / 0", "failed"), ("sys.exit(0)", "finished"), ("sys.exit(3)", "failed")],
)
def test_a_rank_run_by_multiprocessing_ends_its_page(tmp_path, directory, pure, method, end, ended):
    """Its children leave by os._exit, past the interpreter's exit functions."""
    script = tmp_path / "ranks.py"
    script.write_text(f"""
import multiprocessing, sys, goodput
def rank():
    goodput.start(run="r", rank=1)
    for i in goodput.steps(range(3)): pass
    {end}
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    goodput.start(run="r", rank=0)
    child = context.Process(target=rank)
    child.start(); child.join()
""")
    subprocess.run(
        [*sdk_process.command("")[:2], str(script)],
        env=sdk_process.environment(directory, pure, {}), timeout=300, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    parent, child = sdk_process.Outcome(directory, 0, [], "").snapshots()
    assert (check(parent).ended, check(child).ended, child.steps_done) == ("finished", ended, 3)


# -- signals


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 runs handlers between more of the lines")
def test_a_signal_handler_that_enters_phases_and_marks(sdk):
    """It may come between any two of the SDK's own lines; every nanosecond must still be in one place."""
    out = sdk("""
        count = [0]
        def handler(*_):
            count[0] += 1
            with goodput.phase(("forward", "mine", "h2d")[count[0] % 3]):
                with goodput.phase("compile"): pass
            if count[0] % 3 == 0:
                with goodput.step(): pass
                for i in goodput.steps([1]): pass
            if count[0] % 7 == 0: goodput.mark(f"signal {count[0]}")
            if not over: signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + count[0] % 13))
        over = []
        goodput.start()
        for name in ("forward", "mine", "h2d", "compile", "communication", "optimizer"): goodput.phase(name)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        until = time.monotonic() + 1
        marks = 0
        while time.monotonic() < until:
            for i in goodput.steps(range(20)):
                with goodput.phase("forward"):
                    with goodput.phase("communication"): pass
                if i % 5 == 0: goodput.mark("loop"); marks += 1
            for _ in range(100):
                with goodput.step():
                    with goodput.phase("optimizer"): pass
        over.append(True)
        signal.setitimer(signal.ITIMER_REAL, 0)
        recorder = goodput._session.recorder
        with goodput.step(): pass
        events = recorder.words[512 + 3]
        emit([count[0], marks + count[0] // 7 == events, recorder.depth])
    """)
    ((signals, all_marks, depth),) = out.emitted
    snapshot = check(out.snapshot())
    assert signals > 100 and all_marks and depth == 0
    assert snapshot.steps_done > 100 and snapshot.drops["phase"] == 0
    assert {event.text.split()[0] for event in snapshot.events} == {"loop", "signal"}
    assert [event.number for event in snapshot.events] == list(
        range(snapshot.events[0].number, snapshot.events[-1].number + 1)
    )


def test_interrupt_anywhere_leaves_a_working_session(sdk):
    """As in a notebook: the handler raises in the middle of whatever runs, and the next cell trains again."""
    out = sdk("""
        class Stop(Exception): pass
        def handler(*_): raise Stop
        signal.signal(signal.SIGALRM, handler)
        goodput.start()
        def loader():
            for i in range(50): yield i
        stopped = 0
        for k in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + (k % 50) * 1e-5)
                for i in goodput.steps(loader()): work()
            except Stop:
                stopped += 1
            finally:
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
        recorder = goodput._session.recorder
        while recorder.depth: goodput._phases[snapshot().phase].__exit__(None, None, None)
        done = recorder.steps
        for i in goodput.steps(range(5)): work()
        emit([stopped, recorder.steps - done])
    """)
    ((stopped, done),) = out.emitted
    assert stopped > 200 and done == 5
    check(out.snapshot())
