"""Copies to a device, on the device `meta` of a torch that is told it was built for one; and classes that look closely."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
SCRIPT = """
import json, sys, warnings
import torch
assert torch.version.cuda is None
early = torch.Tensor.to
if "device" in sys.argv:
    torch.version.cuda = "12.0"
import goodput.auto
from goodput.rank_page import page
goodput.start(run="copies")
words = goodput._session.recorder.words
copies = lambda: goodput._session.recorder.entries
said = {}
def case(name, function):
    before = copies()
    try:
        result = function()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    said[name] = [result, copies() - before]
host, nested = torch.ones(3), torch.ones(2, device="meta")
case("to", lambda: host.to("meta").device.type)
case("by keyword", lambda: host.to(device=torch.device("meta")).device.type)
case("like another", lambda: host.to(nested).device.type)
case("dtype", lambda: str(host.to(torch.float64).dtype))
case("stays", lambda: host.to("cpu").device.type)
case("from there", lambda: nested.to("meta").device.type)
case("module", lambda: next(torch.nn.Linear(2, 2).to("meta").parameters()).device.type)
case("lazy", lambda: type(torch.nn.LazyLinear(3).to("cpu")).__name__)
class Strict(torch.Tensor):
    seen = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        if func is not early:
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
case("strict", lambda: str(torch.ones(2).as_subclass(Strict).to(torch.float64).dtype))
said["seen"] = [func is early for func in Strict.seen]
class Mode(torch.overrides.TorchFunctionMode):
    seen = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))
def in_a_mode():
    with Mode():
        made = host.to(torch.float64)
    return made.dtype == torch.float64
case("mode", in_a_mode)
said["mode saw"] = Mode.seen
with goodput.phase("evaluation"):
    pass
goodput.auto.remove()
said["restored"] = "to" not in vars(torch.Tensor) and "cuda" not in vars(torch.Tensor)
said["is early"] = torch.Tensor.to is early
print(json.dumps(said))
"""


def run(directory, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *arguments],
        env={**os.environ, "GOODPUT_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "goodput" not in done.stderr, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_copies_to_a_device_are_timed_and_nothing_else(tmp_path):
    said = run(tmp_path, "device")
    for name in ("to", "by keyword", "like another"):
        assert said[name] == ["meta", 1], name
    assert said["module"] == ["meta", 2]
    assert (
        said["dtype"] == ["torch.float64", 0]
        and said["stays"] == ["cpu", 0]
        and said["from there"] == ["meta", 0]
    )
    assert said["lazy"] == ["LazyLinear", 0]
    assert said["strict"] == ["torch.float64", 0] and said["seen"] == [True]
    assert said["mode"] == [True, 0] and said["mode saw"] == ["to"]
    assert said["restored"] and said["is early"]


def test_without_a_device_nothing_is_replaced(tmp_path):
    said = run(tmp_path)
    assert said["to"] == ["meta", 0] and said["lazy"] == ["LazyLinear", 0] and said["is early"]
