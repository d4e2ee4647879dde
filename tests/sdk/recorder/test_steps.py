"""`goodput.steps` and `goodput.step`: which turns of a loop are steps, and where their time goes."""

from __future__ import annotations

import pytest
from support.sdk.checks import check, inside

from goodput.rank_page import page

LOADER, FORWARD = page.PHASES.index("loader"), page.PHASES.index("forward")


def indices(snapshot) -> list[int]:
    return [record.step for record in snapshot.steps]


def test_each_iteration_is_a_step_and_steps_touch(sdk):
    snapshot = check(sdk("for x in goodput.steps([7, 8, 9], samples=5): work()").snapshot())
    assert indices(snapshot) == [0, 1, 2] and snapshot.samples == 15 and snapshot.step_next == 3
    for before, after in zip(snapshot.steps, snapshot.steps[1:], strict=False):
        assert after.start_ns == before.end_ns and after.outside == before.outside
    assert snapshot.steps[0].samples == 5 and snapshot.ended == "finished" and snapshot.step_start_ns == 0


def test_items_come_through_unchanged(sdk):
    out = sdk("""
        def numbers():
            yield "a"
            yield None
            return "never seen"
        emit(list(goodput.steps(numbers())))
        emit(list(goodput.steps({"k": 1})))
        emit(list(goodput.steps([])))
        emit(dict(goodput.steps(zip("ab", [1, 2]))))
    """)
    assert out.emitted == [["a", None], ["k"], [], {"a": 1, "b": 2}]
    assert check(out.snapshot()).steps_done == 5


def test_the_wait_for_the_loader_is_in_the_step_that_waited(sdk):
    snapshot = check(
        sdk("""
        def slow():
            for i in range(3):
                spin(2000)
                yield i
        for i in goodput.steps(slow()):
            with goodput.phase("forward"): spin(500)
        """).snapshot()
    )
    before = None
    for record in snapshot.steps:
        spent = inside(record, before)
        assert spent[LOADER] >= 2_000_000 and spent[FORWARD] >= 500_000
        before = record


def test_starting_the_loader_is_loader_time_outside_steps(sdk):
    snapshot = check(
        sdk("""
        class Slow:
            def __iter__(self):
                spin(5000)
                return iter([1])
        for epoch in range(2):
            for i in goodput.steps(Slow()): pass
        """).snapshot()
    )
    second = snapshot.steps[1]
    assert second.outside[LOADER] - snapshot.steps[0].outside[LOADER] >= 5_000_000


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        ("work(); done = i == 3\n    if done: break", 4),  # at the end: the work of the last turn was done
        ("if i == 3: break\n    work()", 3),  # at the top
        ("if i == 3: break", 3),  # nothing says that anything was done in it
        ("if i == 3:\n        work()\n        break", 4),
        ("if i == 3:\n        with goodput.phase('h2d'): break", 4),
    ],
)
def test_break(sdk, body, counted):
    snapshot = check(sdk(f"for i in goodput.steps(range(9)):\n    {body}\nemit('on')").snapshot())
    assert snapshot.steps_done == counted and snapshot.step_start_ns == 0


@pytest.mark.parametrize(
    "body", ["with goodput.phase('forward'): 1 / (2 - i)", "1 / (2 - i)", "work() if i < 2 else 1 / 0"]
)
def test_exception_in_the_body_completes_no_step(sdk, body):
    out = sdk(f"""
    try:
        for i in goodput.steps(range(5)):
            {body}
    except ZeroDivisionError:
        emit("through")
    for i in goodput.steps(range(2)): work()
    """)
    snapshot = check(out.snapshot())
    assert out.emitted == ["through"] and snapshot.steps_done == 2 + 2
    last, again = snapshot.steps[1], snapshot.steps[2]
    assert again.start_ns > last.end_ns and sum(again.outside) > sum(last.outside)


def test_loader_exception_passes_and_wait_is_outside(sdk):
    out = sdk("""
        def broken():
            yield 1
            spin(3000)
            raise OSError("disk")
        try:
            for i in goodput.steps(broken()): pass
        except OSError as error:
            emit(str(error))
        with goodput.step(): pass
    """)
    assert out.emitted == ["disk"]
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 2
    assert snapshot.steps[1].outside[LOADER] - snapshot.steps[0].outside[LOADER] >= 3_000_000


def test_non_iterable_raises_type_error(sdk):
    out = sdk("""
        for bad in (5, None, object()):
            try:
                for i in goodput.steps(bad): pass
            except TypeError:
                emit("TypeError")
        for i in goodput.steps([1]): pass
    """)
    assert out.emitted == ["TypeError"] * 3 and check(out.snapshot()).steps_done == 1


def test_nested_steps_are_not_counted(sdk):
    snapshot = check(
        sdk("""
        for i in goodput.steps(range(2)):
            for j in goodput.steps("abc"):
                with goodput.step():
                    with goodput.phase("forward"): pass
        with goodput.phase("evaluation"):
            for j in goodput.steps("abc"): spin(100)
            with goodput.step(77): pass
        with goodput.step():
            for j in goodput.steps("abc"): pass
            with goodput.step(50): pass
        """).snapshot()
    )
    assert indices(snapshot) == [0, 1, 2]
    assert snapshot.totals[page.PHASES.index("evaluation")] >= 300_000


