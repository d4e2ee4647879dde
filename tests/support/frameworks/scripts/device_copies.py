"""Copies to the device `meta`, by a torch that claims to be built for CUDA where argv has `device`, else for the CPU; prints JSON.

Each case gives [result, phases entered].
"""

import json
import sys
import warnings

import torch

warnings.simplefilter("ignore")
original_to = torch.Tensor.to
torch.version.cuda = "12.0" if "device" in sys.argv else None
import goodput.auto  # noqa: E402

goodput.start(run="copies")
found = {}
strict_calls, mode_calls = [], []


def case(name, function):
    before = goodput._session.recorder.entries
    try:
        result = function()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    found[name] = [result, goodput._session.recorder.entries - before]


class Strict(torch.Tensor):
    """Accepts torch's own `to` only."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        strict_calls.append(func is original_to)
        if func is not original_to:
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        mode_calls.append(func.__name__)
        return func(*args, **(kwargs or {}))


def in_a_mode():
    with Mode():
        copied = host.to(torch.float64)
    return copied.dtype == torch.float64


host, on_device = torch.ones(3), torch.ones(2, device="meta")
case("device", lambda: host.to("meta").device.type)
case("keyword", lambda: host.to(device=torch.device("meta")).device.type)
case("like another", lambda: host.to(on_device).device.type)
case("dtype", lambda: str(host.to(torch.float64).dtype))
case("host to host", lambda: host.to("cpu").device.type)
case("device to device", lambda: on_device.to("meta").device.type)
case("module", lambda: next(torch.nn.Linear(2, 2).to("meta").parameters()).device.type)
case("lazy", lambda: type(torch.nn.LazyLinear(3).to("cpu")).__name__)
case("strict", lambda: str(torch.ones(2).as_subclass(Strict).to(torch.float64).dtype))
case("mode", in_a_mode)
goodput.auto.remove()
found.update(strict_calls=strict_calls, mode_calls=mode_calls)
found["restored"] = "to" not in vars(torch.Tensor) and "cuda" not in vars(torch.Tensor)
found["original"] = torch.Tensor.to is original_to
print(json.dumps(found))
