"""`checkpoint`, `resumed` and `mark`: what the timeline learns, from good calls and from bad ones."""

from __future__ import annotations

import pytest
from support.sdk.checks import check

from goodput.rank_page import page

CHECKPOINT = page.PHASES.index("checkpoint")
BEGUN, COMMITTED = "checkpoint_begun", "checkpoint_committed"


def events(snapshot) -> list[tuple[str, int]]:
    return [(event.kind, event.step) for event in snapshot.events]


def test_the_three_uses_of_checkpoint(sdk):
    out = sdk("""
        for i in goodput.steps(range(3)): work()
        with goodput.checkpoint(2): spin(1000)
        goodput.checkpoint(1)
        saving = goodput.checkpoint(0, wait=False)
        emit([event.kind for event in snapshot().events])
        saving.commit()
        saving.commit()
    """)
    assert out.emitted == [[BEGUN, COMMITTED, BEGUN, COMMITTED, BEGUN]]
    snapshot = check(out.snapshot())
    assert events(snapshot) == [(kind, step) for step in (2, 1, 0) for kind in (BEGUN, COMMITTED)]
    assert snapshot.totals[CHECKPOINT] >= 1_000_000 and out.count(CHECKPOINT) == 1
    times = [event.time_ns for event in snapshot.events]
    assert times == sorted(times) and times[1] - times[0] >= 1_000_000


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        # A bare statement is committed at once, also where its object is kept for a while.
        ("saved = goodput.checkpoint(5); saved = None", [BEGUN, COMMITTED]),
        ("saving = goodput.checkpoint(5, wait=False); saving = None", [BEGUN]),
        ("goodput.checkpoint(5, False)", [BEGUN]),
        ("goodput.checkpoint(5, wait=0)", [BEGUN]),
        ("goodput.checkpoint(5, wait=object())", [BEGUN, COMMITTED]),
        ("try:\n    with goodput.checkpoint(5): raise OSError\nexcept OSError: pass", [BEGUN]),
        ("try:\n    with goodput.checkpoint(5, wait=False): raise OSError\nexcept OSError: pass", [BEGUN]),
        ("with goodput.checkpoint(5, wait=False): pass", [BEGUN, COMMITTED]),
        ("with goodput.checkpoint(5) as saving: saving.commit()", [BEGUN, COMMITTED]),
        (
            "try:\n    with goodput.checkpoint(5) as c: raise OSError\nexcept OSError: c.commit()",
            [BEGUN, COMMITTED],
        ),
        ("saving = goodput.checkpoint(5)\nwith saving: pass\nwith saving: pass", [BEGUN, COMMITTED]),
    ],
)
def test_a_checkpoint_is_committed_when_it_is_safe(sdk, save, expected):
    assert events(check(sdk(save).snapshot())) == [(kind, 5) for kind in expected]


def test_checkpoint_step_defaults_to_the_current_one(sdk):
    snapshot = check(
        sdk("""
        goodput.checkpoint()
        for i in goodput.steps(range(2)): goodput.checkpoint()
        goodput.checkpoint()
        with goodput.step(9): goodput.checkpoint()
        goodput.resumed(40)
        goodput.checkpoint()
        """).snapshot()
    )
    assert [event.step for event in snapshot.events if event.kind == BEGUN] == [-1, 0, 1, 1, 9, 40]


@pytest.mark.parametrize(
    "step", ["'5'", "5.0", "True", "-2", "2 ** 60", "10 ** 5000", "float('nan')", "[]", "object()"]
)
def test_invalid_checkpoint_step_becomes_the_current_one(sdk, step):
    out = sdk(f"with goodput.step(7): pass\nwith goodput.checkpoint({step}): pass")
    snapshot = check(out.snapshot())
    assert events(snapshot) == [(BEGUN, 7), (COMMITTED, 7)] and snapshot.drops["checkpoint"] == 1
    assert len(out.messages()) == 1 and "checkpoint(" in out.errors


def test_commit_from_another_thread_waits_for_next_step(sdk):
    out = sdk("""
        with goodput.step(): pass
        saving = goodput.checkpoint(wait=False)
        thread = threading.Thread(target=saving.commit)
        thread.start(); thread.join()
        emit(len(snapshot().events))
        with goodput.step(): pass
        emit(len(snapshot().events))
    """)
    assert out.emitted == [1, 2] and events(check(out.snapshot())) == [(BEGUN, 0), (COMMITTED, 0)]


def test_event_ring_keeps_the_last_events(sdk):
    snapshot = check(sdk("for i in range(1000): goodput.mark(str(i))").snapshot())
    assert [event.number for event in snapshot.events] == list(range(1000 - page.EVENT_RING + 1, 1001))
    assert [event.text for event in snapshot.events] == [str(i) for i in range(1000 - page.EVENT_RING, 1000)]


# -- resumed


def test_resumed_forward_stays_in_the_attempt(sdk):
    snapshot = check(
        sdk("""
        goodput.resumed(99)
        for i in goodput.steps(range(2)): work()
        goodput.resumed(101)  # where it is already
        with goodput.step(): pass
        goodput.resumed(500)
        with goodput.step(): pass
        """).snapshot()
    )
    assert [record.step for record in snapshot.steps] == [100, 101, 102, 501]
    assert events(snapshot) == [("resumed", 99), ("resumed", 101), ("resumed", 500)]