def test_steps_generator_can_be_continued(sdk):
    snapshot = check(
        sdk("""
        turns = goodput.steps(range(10))
        next(turns); next(turns)
        turns.close()
        it = goodput.steps(range(10))
        assert next(it) == 0 and list(it) == list(range(1, 10))
        assert list(it) == []
        goodput.steps(range(3)).close()
        try:
            thrown = goodput.steps(range(3))
            next(thrown)
            thrown.throw(KeyError)
        except KeyError:
            emit("KeyError")
        with goodput.step(): pass
        """).snapshot()
    )
    assert snapshot.steps_done == 1 + 10 + 1


def test_the_step_context_counts_on_and_skips_forward(sdk):
    snapshot = check(
        sdk("""
        for index in (None, 5, None, 9):
            with goodput.step(index, samples=2): spin(10)
        try:
            with goodput.step(): raise KeyError
        except KeyError:
            pass
        with goodput.step(): pass
        """).snapshot()
    )
    assert indices(snapshot) == [0, 5, 6, 9, 10] and snapshot.samples == 8
    assert snapshot.drops["step"] == 0


@pytest.mark.parametrize(
    "index", ["3", "-1", "True", "float('nan')", "'7'", "2 ** 62 - 1", "10 ** 5000", "2.0", "[1]", "object()"]
)
def test_invalid_index_is_counted_as_dropped(sdk, index):
    out = sdk(f"""
        with goodput.step(4): pass
        with goodput.step({index}): pass
        with goodput.step(): pass
    """)
    snapshot = check(out.snapshot())
    assert out.status == 0 and indices(snapshot) == [4, 5, 6] and snapshot.drops["step"] == 1


def test_an_index_may_be_any_whole_number_like_numpys(sdk):
    out = sdk("""
        class Whole:
            def __index__(self): return 12
        with goodput.step(Whole(), samples=Whole()): pass
        goodput.resumed(Whole())
        goodput.checkpoint(Whole())
    """)
    snapshot = check(out.snapshot())
    assert indices(snapshot) == [12] and snapshot.samples == 12 and snapshot.step_next == 13
    assert [event.step for event in snapshot.events] == [12, 12, 12] and not out.errors


@pytest.mark.parametrize("samples", ["None", "float('nan')", "'many'", "-1", "2 ** 70", "1.5", "[]"])
@pytest.mark.parametrize(
    "loop", ["for _ in goodput.steps(range(2), samples={}): pass", "with goodput.step(0, {}): pass"]
)
def test_invalid_samples_become_zero(sdk, samples, loop):
    out = sdk(loop.format(samples) + "\nwith goodput.step(samples=3): pass")
    snapshot = check(out.snapshot())
    assert out.status == 0 and snapshot.samples == 3 and snapshot.drops["error"] == 1
    assert len(out.messages()) == 1 and "samples=" in out.errors


def test_step_open_across_pages_is_dropped(sdk):
    """Its beginning lies in another page: no record may be made of it."""
    out = sdk("""
        goodput.start(run="r")
        for i in goodput.steps(range(4)):
            with goodput.phase("forward"): spin(10)
            if i == 1:
                goodput.stop()
                goodput.start(run="r")
        with goodput.step():
            goodput.stop()
            goodput.start(run="r")
        with goodput.step():
            goodput.stop("failed")
        for i in goodput.steps(range(3)): pass
        with goodput.step(): pass
    """)
    first, second, third = map(check, out.snapshots())
    assert [s.steps_done for s in (first, second, third)] == [1, 2, 0]
    assert [s.ended for s in (first, second, third)] == ["finished", "finished", "failed"]
    assert second.drops["step"] == third.drops["step"] == 1


def test_loop_moved_to_another_thread_is_not_counted(sdk):
    snapshot = check(
        sdk("""
        turns = goodput.steps(range(6))
        next(turns)
        next(turns)
        def other():
            for i in turns:
                if i == 3: break
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
        with goodput.step(): pass
        """).snapshot()
    )
    assert snapshot.steps_done <= 2 and snapshot.drops["step"] >= 1


def test_held_steps_are_recorded_where_they_ended(sdk):
    """As those of an optimizer without a hook: recorded together, each with the time up to its own end."""
    out = sdk("""
        recorder = goodput._session.recorder
        goodput.start()
        recorder.begin_step(recorder.end_gap(time.perf_counter_ns()), None, 0)
        held = []
        for _ in range(2):
            with goodput.phase("forward"): spin(500)
            held.append(recorder.hold_step(5))
        with goodput.phase("loader"): spin(2000)
        recorder.record_steps(held)
        recorder.end_step(time.perf_counter_ns())
    """)
    snapshot = check(out.snapshot())
    assert indices(snapshot) == [0, 1, 2] and snapshot.samples == 10 and snapshot.step_next == 3
    first, second, third = snapshot.steps
    assert (second.start_ns, third.start_ns) == (first.end_ns, second.end_ns)
    assert inside(second, first)[LOADER] == 0 and inside(third, second)[LOADER] >= 2_000_000
    assert inside(second, first)[FORWARD] >= 500_000 and inside(third, second)[FORWARD] == 0


def test_ring_keeps_the_last_steps(sdk):
    snapshot = check(sdk("for i in goodput.steps(range(3000)): pass").snapshot())
    assert [record.number for record in snapshot.steps] == list(range(3000 - page.STEP_RING + 1, 3001))
