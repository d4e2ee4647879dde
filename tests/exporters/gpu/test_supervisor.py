"""The processes of GPU drivers: failures end only their own process, and their output is not trusted."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.core_wait import within
from support.paths import TESTS
from support.servers.servers import wait_until

from goodput_exporters.gpu import sample as gpu_sample
from goodput_exporters.gpu import supervisor
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.supervisor import DriverSupervisor, Limits
from goodput_exporters.gpu.worker import HEADER, MAGIC, OPENED, SAMPLE

QUICK = Limits(
    stuck_seconds_min=1.0, stuck_intervals=5.0, open_seconds=20.0, backoff_seconds=0.05, kill_seconds=0.5
)


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


@contextlib.contextmanager
def running(name: str, **arguments):
    if "command" not in arguments:
        arguments["module"] = f"support.node.fake_drivers:{name}"
    arguments.setdefault("limits", QUICK)
    child = DriverSupervisor("fake", Options(interval_seconds=0.1), **arguments)
    child.start()
    try:
        yield child
    finally:
        child.stop(10.0)
        assert not child._thread.is_alive()


def pid_of(child: DriverSupervisor) -> int | None:
    process = child._process
    return process.pid if process else None


def wait_for(child: DriverSupervisor, is_met, what: str, seconds: float = 20.0):
    def seen():
        report = child.status()
        return report if is_met(report) else None

    return wait_until(seen, seconds, f"{what}; its problem: {child.status().problem}", every_seconds=0.02)


def is_running(pid: int) -> bool:
    """Whether it is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- a driver that works


def test_driver_gives_samples_and_its_usage():
    received = []
    with running("Normal", on_sample=received.append) as child:
        report = wait_for(child, lambda report: report.counts["samples"] >= 8, "eight samples")
    assert report.up and report.settled and not report.absent
    assert report.full.sample.full and not report.fast.sample.full
    assert report.full.sample.gpus[7].readings["throttle/reason3"] == 1.0
    assert "throttle/reason3" not in report.fast.sample.gpus[7].readings
    assert [sample.full for sample in received[:8]] == [True] + [False] * 7
    assert {sample.driver for sample in received} == {"fake"}
    assert 0.01 < report.cpu_seconds < 5
    assert 5 << 20 < report.memory_bytes < 64 << 20
    assert report.counts["problems"] == 0 and sum(report.restarts.values()) == 0
    assert report.age_seconds < 30


def test_sampling_keeps_its_interval():
    """Between two counts that lie a second apart there are ten samples, those it was late for counted in."""
    times = []
    with running("Normal", on_sample=lambda sample: times.append(sample.monotonic_ns)) as child:
        report = wait_for(child, lambda report: report.counts["samples"] >= 25, "25 samples")
    elapsed = (times[24] - times[0]) / 1e9
    assert 2.3 < elapsed < 2.5 + 0.1 * (report.counts["dropped"] + 2)


def test_late_samples_are_counted_as_dropped():
    with running("Slow") as child:
        report = wait_for(child, lambda report: report.counts["samples"] >= 6, "six samples")
    # A sample takes 0.25 s of 0.3 s, so that two of three are dropped.
    assert 2 * (report.counts["samples"] - 2) <= report.counts["dropped"]


def test_printed_output_does_not_corrupt_samples():
    with running("Printing") as child:
        report = wait_for(child, lambda report: report.counts["samples"] >= 5, "five samples")
        assert sum(report.restarts.values()) == 0
        wait_until(lambda: "fake: hello" in child._process.lines, 60, "the lines printed")


def test_flooded_stderr_blocks_but_does_not_kill():
    with running("Flooding") as child:
        report = wait_for(child, lambda report: report.counts["samples"] >= 2, "two samples")
        assert sum(report.restarts.values()) == 0
        assert len(child._process.lines) <= 5


def test_invalid_reading_is_dropped_and_reported():
    with running("Wrong") as child:
        report = wait_for(child, lambda report: report.full, "a sample")
    gpus = report.full.sample.gpus
    assert [one.uuid for one in gpus] == ["GPU-0", "GPU-1"]
    assert gpus[0].readings == {"power": 5.0} and len(gpus[1].readings) > 40
    assert report.counts["problems"] >= 1 and "GPU-0" in report.problem


# -- a driver that fails


