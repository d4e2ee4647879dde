"""Coalesced calls and pipeline schedules over gloo: every call is recorded, and left when it has been waited for."""

from collections import Counter

import pytest
from support.frameworks.two_ranks import run_ranks, written
from support.installed import need

need("torch")
FLOAT = 4
# (operation, bytes) of the activations and gradients that a stage sends and receives in two steps of four microbatches.
ACTIVATION = 2 * 16 * FLOAT


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pipelines")
    errors = run_ranks("collective_pipeline_rank.py", directory, forked="torch")
    assert "goodput:" not in errors
    found = written(directory, "records-{}.json")
    for rank, flight in zip(found, written(directory, "flight-{}.json"), strict=True):
        rank["flight"], low = flight["entries"], 0
        for name, high in rank["bounds"]:
            rank[name] = [record for record in rank["records"] if low < record["number"] <= high]
            low = high
    return found


def test_coalesced_calls_are_those_of_the_flight_recorder(ranks):
    """One call for all tensors, with their bytes; gloo makes a reduce-scatter of all-reduces."""
    for rank in ranks:
        found = [(r["operation"], r["bytes"], r["flags"]) for r in rank["coalesced"]]
        assert found == [
            ("all_reduce", 32 * FLOAT, ["coalesced"]),
            ("all_gather", 32 * FLOAT, ["coalesced"]),
            ("reduce_scatter", 16 * FLOAT, ["coalesced"]),
            ("all_reduce", 32 * FLOAT, ["coalesced", "functional"]),
            ("barrier", 0, []),
        ]
        flight = [(e["profiling_name"].removeprefix("gloo:"), e["input_sizes"]) for e in rank["flight"]]
        both = [[8], [24]]
        assert flight[:2] == [("all_reduce", both), ("all_gather", both)]
        assert flight[2:6] == [
            ("all_reduce", [[8]]),
            ("all_reduce", [[24]]),
            ("all_reduce", both),
            ("barrier", []),
        ]


@pytest.mark.parametrize(("schedule", "boundaries"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 3)])
def test_each_microbatch_is_sent_and_received(ranks, schedule, boundaries):
    """Over each boundary of stages two steps send four activations there and four gradients back."""
    sent = []
    for rank, found in enumerate(ranks):
        calls = [r for r in found[schedule] if r["bytes"] == ACTIVATION]
        counts = Counter(r["operation"] for r in calls)
        assert counts == {"send": 8 * boundaries, "recv": 8 * boundaries}
        assert {r["peer"] for r in calls} == {1 - rank} and {r["dtype"] for r in calls} == {"float32"}
        sent.append(counts["send"])
    assert sum(sent) == 16 * boundaries


@pytest.mark.parametrize("schedule", ["coalesced", "gpipe", "1f1b", "interleaved"])
def test_every_call_is_left(ranks, schedule):
    for found in ranks:
        assert [r for r in found[schedule] if not r["exit_ns"]] == []


def test_exposed_time_is_that_of_communication(ranks):
    for found in ranks:
        exposed = sum(sums["exposed_ns"] for sums in found["sums"])
        assert 0 <= found["communication"] - exposed < 5_000_000
        assert found["dropped"] == 0 and not any(found["drops"].values())
