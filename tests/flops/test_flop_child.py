"""FLOPs counted in a forked child equal PyTorch's counter on the live step, and numbers by hand."""

import multiprocessing
import os
import re
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from support.rank_page import page_maker
from support.servers.servers import wait_until

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from goodput.rank_page.reader import Reader  # noqa: E402
from goodput.sdk.automatic.frameworks.torch import _flop_count  # noqa: E402
from goodput.sdk.automatic.frameworks.torch._flop_count import FlopCount, reason_against_fork  # noqa: E402
from goodput.sdk.recorder.plain import Costs  # noqa: E402


@pytest.fixture(autouse=True)
def ordinary_priority(monkeypatch):
    """At its own a child gets no turn for minutes on a machine that runs other tests."""
    monkeypatch.setattr(_flop_count, "NICENESS", 0)


def start(*calls, words=None) -> FlopCount:
    """Count (module, input, number of calls) in a child."""
    auto = SimpleNamespace(
        recorder=SimpleNamespace(costs=Costs(), words=words),
        budget=SimpleNamespace(counted_ns=0),
        roots=SimpleNamespace(stop_search=lambda: None),
    )
    child = FlopCount([(module, (x,), {}, None, number) for module, x, number in calls], auto)
    assert auto.recorder.costs.extra_ns == auto.budget.counted_ns > 0
    return child


def result(*calls) -> dict:
    child = start(*calls)
    pid = child.pid
    found: Any = wait_until(child.poll, 60, "the count")
    wait_until(child.is_over, 60, "the end of the child")
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # No zombie.
    return found


def counted(*calls) -> tuple[float, float]:
    found = result(*calls)
    return found["flops_per_step"], found["hardware_flops_per_step"]


def live(*calls) -> int:
    """FLOPs of the same step as PyTorch counts them while it runs."""
    with FlopCounterMode(display=False) as counter:
        for module, x, number in calls:
            for _ in range(number):
                module(x).sum().backward()
    return counter.get_total_flops()


class Block(nn.Module):
    """Attention of one head by plain products, and a feed-forward layer."""

    def __init__(self, width=16, checkpointed=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.checkpointed = checkpointed

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)

    def block(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-2, -1), -1) @ v)
        return x + self.down(torch.relu(self.up(x)))


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def cnn():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def test_child_gives_way_to_the_trainer(monkeypatch):
    monkeypatch.setattr(_flop_count, "NICENESS", 7)
    monkeypatch.setattr(
        _flop_count, "_counted", lambda calls: {"niceness": os.getpriority(os.PRIO_PROCESS, 0)}
    )
    assert result((mlp(), torch.randn(4, 16), 1)) == {"niceness": 7}


@pytest.mark.parametrize(
    ("module", "shape", "number"),
    [(mlp(), (4, 16), 1), (mlp(), (4, 16), 3), (cnn(), (2, 3, 6, 6), 1), (Block(), (2, 5, 16), 2)],
    ids=["mlp", "accumulated", "cnn", "transformer"],
)
def test_count_equals_pytorchs_counter(module, shape, number):
    call = module, torch.randn(shape), number
    assert counted(call) == (live(call),) * 2


def test_recurrent_layer_by_hand():
    """PyTorch's counter does not know the fused LSTM of the CPU."""
    lstm, batch, length, hidden = nn.LSTM(8, 16, 2, batch_first=True), 2, 5, 16
    first, second = (2 * batch * length * inputs * 4 * hidden for inputs in (8, hidden))
    recurrent = 2 * batch * length * hidden * 4 * hidden
    # The batch and the initial states get no gradient.
    initial = 2 * (2 * batch * hidden * 4 * hidden)
    by_hand = 3 * (first + second + 2 * recurrent) - first - initial
    assert counted((lstm, torch.randn(batch, length, 8), 1)) == (by_hand, by_hand)


def test_recomputation_counts_for_hfu_only():
    torch.manual_seed(0)
    plain, again = Block(), Block(checkpointed=True)
    x = torch.randn(2, 5, 16, requires_grad=True)
    assert counted((again, x, 1)) == (live((plain, x, 1)), live((again, x, 1)))


