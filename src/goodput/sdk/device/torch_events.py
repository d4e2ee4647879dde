"""The device clock's backend on PyTorch: CUDA events, and by the same API those of ROCm.

In: the imported torch. Out: a DeviceClock (device.py), or None where PyTorch has no device with timed events (CPU,
MPS): there the host's clock stands in, and the page says so. Nothing here creates a CUDA context or asks whether
there is a device before the training has used one: that would break a process that forks later.

The calls, as of torch 2.13 (torch/cuda/streams.py, torch/csrc/cuda/Event.cpp), with what was found to be cheap:
`_cuda_getCurrentRawStream` gives the stream as a number, where `current_stream()` makes an object; the event's own
`record` takes the stream, where torch.cuda.Event's looks for it. An event's query is not a synchronisation, nor is
`elapsed_time` of two that have completed. An event that is recorded while its stream is captured becomes a part of
the graph, and a query from a capturing thread breaks the capture: neither is done then. Recording takes one
launch; where the device's queue of launches is full it waits for room as any launch does.
"""

from __future__ import annotations

import os

from goodput.sdk.device.device_clock import DeviceClock, stand_in

# An event that was captured or whose context is gone raises from `query`, and the clock ends.


class TorchEvents:
    """Events on the stream and the device that were current when `bind` first found the device in use."""

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
        """Whether a device is in use. Its current stream is the compute stream from now on.

        The first device that was seen stays the one; False in a child that was forked after CUDA was in use.
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
        return self._cuda.Event(enable_timing=True)

    def record(self, event) -> None:
        self._record(event, self.stream)

    def elapsed_ns(self, begin, end) -> int:
        """Milliseconds as a float in PyTorch; a difference below 16 s is exact to 1 us, the device's own step."""
        return int(self._elapsed(begin, end) * 1e6 + 0.5)


def device_clock(recorder, torch) -> DeviceClock | None:
    """A device clock that the recorder has from now on; None where there can be none, which the page then says.

    It begins with the first step at whose start a device is in use, and lets go if none is for some steps.
    """
    try:
        if not _has_events(torch):
            stand_in(recorder, "no device")
            return None
        clock = DeviceClock(recorder, TorchEvents(torch))
        clock.attach()
        return clock
    except Exception:
        stand_in(recorder, "error")
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
        # ROCm has other identifiers under this name, and what CUDA says of a MIG slice is not what NVML says.
        if (
            uuid is not None
            and not torch.version.hip
            and "MIG" not in os.environ.get("CUDA_VISIBLE_DEVICES", "")
        ):
            text = str(uuid)
            found["device_uuid"] = text if text.startswith("GPU-") else f"GPU-{text}"
        return found
    except Exception:
        return {}


def _has_events(torch) -> bool:
    """Whether this PyTorch was built for CUDA or ROCm."""
    version = getattr(torch, "version", None)
    built = getattr(version, "cuda", None) or getattr(version, "hip", None)
    return bool(built) and getattr(torch, "cuda", None) is not None
