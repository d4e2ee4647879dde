"""Stacks outside phases: what counts, and what a hostile file beside a page can do."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest

from goodput.stack_samples import sample_file
from goodput.stack_samples.places import places
from goodput.wire.sampled_stacks import NO_STACKS, PLACES_MAX, SampledStacks

HEAD = "thread (7): MainThread;<module> (train.py:9)"
RAW = "\n".join(
    [
        f"{HEAD};next_batch (data/dataloader.py:41) 46",
        f"{HEAD};next_batch (data/dataloader.py:40);choice (numpy/random/mtrand.pyx:9) 4",
        f"{HEAD};Module._call_impl (torch/nn/modules/module.py:17);forward (model.py:3) 70",
        "thread (8): worker;run (other.py:1) 50",
        f"{HEAD} 2",
        f"{HEAD} {'9' * 30}",
        "no stack",
    ]
)
PLACES = {
    "dataloader.py:next_batch, line 41": 46,
    "dataloader.py:next_batch, line 40": 4,
    "train.py:<module>, line 9": 2,
}
START_NS = 7


@pytest.fixture
def page_path(tmp_path) -> str:
    (tmp_path / "r.page").touch()
    return str(tmp_path / "r.page")


def test_only_main_thread_outside_phases_counts():
    assert places(RAW) == PLACES


def test_single_thread_without_a_name_counts():
    """As of a program that has not imported threading; of several such threads the main one is not known."""
    alone = "thread (394);<module> (train.py:7);waits (train.py:3) 46"
    assert places(alone) == {"train.py:waits, line 3": 46}
    assert places(f"{alone}\nthread (395);run (other.py:1) 50") == {}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"samples":1}', '{"start_ns":7,"samples":1,"places":[],"reason":""}', "9" * 20_000],
)
def test_invalid_file_has_no_samples(page_path, text):
    assert sample_file.read(page_path, START_NS) == NO_STACKS
    with open(sample_file.path_of(page_path), "w") as file:
        file.write(text)
    assert sample_file.read(page_path, START_NS) == NO_STACKS


def test_written_counts_are_read_with_a_bound(page_path):
    counts = Counter({f"f.py:f, line {i}": i + 1 for i in range(40)})
    sample_file.write(page_path, START_NS, SampledStacks(counts, counts.total(), ""))
    found = sample_file.read(page_path, START_NS)
    assert len(found.places) == PLACES_MAX
    assert (found.samples, max(found.places.values())) == (820, 40)


def test_samples_of_another_process_do_not_count(page_path):
    """A run that is started again under the same name writes a page of the same name."""
    sample_file.write(page_path, START_NS, SampledStacks(PLACES, 52, ""))
    assert sample_file.read(page_path, START_NS).samples == 52
    assert sample_file.read(page_path, START_NS + 1) == NO_STACKS


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_file_of_another_user_does_not_count(page_path):
    sample_file.write(page_path, START_NS, SampledStacks(PLACES, 52, ""))
    os.chown(sample_file.path_of(page_path), 65_534, 65_534)
    assert sample_file.read(page_path, START_NS) == NO_STACKS


def test_planted_link_is_not_written_through(page_path, tmp_path):
    """Others may write where pages lie: a link under the draft's name must not lead a privileged agent elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".{os.getpid()}.stacks.r.page").symlink_to(victim)
    sample_file.write(page_path, START_NS, SampledStacks(PLACES, 52, ""))
    assert victim.read_text() == "precious"
    with open(sample_file.path_of(page_path)) as file:
        assert json.load(file)["samples"] == 52