def test_resumed_before_any_step_may_go_back(sdk):
    snapshot = check(sdk("goodput.resumed(99)\ngoodput.resumed(-1)\nwith goodput.step(): pass").snapshot())
    assert [record.step for record in snapshot.steps] == [0]


def test_resumed_backward_begins_a_new_attempt(sdk):
    out = sdk("""
        goodput.start(run="r", rank=2, world_size=4, device="H100", flops_per_step=1e9)
        for i in goodput.steps(range(10)):
            with goodput.phase("mine", "productive"): pass
        with goodput.phase("restore"):
            spin(2000)
            goodput.resumed(4)
            spin(3000)
        for i in goodput.steps(range(3)): work()
        goodput.resumed(-1)
        with goodput.step(): pass
    """)
    first, second, third = map(check, out.snapshots())
    assert [s.identity["attempt"] for s in (first, second, third)] == [1, 2, 3]
    assert [s.ended for s in (first, second, third)] == ["resumed", "resumed", "finished"]
    assert [[r.step for r in s.steps] for s in (first, second, third)] == [list(range(10)), [5, 6, 7], [0]]
    assert (
        second.identity["start_mono_ns"] == first.end_ns and third.identity["start_mono_ns"] == second.end_ns
    )
    assert second.identity["device"] == "H100" and second.phase_states == {"mine": "productive"}
    restore = page.PHASES.index("restore")
    # The phase that the call lay in goes on in the new page, and ends there as it should.
    assert first.totals[restore] >= 2_000_000 and second.totals[restore] >= 3_000_000
    assert events(second) == [("resumed", 4)] and sum(second.drops.values()) == sum(first.drops.values()) == 0


def test_resumed_backward_inside_a_loop_over_steps(sdk):
    out = sdk("""
        goodput.start(run="r")
        for i in goodput.steps(range(6)):
            work()
            if i == 3: goodput.resumed(0)
        with goodput.step():
            goodput.resumed(0)
        with goodput.step(): pass
    """)
    first, second, third = map(check, out.snapshots())
    assert [[r.step for r in s.steps] for s in (first, second, third)] == [[0, 1, 2], [1, 2], [1]]
    assert second.drops["step"] == third.drops["step"] == 1


@pytest.mark.parametrize(
    "step", ["None", "'4'", "4.5", "-2", "2 ** 60", "True", "float('nan')", "10 ** 5000"]
)
def test_invalid_resumed_step_is_reported(sdk, step):
    out = sdk(f"with goodput.step(): pass\ngoodput.resumed({step})\nwith goodput.step(): pass")
    snapshot = check(out.snapshot())
    assert [record.step for record in snapshot.steps] == [0, 1] and snapshot.events == []
    assert snapshot.drops["step"] == 1 and len(out.messages()) == 1


def test_resumed_from_another_thread_is_refused(sdk):
    out = sdk("""
        with goodput.step(): pass
        thread = threading.Thread(target=goodput.resumed, args=(70,))
        thread.start(); thread.join()
        with goodput.step(): pass
    """)
    snapshot = check(out.snapshot())
    assert [record.step for record in snapshot.steps] == [0, 1] and snapshot.drops["step"] == 1


# -- mark


@pytest.mark.parametrize(
    ("text", "expected", "cut"),
    [
        ("'hello'", "hello", 0),
        ("''", "", 0),
        ("'x' * 216", "x" * 216, 0),
        ("'x' * 217", "x" * 216, 1),
        ("'x' * 10 ** 6", "x" * 216, 1),
        ("'ä' * 140", "ä" * 108, 1),
        ("'abc' + '☃' * 80", "abc" + "☃" * 71, 1),  # 216 bytes exactly
        ("'a' + '☃' * 80", "a" + "☃" * 71, 1),  # cut between two characters
        ("'\\U0001f600' * 54", "\U0001f600" * 54, 0),
        ("'two\\nlines\\x1b[31m\\0end'", "two?lines?[31m?end", 0),
        ("'\\ud800'", "?", 0),
        ("b'bytes'", "b'bytes'", 0),
        ("None", "None", 0),
    ],
)
def test_mark_keeps_up_to_64_bytes_of_printable_text(sdk, text, expected, cut):
    out = sdk(f"with goodput.step(3): pass\ngoodput.mark({text})")
    snapshot = check(out.snapshot())
    assert [(e.kind, e.step, e.text) for e in snapshot.events] == [("mark", 3, expected)]
    assert snapshot.drops["event"] == cut
    given = {"b'bytes'": "bytes", "None": "NoneType"}.get(text)
    said = f"goodput: mark: want text, not {given}; str() of it is recorded\n"
    assert out.errors == (said if given else "")


def test_mark_without_text_is_reported(sdk):
    out = sdk("""
        class Broken:
            def __str__(self): raise RuntimeError
        goodput.mark(Broken()); goodput.mark(10 ** 5000)
        goodput.mark("on")
    """)
    assert [event.text for event in check(out.snapshot()).events] == ["on"] and len(out.messages()) == 2


def test_marks_of_other_threads_wait_for_next_step(sdk):
    out = sdk("""
        goodput.start()
        threads = [threading.Thread(target=goodput.mark, args=(f"thread {i}",)) for i in range(5)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        with goodput.step(): pass
        emit(sorted(event.text for event in snapshot().events))
    """)
    assert out.emitted == [[f"thread {i}" for i in range(5)]]
    check(out.snapshot())
