"""Fields that a rank declares after the agent has found its page are in the next report and the next scrape."""

from __future__ import annotations

from msgspec.structs import replace
from support.node.late_pages import declare
from support.node.node_rank import Rank
from support.node.node_tree import MS, collect

from goodput.wire import schema


def errors(ranks) -> dict:
    return {name: value for name, value in collect(ranks).items() if "page_errors" in str(name) and value}


def test_next_report_has_fields_declared_late(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    (before,) = ranks.poll()
    declare(rank, flops_per_step=1e12, device="H200", device_uuid="GPU-9", world_size=32, dtype="bf16")
    rank.step({"forward": MS})
    (after,) = ranks.poll()
    schema.check(after)
    assert before.identity.flops_per_step is None
    late = {
        "flops_per_step": 1e12,
        "device": "H200",
        "device_uuid": "GPU-9",
        "world_size": 32,
        "dtype": "bf16",
    }
    assert after.identity == replace(before.identity, **late)
    assert [row.number for row in after.steps] == [2]
    (again,) = ranks.poll()
    assert again.identity == after.identity
    assert "H200" in str(collect(ranks))


def test_scrape_between_polls_has_late_fields(tree, ranks):
    rank = Rank(tree / "pages")
    ranks.poll()
    declare(rank, device="H200")
    assert "H200" in str(collect(ranks))
    (report,) = ranks.poll()
    assert report.identity.device == "H200"


def test_page_with_another_identity_is_rejected_until_repaired(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    ranks.poll()
    declare(rank, host="n9")
    rank.step({"forward": MS})
    assert ranks.poll() == [] and "identity" in str(errors(ranks))
    declare(rank, host="n0", dtype="bf16")
    (report,) = ranks.poll()
    assert report.identity.dtype == "bf16" and [row.number for row in report.steps] == [2]
