"""`goodput.phase`: exclusive nesting, the user's own phases, wrong order, generators, recursion, other threads."""

from __future__ import annotations

import pytest
from support.sdk.checks import check

from goodput.histograms.histogram import bin_of_ns
from goodput.rank_page import page
from goodput.rank_page.reader import Reader

BUILT_IN = page.PHASES[1:]


def ns(snapshot, name: str) -> int:
    return snapshot.totals[snapshot.phases.index(name)]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_phases_have_columns_and_histograms(sdk, name):
    out = sdk(f"with goodput.phase({name!r}): emit(snapshot().phase); spin(1000)")
    snapshot = check(out.snapshot())
    assert out.emitted == [name] and snapshot.phase == "none"
    assert ns(snapshot, name) >= 1_000_000 and sum(snapshot.totals) == ns(snapshot, name) + ns(
        snapshot, "none"
    )
    assert [out.count(slot) for slot in range(page.PHASE_SLOTS)] == [
        slot == page.PHASES.index(name) for slot in range(page.PHASE_SLOTS)
    ]


def test_nested_phases_are_exclusive(sdk):
    """Each occurs once, so its one duration must be its total: to the bin, on either clock."""
    out = sdk("""
        with goodput.phase("forward"):
            spin(1000)
            with goodput.phase("communication"):
                spin(3000)
                with goodput.phase("compile"): spin(5000)
            with goodput.phase("h2d"): spin(1000)
            spin(1000)
    """)
    snapshot = check(out.snapshot())
    least = {"forward": 2_000_000, "communication": 3_000_000, "compile": 5_000_000, "h2d": 1_000_000}
    (path,) = out.paths()
    with Reader(str(path)) as reader:
        for name, least_ns in least.items():
            assert ns(snapshot, name) >= least_ns
            blocks = reader.histogram_blocks(page.PHASES.index(name))
            bins = [first + i for first, counts in blocks for i, count in enumerate(counts) if count]
            assert bins == [bin_of_ns(ns(snapshot, name))]
    assert snapshot.drops["phase"] == 0


def test_an_exception_passes_through_and_the_phase_ends(sdk):
    out = sdk("""
        try:
            with goodput.phase("forward"):
                with goodput.phase("h2d"):
                    raise KeyError("mine")
        except KeyError as error:
            emit([str(error), snapshot().phase])
    """)
    assert out.emitted == [["'mine'", "none"]]
    assert check(out.snapshot()).drops["phase"] == 0


def test_first_definition_of_a_user_phase_holds(sdk):
    snapshot = check(
        sdk("""
        for _ in range(2):
            with goodput.phase("tokenize", state="loader"): spin(100)
            with goodput.phase("tokenize"): spin(100)
            with goodput.phase("tokenize", "productive"): spin(100)
            with goodput.phase("späte Runde"): spin(100)
        """).snapshot()
    )
    assert snapshot.phases[len(page.PHASES) :] == ("tokenize", "späte Runde")
    assert snapshot.phase_states == {"tokenize": "loader", "späte Runde": "unattributed"}
    assert ns(snapshot, "tokenize") >= 600_000 and ns(snapshot, "späte Runde") >= 200_000


def test_user_phases_survive_a_restart(sdk):
    first, second = map(
        check,
        sdk("""
        mine = goodput.phase("mine", "productive")
        with mine: spin(100)
        goodput.stop()
        with mine: pass
        goodput.start()
        with mine: spin(100)
        with goodput.phase("late"): spin(100)
        """).snapshots(),
    )
    assert first.phase_states == {"mine": "productive"} and ns(first, "mine") >= 100_000
    assert second.phases[len(page.PHASES) :] == ("mine", "late") and ns(second, "mine") >= 100_000


def test_seventeenth_user_phase_is_refused(sdk):
    out = sdk("""
        for i in range(20):
            with goodput.phase(f"p{i}"): spin(50)
            with goodput.phase("h2d"):
                with goodput.phase(f"p{i}"): spin(50)
        with goodput.step(): pass
    """)
    snapshot = check(out.snapshot())
    assert snapshot.phases[len(page.PHASES) :] == tuple(f"p{i}" for i in range(16))
    assert (
        snapshot.drops["phase"] == 8 and len(out.messages()) == 4 and "16 user-defined phases" in out.errors
    )
    # What is no phase must not be counted as a step.
    assert out.count(0) == 1 and snapshot.steps_done == 1


@pytest.mark.parametrize(
    "name",
    [
        "''",
        "'x' * 32",
        "'ä' * 16",
        "'two\\nlines'",
        "'none'",
        "None",
        "5",
        "b'forward'",
        "['h2d']",
        "'\\ud800'",
        "'\\0'",
    ],
)
def test_invalid_phase_name_is_refused(sdk, name):
    out = sdk(f"with goodput.phase({name}): spin(10)\nwith goodput.phase('x' * 31): spin(10)")
    snapshot = check(out.snapshot())
    assert snapshot.phases[len(page.PHASES) :] == ("x" * 31,)
    assert len(out.messages()) == 1 and snapshot.drops["error"] == 1 and out.count(0) == 0


