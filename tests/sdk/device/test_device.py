"""The device clock against a simulated device: exposed times are the device's own, and nothing waits or is lost."""

from __future__ import annotations

import contextlib
import gc
import sys
from itertools import pairwise

import pytest
from support.sdk.checks import check_records
from support.sdk.device import Backend, Device, Trainer, scaled, split

from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.device import device_clock as device_module

US = 1000
MS = 1000 * US


@pytest.fixture
def simulated(monkeypatch, directory):
    """simulated(queue_max=…, grain_ns=…) gives a Trainer on a page of its own."""
    made = []

    def make(queue_max=None, grain_ns=1) -> Trainer:
        device = Device(queue_max)
        made.append(Trainer(monkeypatch, directory / str(len(made)), device, Backend(device, grain_ns)))
        return made[-1]

    yield make
    for trainer in made:
        trainer.writer.close()


def read_page(trainer: Trainer, alive: bool = False):
    with Reader(trainer.writer.path) as reader:
        snapshot = reader.snapshot(alive=alive)
    check_records(snapshot)
    assert sum(snapshot.totals) == sum(snapshot.host_totals)
    return snapshot


def splits(snapshot) -> list[dict[str, int]]:
    return [split(r, b) for r, b in zip(snapshot.steps, [None, *snapshot.steps], strict=False)]


def lengths(snapshot) -> list[int]:
    return [record.end_ns - record.start_ns for record in snapshot.steps]


def settle(trainer: Trainer) -> None:
    """Let the device do what is queued, and the clock see it."""
    trainer.device.host(10**9)
    trainer.recorder.end(trainer.device.now(), "finished")
    trainer.close()


def train(
    trainer: Trainer, steps: int, loader=0, h2d=None, kernels=40, kernel=100 * US, launch=5 * US, **more
):
    """A training loop: `h2d` is (host ns, copy ns), `exposed` is what an all-reduce on the side stream leaves."""
    device = trainer.device
    for _ in range(steps):
        with trainer.step():
            with trainer.phase("loader"):
                device.host(loader)
            if h2d is not None:
                with trainer.phase("h2d"):
                    device.host(h2d[0])
                    device.launch(h2d[1])
            for name in ("forward", "backward"):
                with trainer.phase(name):
                    for _ in range(kernels):
                        device.host(launch)
                        device.launch(kernel)
            if "reduce" in more:
                device.stream = device.side
                device.launch(more["reduce"], after=more.get("after", 0) or device.compute.free_ns)
                device.stream = device.compute
                with trainer.phase("communication"):
                    device.host(launch)
                    device.wait_for(device.side)
            with trainer.phase("optimizer"):
                device.host(launch)
                device.launch(kernel)


def checked(trainer: Trainer, skip: int = 0, grain_ns: int = 1) -> list[dict[str, int]]:
    """Every step is as long as the host says and divided as the simulation says; the divisions after `skip` steps."""
    settle(trainer)
    snapshot = read_page(trainer)
    assert snapshot.device_state == "active" and len(snapshot.steps) == len(trainer.truths)
    assert snapshot.device_ns == sum(lengths(snapshot))
    for found, truth, length in zip(splits(snapshot), trainer.truths, lengths(snapshot), strict=True):
        want = scaled(truth, length)
        # One part in as many as there are events may be rounded, each time by the events' resolution.
        near = 2 + 2 * grain_ns * length / max(sum(truth.values()), 1)
        for name in {*found, *want}:
            assert abs(found.get(name, 0) - want.get(name, 0)) <= near, (name, found, want)
        assert sum(found.values()) == length
    return splits(snapshot)[skip:]


def test_a_loader_hidden_under_the_queue_costs_nothing(simulated):
    trainer = simulated(queue_max=200)
    train(trainer, 30, loader=2 * MS)
    for found in checked(trainer, skip=5):
        assert "loader" not in found and found["forward"] > 3 * MS
    # The host's clock shows something else.
    assert read_page(trainer).host_totals[page.PHASES.index("loader")] == 60 * MS


