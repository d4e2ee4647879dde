"""GPU drivers that misbehave as real ones do. Each runs in a process of its own, as support.node.fake_drivers:Name.

State that outlives a process, and commands from the test, are in the file $GOODPUT_FAKE.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.sample import Event, Gpu, Sample

UNITS = "utilization engine sm sm_occupancy tensor dram fp64 fp32 fp16 memory_controller".split()  # noqa: SIM905


def fast_readings(index: int) -> dict[str, float]:
    readings = {f"activity/{unit}": 0.5 + index / 100 for unit in UNITS}
    return {**readings, "power": 400.0 + index, "energy": 1000.0 * index}


def full_readings(index: int) -> dict[str, float]:
    """As many as a data-centre GPU has."""
    readings = fast_readings(index)
    for link in ("pcie", "nvlink"):
        readings |= {f"link_bytes/{link}/{way}": 1e12 for way in ("transmit", "receive")}
    for at in range(12):
        readings |= {f"throttle/reason{at}": 1.0, f"throttled/reason{at}": 0.0}
    for kind in ("correctable", "uncorrectable"):
        readings |= {f"ecc/{kind}/volatile": 0.0, f"ecc/{kind}/aggregate": 3.0, f"rows_remapped/{kind}": 0.0}
    readings |= {
        "clock/sm": 1.98e9,
        "clock/memory": 2.6e9,
        "temperature/core": 50.0,
        "temperature/memory": 60.0,
    }
    readings |= {f"memory/{kind}": 8e10 for kind in ("total", "used", "free", "reserved")}
    return readings | {"power_limit": 700.0, "pcie_replays": 0.0, "pcie_lanes/current": 16.0}


def gpu(index: int, full: bool = True, **fields) -> Gpu:
    readings = full_readings(index) if full else fast_readings(index)
    about = {"model": "Fake H100", "driver_version": "1.0"} if full else {}
    return Gpu(
        f"GPU-{index}",
        **{"index": index, "pci": f"0000:{index:02x}:00.0", "readings": readings, **about, **fields},
    )


class Normal:
    name = "normal"
    count = 8

    def __init__(self, options):
        self.options = options
        self.taken = 0

    def open(self) -> None:
        pass

    def sample(self, full: bool) -> Sample:
        self.taken += 1
        return Sample(self.name, time.monotonic_ns(), self.gpus(full), full=full)

    def gpus(self, full: bool) -> list[Gpu]:
        return [gpu(index, full) for index in range(self.count)]

    def close(self) -> None:
        pass


class Absent(Normal):
    def open(self) -> None:
        raise NoData("no such library")


class AbsentAtFirst(Normal):
    """Absent until $GOODPUT_FAKE exists."""

    def open(self) -> None:
        if not os.path.exists(os.environ["GOODPUT_FAKE"]):
            raise NoData("not yet")


class Unusable(Normal):
    def open(self) -> None:
        raise CollectorError("library of another version")


def hang() -> None:
    """Like a call that never returns; SIGTERM is ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


class HangsInOpen(Normal):
    def open(self) -> None:
        hang()


class Hanging(Normal):
    """Takes three samples, then hangs."""

    def sample(self, full: bool) -> Sample:
        if self.taken == 3:
            hang()
        return super().sample(full)


class Crashing(Normal):
    """Takes two samples, then aborts with a message on stderr."""

    def sample(self, full: bool) -> Sample:
        if self.taken == 2:
            print("driver assertion failed", file=sys.stderr, flush=True)
            os.abort()
        return super().sample(full)


class Printing(Normal):
    """Prints to standard output, as a C library does and as Python does."""

    def sample(self, full: bool) -> Sample:
        os.write(1, b"libfake: hello\n" * 20)
        print("fake: hello", flush=True)
        return super().sample(full)


class Flooding(Normal):
    """Writes far more to standard error than a pipe holds."""

    def sample(self, full: bool) -> Sample:
        os.write(2, b"x" * 99 + b"\n")
        for _ in range(20):
            os.write(2, (b"y" * 99 + b"\n") * 100)
        return super().sample(full)


class Raising(Normal):
    """Raises at every second sample."""

    def sample(self, full: bool) -> Sample:
        self.taken += 1
        if self.taken % 2 == 0:
            raise RuntimeError("call failed")
        return Sample(self.name, time.monotonic_ns(), self.gpus(full), full=full)


class RaisingAlways(Normal):
    def sample(self, full: bool) -> Sample:
        raise RuntimeError("call failed")


class Vanishing(Normal):
    """Two samples, then the device is gone."""

    def sample(self, full: bool) -> Sample:
        if self.taken == 2:
            raise NoData("module unloaded")
        return super().sample(full)


class Hog(Normal):
    """Grows by 8 MiB with each sample."""

    def open(self) -> None:
        self.hoard = []

    def sample(self, full: bool) -> Sample:
        self.hoard.append(b"\1" * (8 << 20))
        return super().sample(full)


class Closing(Normal):
    """Writes to $GOODPUT_FAKE when it is closed."""

    def close(self) -> None:
        with open(os.environ["GOODPUT_FAKE"], "w") as file:
            file.write("closed")


class Slow(Normal):
    """Takes two and a half times the interval of 0.1 s."""

    def sample(self, full: bool) -> Sample:
        time.sleep(0.25)
        return super().sample(full)


class Wrong(Normal):
    """Invalid readings and a GPU without a UUID among valid ones."""

    count = 2

    def gpus(self, full: bool) -> list[Gpu]:
        bad = {"activity/sm": float("nan"), "nonsense": 1.0, "power": 5.0}
        return [gpu(0, readings=bad), gpu(1, full), Gpu("")]


class Scripted(Normal):
    """The GPUs whose numbers are in $GOODPUT_FAKE, lost where the number is negative; `xid` adds an event."""

    def gpus(self, full: bool) -> list[Gpu]:
        return [
            gpu(abs(int(word)), full, lost=word.startswith("-")) for word in self.words() if word != "xid"
        ]

    def words(self) -> list[str]:
        with open(os.environ["GOODPUT_FAKE"]) as file:
            return file.read().split()

    def sample(self, full: bool) -> Sample:
        sample = super().sample(full)
        words = self.words()
        if "xid" in words:
            at = time.time_ns()
            return Sample(
                self.name, sample.monotonic_ns, sample.gpus, full, events=[Event("xid", "GPU-1", at, code=79)]
            )
        return sample


class Garbage(Normal):
    """Values that no device can have, answered with success."""

    count = 1

    def gpus(self, full: bool) -> list[Gpu]:
        bad = {
            "power": 3.7e6,
            "temperature/core": 2e9,
            "clock/sm": 4e15,
            "clock/memory": 2.6e9,
            "energy": -1.0,
        }
        return [gpu(0, readings=bad)]