@pytest.mark.parametrize(
    "state", ["'sleeping'", "'lost'", "5", "b'loader'", "['loader']", "float('nan')", "''"]
)
def test_an_unknown_state_is_unattributed(sdk, state):
    out = sdk(f"with goodput.phase('mine', state={state}): pass")
    assert check(out.snapshot()).phase_states == {"mine": "unattributed"} and len(out.messages()) == 1


def test_decorated_functions_keep_metadata_and_result(sdk):
    out = sdk("""
        @goodput.phase("forward")
        def forward(a, *, b=2):
            "Adds."
            spin(100)
            return a + b
        class Model:
            @goodput.phase("mine")
            def run(self, n): return 0 if n == 0 else 1 + self.run(n - 1)
        emit([forward(1, b=5), forward.__name__, forward.__doc__, Model().run(20)])
        try:
            forward()
        except TypeError:
            emit("TypeError")
    """)
    assert out.emitted == [[6, "forward", "Adds.", 20], "TypeError"]
    snapshot = check(out.snapshot())
    assert ns(snapshot, "forward") >= 100_000 and out.count(page.PHASES.index("forward")) == 2
    assert out.count(len(page.PHASES)) == 21


def test_recursion_five_hundred_deep(sdk):
    out = sdk("""
        def down(n):
            with goodput.phase(("forward", "h2d", "mine")[n % 3]):
                if n: down(n - 1)
        sys.setrecursionlimit(2000)
        with goodput.step():
            down(500)
        emit([goodput._session.recorder.depth, snapshot().phase])
    """)
    assert out.emitted == [[0, "none"]]
    assert check(out.snapshot()).steps_done == 1
    assert (
        sum(out.count(page.PHASES.index(name)) for name in ("forward", "h2d")) + out.count(len(page.PHASES))
        == 501
    )


def test_phases_left_in_the_wrong_order(sdk):
    out = sdk("""
        a, b, c = map(goodput.phase, ("forward", "h2d", "optimizer"))
        phases = []
        def note_phase(): phases.append(snapshot().phase)
        a.__enter__(); b.__enter__(); c.__enter__(); note_phase()
        b.__exit__(None, None, None); note_phase()
        c.__exit__(None, None, None); note_phase()
        a.__exit__(None, None, None); note_phase()
        a.__enter__(); b.__enter__()
        a.__exit__(None, None, None); note_phase()
        b.__exit__(None, None, None); note_phase()
        emit(phases)
        with goodput.step(): pass
    """)
    assert out.emitted == [["optimizer", "optimizer", "forward", "none", "h2d", "none"]]
    snapshot = check(out.snapshot())
    assert snapshot.drops["phase"] == 2 and snapshot.steps_done == 1
    counts = [out.count(page.PHASES.index(name)) for name in ("forward", "h2d", "optimizer")]
    assert counts == [1, 1, 1]


def test_exit_without_enter_and_enter_without_exit(sdk):
    out = sdk("""
        goodput.phase("h2d").__exit__(None, None, None)  # nothing is started yet
        goodput.start()
        goodput.phase("h2d").__exit__(None, None, None)
        goodput.phase("nonsense" * 9).__exit__(None, None, None)
        with goodput.phase("forward"):
            goodput.phase("h2d").__exit__(None, None, None)
            emit(snapshot().phase)
        with goodput.step(): pass
        goodput.phase("optimizer").__enter__()
        spin(1000)
    """)
    snapshot = check(out.snapshot())
    assert out.emitted == ["forward"] and snapshot.drops["phase"] == 3 + 1  # one more for the name
    assert snapshot.phase == "optimizer" and ns(snapshot, "optimizer") >= 1_000_000


def test_a_phase_held_by_a_generator(sdk):
    out = sdk("""
        def held():
            with goodput.phase("h2d"):
                yield 1
                yield 2
        for i in goodput.steps(range(3)):
            generator = held()
            next(generator)
            with goodput.phase("forward"):
                generator.close()
                spin(100)
        emit(snapshot().phase)
        for _ in held(): spin(10)
    """)
    snapshot = check(out.snapshot())
    assert out.emitted == ["none"] and snapshot.steps_done == 3 and snapshot.drops["phase"] == 3
    assert ns(snapshot, "forward") >= 300_000


def test_phases_of_other_threads_are_background(sdk):
    out = sdk("""
        goodput.start()
        def other():
            for _ in range(50):
                with goodput.phase("h2d"):
                    with goodput.phase("mine"): spin(20)
            goodput.phase("h2d").__exit__(None, None, None)
        threads = [threading.Thread(target=other) for _ in range(4)]
        for thread in threads: thread.start()
        for i in goodput.steps(range(20)): spin(500)
        for thread in threads: thread.join()
        with goodput.step(): pass
    """)
    snapshot = check(out.snapshot())
    mine = len(page.PHASES)
    assert snapshot.background == 400 and snapshot.drops["phase"] == 4 and snapshot.drops["background"] == 0
    assert ns(snapshot, "h2d") == ns(snapshot, "mine") == 0
    assert snapshot.background_totals[2] >= snapshot.background_totals[mine] >= 200 * 20_000
    assert out.count(page.PHASE_SLOTS + 2) == out.count(page.PHASE_SLOTS + mine) == 200
    assert out.count(2) == out.count(mine) == 0