def test_a_slow_loader_is_exposed_less_what_was_queued(simulated):
    trainer = simulated()
    train(trainer, 20, loader=10 * MS)
    for found, truth in zip(checked(trainer, skip=2), trainer.truths[2:], strict=True):
        # 81 kernels of 0.1 ms against 81 launches of 5 us and 10 ms of loader: the queue runs dry for the rest.
        assert truth["loader"] == pytest.approx(10 * MS + 81 * 5 * US - 81 * 100 * US, abs=100 * US)
        assert found["loader"] == pytest.approx(truth["loader"], abs=10)


@pytest.mark.parametrize("copy", [0, 3 * MS])
def test_copies_are_exposed_where_the_stream_does_them(simulated, copy):
    trainer = simulated(queue_max=100)
    train(trainer, 20, h2d=(1 * MS, copy))
    found = checked(trainer, skip=5)
    assert all(("h2d" in one) == bool(copy) for one in found)
    assert all(one.get("h2d", 0) == pytest.approx(copy, rel=0.3) for one in found)


@pytest.mark.parametrize(("reduce", "exposed"), [(2 * MS, 2 * MS), (0, 0)])
def test_wait_for_side_stream_is_communication(simulated, reduce, exposed):
    trainer = simulated(queue_max=60)
    train(trainer, 20, reduce=reduce)
    for one in checked(trainer, skip=5):
        assert one.get("communication", 0) == pytest.approx(exposed, rel=0.2)


def test_a_collective_hidden_under_compute_costs_nothing(simulated):
    trainer = simulated(queue_max=60)
    train(trainer, 20, reduce=2 * MS, after=1)  # It begins as soon as the side stream is free.
    assert all("communication" not in one for one in checked(trainer, skip=5))


def test_late_launches_are_charged_to_their_phase(simulated):
    trainer = simulated()
    train(trainer, 10, kernel=20 * US, launch=50 * US)
    for one in checked(trainer, skip=1):
        assert one["forward"] == pytest.approx(40 * 50 * US, rel=0.05)


@pytest.mark.parametrize("grain_ns", [500, 32 * US])
def test_the_resolution_of_events_does_not_add_up(simulated, grain_ns):
    trainer = simulated(queue_max=50, grain_ns=grain_ns)
    train(trainer, 40, loader=300 * US, h2d=(50 * US, 400 * US), reduce=250 * US)
    checked(trainer, grain_ns=grain_ns)


def test_touching_steps_share_an_event(simulated):
    trainer = simulated(queue_max=50)
    recorder, device = trainer.recorder, trainer.device
    began = recorder.end_gap(device.now())
    for _ in range(30):
        assert recorder.begin_step(began, None, 1)
        with trainer.phase("forward"):
            device.host(MS)
            device.launch(2 * MS)
        began = recorder.end_step(device.now())
    settle(trainer)
    # One where steps begin, then one where each phase and each step ends.
    assert trainer.backend.recorded == 1 + 30 * 2
    snapshot = read_page(trainer)
    assert snapshot.device_ns == sum(lengths(snapshot))


@pytest.mark.parametrize(("pause", "events"), [(2_999, 4), (3_000, 7)])
def test_phase_that_follows_at_once_needs_no_event(simulated, pause, events):
    """What is launched between two phases takes the host longer; idle time so short belongs to the next phase."""
    trainer = simulated()
    device = trainer.device

    def step():
        with trainer.step():
            for name in ("h2d", "forward", "backward"):
                device.host(pause)
                with trainer.phase(name):
                    device.host(MS)
                    device.launch(2 * MS)
            device.host(10 * US)

    for _ in range(10):
        step()
    before = trainer.backend.recorded
    step()
    assert trainer.backend.recorded - before == events
    settle(trainer)
    for found in splits(read_page(trainer))[3:]:
        assert found["forward"] == pytest.approx(found["backward"], abs=4 * US)