@pytest.mark.parametrize("name, seconds", [("HangsInOpen", 0.5), ("Hanging", 20.0)])
def test_hanging_driver_is_replaced(name, seconds):
    limits = Limits(stuck_seconds_min=0.7, open_seconds=seconds, backoff_seconds=0.05)
    with running(name, limits=limits) as child:
        first = wait_until(lambda: pid_of(child), 60, "a process")
        report = wait_for(child, lambda report: report.restarts["stuck"] >= 2, "two replacements")
        assert not is_running(first)
        assert "silent" in report.problem and report.restarts["died"] == 0
    assert report.settled and not report.absent
    if name == "Hanging":
        assert report.counts["samples"] >= 6 and report.counts["dropped"] >= 5


def test_crashing_driver_is_replaced(caplog):
    with running("Crashing") as child:
        report = wait_for(child, lambda report: report.restarts["died"] >= 3, "three replacements")
        assert (
            "driver assertion failed" in report.problem and f"exit status {-signal.SIGABRT}" in report.problem
        )
    logged = [record for record in caplog.records if "assertion failed" in record.getMessage()]
    assert len(logged) == 1


def test_restart_backoff_doubles(monkeypatch):
    limits = Limits(backoff_seconds=0.1, backoff_seconds_max=0.4)
    waits = []
    doubled = supervisor.doubled
    monkeypatch.setattr(supervisor, "doubled", lambda *wait: waits.append(doubled(*wait)) or 0.001)
    with running("", command=["false"], limits=limits) as child:
        wait_for(child, lambda report: report.restarts["died"] >= 6, "six replacements")
    assert waits[:5] == [0.1, 0.2, 0.4, 0.4, 0.4]


def test_failed_sample_is_a_problem():
    with running("Raising") as child:
        report = wait_for(child, lambda report: report.counts["problems"] >= 3, "three problems")
    assert (
        report.counts["samples"] >= 3
        and sum(report.restarts.values()) == 0
        and report.problem == "call failed"
    )


@pytest.mark.parametrize(
    "name, problem", [("RaisingAlways", "call failed"), ("Unusable", "library of another version")]
)
def test_repeated_failures_restart_the_driver(name, problem, caplog):
    with running(name) as child:
        report = wait_for(child, lambda report: report.restarts["died"] >= 2, "two replacements")
        # What it ends with says why it is down, not that a process ended.
        wait_for(
            child, lambda report: report.problem == f"died, ended (exit status 1): {problem}", "the reason"
        )
    assert not report.up and report.settled and not report.absent and report.counts["samples"] == 0
    assert report.age_seconds is None
    assert any(problem in record.getMessage() for record in caplog.records)


def test_absent_driver_is_retried(tmp_path, monkeypatch):
    monkeypatch.setenv("GOODPUT_FAKE", str(tmp_path / "there"))
    limits = Limits(absent_seconds=0.1, absent_seconds_max=0.2)
    with running("AbsentAtFirst", limits=limits) as child:
        report = wait_for(child, lambda report: report.absent, "its absence")
        assert report.settled and not report.up and sum(report.restarts.values()) == 0
        assert report.problem == "nothing to sample: not yet"
        (tmp_path / "there").touch()
        wait_for(child, lambda report: report.up and not report.absent, "the driver")


def test_trigger_restarts_absent_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("GOODPUT_FAKE", str(tmp_path / "there"))
    monkeypatch.setattr("goodput_exporters.gpu.supervisor.TRIGGER_SECONDS", 0.05)
    with running("AbsentAtFirst", trigger=lambda: (tmp_path / "there").exists()) as child:
        wait_for(child, lambda report: report.absent, "its absence")
        (tmp_path / "there").touch()
        wait_for(child, lambda report: report.up, "the driver, long before a minute is over")


def test_vanished_device_is_absence_not_restart():
    with running("Vanishing", limits=Limits(stuck_seconds_min=0.5, absent_seconds=60)) as child:
        report = wait_for(child, lambda report: "unloaded" in report.problem, "its absence")
        assert sum(report.restarts.values()) == 0
        # It had a device once, so it is down and not absent.
        report = wait_for(child, lambda report: not report.up, "that it is down")
        assert not report.absent and report.settled


def test_growing_driver_is_replaced():
    limits = Limits(memory_bytes_max=64 << 20, backoff_seconds=0.05)
    with running("Hog", limits=limits) as child:
        report = wait_for(child, lambda report: report.restarts["memory"] >= 1, "a replacement")
    assert "64 MiB" in report.problem


# -- what a process may write


def frame(body: bytes, kind: bytes = SAMPLE, length: int | None = None, cpu: float = 0.0) -> bytes:
    return HEADER.pack(MAGIC, kind, len(body) if length is None else length, cpu, 1 << 20, 0) + body


