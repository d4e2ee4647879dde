"""The targets of `make fuzz` accept valid inputs, and keep their promises for what was found and for some mutations."""

import random

import pytest
from support.aggregator.unreadable import UNREADABLE
from support.fuzz.guided import NAMES
from support.fuzz.targets import SEEDS, TARGETS, clean

# What fuzzing has found, by target.
PINNED: dict[str, list[bytes]] = {name: [] for name in TARGETS} | {"stream": list(UNREADABLE)}
MUTATIONS = 40


@pytest.fixture(scope="module", autouse=True)
def folder():
    yield
    clean()


def test_every_target_is_fuzzed():
    assert tuple(TARGETS) == NAMES == tuple(SEEDS)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_used(name):
    assert all(TARGETS[name](seed) for seed in SEEDS[name]())


@pytest.mark.parametrize("name", TARGETS)
def test_found_and_mutated_inputs_break_no_promise(name):
    """Bytes overwritten, removed and doubled; the same ones in every run."""
    for found in PINNED[name]:
        TARGETS[name](found)
    chance = random.Random(name)
    for seed in SEEDS[name]():
        for _ in range(MUTATIONS):
            data = bytearray(seed)
            for _ in range(chance.randint(1, 3)):
                at = chance.randint(0, len(data))
                data[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
            TARGETS[name](bytes(data))