def test_time_between_steps_keeps_the_host_clock(simulated):
    trainer = simulated()
    for _ in range(10):
        train(trainer, 1)
        with trainer.phase("evaluation"):
            trainer.device.host(7 * MS)
            trainer.device.launch(20 * MS)
    settle(trainer)
    snapshot = read_page(trainer)
    assert snapshot.steps[-1].outside[page.PHASES.index("evaluation")] == 9 * 7 * MS
    assert all("evaluation" not in one for one in splits(snapshot))


# ---- What makes a step the host's


def hosts(trainer: Trainer) -> tuple[list[bool], object]:
    """For each step whether it has the host's division, and the snapshot."""
    settle(trainer)
    snapshot = read_page(trainer)
    before, found = 0, []
    for record in snapshot.steps:
        found.append(record.device_ns == before)
        before = record.device_ns
    return found, snapshot


def test_a_captured_step_is_left_alone(simulated):
    trainer = simulated(queue_max=50)
    train(trainer, 3)
    with trainer.step(), trainer.phase("compile"):
        trainer.device.capturing = True
        with trainer.phase("forward"):  # The backend asserts that nothing is recorded or queried.
            trainer.device.host(20 * MS)
        trainer.device.capturing = False
    train(trainer, 3)
    with trainer.step():
        trainer.device.capturing = True
    trainer.device.capturing = False
    train(trainer, 3)
    found, snapshot = hosts(trainer)
    # The end that could not be recorded is the next step's beginning too.
    assert found == [False] * 3 + [True] + [False] * 3 + [True, True] + [False] * 2
    assert splits(snapshot)[3]["forward"] == 20 * MS


def test_boundaries_on_a_side_stream_are_merged(simulated):
    trainer = simulated()
    device = trainer.device
    for _ in range(5):
        with trainer.step():
            device.stream = device.side
            with trainer.phase("h2d"):
                device.host(MS)
                device.launch(2 * MS)
            device.stream = device.compute
            with trainer.phase("forward"):
                device.wait_for(device.side)
                device.launch(MS)
    found, snapshot = hosts(trainer)
    assert not any(found)
    # The wait is where the compute stream waits, and the copy itself is nowhere.
    assert all(one["forward"] > 0 and "h2d" not in one for one in splits(snapshot)[1:])


def test_lasting_stream_change_is_followed(simulated):
    trainer = simulated(queue_max=50)
    train(trainer, 2)
    trainer.device.compute = trainer.device.stream = trainer.device.side
    train(trainer, 30)
    found, _ = hosts(trainer)
    assert found[:2] == [False, False] and found[-8:] == [False] * 8
    assert sum(found) == device_module.ADOPT_STEPS + 1


def test_work_on_another_device_is_ignored(simulated):
    trainer = simulated(queue_max=50)
    train(trainer, 2)
    trainer.device.device = 1
    train(trainer, 40)
    trainer.device.device = 0
    train(trainer, 2)
    found, _ = hosts(trainer)
    assert found == [False] * 2 + [True] * 41 + [False]


def test_too_many_boundaries_for_the_pool(simulated):
    trainer = simulated()
    train(trainer, 2)
    with trainer.step():
        for _ in range(device_module.EVENTS):
            with trainer.phase("forward"):
                trainer.device.host(US)
    train(trainer, 3)
    found, _ = hosts(trainer)
    assert found == [False, False, True, False, False, False]
    assert trainer.backend.made <= device_module.EVENTS


def test_step_with_more_boundaries_than_events(simulated):
    """While the device keeps up: what has completed is taken before the step has ended."""
    trainer = simulated(queue_max=100)
    train(trainer, 3)
    for _ in range(3):
        with trainer.step():
            for i in range(2000):
                with trainer.phase("communication" if i % 4 == 0 else "forward"):
                    trainer.device.host(10 * US)
                    trainer.device.launch((3 if i % 4 == 0 else 15) * US)
        train(trainer, 1)
    checked(trainer)
    assert trainer.backend.made <= device_module.EVENTS + 3


