"""Where one rank is late and another waits, in every way that PyTorch has, the wait is communication and nothing else."""

import pytest
from support.frameworks.two_ranks import run_ranks, written

pytestmark = pytest.mark.alone

BACKWARD = ("late_in_backward", "static_graph", "unused_parameters", "bucket_views", "several_models")
BACKWARD += ("several_losses", "reentrant", "hook", "accumulated")
BEFORE = ("late_in_forward", "compiled", "compiled_inside")
BY_HAND = ("by_hand", "by_hand_later", "objects", "one_to_another", "distributed_tensor")
# Of a wait that is planted, the part that may be missing, and what its neighbours may have of it at most.
MISSING, SPILT = 0.05, 0.25


@pytest.fixture(scope="module")
def waits(tmp_path_factory):
    """(what rank 0 found, what rank 1 found), by scenario."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    directory = tmp_path_factory.mktemp("waits")
    errors = run_ranks("collective_waits_rank.py", directory)
    assert "goodput:" not in errors
    return written(directory, "waits-{}.json")


@pytest.mark.parametrize("name", BACKWARD + BEFORE)
def test_the_wait_of_a_reducer_is_communication(waits, name):
    on_time, late = waits[0][name], waits[1][name]
    planted = late["planted"]
    assert planted >= 0.15 and on_time["planted"] == 0
    assert on_time["communication"] > (1 - MISSING) * planted
    assert on_time["backward"] < SPILT * planted
    assert late["communication"] < SPILT * planted


@pytest.mark.parametrize("name", BACKWARD)
def test_the_late_ranks_own_time_stays_backward(waits, name):
    late = waits[1][name]
    assert late["backward"] > (1 - MISSING) * late["planted"]


def test_the_late_ranks_own_time_stays_forward(waits):
    late = waits[1]["late_in_forward"]
    assert late["forward"] > (1 - MISSING) * late["planted"]


def test_the_wait_for_buffers_in_forward_is_communication(waits):
    late, waiting = waits[0]["buffers"], waits[1]["buffers"]
    assert waiting["communication"] > (1 - MISSING) * late["planted"] > 0.14
    assert waiting["forward"] < SPILT * late["planted"]


@pytest.mark.parametrize("name", BY_HAND)
def test_the_wait_of_a_collective_by_hand_is_communication(waits, name):
    late, waiting = waits[1][name], waits[0][name]
    assert waiting["communication"] > (1 - MISSING) * late["planted"] > 0.14
    assert late["communication"] < SPILT * late["planted"]


def test_a_compiled_collective_is_traced_as_without_us(waits):
    # The script has checked its result, and that it is one graph.
    assert waits[1]["compiled_by_hand"]["planted"] >= 0.15


def test_a_backward_pass_that_raises_leaves_no_phase_open(waits):
    for rank in waits:
        assert rank["raising"] == {"raised": "on purpose", "depth": 0, "drops": 0}


def test_a_copy_of_a_wrapped_model_is_a_model_of_its_own(waits):
    for rank in waits:
        assert rank["copied"] == {"timed": True, "copy": 0.0}


def test_nothing_is_left_after_remove_also_where_it_was_imported_by_name(waits):
    for rank in waits:
        during, after = rank["left"]["during"], rank["left"]["after"]
        assert "torch.distributed.tensor._collective_utils.broadcast" in during
        assert "torch._dynamo.utils.unpatched_nn_module_call" not in during
        assert after == []
