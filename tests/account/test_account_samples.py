"""Samples that not every rank reports as its own: the whole batch reported by one rank, or by each; worked by hand."""

from __future__ import annotations

import pytest
from support.account.account_history import Process, account_of

from goodput.account import document
from goodput.account.text import render

RANKS, STEPS = 4, 40
END = 80  # 40 steps of 1 s at full pace, then 40 s in a checkpoint


def ranks(samples: list[int], ideal: list[float | None] | None = None, steps: int = STEPS) -> list[Process]:
    """Ranks with these samples a step, and so much wall time again without a step."""
    ideal = ideal or [None] * len(samples)
    return [
        Process(rank, ideal_samples_per_second=rate)
        .steps(steps, samples=count, forward=1)
        .begun(checkpoint=END - steps)
        for rank, (count, rate) in enumerate(zip(samples, ideal, strict=True))
    ]


def shown(*given, **options) -> tuple[dict, str]:
    found = document(account_of(*ranks(*given, **options), now=END))
    return found["throughput"], " ".join(render(found, full=True).split())


def test_one_rank_reports_the_whole_batch():
    rate, text = shown([512, 0, 0, 0])
    assert (rate["goodput"], rate["samples_basis"], rate["samples_ranks"]) == (0.5, "one rank", 1)
    assert (rate["samples"], rate["samples_per_second"], rate["ideal_samples_per_second"]) == (
        20480,
        256,
        512,
    )
    assert "throughput goodput 50.0 %: 256 samples per second of 512" in text
    assert "only one rank reports samples, taken as those of the whole run" in text


def test_one_rank_with_an_ideal_of_its_own():
    rate, _ = shown([512, 0, 0, 0], [640, None, None, None])
    assert (rate["goodput"], rate["ideal_samples_per_second"], rate["ideal_basis"]) == (0.4, 640, "given")


def test_ideal_of_each_rank_beside_samples_of_one():
    """640 for each of 4: of the batch, or of a rank? At 160 it is known, as 512 are more than a rank's 160."""
    rate, text = shown([512, 0, 0, 0], [640] * 4)
    assert (rate["goodput"], rate["samples_per_second"]) == (None, 256)
    assert "throughput goodput unknown: 256 samples per second; only one rank reports samples" in text
    rate, _ = shown([512, 0, 0, 0], [160] * 4)
    assert (rate["goodput"], rate["ideal_samples_per_second"]) == (0.4, 640)


def test_some_ranks_report_for_their_node():
    rate, text = shown([256, 0, 256, 0])
    assert (rate["goodput"], rate["samples_per_second"], rate["samples_basis"]) == (0.5, 256, "some ranks")
    assert "only 2 ranks report samples" in text


def test_each_rank_reports_its_share():
    rate, text = shown([128, 128, 128, 64])
    assert (rate["goodput"], rate["samples_per_second"], rate["samples_basis"]) == (0.5, 224, "each rank")
    assert "report" not in text.split("throughput")[1].split("checkpoint")[0]
    rate, text = shown([128] * 4)
    assert (rate["goodput"], rate["samples_per_second"], rate["samples_basis"]) == (
        0.5,
        256,
        "same on each rank",
    )
    assert "the sum of 4 equal ranks, 64 if each reports the whole batch" in text


def test_each_rank_reports_the_whole_batch():
    """512 a step on each of 4 ranks, with an ideal of 160 for each: 2 048 a second cannot be, 512 can."""
    rate, text = shown([512] * 4, [160] * 4)
    assert (rate["goodput"], rate["samples"], rate["samples_per_second"]) == (0.4, 20480, 256)
    assert "4 ranks each report the whole batch, which is counted once" in text
    assert document(account_of(*ranks([512] * 4, [160] * 4), now=END))["errors"] == []


def test_rank_that_never_reported_lacks_its_part():
    """3 of 4 ranks have no process: their part of the ideal is lost, as their time is."""
    rate, _ = shown([512], steps=40)
    assert (rate["goodput"], rate["samples_basis"]) == (0.5, "each rank")
    alone = ranks([512])[0]
    alone.identity["world_size"] = 4
    rate = document(account_of(alone, now=END))["throughput"]
    assert (rate["goodput"], rate["samples_basis"]) == (0.125, "each rank")


def test_no_samples_have_no_basis():
    rate, text = shown([0] * 4)
    assert (rate["samples_basis"], rate["goodput"], rate["samples_ranks"]) == (None, None, 0)
    assert "throughput" not in text


@pytest.mark.parametrize("unknown", ["samples_per_second", "ideal_samples_per_second"])
def test_text_without_a_rate(unknown):
    """A document of which a rate is unknown, though its ratio is known, can be shown."""
    found = document(account_of(*ranks([8] * 4), now=END))
    found["throughput"][unknown] = None
    assert "run r1" in render(found, full=True)
