"""Traces in which the clock of a device differs from the host's: work before its launch, or after the wait for it."""

import copy as copies

import pytest
from support.trace.trace_maker import copy, event, kernel, launch, loader, note, op, step, sync, write

from goodput.cli import main
from goodput.trace import TraceError, analyze

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MS = 1000  # microseconds
NEW = ("clock_shift_ns", "events_before_launch")


def healthy(device: int = 0, first: int = 0, tid: int = 1) -> list[dict]:
    """Ten steps of 10 ms: 2 ms of loader, 1 ms of launches, 6 ms of work, and a wait for it."""
    events = []
    for i in range(10):
        at, n = 10 * MS * i, first + 10 * i
        more = {"device": device}
        events += [step(i, at, 10 * MS, tid=tid), loader(at, 2 * MS, tid=tid), op(at + 2 * MS, MS, tid=tid)]
        events += [launch(at + 2 * MS + j, 1, n + j, tid=tid) for j in (1, 2)]
        events += [launch(at + 2 * MS + 3, 1, n + 3, "cudaMemcpyAsync", tid=tid)]
        events += [kernel(at + 2 * MS + 1, 4 * MS, correlation=n + 1, **more)]
        events += [kernel(at + 5 * MS, 2 * MS, ALLREDUCE, stream=20, correlation=n + 2, **more)]
        events += [copy(at + 7 * MS, MS, "Memcpy DtoH (Device -> Pageable)", correlation=n + 3, **more)]
        events += [sync(at + 2 * MS + 5, 6 * MS, tid=tid)]
    return events


def moved(events: list[dict], by: int, device: int = 0) -> list[dict]:
    """The events with the clock of a device ahead by so many microseconds."""
    found = copies.deepcopy(events)
    for one in found:
        if one["args"].get("device") == device:
            one["ts"] += by
    return found


def lanes(tmp_path, events) -> list[dict]:
    return analyze([write(tmp_path / "t.json", events)])["ranks"][0]["devices"]


def without_clock(device: dict) -> dict:
    return {name: value for name, value in device.items() if name not in NEW}


@pytest.mark.parametrize("by", [-1, -5 * MS, -300 * MS, -10_000 * MS])
def test_clock_behind_the_host_changes_no_share(tmp_path, by):
    """The first kernel of each step begins with its launch, so the least shift is the whole difference."""
    (want,) = lanes(tmp_path, healthy())
    (found,) = lanes(tmp_path, moved(healthy(), by))
    assert found["clock_shift_ns"] == -by * 1000 and found["events_before_launch"] >= 10
    assert without_clock(found) == without_clock(want)
    assert (want["clock_shift_ns"], want["events_before_launch"]) == (0, 0)


