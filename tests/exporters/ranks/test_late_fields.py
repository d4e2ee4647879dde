"""What a rank is told after the agent has found its page: in the next report; and a page that becomes another rank's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.node.late_pages import move, tell
from support.node.node_rank import PID, SECOND, Rank
from support.node.series import MS, collected

from goodput.rank_page import page
from goodput.wire import schema
from goodput_exporters.collectors.ranks import rank as rank_module


def errors(ranks) -> dict:
    return {name: value for name, value in collected(ranks).items() if "page_errors" in str(name) and value}


def test_the_next_report_has_what_was_told(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    (before,) = ranks.look()
    tell(rank, flops_per_step=1e12, device="H200", device_uuid="GPU-9", world_size=32, dtype="bf16")
    rank.step({"forward": MS})
    (after,) = ranks.look()
    schema.check(after)
    assert before.identity.flops_per_step is None
    told = {
        "flops_per_step": 1e12,
        "device": "H200",
        "device_uuid": "GPU-9",
        "world_size": 32,
        "dtype": "bf16",
    }
    assert after.identity == replace(before.identity, **told)
    assert [row.number for row in after.steps] == [2]
    (again,) = ranks.look()
    assert again.identity == after.identity
    assert "H200" in str(collected(ranks))


def test_a_scrape_between_two_looks_shows_it_too(tree, ranks):
    rank = Rank(tree / "pages")
    ranks.look()
    tell(rank, device="H200")
    assert "H200" in str(collected(ranks))
    (report,) = ranks.look()
    assert report.identity.device == "H200"


def test_an_identity_that_is_another_processs_stops_the_page_and_a_good_one_brings_it_back(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    ranks.look()
    tell(rank, host="n9")
    rank.step({"forward": MS})
    assert ranks.look() == [] and "identity" in str(errors(ranks))
    tell(rank, host="n0", dtype="bf16")
    (report,) = ranks.look()
    assert report.identity.dtype == "bf16" and [row.number for row in report.steps] == [2]


def test_a_provisional_page_is_held_back_until_its_first_step(tree, ranks, clock):
    rank = Rank(tree / "pages")
    rank.words[page.W_PROVISIONAL] = 1
    rank.outside({"restore": 50 * MS})
    rank.event("mark", 0, "early")
    for second in range(3):
        clock.seconds = float(second)
        assert ranks.look() == []
    assert "restore" in str(collected(ranks)), "the node's own series do not wait"
    rank.step({"forward": MS})
    (report,) = ranks.look()
    assert [row.number for row in report.steps] == [1] and [event.text for event in report.events] == [
        "early"
    ]
    assert sum(report.steps[0].outside) == 50 * MS


@pytest.mark.parametrize("over", ["time", "end", "death", "said"])
def test_or_until_it_is_over_or_the_user_has_spoken_or_it_took_too_long(tree, ranks, clock, over):
    rank = Rank(tree / "pages")
    rank.words[page.W_PROVISIONAL] = 1
    clock.seconds = 1.0
    assert ranks.look() == []
    clock.seconds = 1.0 + rank_module.PROVISIONAL_NS_MAX / SECOND - 1
    assert ranks.look() == []
    if over == "time":
        clock.seconds += 2
    elif over == "end":
        rank.end("failed")
    elif over == "death":
        (tree / "proc" / str(PID) / "stat").unlink()
    else:
        rank.words[page.W_PROVISIONAL] = 0
    (report,) = ranks.look()
    assert report.live.ended == ("failed" if over == "end" else "") and report.live.alive == (over != "death")


def test_a_page_that_becomes_another_ranks_leaves_no_ghost(tree, ranks, clock):
    rank = Rank(tree / "pages")
    rank.words[page.W_PROVISIONAL] = 1
    rank.outside({"restore": 50 * MS})
    assert ranks.look() == []
    move(tree, rank, run="mine", rank=3)
    assert "mine" not in str(collected(ranks)) and "r1" not in str(collected(ranks))
    assert ranks.look() == []
    clock.seconds = 1.0
    rank.step({"forward": MS})
    (report,) = ranks.look()
    assert (report.identity.run, report.identity.rank) == ("mine", 3)
    assert sum(report.steps[0].totals) == 51 * MS and not errors(ranks)
    assert "r1" not in str(collected(ranks))
    # What others keep of it by its old key, as its GPU's figures, is to be forgotten.
    assert [key.run for key in ranks.sweep(lambda key: True)] == ["r1"]


def test_one_that_was_reported_before_says_farewell_once(tree, ranks, clock):
    rank = Rank(tree / "pages")
    (before,) = ranks.look()
    move(tree, rank, run="mine", rank=3)
    clock.seconds = 1.0
    report, farewell = sorted(ranks.look(), key=lambda one: one.identity.run)
    schema.check(farewell)
    assert farewell.identity == before.identity and farewell.live.ended == "finished"
    assert farewell.sequence > before.sequence and not errors(ranks)
    assert (report.identity.run, report.identity.rank, report.live.ended) == ("mine", 3, "")
    assert [one.identity.run for one in ranks.look()] == ["mine"]
    assert ranks.sweep(lambda key: False) == []
    assert [key.run for key in ranks.sweep(lambda key: True)] == ["r1"]
    assert ranks.sweep(lambda key: True) == []
    assert len(list((tree / "pages").glob("*.page"))) == 1, "the page itself stays"