def test_a_long_step_that_is_abandoned(simulated):
    trainer = simulated(queue_max=100)
    train(trainer, 3)
    for broken in (True, False):
        trainer.device.host(20 * MS)  # The device has done all, so that what is recorded has completed.
        with contextlib.suppress(ValueError), trainer.step():
            for _ in range(1500):
                with trainer.phase("forward"):
                    trainer.device.host(10 * US)
            if broken:
                raise ValueError
        if broken:
            trainer._bounds.pop()
        trainer.device.host(MS)
    train(trainer, 2)
    checked(trainer)


def test_step_fills_the_pool_before_any_event_completes(simulated):
    trainer = simulated()
    train(trainer, 2)
    trainer.device.host(100 * MS)
    with contextlib.suppress(ValueError), trainer.step():
        for _ in range(device_module.EVENTS):
            with trainer.phase("forward"):
                trainer.device.host(US)
        raise ValueError  # Of an abandoned step the ring may have passed far beyond what is needed.
    with trainer.step():
        trainer.device.launch(50 * MS)
        for _ in range(device_module.EVENTS):
            with trainer.phase("forward"):
                trainer.device.host(US)
    trainer.device.host(100 * MS)
    train(trainer, 3)
    found, snapshot = hosts(trainer)
    assert found == [False, False, True, False, False, False] and snapshot.drops["error"] == 0


def test_step_end_inside_another_call(simulated):
    trainer = simulated(queue_max=50)
    train(trainer, 3)
    trainer.clock._busy = True  # As in a signal handler that came in the middle of a boundary.
    train(trainer, 1)
    trainer.clock._busy = False
    train(trainer, 3)
    found, _ = hosts(trainer)
    assert found == [False] * 3 + [True, True] + [False] * 2


