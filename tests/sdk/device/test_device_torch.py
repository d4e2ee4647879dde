"""The device clock on PyTorch, without a device: a stand-in with CUDA's calls, and what the installed PyTorch has."""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.sdk.device import identity_at

from goodput.rank_page import page
from goodput.sdk.device.torch_events import TorchEvents, describe, device_clock
from goodput.sdk.recorder.phase import Phase
from goodput.sdk.recorder.recorder import Recorder
from goodput.sdk.recorder.steps import Step


class FakeEvent:
    """CUDA's event: refuses what would synchronise or break a capture."""

    def __init__(self, fake, enable_timing=False):
        assert enable_timing
        self.fake, self.at = fake, None

    def record(self, stream):
        assert stream is self.fake.streams[self.fake.current], "recorded on the stream that is current"
        assert not self.fake.is_capturing
        self.at = time.perf_counter_ns()

    def query(self):
        assert not self.fake.is_capturing
        return True

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


class Fake:
    """A `torch` with one device in use, or with what `given` says."""

    def __init__(self, cuda="12.8", hip=None, initialized=True, uuid="3a1f-00", inner=True):
        self.initialized, self.is_capturing, self.current, self.number = initialized, False, 7, 0
        self.streams = {7: SimpleNamespace(cuda_stream=7), 8: SimpleNamespace(cuda_stream=8)}
        self.contexts = 0
        self.version = SimpleNamespace(cuda=cuda, hip=hip)
        inner_calls = {
            "_CudaEventBase": FakeEvent,
            "_cuda_getDevice": lambda: self.number,
            "_cuda_getCurrentRawStream": lambda device: self.current,
            "_cuda_isCurrentStreamCapturing": lambda: self.is_capturing,
        }
        self._C = SimpleNamespace(**inner_calls) if inner else SimpleNamespace()
        event = type(
            "Event", (FakeEvent,), {"__init__": lambda s, **given: FakeEvent.__init__(s, self, **given)}
        )
        properties = SimpleNamespace(uuid=uuid) if uuid else SimpleNamespace()
        self.cuda = SimpleNamespace(
            Event=event,
            is_initialized=lambda: self.initialized,
            current_stream=lambda device: self.streams[self.current],
            current_device=self._needs(lambda: self.number),
            is_current_stream_capturing=lambda: self.is_capturing,
            get_device_name=self._needs(lambda number: "NVIDIA H200"),
            get_device_properties=self._needs(lambda number: properties),
        )

    def _needs(self, call):
        """A call that would create a context."""

        def checked(*arguments):
            self.contexts += not self.initialized
            return call(*arguments)

        return checked


@pytest.fixture
def recorder(directory) -> Recorder:
    directory.mkdir(parents=True)
    now = time.perf_counter_ns()
    writer = page.Writer(str(directory), identity_at(now))
    made = Recorder()
    made.open(writer.words, now, writer.fd)
    made.used.append(3)
    yield made
    writer.close()


def train(recorder: Recorder, steps: int) -> None:
    for _ in range(steps):
        with Step(recorder, None, 0), Phase(recorder, "forward", 3):
            pass


def state(recorder: Recorder) -> tuple[str, str]:
    words = recorder.words
    return page.DEVICE_STATES[words[page.W_DEVICE_STATE]], page.DEVICE_WHYS[words[page.W_DEVICE_WHY]]


@pytest.mark.parametrize(
    "fake", [Fake(), Fake(inner=False), Fake(cuda=None, hip="6.4")], ids=["cuda", "old", "rocm"]
)
def test_steps_on_the_simulated_device(recorder, fake):
    clock = device_clock(recorder, fake)
    train(recorder, 5)
    assert state(recorder) == ("active", "") and recorder.words[page.W_DEVICE_STEPS] == 5
    fake.current = 8
    train(recorder, 1)
    fake.current, fake.number = 7, 1
    train(recorder, 1)
    fake.number, fake.is_capturing = 0, True
    train(recorder, 1)
    fake.is_capturing = False
    train(recorder, 1)
    assert recorder.words[page.W_DEVICE_STEPS] == 6 and recorder.words[page.W_DEVICE_DONE] == 9
    assert recorder.device is clock
    # Another device never becomes ours, however long it is the current one.
    fake.number = 1
    train(recorder, 40)
    assert recorder.words[page.W_DEVICE_STEPS] == 6
    fake.number = 0
    train(recorder, 2)
    assert recorder.words[page.W_DEVICE_STEPS] == 8


def test_no_context_before_the_training_has_one(recorder):
    fake = Fake(initialized=False)
    assert device_clock(recorder, fake) is not None and describe(fake) == {}
    train(recorder, 3)
    assert state(recorder) == ("host", "unused") and fake.contexts == 0
    fake.initialized = fake.is_capturing = True
    train(recorder, 1)
    assert state(recorder) == ("host", "unused"), "the stream of a capture is nobody's compute stream"
    fake.is_capturing = False
    train(recorder, 3)
    assert state(recorder) == ("active", "") and recorder.words[page.W_DEVICE_BASE] == 4


@pytest.mark.parametrize("fake", [Fake(cuda=None), SimpleNamespace()], ids=["cpu", "nothing"])
def test_without_a_device_the_host_stands_in(recorder, fake):
    assert device_clock(recorder, fake) is None and recorder.device is None and describe(fake) == {}
    assert state(recorder) == ("host", "no device")
    # Also on the next page.
    recorder.open(page.private_words(), recorder.last_ns)
    assert state(recorder) == ("host", "no device")


def test_device_name_and_uuid(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert describe(Fake()) == {"device": "NVIDIA H200", "device_uuid": "GPU-3a1f-00", "devices": 1}
    assert describe(Fake(uuid="GPU-3a1f"))["device_uuid"] == "GPU-3a1f"
    assert (
        describe(Fake(uuid=None))
        == describe(Fake(cuda=None, hip="6"))
        == {"device": "NVIDIA H200", "devices": 1}
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert "device_uuid" not in describe(Fake())


def test_milliseconds_become_whole_nanoseconds():
    events = TorchEvents(Fake())
    begin = SimpleNamespace()
    events._elapsed = lambda *_: 1.2345678
    assert events.elapsed_ns(begin, begin) == 1_234_568


@pytest.mark.torch
def test_pytorch_still_has_these_calls():
    """Its own declarations, since a build without CUDA lacks the functions; and importing it takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None:
        pytest.skip("no PyTorch here")
    root = Path(found.origin).parent
    inner, streams = (root / "_C/__init__.pyi").read_text(), (root / "cuda/streams.py").read_text()
    assert "def _cuda_getCurrentRawStream(device: _int) -> _int" in inner
    assert "def _cuda_getDevice() -> _int" in inner
    assert re.search(r"def _cuda_isCurrentStreamCapturing\(\) -> _bool", inner)
    base = inner[inner.index("class _CudaEventBase") :][:1500]
    assert "def record(self, stream" in base and "def query(self) -> _bool" in base
    assert "def elapsed_time(self, other: _CudaEventBase) -> _float" in base
    assert "class Event(torch._C._CudaEventBase)" in streams
    cuda = (root / "cuda/__init__.py").read_text()
    assert "return _initialized and not _is_in_bad_fork()" in cuda