def test_background_phases_beyond_the_queue_are_counted_as_dropped(sdk):
    snapshot = check(
        sdk("""
        goodput.start()
        def other():
            for _ in range(5000):
                with goodput.phase("h2d"): pass
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
        """).snapshot()
    )
    assert snapshot.background == 4096 and snapshot.drops["background"] == 5000 - 4096


def test_step_loop_in_another_thread_than_start(sdk):
    out = sdk("""
        goodput.start()
        done, over = threading.Event(), threading.Event()
        def train():
            for i in goodput.steps(range(5)): work()
            done.set(); over.wait()
        with goodput.phase("compile"):
            spin(1000)
            thread = threading.Thread(target=train)
            thread.start(); done.wait()
        with goodput.phase("h2d"): spin(100)
        with goodput.step(): pass  # The account has one thread, and it is that of the first step.
        over.set(); thread.join()
    """)
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 5 and ns(snapshot, "forward") >= 100_000 and ns(snapshot, "h2d") == 0
    assert ns(snapshot, "compile") >= 1_000_000
    assert snapshot.background == 1 and snapshot.drops["phase"] == snapshot.drops["step"] == 1


def test_another_thread_replaces_a_dead_step_thread(sdk):
    """As where each epoch runs in a thread of its own. What the first left open does not stay open."""
    out = sdk("""
        def epoch():
            for i in goodput.steps(range(3)): work()
        def abandon():
            epoch()
            goodput.step().__enter__()
            goodput.phase("evaluation").__enter__(); spin(100)
        for target in (epoch, epoch, abandon):
            thread = threading.Thread(target=target)
            thread.start(); thread.join()
        epoch()
    """)
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 12 and snapshot.phase == "none" and snapshot.drops["step"] == 0
    assert ns(snapshot, "evaluation") >= 100_000


def test_concurrent_phase_definitions_get_one_column_each(sdk):
    out = sdk("""
        sys.setswitchinterval(1e-6)
        goodput.start()
        barrier = threading.Barrier(8)
        def define(k):
            barrier.wait()
            for i in range(16):
                with goodput.phase(f"p{(i + k) % 16}"): pass
        threads = [threading.Thread(target=define, args=(k,)) for k in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        with goodput.step(): pass
        emit(len(set(p.index for p in goodput._phases.values())))
    """)
    snapshot = check(out.snapshot())
    assert out.emitted == [16] and sorted(snapshot.phase_states) == sorted(f"p{i}" for i in range(16))
    assert snapshot.drops["phase"] == 0 and snapshot.background == 128


def test_only_one_thread_starts(sdk):
    out = sdk("""
        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(8)
        def first():
            barrier.wait()
            with goodput.phase("h2d"): spin(2000)
        threads = [threading.Thread(target=first) for k in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        for i in goodput.steps(range(3)): work()
    """)
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 3 and not out.errors


def test_interrupt_after_enter_does_not_leave_phase_open(sdk):
    """From Python 3.14 on it may arrive before the body, so that the phase's exit is never called."""
    out = sdk("""
        phase, inner = goodput.phase("forward"), goodput.phase("h2d")
        def body():
            inner.__enter__()
            spin(2000)
            raise KeyboardInterrupt
        depths = []
        for _ in goodput.steps(range(2)):
            try:
                phase.run(body)
            except KeyboardInterrupt:
                pass
            depths.append(goodput._session.recorder.depth)
            spin(1000)
        emit(depths)
    """)
    snapshot = check(out.snapshot())
    assert out.emitted == [[0, 0]] and snapshot.drops["phase"] in (0, 2)
    assert ns(snapshot, "h2d") >= 4_000_000 and ns(snapshot, "none") >= 2_000_000


def test_interrupt_in_exit_does_not_leave_phase_open(sdk):
    """At whichever call of the interpreter the interrupt comes, from the one that enters to the one that has left."""
    out = sdk("""
        import signal, sys
        phase, inner = goodput.phase("forward"), goodput.phase("h2d")
        recorder = goodput._session.recorder
        def body():
            with inner:
                pass
        def interrupted(after):
            calls = 0
            def watch(frame, event, argument):
                nonlocal calls
                calls += event in ("call", "c_return")  # Where signal handlers are run.
                if calls == after:
                    sys.setprofile(None)
                    raise KeyboardInterrupt
            sys.setprofile(watch)
            try:
                phase.run(body)
            finally:
                sys.setprofile(None)
            return calls
        phase.run(body)
        depths = []
        for after in range(1, 60):
            try:
                if interrupted(after) < after:
                    break
            except KeyboardInterrupt:
                pass
            depths.append(recorder.depth)
        emit(depths)
    """)
    assert len(out.emitted[0]) > 2 and not any(out.emitted[0])
    check(out.snapshot())