GOOD = gpu_sample.encode(gpu_sample.Sample("x", 1, [gpu_sample.Gpu("GPU-1", readings={"power": 1.0})]))
HOSTILE = {
    "text": b"NVML: warning, something\n" * 20,
    "zeros": bytes(4096),
    "huge length": frame(b"", length=0xFFFF_FFFF),
    "over the bound": frame(b"", length=gpu_sample.SAMPLE_BYTES_MAX + 1),
    "no sample": frame(b"\xc1" * 50),
    "a nested sample": frame(b"\x91" * 100_000),
    "no such kind": frame(GOOD, kind=b"?"),
    "not a number": frame(GOOD, cpu=float("nan")),
    "an infinite reading": frame(
        gpu_sample.encode(
            gpu_sample.Sample("x", 1, [gpu_sample.Gpu("GPU-1", readings={"power": float("inf")})])
        )
    ),
    "a truncated frame": frame(GOOD)[:-3],
    "a truncated header": frame(GOOD)[:9],
    "good, then garbage": frame(GOOD) + b"garbage" * 10,
}


@pytest.mark.parametrize("written", HOSTILE.values(), ids=HOSTILE.keys())
def test_malformed_output_ends_the_process(tmp_path, written):
    (tmp_path / "written").write_bytes(written)
    with running("", command=["cat", str(tmp_path / "written")]) as child:
        report = wait_for(child, lambda report: report.restarts["garbled"] >= 2, "two replacements")
    # What was sound before it is not lost.
    assert report.counts["samples"] >= (2 if written.startswith(frame(GOOD)) else 0)
    assert written.startswith(frame(GOOD)) or report.full is None
    assert report.restarts["died"] == 0


@pytest.mark.parametrize("kind", ["text", "huge length", "over the bound", "good, then garbage"])
def test_malformed_header_ends_at_once(tmp_path, kind):
    (tmp_path / "written").write_bytes(HOSTILE[kind])
    command = ["sh", "-c", f"cat {tmp_path}/written; exec sleep 60"]
    with running("", command=command, limits=Limits(stuck_seconds_min=10, backoff_seconds=60)) as child:
        wait_for(child, lambda report: report.restarts["garbled"] == 1, "its end", seconds=5)


def test_frames_in_pieces_are_assembled(tmp_path):
    (tmp_path / "written").write_bytes(frame(b"", kind=OPENED) + frame(GOOD) * 2)
    command = [
        "sh",
        "-c",
        f"while read -r -n 1 x; do :; done; dd bs=7 if={tmp_path}/written 2>/dev/null; exec sleep 60",
    ]
    with running("", command=command) as child:
        # The shell waits for its input, which nobody writes: end it by closing.
        wait_until(lambda: child._process, 60, "a process")
        child._process._popen.stdin.close()
        report = wait_for(child, lambda report: report.counts["samples"] == 2, "two samples")
    assert report.full.sample.gpus[0].uuid == "GPU-1" and report.restarts["garbled"] == 0


def test_a_flood_of_frames_ends_the_process(tmp_path):
    (tmp_path / "written").write_bytes(frame(GOOD) * 2000)
    command = ["sh", "-c", f"while :; do cat {tmp_path}/written; done"]
    with running("", command=command, limits=Limits(frames_per_second_max=50)) as child:
        report = wait_for(child, lambda report: report.restarts["garbled"] >= 1, "its end")
    assert "frames in a second" in report.problem


def test_failing_listener_is_counted():
    calls = []

    def listen(sample):
        calls.append(sample)
        raise ValueError("a listener's mistake")

    with running("Normal", on_sample=listen) as child:
        report = wait_for(child, lambda report: report.counts["problems"] >= 3, "three problems")
    assert len(calls) >= 3 and report.up and "a listener's mistake" in report.problem


# -- beginning and end


@pytest.mark.parametrize("name", ["Normal", "Hanging", "HangsInOpen", "Absent"])
def test_stopping_ends_the_process_within_a_second(name):
    with running(name) as child:
        if name in ("Normal", "Hanging"):
            wait_for(child, lambda report: report.counts["samples"] >= 3, "three samples")
        elif name == "Absent":
            wait_for(child, lambda report: report.absent, "its absence")
        else:
            wait_until(lambda: pid_of(child), 60, "a process")
        pid = pid_of(child)
        with within(1.0):
            child.stop()
        assert not child._thread.is_alive()
        assert pid is None or not is_running(pid)
        child.stop()  # A second call does nothing.


