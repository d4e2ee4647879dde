"""Every collective of two ranks is recorded, as PyTorch's Flight Recorder has it."""

import pytest
from support.frameworks.two_ranks import run_ranks, the_account, written
from support.installed import need
from support.plain_package import plain_package

from goodput.account.collectives.operation_sums import NOT_RECORDED, is_cut, of_rank
from goodput.account.states import INDEX

need("torch")
SCRIPT = "collectives/collective_records_rank.py"
DTYPES = {"Float": ("float32", 4), "Double": ("float64", 8), "Long": ("int64", 8), "Int": ("int32", 4), "Byte": ("uint8", 1)}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the ranks have written."""
    made = tmp_path_factory.mktemp("ranks")
    assert "goodput:" not in run_ranks(SCRIPT, made, forked="torch")
    return made


@pytest.fixture(scope="module")
def ranks(directory) -> list[dict]:
    """What each rank has recorded."""
    return written(directory, "records-{}.json")


def expected(entries: list[dict], group: str) -> list[tuple]:
    """(operation, dtype, bytes of this rank) of a group's collectives; gloo makes reduce-scatters of all-reduces."""
    found = []
    for entry in entries:
        if entry["process_group"][0] != group or entry["is_p2p"]:
            continue
        operation = entry["profiling_name"].removeprefix("gloo:")
        side = "output" if operation == "scatter" else "input"
        sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
        dtype, width = DTYPES[dtypes[0]] if dtypes else ("", 0)
        size = width if sizes else 0
        for length in sizes[0] if sizes else ():
            size *= length
        found.append((operation, dtype, size))
    return found


def made_by_gloo(records: list[dict]) -> list[tuple]:
    """The same of our records, a reduce-scatter as gloo carries it out: the list form reduces part by part."""
    found = []
    for record in records:
        if record["operation"] in ("send", "recv"):
            continue
        one = record["operation"], record["dtype"], record["bytes"]
        if one[0] != "reduce_scatter":
            found.append(one)
        elif record["form"] == "parts":
            found += [("all_reduce", *one[1:])] * 2
        else:
            found.append(("all_reduce", one[1], 2 * one[2]))
    return found


def test_records_are_those_of_the_flight_recorder(ranks, directory):
    for records, flight in zip(ranks, written(directory, "flight-{}.json"), strict=True):
        for slot, group in enumerate(records["groups"]):
            mine = [record for record in records["records"] if record["group"] == slot]
            parts = [record for record in mine if record["operation"] == "reduce_scatter"]
            for record in parts:  # The first one of each group by hand is called with a list.
                record["form"] = "parts" if record is parts[0] else "tensor"
            assert made_by_gloo(mine) == expected(flight["entries"], group["name"])
            assert [r["sequence"] for r in mine if r["operation"] not in ("send", "recv")] == list(
                range(1, group["calls"] + 1)
            )
            assert group["ranks"] == [[0, 1, 2]]


def test_point_to_point_calls_name_the_other_rank(ranks):
    for rank, found in enumerate(ranks):
        calls = [record for record in found["records"] if record["operation"] in ("send", "recv")]
        assert [call["operation"] for call in calls] == ["send" if rank == 0 else "recv"] + [
            "send",
            "recv",
        ] * 2
        assert {call["peer"] for call in calls} == {1 - rank}
        assert [call["bytes"] for call in calls] == [16, 32, 32, 16, 16]


def test_every_record_has_its_exit(ranks):
    """Also those of a communication hook, whose futures are waited for in C++."""
    for found in ranks:
        for record in found["records"]:
            assert record["enter_ns"] <= record["return_ns"] <= record["exit_ns"]
        hooked = [r for r in found["records"] if (r["operation"], r["bytes"]) == ("all_reduce", 640)]
        assert len(hooked) == 3 and all(record["flags"] == ["reducer"] for record in hooked)


def test_exposed_time_is_that_of_communication(ranks):
    """But for what was waited for before the first record, in which a rank can lose its core."""
    for found in ranks:
        exposed = sum(sums["exposed_ns"] for sums in found["sums"])
        most = 5_000_000 + 1e9 * found["core_wait_seconds"]
        assert 0 <= found["communication"] - exposed < most
        assert sum(record["exposed_ns"] for record in found["records"]) == exposed


def test_account_divides_communication_among_operations(directory):
    """To the nanosecond, and nothing of it is without a record or before the first step."""
    for rank in the_account(directory).ranks:
        rows = of_rank(rank.exposed)
        spent = sum(rank.states[INDEX[state]] for state in ("communication", "straggler", "bubble"))
        assert sum(row.gpu_ns for row in rows.values()) == spent > 0
        assert not any(map(is_cut, rank.exposed))
        assert NOT_RECORDED not in rows
        assert {("other", "all_reduce"), ("default_pg", "broadcast"), ("default_pg", "send")} <= rows.keys()


def test_nothing_is_kept_alive_and_nothing_dropped(ranks):
    for found in ranks:
        assert found["kept_alive"] == 0 and found["dropped"] == 0 and not any(found["drops"].values())


@pytest.mark.parametrize("without", ["setting", "extension"])
def test_communication_is_measured_without_records(tmp_path, without):
    environ = {"PYTHONPATH": plain_package()} if without == "extension" else {"GOODPUT_COLLECTIVES": "0"}
    assert "goodput:" not in run_ranks(SCRIPT, tmp_path, "off", forked="torch", **environ)
    assert written(tmp_path, "records-{}.json") == [None, None]
    for rank in the_account(tmp_path).ranks:
        assert of_rank(rank.exposed) == {}
        assert sum(rank.states[INDEX[state]] for state in ("communication", "straggler")) > 0


def test_every_wait_by_hand_counts_for_hidden_time(ranks):
    """The second group is used by hand alone; the reducer and FSDP wait for some calls of the first in C++."""
    for records in ranks:
        calls = {(one["group"], one["operation"]): one["calls"] for one in records["sums"]}
        waited = {(group, operation): left for group, operation, left, *_ in records["hidden"]}
        assert {key: left for key, left in waited.items() if key[0] == 1} == {
            key: count for key, count in calls.items() if key[0] == 1
        }
        assert all(left <= calls[key] for key, left in waited.items())
        assert all(least <= most for *_, least, most in records["hidden"])
