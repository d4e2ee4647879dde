"""Every kind of parallelism over gloo: each call is recorded as the Flight Recorder has it, and left once it was waited for."""

from collections import Counter, defaultdict

import pytest
from support.frameworks.two_ranks import run_ranks, written
from support.installed import need

need("torch")
RANKS = 4
FLOAT = 4
# Bytes of the activations and gradients that a stage sends and receives in two steps of four microbatches.
ACTIVATION = 2 * 16 * FLOAT
DTYPES = {
    "Float": ("float32", 4),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Byte": ("uint8", 1),
}
PAIRED = ("send", "recv")
PIPELINES = {"gpipe": 3, "1f1b": 3, "interleaved": 7, "zero bubble": 7, "two pipelines": 2}  # boundaries
CASES = ("coalesced", "asynchronous", "neighbours", "functional", "ddp", "fsdp1", "fsdp2", "tensor", "fsdp2 and tensor")  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parallel")
    errors = run_ranks("collectives/collective_parallel_rank.py", directory, forked="torch", ranks=RANKS)
    assert "goodput:" not in errors
    found = written(directory, "records-{}.json", RANKS)
    for rank, flight in zip(found, written(directory, "flight-{}.json", RANKS), strict=True):
        rank["flight"] = flight
        for record in rank["records"]:
            record["group"] = rank["groups"][record["group"]]
    return found


def of_flight(entry: dict) -> tuple[str, str, int]:
    """(operation, dtype, bytes of this rank)."""
    operation = entry["profiling_name"].removeprefix("gloo:")
    side = "output" if operation == "scatter" else "input"
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    dtype, width = DTYPES[dtypes[0]] if dtypes else ("", 0)
    total = 0
    for shape in sizes:
        size = width
        for length in shape:
            size *= length
        total += size
    return operation, dtype, total


def made_by_gloo(record: dict) -> tuple[str, str, int]:
    """The same of a record: gloo makes an all-reduce of a reduce-scatter, with the parts of all ranks."""
    operation, size = record["operation"], record["bytes"]
    if operation == "reduce_scatter":
        operation, size = "all_reduce", size * record["group"]["size"]
    return operation, record["dtype"], size


@pytest.mark.parametrize("case", [*CASES[1:], *PIPELINES])
def test_collectives_are_those_of_the_flight_recorder(ranks, case):
    """One by one in each group. Gloo's recorder has no point-to-point calls."""
    for rank in ranks:
        assert not any(entry["is_p2p"] for entry in rank["flight"])
        names = {entry["process_group"][0] for entry in rank["flight"] if entry["case"] == case}
        mine = [r for r in rank["records"] if r["case"] == case and r["operation"] not in PAIRED]
        assert names == {record["group"]["name"] for record in mine}
        for name in names:
            found = [made_by_gloo(record) for record in mine if record["group"]["name"] == name]
            assert found == [
                of_flight(entry)
                for entry in rank["flight"]
                if entry["case"] == case and entry["process_group"][0] == name
            ]


def test_coalesced_calls_are_those_of_the_flight_recorder(ranks):
    """One call for all tensors, with their bytes; of a reduce-scatter gloo makes an all-reduce for each tensor."""
    for rank in ranks:
        found = [
            (r["operation"], r["bytes"], r["flags"]) for r in rank["records"] if r["case"] == "coalesced"
        ]
        assert found == [
            ("all_reduce", 32 * FLOAT, ["coalesced"]),
            ("all_gather", 32 * FLOAT, ["coalesced"]),
            ("reduce_scatter", 32 * FLOAT // RANKS, ["coalesced"]),
            ("all_reduce", 32 * FLOAT, ["coalesced", "functional"]),
            ("barrier", 0, []),
        ]
        flight = [of_flight(entry) for entry in rank["flight"] if entry["case"] == "coalesced"]
        assert [(name, size) for name, _, size in flight] == [
            ("all_reduce", 32 * FLOAT),
            ("all_gather", 32 * FLOAT),
            ("all_reduce", 8 * FLOAT),
            ("all_reduce", 24 * FLOAT),
            ("all_reduce", 32 * FLOAT),
            ("barrier", 0),
        ]


def test_sequence_numbers_and_members_are_whole(ranks):
    """Each group counts its collectives and its point-to-point calls from 1, and names the ranks that have used it."""
    members = defaultdict(set)
    for number, rank in enumerate(ranks):
        assert [record["number"] for record in rank["records"]] == list(range(1, rank["written"] + 1))
        counted = defaultdict(list)
        for record in rank["records"]:
            group = record["group"]
            counted[group["name"], record["operation"] in PAIRED].append(record["sequence"])
            runs = tuple(map(tuple, group["ranks"]))
            assert number in [first + step * i for first, step, count in runs for i in range(count)]
            members[group["name"], runs].add(number)
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in counted.values())
    assert {runs for _, runs in members} == {
        *(((0, 1, 4),), ((0, 2, 2),), ((1, 2, 2),), ((0, 1, 2),), ((2, 1, 2),)),
    }


def test_every_send_is_received(ranks):
    """In each group between two ranks, in order: the same bytes and dtype at both ends."""
    sent, received = defaultdict(list), defaultdict(list)
    for number, rank in enumerate(ranks):
        for record in rank["records"]:
            if record["operation"] not in PAIRED:
                continue
            group = record["group"]
            members = [first + step * i for first, step, count in group["ranks"] for i in range(count)]
            other, what = members[record["peer"]], (record["bytes"], record["dtype"], record["case"])
            if record["operation"] == "send":
                sent[group["name"], number, other].append(what)
            else:
                received[group["name"], other, number].append(what)
    assert sent == received
    assert {case for calls in sent.values() for _, _, case in calls} == {"neighbours", *PIPELINES}


@pytest.mark.parametrize("schedule", PIPELINES)
def test_each_microbatch_is_sent_and_received(ranks, schedule):
    """Over each boundary of stages two steps send four activations there and four gradients back."""
    counts = Counter(
        record["operation"]
        for rank in ranks
        for record in rank["records"]
        if record["case"] == schedule and record["bytes"] == ACTIVATION and record["operation"] in PAIRED
    )
    assert counts == {"send": 16 * PIPELINES[schedule], "recv": 16 * PIPELINES[schedule]}


def test_stage_and_microbatches_are_declared_by_schedules(ranks):
    """A rank's place in the pipeline's group, where a schedule gives it several stages of the model, too."""
    for number, rank in enumerate(ranks):
        assert rank["declared"] == {
            **{case: [None, None] for case in CASES},
            **{case: [number, 4] for case in PIPELINES},
            "two pipelines": [number % 2, 4],
        }


@pytest.mark.parametrize("case", [*CASES, *PIPELINES])
def test_every_call_is_left(ranks, case):
    for rank in ranks:
        mine = [record for record in rank["records"] if record["case"] == case]
        assert mine and all(r["enter_ns"] <= r["return_ns"] <= r["exit_ns"] for r in mine)


def test_exposed_time_is_that_of_communication(ranks):
    for found in ranks:
        exposed = sum(sums["exposed_ns"] for sums in found["sums"])
        assert 0 <= found["communication"] - exposed < 5_000_000
        assert sum(record["exposed_ns"] for record in found["records"]) == exposed
        assert found["dropped"] == 0 and not any(found["drops"].values())
