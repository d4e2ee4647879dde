"""A training with plain SGD continues from files that have no step in them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import pytest
from support.forks import Ended, server_with
from support.installed import need

from goodput.account import compute, document
from goodput.account.text import render
from goodput.cli.run import environment
from goodput.sdk.reports.local_accounts import runs_in

pytestmark = pytest.mark.torch

SCRIPT = """
import os, sys, torch, goodput
goodput.start(run="sgd")
load, save, steps, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pretrained = torch.load("pretrained.pt")
LOAD
for i in range(steps):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    if (i + 1) % 20 == 0:
        SAVE
if end == "killed":
    os._exit(9)
"""
FORMATS = {
    "two files": (
        "if load != '-': torch.load(load + '.optimizer'); model.load_state_dict(torch.load(load))",
        "torch.save(optimizer.state_dict(), save + '.optimizer')\n"
        "        torch.save(model.state_dict(), 'new'); os.replace('new', save)",
    ),
    "safetensors": (
        "import safetensors.torch as files\nif load != '-': model.load_state_dict(files.load_file(load))",
        "files.save_file(model.state_dict(), save)",
    ),
    "directory": (
        "import torch.distributed.checkpoint as files\nstate = model.state_dict()\n"
        "if load != '-': files.load(state, checkpoint_id=load)",
        "files.save(model.state_dict(), checkpoint_id=save)",
    ),
}


# Started as a user does; the others run in forks of a process that has imported PyTorch.
STARTED = "two files"
TIMEOUT_SECONDS = 300


def run(place, is_started: bool, *words: str) -> subprocess.CompletedProcess | Ended:
    """`goodput run --quiet train.py` with these arguments."""
    environ = dict(os.environ, GOODPUT_DIR=str(place / "pages"))
    if is_started:
        command = [sys.executable, "-c", "from goodput.cli import main; main()", "run", "--quiet", "train.py"]
        return subprocess.run(
            [*command, *words],
            env=environ,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    environ = environment(environ, argparse.Namespace(name=None, directory=None, quiet=True))
    process = ["-m", "goodput.auto", "train.py", *words], environ
    return server_with("torch").run(process, seconds=TIMEOUT_SECONDS, directory=str(place))[0]


def train(place, how: str, *arguments: object, is_started: bool = False) -> None:
    load, save = FORMATS[how]
    (place / "train.py").write_text(SCRIPT.replace("LOAD", load).replace("SAVE", save))
    done = run(place, is_started, *map(str, arguments))
    assert done.returncode == (9 if arguments[-1] == "killed" else 0), done.stderr
    assert "goodput" not in done.stderr


def account(place):
    ((run,), errors) = runs_in(str(place / "pages"), time.perf_counter_ns())
    assert not errors
    found = compute(run, time.time_ns())
    for rank in found.ranks:
        assert sum(rank.states) == found.end_ns - found.start_ns
    return found


@pytest.fixture
def place(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"weights": torch.ones(16, 32)}, tmp_path / "pretrained.pt")
    return tmp_path


@pytest.mark.parametrize("how", list(FORMATS))
def test_the_file_is_that_of_a_known_step(place, how):
    """71 steps, the last save after 60, which has another name since; then 60 more."""
    if how == "safetensors":
        need("safetensors")
    is_started = how == STARTED
    train(place, how, "-", "a", 71, "killed", is_started=is_started)
    for name in ("a", "a.optimizer"):
        if (place / name).exists():
            (place / name).rename(place / name.replace("a", "latest", 1))
    train(place, how, "latest", "b", 60, "end", is_started=is_started)
    found = account(place)
    (rank,) = found.ranks
    assert (rank.kept_steps, rank.lost_steps) == (120, 11)
    assert [restart.resume_step for restart in found.restarts] == [59]


def test_an_unknown_step_loses_nothing(place):
    """The second attempt begins with the pretrained weights alone, as the first; the third loads another run's file."""
    torch = pytest.importorskip("torch")
    train(place, "two files", "-", "a", 31, "killed")
    train(place, "two files", "-", "a", 10, "killed")
    torch.save({}, place / "foreign.optimizer")
    torch.save({"weight": torch.zeros(16, 16), "bias": torch.ones(16)}, place / "foreign")
    train(place, "two files", "foreign", "b", 5, "end")
    found = account(place)
    (rank,) = found.ranks
    assert (rank.kept_steps, rank.lost_steps) == (15, 31)
    assert [restart.resume_step for restart in found.restarts] == [-1, None]
    text = " ".join(render(document(found), full=True).split())
    assert "resumed at an unknown step (goodput.resumed(step) after loading declares it" in text
