"""DDP, FSDP1 and FSDP2 train to the same weights without goodput.auto, with it, and after its removal."""

import pytest
from support.frameworks.two_ranks import run_ranks, written
from support.installed import need

KINDS = ("ddp", "fsdp1", "fsdp2", "fsdp2_prefetching")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The result of each rank."""
    need("torch")
    directory = tmp_path_factory.mktemp("weights")
    errors = run_ranks("distributed_weights_rank.py", directory, forked="torch")
    assert "goodput:" not in errors
    return written(directory, "weights-{}.json")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_same(trained, kind):
    digests = [rank[kind][how] for rank in trained for how in ("plain", "auto", "removed")]
    assert len(digests[0]) == 64 and (kind == "fsdp1" or len(set(digests)) == 1)
    # A rank of FSDP1 shows its own shards.
    assert len(set(digests[:3])) == len(set(digests[3:])) == 1


def test_training_changes_the_weights(trained):
    assert trained[0]["ddp"]["plain"] != trained[0]["untrained"]


@pytest.mark.parametrize("kind", KINDS)
def test_wait_for_a_late_rank_is_communication(trained, kind):
    planted, phases = trained[1][kind]["planted"], trained[0][kind]["phases"]
    own = trained[1][kind]["phases"]["communication"]
    assert planted >= 0.21
    # What all ranks pay comes on top: FSDP gathers every layer.
    waited = sum(rank[kind]["core_wait"] for rank in trained)
    assert phases["communication"] > 0.95 * planted - waited
    assert phases["communication"] - own == pytest.approx(planted, abs=0.25 * planted + waited)
    assert phases["forward"] + phases["backward"] < 0.5 * planted + waited


def test_every_attribute_is_restored(trained):
    for rank in trained:
        assert rank["before"] == [] and rank["after"] == []
        assert len(rank["broken"]) > 60 and rank["not_restored"] == []
        for name in ("torch.distributed.all_reduce", "FSDPParamGroup.wait_for_unshard", "Work.wait"):
            assert name in rank["during"]
        assert "torch.distributed.fsdp.fully_sharded_data_parallel._pre_forward_unshard" in rank["during"]