def test_driver_is_closed_when_agent_stops(tmp_path, monkeypatch):
    monkeypatch.setenv("GOODPUT_FAKE", str(tmp_path / "closed"))
    with running("Closing") as child:
        wait_for(child, lambda report: report.up, "a sample")
    assert (tmp_path / "closed").read_text() == "closed"


def test_process_ignoring_stdin_end_is_killed():
    limits = Limits(stuck_seconds_min=0.3, open_seconds=0.3, backoff_seconds=60)
    with running("", command=["sleep", "60"], limits=limits) as child:
        pid = wait_until(lambda: pid_of(child), 60, "a process")
        report = wait_for(child, lambda report: report.restarts["stuck"] == 1, "its end")
        assert not is_running(pid) and report.unkillable == 0


PARENT = """
import sys, time
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.supervisor import DriverSupervisor
child = DriverSupervisor("fake", Options(interval_seconds=0.1), module="support.node.fake_drivers:" + sys.argv[1])
child.start()
while child.status().counts["samples"] < 3:
    time.sleep(0.02)
print(child._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["Normal", "Hanging"])
def test_the_process_ends_when_its_parent_is_killed(name):
    """Even where a call into the driver hangs."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, name], stdout=subprocess.PIPE)
    try:
        pid = int(parent.stdout.readline())
        if name == "Hanging":
            # It ignores SIGTERM from the moment on that it hangs.
            mask = Path(f"/proc/{pid}/status")
            ignored = lambda: int(mask.read_text().split("SigIgn:")[1].split()[0], 16) >> 14 & 1  # noqa: E731
            wait_until(ignored, 60, "the hang", every_seconds=0.01)
        assert is_running(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: not is_running(pid), 60, "the driver's process to end", every_seconds=0.01)


def test_process_inherits_no_descriptors_and_is_nice():
    with open(os.devnull) as file, running("Normal") as child:
        os.set_inheritable(file.fileno(), True)
        wait_for(child, lambda report: report.up, "a sample")
        pid = pid_of(child)
        held = {os.readlink(fd).partition(":")[0] for fd in Path(f"/proc/{pid}/fd").iterdir()}
        count = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        # The three pipes, the fourth that the samples go through, and its own /proc/<pid>/statm.
        assert held == {"pipe", f"/proc/{pid}/statm"} and count == 5
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)
        assert os.getsid(pid) == pid


def test_unkillable_processes_are_bounded():
    killed = []
    limits = Limits(stuck_seconds_min=0.3, open_seconds=0.3, backoff_seconds=0.01, kill_seconds=0.05)
    with running("", command=["sleep", "60"], limits=limits, kill=killed.append) as child:
        wait_for(child, lambda report: report.unkillable == 2, "two that do not end")
        assert child.status().restarts["stuck"] == 2
        with within(5):  # The processes do not end by themselves.
            child.status()
        time.sleep(0.5)
        assert len(killed) == 2 and child.status().restarts["stuck"] == 2, "no third one is started"
        os.kill(killed[0].pid, signal.SIGKILL)
        wait_for(child, lambda report: len(killed) == 3, "another, once one has ended")
        with within(1.0):
            child.stop()
    for process in killed:
        process.send_signal(signal.SIGKILL)
        assert process.wait(120)


def test_replacements_leak_nothing(tmp_path):
    (tmp_path / "written").write_bytes(frame(GOOD))
    limits = Limits(backoff_seconds=0.0, backoff_seconds_max=0.0, absent_seconds=0.0)
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with running("", command=["cat", str(tmp_path / "written"), "/nonexistent"], limits=limits) as child:
        wait_for(child, lambda report: report.restarts["died"] >= 200, "200 replacements", seconds=60)
        # While one is being started there are both ends of four pipes, and those of the child itself.
        assert len(os.listdir("/proc/self/fd")) <= fds + 12
        assert threading.active_count() == threads + 1
        assert len(child._logged) < 5
    assert len(os.listdir("/proc/self/fd")) == fds and threading.active_count() == threads
    assert zombies() == []


def zombies() -> list[str]:
    """Children of ours that nobody has waited for; tests beside this one may have living ones."""
    stats = [
        path.read_text().rpartition(") ")[2].split()
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.exists()
    ]
    return [ppid for state, ppid, *_ in stats if state == "Z" and int(ppid) == os.getpid()]


def test_unstartable_process_counts_as_died():
    with running("", command=["/nonexistent/python"]) as child:
        report = wait_for(child, lambda report: report.restarts["died"] >= 2, "two tries")
    assert "cannot be run" in report.problem