def test_difference_of_clocks_is_told(tmp_path, capsys):
    assert main(["analyze", str(write(tmp_path / "t.json", moved(healthy(), -300 * MS)))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the clock of GPU 0 is at least 300 ms behind the host's: 30 of 30 events began before" in out
    assert "loader, 20.0 %" in out and ".item()" not in out


def test_each_device_has_a_difference_of_its_own(tmp_path, capsys):
    events = [*healthy(), *healthy(1, 500, tid=2), *healthy(2, 900, tid=3)]
    want = lanes(tmp_path, events)
    found = lanes(tmp_path, moved(moved(events, -40 * MS, 1), -7 * MS, 2))
    assert [one["clock_shift_ns"] for one in found] == [0, 40 * MS * 1000, 7 * MS * 1000]
    assert list(map(without_clock, found)) == list(map(without_clock, want))
    assert main(["analyze", str(tmp_path / "t.json")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "clock of rank 0, GPU 1 is at least 40 ms behind" in out
    assert "clock of rank 0, GPU 2 is at least 7 ms behind" in out and "GPU 0 is" not in out


def test_copies_and_graph_launches_prove_a_difference(tmp_path):
    """A single event is enough: a copy, a memset, or any kernel of a launched graph."""
    marked = [step(1, 0, 100)]
    for early in (
        [launch(20, 1, 1, "cudaMemcpyAsync"), copy(12, 5, correlation=1)],
        [launch(20, 1, 1, "cudaMemsetAsync"), kernel(12, 5, "Memset", category="gpu_memset", correlation=1)],
        [launch(20, 1, 1, "cudaGraphLaunch"), kernel(60, 1, correlation=1), kernel(12, 1, correlation=1)],
    ):
        (found,) = lanes(tmp_path, [*marked, *early, launch(50, 1, 9), kernel(90, 5, correlation=9)])
        assert found["clock_shift_ns"] == 8000 and found["events_before_launch"] == 1


def test_id_that_two_processes_used_proves_only_the_earlier_launch(tmp_path):
    events = [
        step(1, 0, 100),
        launch(10, 1, 5, pid=1),
        launch(70, 1, 5, pid=2),
        kernel(20, 10, correlation=5),
    ]
    assert lanes(tmp_path, events)[0]["clock_shift_ns"] == 0
    events[-1] = kernel(4, 10, correlation=5)
    assert lanes(tmp_path, events)[0]["clock_shift_ns"] == 6000


def test_work_without_a_launch_is_moved_along(tmp_path):
    events = [note(0, 100, "train"), launch(50, 1, 1), kernel(20, 10, correlation=1), kernel(35, 10)]
    (found,) = lanes(tmp_path, events)
    assert found["clock_shift_ns"] == 30_000
    assert (found["steps"][0]["start_ns"], found["total"]["wall_ns"]) == (50_000, 25_000)


def drifting(wait) -> list[dict]:
    """Work in two halves, each awaited; only in the first half it begins before its launch, by 30 ms."""
    events = [step(1, 0, 200 * MS)]
    for at, early in ((40 * MS, 30 * MS), (140 * MS, 0)):
        n = 1 + at
        events += [launch(at, 5, n), kernel(at - early + 10, MS, correlation=n)]
        events += [launch(at + 10, 5, n + 1, "cudaMemcpyAsync")]
        events += [copy(at - early + 2 * MS, 100, "Memcpy DtoH (Device -> Pinned)", correlation=n + 1)]
        events += [wait(at + 20, 3 * MS)]
    return events


def device_sync(start: int, length: int) -> dict:
    return event("cuda_runtime", "cudaDeviceSynchronize", start, length)


@pytest.mark.parametrize("wait", [device_sync, sync])
def test_drift_within_a_trace_is_refused(tmp_path, capsys, wait):
    """No single shift is right: the one that the first half needs moves the second beyond the wait for it."""
    path = write(tmp_path / "t.json", drifting(wait))
    with pytest.raises(
        TraceError, match=r"clocks of the host and of GPU 0 drift: 2 of 4 events .* up to 30 ms"
    ):
        analyze([path])
    assert main(["analyze", str(path)]) == 1
    assert "no share would be right" in " ".join(capsys.readouterr().err.split())


def test_wait_for_another_stream_refuses_nothing(tmp_path):
    """A wait for a stream is known to be for the copy to the host before it, and for no other work."""
    events = [one for one in drifting(sync) if not one["name"].startswith("Memcpy")]
    assert lanes(tmp_path, events)[0]["clock_shift_ns"] == 30 * MS * 1000 - 10_000


def test_clock_ahead_of_the_host_is_moved_back(tmp_path, capsys):
    """Work that ends 5 ms after the host has waited for the whole device; the wait itself takes 10 us."""
    events = [step(1, 0, 100 * MS), launch(10 * MS, 5, 1), kernel(10 * MS + 10, 20 * MS, correlation=1)]
    events += [launch(50 * MS, 5, 2), kernel(50 * MS + 10, 20 * MS, correlation=2)]
    events += [device_sync(60 * MS, 10 * MS + 20)]
    (want,) = lanes(tmp_path, events)
    (found,) = lanes(tmp_path, moved(events, 5 * MS))
    assert (want["clock_shift_ns"], found["clock_shift_ns"]) == (0, -(5 * MS - 10) * 1000)
    assert main(["analyze", str(tmp_path / "t.json")]) == 0
    assert "GPU 0 is at least 4.99 ms ahead of the host's" in " ".join(capsys.readouterr().out.split())


def test_wait_of_another_device_moves_nothing(tmp_path):
    """The call waits for a device that is not in the trace: to end before it, work would begin before its launch."""
    events = [step(1, 0, 100 * MS), launch(10 * MS, 5, 1), kernel(10 * MS + 10, 20 * MS, correlation=1)]
    (found,) = lanes(tmp_path, [*events, device_sync(11 * MS, 10)])
    assert found["clock_shift_ns"] == 0


def test_impossible_difference_is_refused(tmp_path):
    """Else times would leave 64 bits."""
    far = 4 * 10**15
    events = [launch(far, 1, 1), kernel(-far, 10, correlation=1), kernel(far, 10)]
    with pytest.raises(TraceError, match="GPU 0 has events more than 70 years before their launches"):
        analyze([write(tmp_path / "t.json", events)])


@pytest.mark.parametrize("broken", ["one at 0", "all eleven days late"])
def test_times_that_contradict_each_other_are_refused(tmp_path, broken):
    """One kernel at time 0 among those of 2026 would move its device by years."""
    events = [one for one in moved(healthy(), 0) if "Synchronize" not in one["name"]]
    for one in events:
        one["ts"] += 1.79e15
    kernels = [one for one in events if one["cat"] == "kernel"]
    for one in kernels[5:6] if broken == "one at 0" else kernels:
        one["ts"] = 0 if broken == "one at 0" else one["ts"] + 1e12
    with pytest.raises(TraceError, match=r"contradict each other.*no share would be right"):
        lanes(tmp_path, events)
