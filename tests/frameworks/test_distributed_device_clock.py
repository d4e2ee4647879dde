"""Boundaries of the device clock around waits, which on a device happen on its stream and on threads of autograd.

Runs without a device: a list stands in for the device clock, and small classes for PyTorch.
"""

import threading
from types import SimpleNamespace

import pytest

from goodput.sdk.automatic.frameworks.torch import backward, communication, fsdp
from goodput.sdk.automatic.step_detection import Automatic
from goodput.sdk.startup.session import Session


class Boundaries(list):
    """A device clock that records the phases it is called with."""

    def __call__(self, word: int) -> None:
        self.append(word)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: None  # The other methods of a device clock.


class Threads:
    """The parts of PyTorch that the patches use: which thread runs a backward pass."""

    def __init__(self):
        self.running = threading.local()
        self.compiler = SimpleNamespace(is_dynamo_compiling=lambda: False)
        self._C = SimpleNamespace(_current_graph_task_id=lambda: getattr(self.running, "task", -1))

    def in_autograd(self, function, task: int = 7):
        """Call it on another thread, which runs a backward pass if there is a task."""

        def run():
            self.running.task = task
            function()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


@pytest.fixture
def clocked(tmp_path):
    """(automatic, PyTorch, boundaries); the calling thread is the step thread."""
    session = Session({"GOODPUT_DIR": str(tmp_path)})
    auto = Automatic(session, lambda name: session.phases.define(name, None))
    session.start()
    boundaries = session.recorder.device = Boundaries()
    yield auto, Threads(), boundaries
    session.recorder.device = None
    session.stop("finished")


def test_wait_on_the_step_thread_has_two_boundaries(clocked):
    auto, torch, boundaries = clocked
    timed = communication.timer(torch, auto)
    inner = timed(lambda: 3)
    with auto.forward:
        boundaries.clear()
        assert timed(inner)() == 3
    assert boundaries == [auto.forward.total, auto.communication.total, auto.forward.total]


def test_wait_on_an_autograd_thread_has_two_boundaries(clocked):
    auto, torch, boundaries = clocked
    timed = communication.timer(torch, auto)
    inner = timed(lambda: None)
    with auto.backward:
        boundaries.clear()
        torch.in_autograd(timed(inner))
        assert boundaries == [auto.backward.total, auto.communication.total]


def test_raising_wait_on_an_autograd_thread_is_closed(clocked):
    auto, torch, boundaries = clocked
    timed = communication.timer(torch, auto)

    def fail():
        with pytest.raises(ZeroDivisionError):
            timed(lambda: 1 / 0)()
        timed(lambda: None)()

    with auto.backward:
        boundaries.clear()
        torch.in_autograd(fail)
        assert boundaries == [auto.backward.total, auto.communication.total] * 2


def test_thread_without_backward_records_nothing(clocked):
    auto, torch, boundaries = clocked
    timed = communication.timer(torch, auto)
    with auto.backward:
        boundaries.clear()
        torch.in_autograd(timed(lambda: None), task=-1)
        assert boundaries == []


def test_removed_wrapper_only_calls_the_function(clocked):
    auto, torch, boundaries = clocked
    timed = communication.timer(torch, auto)(lambda: 5)
    auto.remove()
    boundaries.clear()
    assert timed() == 5 and boundaries == []


class Engine:
    """Autograd: calls hooks before the first gradient, and callbacks, in order, after the last; on which thread?"""

    def __init__(self, torch, own_thread: bool):
        self.torch, self.own_thread = torch, own_thread
        self.hooks, self.callbacks, self.log = [], [], []

    def queue_callback(self, function) -> None:
        self.callbacks.append(function)

    def run(self, *_args) -> str:
        def work():
            for hook in list(self.hooks):
                hook(None)
            self.queue_callback(lambda: self.log.append("reduced"))
            for callback in self.callbacks:
                callback()

        self.torch.in_autograd(work) if self.own_thread else work()
        return "done"


class Loss:
    """A tensor with a hook."""

    requires_grad = True

    def __init__(self, engine: Engine):
        self.engine = engine

    def register_hook(self, function):
        self.engine.hooks.append(function)
        return SimpleNamespace(remove=lambda: self.engine.hooks.remove(function))


@pytest.mark.parametrize("own_thread", [False, True])
def test_communication_begins_after_the_last_computation(clocked, own_thread):
    auto, torch, boundaries = clocked
    engine = Engine(torch, own_thread)
    torch.Tensor = Loss
    torch.autograd = SimpleNamespace(Variable=SimpleNamespace(_execution_engine=engine))
    waits = backward.Waits(torch, auto)
    with auto.backward:
        boundaries.clear()
        assert waits.run(engine.run, ([Loss(engine), Loss(engine)],), {}) == "done"
        assert boundaries == [auto.backward.total, auto.communication.total]
        assert auto.recorder.current == auto.backward.total
    assert engine.hooks == [] and engine.log == ["reduced"]
    # One callback of ours, before the reducer's, though two tensors have a hook.
    assert len(engine.callbacks) == 2


def test_waits_of_fsdp2_are_those_on_the_compute_stream():
    assert ("FSDPParamGroup", "wait_for_unshard") in fsdp.FSDP2
    # What issues an all-gather on a side stream makes nothing wait.
    assert all(name != "unshard" for _, name in fsdp.FSDP2)