@pytest.mark.parametrize("steps", [10, 64, 65, 3000])
def test_parked_clock_resumes(simulated, steps):
    """What keeps the budget takes it from the recorder and gives it back."""
    trainer = simulated(queue_max=50)
    with Reader(trainer.writer.path) as follows:
        train(trainer, 5)
        rows = follows.snapshot(alive=True).steps
        clock, trainer.recorder.device = trainer.recorder.device, None
        for _ in range(steps // 100 + 1):
            train(trainer, min(steps, 100), kernels=1)
            rows += follows.snapshot(rows[-1].number, alive=True).steps
        trainer.recorder.device = clock
        train(trainer, 5)
        settle(trainer)
        rows += follows.snapshot(rows[-1].number, alive=True).steps
    fresh = read_page(trainer)
    for before, row in pairwise(rows):
        assert row.number == before.number + 1 and row.device_ns >= before.device_ns
        assert all(map(int.__ge__, row.totals, before.totals))
        assert sum(row.totals) - sum(before.totals) == row.end_ns - before.end_ns
    assert rows[-1].number == fresh.steps[-1].number == fresh.steps_done
    assert rows[-1].totals == fresh.steps[-1].totals and fresh.drops["error"] == 0
    if steps == 3000:  # What the host's ring has lost is not taken from it, nor is each step made up for.
        slots = range(page.W_DEVICE_RING, page.W_WORKERS, page.DEVICE_WORDS)
        numbers = {trainer.writer.words[at + page.D_NUMBER] for at in slots}
        assert 4 in numbers and not numbers & set(range(5, 3000))
    # Some of those before, of those after all but the one whose beginning was not seen.
    assert clock.steps == (8 if steps > page.DEVICE_WAIT_STEPS - 2 else 9)


def test_parked_clock_resumes_on_a_new_page(simulated, directory):
    trainer = simulated(queue_max=50)
    train(trainer, 30)
    recorder = trainer.recorder
    clock, recorder.device = recorder.device, None
    recorder.end(trainer.device.now(), "resumed")
    started = dict(read_page(trainer).identity, attempt=2, start_mono_ns=trainer.device.now())
    second = page.Writer(str(directory), started)
    recorder.open(second.words, trainer.device.now(), second.fd)
    trainer.device.host(MS)
    train(trainer, 3)
    recorder.device = clock
    train(trainer, 10)
    trainer.device.host(10**9)
    recorder.end(trainer.device.now(), "finished")
    with Reader(second.path) as reader:
        snapshot = reader.snapshot()
    check_records(snapshot)
    second.close()
    assert snapshot.drops["error"] == 0 and clock.steps == 9 and len(snapshot.steps) == 13


def test_parked_clock_restored_at_the_end(simulated):
    trainer = simulated(queue_max=50)
    train(trainer, 5)
    clock, trainer.recorder.device = trainer.recorder.device, None
    train(trainer, 2000, kernels=1)
    trainer.recorder.device = clock
    for _ in range(9):
        with trainer.phase("evaluation"):
            trainer.device.host(MS)
    settle(trainer)
    snapshot = read_page(trainer)
    assert trainer.writer.words[page.W_DEVICE_DONE] == 2005 and snapshot.drops["error"] == 0
    assert snapshot.device_totals == snapshot.steps[-1].totals


def test_slow_device_is_not_waited_for(simulated):
    trainer = simulated()
    train(trainer, 300, kernels=2, kernel=50 * MS)  # The host is done before the device has done two steps.
    snapshot = read_page(trainer, alive=True)
    assert snapshot.steps_done - snapshot.steps[-1].number <= page.DEVICE_WAIT_STEPS
    assert trainer.writer.words[page.W_DEVICE_DONE] == 300 - page.DEVICE_WAIT_STEPS
    assert trainer.backend.made <= device_module.EVENTS
    found, _ = hosts(trainer)
    assert found[50:200] == [True] * 150
    trainer.device.host(10**9)


def test_events_that_never_complete(simulated):
    trainer = simulated(queue_max=50)
    train(trainer, 5)
    trainer.device.stuck = True
    train(trainer, 200)
    snapshot = read_page(trainer, alive=True)
    assert 200 - page.DEVICE_WAIT_STEPS <= snapshot.steps[-1].number <= 205
    found, _ = hosts(trainer)
    assert found[:4] == [False] * 4 and found[6:] == [True] * 199
    # The queue of what waits is looked at, one query at a time.
    assert trainer.backend.queried < 205 * 12


def test_any_exception_ends_the_clock(simulated):
    trainer = simulated(queue_max=50)
    trainer.backend.fail_at = 43
    train(trainer, 20, loader=MS)
    assert trainer.recorder.device is None
    found, snapshot = hosts(trainer)
    assert (snapshot.device_state, snapshot.device_why) == ("gave up", "error")
    assert snapshot.drops["error"] == 1 and trainer.backend.recorded == 43
    assert found == [False] * 7 + [True] * 13, (
        "seven had been resolved when the 43rd event failed in the ninth"
    )


# ---- Beginnings and ends


def test_a_device_that_is_used_later(simulated):
    trainer = simulated()
    trainer.backend.in_use = False
    train(trainer, 4)
    assert read_page(trainer).device_state == "host" and read_page(trainer).device_why == "unused"
    trainer.backend.in_use = True
    trainer.device.host(MS)
    train(trainer, 4)
    found, snapshot = hosts(trainer)
    assert found == [True] * 4 + [False] * 4 and snapshot.device_state == "active"


def test_a_device_that_is_never_used(simulated):
    trainer = simulated()
    trainer.backend.in_use = False
    train(trainer, 40)
    assert trainer.recorder.device is None and trainer.backend.recorded == 0
    found, snapshot = hosts(trainer)
    assert all(found) and (snapshot.device_state, snapshot.device_why) == ("host", "unused")
    assert snapshot.device_totals == ()


def test_a_step_that_was_abandoned(simulated):
    trainer = simulated()
    train(trainer, 2)
    with pytest.raises(ValueError), trainer.step(), trainer.phase("forward"):
        trainer.device.launch(50 * MS)
        raise ValueError
    trainer._bounds.pop()
    with trainer.phase("evaluation"):
        trainer.device.host(MS)
    train(trainer, 2)
    found, _ = hosts(trainer)
    assert found == [False] * 4


def test_a_new_page_begins_anew(simulated, directory):
    trainer = simulated()
    train(trainer, 5)
    trainer.device.stuck = True
    recorder = trainer.recorder
    recorder.end(trainer.device.now(), "resumed")
    old = read_page(trainer)
    assert len(old.steps) == 5 and trainer.writer.words[page.W_DEVICE_DONE] == 5
    trainer.device.stuck = False
    second = page.Writer(str(directory), dict(old.identity, attempt=2, start_mono_ns=trainer.device.now()))
    recorder.open(second.words, trainer.device.now(), second.fd)
    trainer.device.host(MS)
    train(trainer, 5)
    trainer.device.host(10**9)
    recorder.end(trainer.device.now(), "finished")
    with Reader(second.path) as reader:
        snapshot = reader.snapshot()
    second.close()
    assert snapshot.device_ns == sum(lengths(snapshot)) > 0 and len(snapshot.steps) == 5


def test_a_fork_has_no_device_clock(simulated):
    trainer = simulated()
    train(trainer, 2)
    trainer.recorder.detach(page.private_words(), -2)
    assert trainer.recorder.device is None


def test_a_signal_handler_in_the_middle_of_a_boundary(simulated):
    trainer = simulated()
    record, inner = trainer.backend.record, trainer.phase("optimizer")

    def interrupted(event):
        record(event)
        if trainer.backend.recorded == 20:
            with inner:
                trainer.device.host(MS)

    trainer.backend.record = interrupted
    train(trainer, 10)
    found, _ = hosts(trainer)
    assert not any(found) and trainer.recorder.device is not None


def test_user_exception_passes_through(simulated):
    trainer = simulated()
    train(trainer, 1)

    def interrupted(event):
        raise KeyboardInterrupt

    record, trainer.backend.record = trainer.backend.record, interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.recorder.device(page.W_TOTALS + 1)
    trainer.backend.record = record
    train(trainer, 3)
    assert trainer.recorder.device is not None
    found, _ = hosts(trainer)
    assert not any(found[2:])


# ---- Cost


def test_memory_is_bounded(simulated, monkeypatch):
    trainer = simulated(queue_max=20)

    class Little:
        """As small an event as PyTorch's can be."""

        __slots__ = ("at_ns",)

    monkeypatch.setattr(trainer.backend, "new_event", Little)
    clock = trainer.clock

    def held() -> int:
        """Bytes of what the clock holds; small integers and the recorder are others'."""
        own = [clock.events, clock.columns, clock.begins, clock.ends, clock.totals, clock.__dict__]
        return sum(map(sys.getsizeof, own)) + sum(sys.getsizeof(e) for e in clock.events if e is not None)

    def turn(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            train(trainer, 1, kernels=1)
            trainer._bounds.clear()
            trainer.hosted.clear()
            trainer.device.spans.clear()
        gc.collect()
        return held(), sys.getallocatedblocks()

    turn(1200)
    bytes_first, blocks_first = turn(100)
    bytes_last, blocks_last = turn(2000)
    assert bytes_last == bytes_first <= 200 * 1024
    assert blocks_last - blocks_first < 200, "100 bytes for each of 2000 steps would be seen"


def test_its_own_cost_is_measured(simulated):
    trainer = simulated()
    train(trainer, 50)
    assert 0 < trainer.clock.cost_ns < 10**9
    settle(trainer)
    assert 0 < trainer.writer.words[page.W_DEVICE_COST] <= trainer.clock.cost_ns
    assert read_page(trainer).cost_ns >= trainer.writer.words[page.W_DEVICE_COST]
