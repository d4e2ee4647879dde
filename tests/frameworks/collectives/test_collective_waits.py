"""The wait for a late rank is communication, for every way in which PyTorch waits."""

import pytest
from support.frameworks.two_ranks import run_ranks, written
from support.installed import need

pytestmark = pytest.mark.alone

BACKWARD = ("late_in_backward", "static_graph", "unused_parameters", "bucket_views", "several_models")
BACKWARD += ("several_losses", "reentrant", "hook", "accumulated")
BEFORE = ("late_in_forward", "compiled", "compiled_inside")
BY_HAND = ("by_hand", "by_hand_later", "objects", "one_to_another", "distributed_tensor")
# The part of a planted wait that may be missing, and the part that other phases may have.
MISSING, SPILT = 0.05, 0.25


def spilt(waits, name: str, planted: float) -> float:
    """The most that another phase may have; on a busy machine ranks also wait for cores, and so for each other."""
    return SPILT * planted + sum(rank[name]["core_wait"] for rank in waits)


def least(waits, name: str, planted: float) -> float:
    """The least that a phase must have."""
    return (1 - MISSING) * planted - sum(rank[name]["core_wait"] for rank in waits)


@pytest.fixture(scope="module")
def waits(tmp_path_factory):
    """The results of rank 0 and rank 1, by scenario."""
    need("torch")
    directory = tmp_path_factory.mktemp("waits")
    errors = run_ranks("collectives/collective_waits_rank.py", directory)
    assert "goodput:" not in errors
    return written(directory, "waits-{}.json")


@pytest.mark.parametrize("name", BACKWARD + BEFORE)
def test_wait_of_the_reducer_is_communication(waits, name):
    on_time, late = waits[0][name], waits[1][name]
    planted = late["planted"]
    assert planted >= 0.15 and on_time["planted"] == 0
    assert on_time["communication"] > least(waits, name, planted)
    assert on_time["backward"] < spilt(waits, name, planted)
    assert late["communication"] < spilt(waits, name, planted)


@pytest.mark.parametrize("name", BACKWARD)
def test_late_ranks_own_time_stays_backward(waits, name):
    late = waits[1][name]
    assert late["backward"] > (1 - MISSING) * late["planted"]


def test_late_ranks_own_time_stays_forward(waits):
    late = waits[1]["late_in_forward"]
    assert late["forward"] > (1 - MISSING) * late["planted"]


def test_wait_for_buffers_in_forward_is_communication(waits):
    late, waiting = waits[0]["buffers"], waits[1]["buffers"]
    planted = late["planted"]
    assert planted > 0.147
    assert waiting["communication"] > least(waits, "buffers", planted)
    assert waiting["forward"] < spilt(waits, "buffers", planted)


@pytest.mark.parametrize("name", BY_HAND)
def test_wait_of_an_explicit_collective_is_communication(waits, name):
    late, waiting = waits[1][name], waits[0][name]
    planted = late["planted"]
    assert planted > 0.147
    assert waiting["communication"] > least(waits, name, planted)
    assert late["communication"] < spilt(waits, name, planted)


def test_compiled_collective_is_traced_unchanged(waits):
    # The script checks its result, and that it is one graph.
    assert waits[1]["compiled_by_hand"]["planted"] >= 0.15


def test_raising_backward_leaves_no_phase_open(waits):
    for rank in waits:
        assert rank["raising"] == {"raised": "on purpose", "depth": 0, "drops": 0}


def test_copy_of_a_wrapped_model_is_independent(waits):
    for rank in waits:
        assert rank["copied"] == {"timed": True, "copy": 0.0}


def test_remove_restores_names_imported_elsewhere(waits):
    for rank in waits:
        during, after = rank["left"]["during"], rank["left"]["after"]
        assert "torch.distributed.tensor._collective_utils.broadcast" in during
        assert "torch._dynamo.utils.unpatched_nn_module_call" not in during
        assert after == []
