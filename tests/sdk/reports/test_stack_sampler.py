"""Stacks outside phases: what counts, what a hostile file can do, and the sentence of the advice."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from goodput.account.sampled_stacks import where
from goodput.rank_page import idle_stacks
from goodput.sdk.reports import stack_sampler

HEAD = "thread (7): MainThread;<module> (train.py:9)"
RAW = "\n".join(
    [
        f"{HEAD};next_batch (data/dataloader.py:41) 46",
        f"{HEAD};next_batch (data/dataloader.py:40);choice (numpy/random/mtrand.pyx:9) 4",
        f"{HEAD};Module._call_impl (torch/nn/modules/module.py:17);forward (model.py:3) 70",
        "thread (8): worker;run (other.py:1) 50",
        f"{HEAD} 2",
        "no stack",
    ]
)
PLACES = {
    "dataloader.py:next_batch, line 41": 46,
    "dataloader.py:next_batch, line 40": 4,
    "train.py:<module>, line 9": 2,
}


def test_only_main_thread_outside_phases_counts():
    assert idle_stacks.places(RAW) == PLACES


def test_advice_names_functions_with_shares():
    account = SimpleNamespace(stacks=[(PLACES, 52, "")])
    assert (
        where(account)
        == " Of 52 samples of stacks outside phases: 96 % in dataloader.py:next_batch, line 41."
    )
    assert (
        where(SimpleNamespace(stacks=[({}, 0, "py-spy: no")])) == " Its stacks were not sampled (py-spy: no)."
    )
    assert where(SimpleNamespace(stacks=[])) == ""


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"samples":1}', '{"samples":1,"places":[],"reason":""}', "9" * 20_000]
)
def test_invalid_file_has_no_samples(tmp_path, text):
    page_path = str(tmp_path / "r.page")
    assert idle_stacks.read(page_path) == ({}, 0, "")
    (tmp_path / f"r.page{idle_stacks.SUFFIX}").write_text(text)
    assert idle_stacks.read(page_path) == ({}, 0, "")


def test_written_counts_are_read_with_a_bound(tmp_path):
    page_path = str(tmp_path / "r.page")
    idle_stacks.write(page_path, Counter({f"f.py:f, line {i}": i + 1 for i in range(40)}))
    counts, total, _ = idle_stacks.read(page_path)
    assert len(counts) == idle_stacks.PLACES_MAX and total == 820 and max(counts.values()) == 40


def fake_py_spy(place, body: str) -> str:
    path = place / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_reason_is_given_where_nothing_was_sampled(tmp_path):
    refused = fake_py_spy(tmp_path, "sys.exit('Permission Denied')")
    assert stack_sampler.record(refused, 1) == ("", "py-spy: Permission Denied")
    assert stack_sampler.record(None, 1)[1].startswith("py-spy is not installed")
    assert stack_sampler.record(str(tmp_path / "none"), 1)[1].startswith("py-spy: ")


def test_samples_are_taken_without_a_pause(tmp_path):
    body = "open(sys.argv[-1], 'w').write(' '.join(sys.argv[1:]))"
    raw, reason = stack_sampler.record(fake_py_spy(tmp_path, body), 42)
    assert "--nonblocking" in raw and "--pid 42 " in raw and not reason


def test_shares_tell_idle_time_from_other_phases():
    phases = (*stack_sampler.BUILT_IN, "render")
    before = SimpleNamespace(phases=phases[:-1], totals=(0,) * (len(phases) - 1))
    totals = dict.fromkeys(phases, 0) | {
        "none": 20,
        "loader_estimated": 10,
        "forward": 50,
        "render": 15,
        "evaluation": 5,
    }
    after = SimpleNamespace(phases=phases, totals=tuple(totals.values()))
    assert stack_sampler.shares(before, after) == (0.3, 0.2)
    assert stack_sampler.shares(after, after) == (0.0, 0.0)


def test_descendants_are_found():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        assert stack_sampler.is_descendant(child.pid, os.getpid())
        assert not stack_sampler.is_descendant(os.getpid(), child.pid)
    finally:
        child.communicate()
