"""The process beside `goodput run`: it follows the living ranks of one command, and no others."""

from __future__ import annotations

import os

import pytest
from support.node import node_rank

from goodput.stack_samples import sample_file
from goodput.stack_samples.beside_run import living_ranks, poll
from goodput.stack_samples.py_spy import Recording
from goodput.stack_samples.sampler import StackSampler

MS = 1_000_000


class Recorder:
    is_stopped = False

    def __init__(self):
        self.pids: list[int] = []

    def record(self, pid: int) -> Recording:
        self.pids.append(pid)
        return Recording("thread (7): MainThread;next_batch (data.py:41) 46")


@pytest.fixture
def rank(tmp_path):
    started = node_rank.Process(tmp_path)
    started.do("many", 6, {"none": MS, "forward": MS})
    started.do("beat")
    yield started
    started.kill()


def test_idle_rank_of_the_command_is_sampled(tmp_path, rank):
    recorder = Recorder()
    sampler = StackSampler(recorder)
    poll(sampler, str(tmp_path), os.getpid())
    assert recorder.pids == [], "the first look has nothing to compare with"
    rank.do("beat")
    poll(sampler, str(tmp_path), os.getpid())
    assert recorder.pids == [rank.pid]
    assert os.path.exists(sample_file.path_of(rank.path))


def test_ranks_of_other_commands_are_left_alone(tmp_path, rank):
    assert list(living_ranks(str(tmp_path), os.getpid())) == [rank.path]
    assert living_ranks(str(tmp_path), 1 << 30) == {}
    rank.process.kill()
    rank.process.wait()
    assert living_ranks(str(tmp_path), os.getpid()) == {}
