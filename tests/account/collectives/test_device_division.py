"""What a device waits in calls of NCCL is divided by their times there, and unknown where nobody has measured it."""

import random
from struct import pack

import pytest
from support.account.account_history import Process, account_of, ns, run_of

from goodput.account import compute, document
from goodput.account.collectives.operation_sums import (
    NOT_RECORDED,
    Exposed,
    OperationSums,
    bus_rate_min,
    by_operation,
    divide,
    of_rank,
    rows_of,
    sums_of,
)
from goodput.account.document import rank_collectives
from goodput.account.text import render
from goodput.causes import communication, explain
from goodput.wire.operation_row import UNKNOWN, OperationRow


def row(
    operation: str, exposed: float = 0, device: float | None = None, size: int = 0, group: str = "dp"
) -> OperationRow:
    """An operation of a group of two ranks over NCCL, in seconds."""
    device_ns = UNKNOWN if device is None else ns(device)
    measured = 0 if device is None else size
    return OperationRow(
        *(group, operation, 10, size, ns(exposed), 0),
        size=2,
        queued=1,
        device_ns=device_ns,
        device_bytes=measured,
    )


def exposed(seconds: float, *rows: OperationRow, is_on_device: bool = True) -> Exposed:
    return Exposed(sums_of(rows), ns(seconds), is_on_device=is_on_device)


def training(*rows: OperationRow, device: bool = True, rank: int = 0) -> Process:
    """4 steps with 0.5 s of communication each."""
    return Process(rank, sums=sums_of(rows)).steps(4, forward=1, communication=0.5, device=device).finished()


def test_real_rank_by_hand():
    """An H100 over NCCL 2.28.9: of 1 319 259 278 ns the host saw 9 255 599 in broadcasts and a barrier.

    All-reduces took 1 466 487 232 ns on the device, of which the barrier's 5 354 785 are; broadcasts in steps 6 048.
    """
    rows = [
        OperationRow("default_pg", "all_reduce", 157, 1_343_488_000, 0, 0, 0, 2, -1, -1, 0, 0, 1, 1_466_487_232, 1_343_488_004),
        OperationRow("default_pg", "broadcast", 4, 33_587_668, 3_900_814, 0, 0, 2, -1, -1, 0, 0, 1, 6048, 84),
        OperationRow("default_pg", "all_gather", 1, 8, 0, 0, 0, 2, -1, -1, 0, 0, 1, 0, 0),
        OperationRow("default_pg", "barrier", 1, 0, 5_354_785, 0, 0, 2, -1, -1, 0, 0, 1, -1, 0),
    ]  # fmt: skip
    one = Exposed(sums_of(rows), 1_319_259_278, is_on_device=True)
    assert divide(one) == ([1_310_003_679, 3_900_814, 0, 5_354_785], 0)
    times = of_rank([one])
    assert times["default_pg", "all_reduce"].is_known and times["default_pg", "all_gather"].is_known
    # 1 343 488 004 bytes in 1.466487232 s, and a bus factor of 1 with two ranks.
    assert bus_rate_min("all_reduce", times["default_pg", "all_reduce"]) == pytest.approx(916_126_530.6)


def test_no_operation_has_more_than_its_time_on_the_device():
    """2 s are exposed, 0.25 of them seen by the host: 0.75 and 0.5 s more were on the device, and 0.5 s are left."""
    one = exposed(2, row("all_gather", 0.25, 1.0), row("reduce_scatter", 0, 0.5))
    assert divide(one) == ([ns(1), ns(0.5)], ns(0.5))
    assert of_rank([one])[NOT_RECORDED].gpu_ns == ns(0.5)


def test_rest_is_divided_in_proportion():
    """1 s is left for 3 s and 1 s on the device."""
    assert divide(exposed(1, row("all_reduce", 0, 3.0), row("broadcast", 0, 1.0))) == (
        [ns(0.75), ns(0.25)],
        0,
    )


def test_barrier_is_not_counted_twice():
    """NCCL's all-reduces of 1 s include the barriers, of which the host waits 0.8 s."""
    one = exposed(2, row("all_reduce", 0, 1.0), row("barrier", 0.8))
    assert divide(one) == ([ns(0.2), ns(0.8)], ns(1))


def test_host_clock_is_not_divided_by_the_device():
    one = exposed(1, row("all_reduce", 0, 3.0), is_on_device=False)
    assert divide(one) == ([0], ns(1))
    assert not of_rank([one])["dp", "all_reduce"].is_known


def test_division_closes():
    """Whole ns, in sum all of them, no operation below what the host saw or above its time on the device."""
    for seed in range(200):
        chosen = random.Random(seed)
        rows = [
            row(str(i), chosen.choice((0, chosen.random())), chosen.choice((None, 0, chosen.random() * 3)))
            for i in range(chosen.randint(1, 9))
        ]
        one = exposed(chosen.choice((0, chosen.random() * 9)), *rows)
        parts, rest = divide(one)
        assert sum(parts) + rest == one.ns and min(parts) >= 0 <= rest, seed
        if sum(each.exposed_ns for each in rows) <= one.ns:
            for part, each in zip(parts, rows, strict=True):
                assert each.exposed_ns <= part <= max(each.exposed_ns, each.device_ns), seed


