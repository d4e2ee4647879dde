"""The device clock's backend on PyTorch: CUDA events, and those of ROCm, which have the same API.

Without timed events (CPU, MPS) there is no device clock, and the page says so. Nothing here creates a CUDA context or
queries for a device before the training has used one, which would break a process that forks later.

Calls as of torch 2.13 (torch/cuda/streams.py, torch/csrc/cuda/Event.cpp): `_cuda_getCurrentRawStream` returns the
stream as a number, where `current_stream()` creates an object; the base class's `record` takes the stream, where
torch.cuda.Event's looks it up. Neither an event's query nor `elapsed_time` of two completed events synchronises. An
event recorded during stream capture becomes part of the graph, and a query from a capturing thread breaks the capture,
so neither is done then. Recording is one launch; if the device's launch queue is full it blocks like any launch.
The destructor of an event that was recorded ends a forked process by std::terminate, as that has no context.
"""

from __future__ import annotations

import ctypes
import os
import weakref

from goodput.sdk.device.device_clock import DeviceClock, use_host_clock
from goodput.user_exceptions import reraise_from_handler

_events: weakref.WeakSet = weakref.WeakSet()


def keep_in_child() -> None:
    """In a forked child: keep all events for ever, also while the interpreter exits."""
    for event in tuple(_events):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))


class TorchEvents:
    """Events on the stream and device that were current when `bind` first found a device in use.

    `query` raises for an event that was captured or whose context is gone, which ends the clock.
    """

    def __init__(self, torch):
        inner, cuda = torch._C, torch.cuda
        base = getattr(inner, "_CudaEventBase", cuda.Event)
        self._cuda = cuda
        self._record, self._elapsed, self.query = base.record, base.elapsed_time, base.query
        self._device_of = getattr(inner, "_cuda_getDevice", cuda.current_device)
        self._stream_of = getattr(inner, "_cuda_getCurrentRawStream", None) or (
            lambda device: cuda.current_stream(device).cuda_stream
        )
        self.capturing = getattr(inner, "_cuda_isCurrentStreamCapturing", cuda.is_current_stream_capturing)
        self.device, self.number, self.stream = -1, -1, None

    def bind(self) -> bool:
        """Whether a device is in use. Its current stream becomes the compute stream.

        The first device found stays the clock's. False in a child forked after CUDA was initialised.
        """
        cuda = self._cuda
        if not cuda.is_initialized() or self.capturing():
            return False
        device = self._device_of()
        if self.device in (-1, device):
            self.device, self.number, self.stream = (
                device,
                self._stream_of(device),
                cuda.current_stream(device),
            )
        return True

    def may_record(self) -> bool:
        device = self.device
        return self._device_of() == device and self._stream_of(device) == self.number and not self.capturing()

    def new_event(self):
        event = self._cuda.Event(enable_timing=True)
        _events.add(event)
        return event

    def record(self, event) -> None:
        self._record(event, self.stream)

    def elapsed_ns(self, begin, end) -> int:
        """PyTorch returns float milliseconds: below 16 s exact to 1 us, the device's own resolution."""
        return int(self._elapsed(begin, end) * 1e6 + 0.5)


def device_clock(recorder, torch) -> DeviceClock | None:
    """Attach a device clock to the recorder; None, with the reason in the page, if there can be none.

    It starts with the first step at whose begin a device is in use, and detaches after BIND_STEPS steps without one.
    """
    try:
        if not _has_events(torch):
            use_host_clock(recorder, "no device")
            return None
        clock = DeviceClock(recorder, TorchEvents(torch))
        clock.attach()
        return clock
    except Exception as error:
        reraise_from_handler(error)
        use_host_clock(recorder, "error")
        return None


def describe(torch) -> dict:
    """`device`, `device_uuid` (as NVML writes it) and `devices` of this process; {} until a device is in use."""
    try:
        cuda = torch.cuda
        if not _has_events(torch) or not cuda.is_initialized():
            return {}
        number = cuda.current_device()
        found = {"device": str(cuda.get_device_name(number)), "devices": 1}
        uuid = getattr(cuda.get_device_properties(number), "uuid", None)
        # ROCm has other identifiers under this name, and for a MIG slice CUDA's differ from NVML's.
        if (
            uuid is not None
            and not torch.version.hip
            and "MIG" not in os.environ.get("CUDA_VISIBLE_DEVICES", "")
        ):
            text = str(uuid)
            found["device_uuid"] = text if text.startswith("GPU-") else f"GPU-{text}"
        return found
    except Exception as error:
        reraise_from_handler(error)
        return {}


def _has_events(torch) -> bool:
    """Whether this PyTorch was built for CUDA or ROCm."""
    version = getattr(torch, "version", None)
    built = getattr(version, "cuda", None) or getattr(version, "hip", None)
    return bool(built) and getattr(torch, "cuda", None) is not None