def test_modules_of_one_step_add_up():
    """An encoder and a decoder, called apart: the decoder's input needs a gradient."""
    left, right = nn.Linear(16, 8), nn.Linear(8, 4)
    calls = (left, torch.randn(4, 16), 1), (right, torch.randn(4, 8, requires_grad=True), 2)
    assert counted(*calls)[0] == 2 * (2 * 4 * 16 * 8) + 2 * 3 * (2 * 4 * 8 * 4) == live(*calls)


def test_failure_says_its_reason():
    class Reading(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.weight.sum().item()

    found = result((Reading(4, 4), torch.ones(2, 4), 1))
    assert found.keys() == {"flops_unknown"} and "Reading" in found["flops_unknown"]


def test_weights_and_handlers_stay():
    """The child drops its copy of the data, and the trainer's signal handlers and mask are as before."""
    module, x = nn.Linear(512, 512), torch.randn(4, 512)
    before, handler = module.weight.sum().item(), lambda *_: None
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        counted((module, x, 1))
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert module.weight.sum().item() == before and not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("given", [None, 5.0])
def test_result_reaches_page_after_the_training(given, tmp_path):
    """Nobody polls; what the training declared itself wins."""
    rank = page_maker.Rank(tmp_path, flops_per_step=given, world_size=1)
    child = start((mlp(), torch.randn(4, 16), 1), words=rank.words)
    child.trainer_ended()
    wait_until(child.is_over, 60, "the end of the child")
    with Reader(str(rank.path)) as reader:
        found = reader.snapshot().identity
    assert found["flops_per_step"] == (given or live((mlp(), torch.randn(4, 16), 1)))


def test_ended_child_is_no_result(monkeypatch):
    monkeypatch.setattr(_flop_count, "_counted", lambda calls: os._exit(1))
    assert "without a result" in result((mlp(), torch.ones(4, 16), 1))["flops_unknown"]


# As Python sets it outside of pytest: from 3.12 on a fork beside threads warns.
without_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@without_warnings
def test_large_process_is_not_forked(monkeypatch):
    assert reason_against_fork(torch, {}) is None
    monkeypatch.setattr(_flop_count, "PRIVATE_BYTES_MAX", 1)
    assert "is not forked" in str(reason_against_fork(torch, {}))


@without_warnings
@pytest.mark.parametrize(
    ("environ", "devices", "reason"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, False, "MPI"),
        ({}, True, "RDMA"),
        ({"RDMAV_FORK_SAFE": "1"}, True, None),
        ({"RDMAV_FORK_SAFE": "0", "FI_EFA_FORK_SAFE": "1"}, True, None),
    ],
)
def test_unsafe_environments_are_not_forked(environ, devices, reason, monkeypatch):
    monkeypatch.setattr(_flop_count, "_uses_rdma", lambda: devices)
    found = reason_against_fork(torch, environ)
    assert found is None if reason is None else reason in found


# Filters of Python's own have names of modules, those of users patterns.
IGNORED, SHOWN = (
    ("ignore", None, DeprecationWarning, None, 0),
    ("default", None, DeprecationWarning, "__main__", 0),
)


@pytest.mark.parametrize(
    ("first", "warns"),
    [
        (SHOWN, False),
        (("error", None, DeprecationWarning, _flop_count.__name__, 0), True),
        (("error", None, Warning, re.compile(r"goodput\."), 0), True),
        (("error", None, Warning, re.compile(r"torch\."), 0), False),
        (("error", None, UserWarning, None, 0), False),
    ],
)
def test_fork_is_not_made_where_its_warning_is_shown(first, warns, monkeypatch):
    monkeypatch.setattr(_flop_count.sys, "version_info", (3, 12))
    monkeypatch.setattr(_flop_count.warnings, "filters", [first, IGNORED])
    assert ("warnings are set" in str(reason_against_fork(torch, {}))) is warns


def test_start_method_of_the_user_is_respected(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "spawn")
    assert "start method of multiprocessing is spawn" in str(reason_against_fork(torch, {}))


@without_warnings
def test_default_start_method_is_no_choice_of_the_user(monkeypatch):
    """From Python 3.14 on it is `forkserver`, and is set by the first DataLoader that has workers."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "forkserver")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "spawn", "fork"])
    assert reason_against_fork(torch, {}) is None
