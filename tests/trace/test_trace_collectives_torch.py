"""Collectives in real traces of two gloo ranks, against the records that goodput made of the same steps."""

from collections import Counter

import pytest
from support.frameworks.two_ranks import run_ranks, written
from support.installed import need

from goodput.cli import main
from goodput.trace import analyze

pytestmark = pytest.mark.torch
need("torch")
LATE_NS = 30_000_000  # as in the script
STEPS = 3


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    found = tmp_path_factory.mktemp("traced")
    run_ranks("collectives/traced_collectives_rank.py", found, forked="torch")
    return found


@pytest.fixture(scope="module")
def document(directory):
    return analyze([directory / f"trace-{rank}.json" for rank in range(2)])


def as_gloo_makes_them(records: list[dict]) -> Counter:
    """(operation, bytes) of records, of which gloo makes a reduce-scatter by an all-reduce of the whole."""
    return Counter(
        ("all_reduce", 2 * one["bytes"])
        if one["operation"] == "reduce_scatter"
        else (one["operation"], one["bytes"])
        for one in records
    )


def test_calls_and_bytes_are_those_of_the_records(directory, document):
    expected = Counter()
    for records in written(directory, "records-{}.json"):
        expected += as_gloo_makes_them(records)
    rows = {row["operation"]: row for row in document["collectives"] if row["operation"]}
    operations = {operation for operation, _ in expected}
    assert set(rows) == operations and {"all_reduce", "all_gather", "all_to_all", "broadcast"} <= operations
    for operation, row in rows.items():
        own = [(size, count) for (name, size), count in expected.items() if name == operation]
        assert row["calls"] == sum(count for _, count in own)
        if operation != "barrier":  # of which PyTorch has a tensor, and its trace has none
            assert row["bytes"] == sum(size * count for size, count in own)
        assert (row["group"], row["size"], row["ranks"]) == ("default_pg", 2, 2)
        assert row["calls_without_size"] == 0


def test_times_sum_to_the_states(document):
    total = document["total"]
    assert (
        sum(row["exposed_ns"] for row in document["collectives"]) == total["states_ns"]["communication"] > 0
    )
    assert sum(row["hidden_ns"] for row in document["collectives"]) == total["communication_hidden_ns"]


def test_late_rank_is_named_with_how_late(document):
    (row,) = (row for row in document["collectives"] if row["operation"] == "all_to_all")
    assert row["compared"] == STEPS and row["last_rank"] == 1 and row["last_share"] == 1.0
    assert abs(row["skew_ns"] - LATE_NS) <= LATE_NS / 2 + row["skew_uncertainty_ns"]
    assert row["waited_ns"] > row["transfer_ns"] / 10
    assert document["collectives_problem"] is None


def test_text_names_it_within_80_columns(directory, capsys):
    assert main(["analyze", *(str(directory / f"trace-{rank}.json") for rank in range(2))]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("  collectives of 2 ranks"))
    table = lines[begin : lines.index("", lines.index("", begin) + 1)]
    assert max(map(len, table)) <= 80
    (arrival,) = (line for line in table[begin and 1 :] if "all_to_all" in line and line.endswith(" %"))
    assert arrival.endswith("1 in 100 %")