def test_document_and_text_of_two_ranks():
    """4 s of exposed time; rank 0 needs 2 s for 1 GB, rank 1, which comes late, 1.6 s: the links carried at least 625 MB/s."""
    gigabyte = 10**9
    account = account_of(
        training(row("all_reduce", 0, 2.0, gigabyte)), training(row("all_reduce", 0, 1.6, gigabyte), rank=1)
    )
    found = document(account, explain(account))
    first, last = found["collectives"]
    assert (first["gpu_seconds"], first["device_gpu_seconds"]) == (3.6, 3.6)
    assert (last["operation"], last["gpu_seconds"]) == ("", 0.4)
    assert first["bus_bytes_per_second_max"] is first["algorithm_bytes_per_second_max"] is None
    assert (
        first["bus_bytes_per_second_min"] == first["algorithm_bytes_per_second_min"] == pytest.approx(625e6)
    )
    assert found["basis"]["collectives"] == "estimated"
    text = " ".join(render(found, full=True).split())
    assert (
        "by process group and operation (an estimate; times on the device by NCCL's profiler plugin)" in text
    )
    assert "algorithm ≥ 625 MB/s, bus ≥ 625 MB/s" in text and "3.60 GPU-s on the device" in text
    assert "not known:" not in text
    part = document(compute_part(training(row("all_reduce", 0, 2.0, gigabyte))))["collectives"][0]
    assert (
        part["gpu_seconds"] == 0.5 and part["device_gpu_seconds"] is part["bus_bytes_per_second_min"] is None
    )


def compute_part(one: Process):
    return compute(run_of(one), ns(100), window=(ns(1.5), ns(3)))


def test_unmeasured_time_is_not_zero():
    """Without the plugin all time of NCCL's calls is in no row, and no row says that it took none."""
    account = account_of(training(row("all_reduce"), row("broadcast", 0.1), device=True))
    found = document(account, explain(account))
    rows = {each["operation"]: each for each in found["collectives"]}
    assert rows["all_reduce"]["gpu_seconds"] is rows["all_reduce"]["skew_gpu_seconds"] is None
    assert (rows["broadcast"]["gpu_seconds"], rows[""]["gpu_seconds"]) == (0.1, 1.9)
    (rank,) = rank_collectives(account, 1, 0)["ranks"]
    assert {each["operation"]: each["ns"] for each in rank["operations"]}["all_reduce"] is None
    text = " ".join(render(found, full=True).split())
    assert "dp all_reduce not known 10 calls" in text
    assert "NCCL's profiler plugin measures how long" in text and "goodput run" in text
    assert communication.advise(account).endswith("which loads NCCL's profiler plugin.")


def test_time_that_the_host_waits_for_may_be_zero():
    """With gloo a wait ends with the call, so that 0 is measured."""
    one = Process(0, sums=sums_of([OperationRow("dp", "all_reduce", 4, 100, 0, 0, 0, 2)]))
    found = document(account_of(one.steps(4, forward=1, communication=0.5).finished()))
    assert found["collectives"][0]["gpu_seconds"] == 0 and "not known:" not in render(found, full=True)


def test_row_of_several_groups_is_shown():
    account = account_of(training(row("all_reduce"), row("all_reduce", 0, 1.5, group="")))
    found = document(account, explain(account))
    assert [(each["group"], each["operation"], each["gpu_seconds"]) for each in found["collectives"]] == [
        ("", "all_reduce", 1.5),
        ("dp", "all_reduce", None),
        ("", "", 0.5),
    ]
    assert "several groups all_reduce 1.50" in " ".join(render(found, full=True).split())


def test_pipeline_has_no_waits_that_nobody_measured():
    one = Process(0, sums=sums_of([row("send")]), stage=0).steps(4, forward=1, communication=0.5, device=True)
    other = Process(1, sums=sums_of([row("send", 0, 1.0)]), stage=1)
    other.steps(4, forward=1, communication=0.5, device=True)
    waits = document(account_of(one.finished(), other.finished()))["pipeline"]["waits"]
    assert [(each["stage"], each["step_seconds"]) for each in waits] == [(1, 0.25)]


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (1e9, "The links are well used (at least 500 MB/s of the 1 GB/s that goodput probe reached)."),
        (
            9e9,
            "which includes waiting for late ranks, the links carried 500 MB/s of the 9 GB/s that goodput probe reached: look",
        ),
    ],
)
def test_advice_by_the_time_on_the_device(reached, words):
    account = account_of(*(training(row("all_reduce", 0, 2.0, 10**9), rank=rank) for rank in range(2)))
    for rank in account.ranks:
        rank.reached_bus_bytes_per_second = reached
    assert words in communication.advise(account)


def test_advice_names_what_is_hidden_of_the_time_on_the_device():
    """2 s of 8 s a rank are exposed."""
    text = communication.advise(account_of(training(row("all_reduce", 0, 8.0, 10**9 * 100))))
    assert "75.0 % of it is hidden behind other work already." in text


def test_sums_of_earlier_versions_have_no_device():
    key = ("dp", "all_reduce")
    stored = OperationSums((key,), pack("<10q", 4, 100, 9, 2, 0, 8, -1, -1, 4, 10))
    assert divide(Exposed(stored, 20, is_on_device=True)) == ([7], 13)
    (found,) = rows_of(stored)
    assert (found.queued, found.device_ns) == (0, UNKNOWN)
    assert by_operation([(1, [Exposed(stored, 20)])])[key].is_known
