"""Exposed communication by group and operation sums to `communication` + `straggler` + `bubble`, to the nanosecond."""

from __future__ import annotations

import random
from fractions import Fraction
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.account.account_history import Process, account_of, ns, run_of
from support.account.random_histories import runs

from goodput.account import compute, document
from goodput.account.collectives.operation_sums import (
    NO_SUMS,
    NOT_RECORDED,
    OTHER,
    Exposed,
    OperationSums,
    OperationTime,
    bus_rate_max,
    by_operation,
    divide,
    is_cut,
    issue_times,
    largest,
    of_rank,
    rows_of,
    sums_of,
)
from goodput.account.document import rank_collectives
from goodput.account.states import INDEX
from goodput.account.text import render
from goodput.wire.operation_row import OperationRow

DP, TP = ("dp", "all_reduce"), ("tp", "all_gather")
WAITING = ("communication", "straggler", "bubble")


def sums(**seconds: float | tuple[float, float]):
    """Sums with one call a key: the seconds of `dp` and `tp`, or (those, the part before the first step)."""
    rows = []
    for name, spent in seconds.items():
        exposed, before = spent if isinstance(spent, tuple) else (spent, 0)
        rows.append(OperationRow(*{"dp": DP, "tp": TP}[name], 1, 100, ns(exposed), ns(before)))
    return sums_of(rows)


def waited(rank) -> int:
    return sum(rank.states[INDEX[state]] for state in WAITING)


def divided(rank) -> dict[tuple[str, str], float]:
    return {key: row.gpu_ns / 1e9 for key, row in of_rank(rank.exposed).items()}


def test_two_ranks_by_hand():
    """Rank 0 waits 0.2 s a step in dp and 0.1 s in tp, rank 1 0.05 s in each; the first waits are of the start."""
    slow = Process(0, sums=sums(dp=(1.4, 1.0), tp=0.2)).between(communication=1)
    fast = Process(1, sums=sums(dp=(1.1, 1.0), tp=0.1)).between(communication=1)
    account = account_of(
        slow.steps(2, forward=1, communication=0.3).finished(),
        fast.steps(2, forward=1.2, communication=0.1).finished(),
    )
    first, second = account.ranks
    assert [first.states[INDEX[state]] for state in WAITING] == [ns(0.2), ns(0.4), 0]
    assert first.states[INDEX["startup"]] == ns(1)
    assert divided(first) == {DP: 0.4, TP: 0.2}
    assert divided(second) == {DP: 0.1, TP: 0.1}
    found = document(account)
    assert [(row["group"], row["operation"], row["gpu_seconds"]) for row in found["collectives"]] == [
        ("dp", "all_reduce", 0.5),
        ("tp", "all_gather", 0.3),
    ]
    assert [(row["ranks"], row["calls"], row["bytes"]) for row in found["collectives"]] == [(2, 2, 200)] * 2
    assert found["basis"]["collectives"] == "measured"


def test_what_no_record_explains_is_one_row():
    one = Process(0, sums=sums(dp=0.25)).steps(4, forward=1, communication=0.1).finished()
    account = account_of(one)
    assert divided(account.ranks[0]) == {DP: 0.25, NOT_RECORDED: 0.15}
    last = document(account)["collectives"][-1]
    assert (last["group"], last["operation"], last["gpu_seconds"], last["calls"]) == ("", "", 0.15, None)
    assert document(account)["basis"]["collectives"] == "measured"


def test_lost_steps_are_cut_in_proportion():
    """Of the first attempt's 4 steps the last 2 are lost: half of its 0.6 and 0.2 s; what it died in is `lost` too."""
    first = Process(0, 1, sums=sums(dp=0.6, tp=0.2)).steps(4, forward=1, communication=0.2).killed()
    again = Process(0, 2, 10, sums=sums(dp=0.1, tp=0.3)).resumed(1).steps(2, forward=1, communication=0.2)
    account = account_of(first, again.finished())
    assert account.ranks[0].states[INDEX["communication"]] == ns(0.8)
    assert divided(account.ranks[0]) == {DP: 0.4, TP: 0.4}
    assert document(account)["basis"]["collectives"] == "estimated"


def test_stall_is_not_divided():
    """A wait of 100 s is a stall: what is left is divided by what was waited in all."""
    one = Process(0, sums=sums(dp=100.3, tp=0.0))
    one.step(forward=1).step(forward=1, communication=0.3).step(communication=100).finished()
    account = account_of(one)
    assert account.ranks[0].states[INDEX["stall"]] == ns(100)
    assert divided(account.ranks[0]) == {DP: 0.3, TP: 0.0}


def test_devices_weigh():
    one = Process(0, devices=8, sums=sums(dp=0.4)).steps(4, forward=1, communication=0.1).finished()
    (row,) = document(account_of(one))["collectives"]
    assert row["gpu_seconds"] == 3.2 == document(account_of(one))["states"]["communication"]


def test_without_records_there_is_no_text():
    found = document(account_of(Process(0).steps(4, forward=1, communication=0.1).finished()))
    assert found["collectives"] == [] and found["basis"]["collectives"] == "unknown"
    assert "by process group" not in " ".join(render(found, full=True).split())


def test_rank_without_records_is_not_recorded():
    one = Process(0, sums=sums(dp=0.4)).steps(4, forward=1, communication=0.1).finished()
    other = Process(1).steps(4, forward=1, communication=0.1).finished()
    rows = document(account_of(one, other))["collectives"]
    assert [(row["operation"], row["gpu_seconds"]) for row in rows] == [("all_reduce", 0.4), ("", 0.4)]


def test_calls_of_a_window_are_not_known():
    """The sums are those of the whole process."""
    one = Process(0, sums=sums(dp=0.4, tp=0.4)).steps(8, forward=1, communication=0.1).finished()
    account = compute(run_of(one), ns(100), window=(ns(2.2), ns(4.4)))
    rows = document(account)["collectives"]
    assert [(row["gpu_seconds"], row["calls"], row["bytes"]) for row in rows] == [(0.1, None, None)] * 2


def test_largest_rows_are_listed_and_the_rest_is_one():
    times = {(str(i), "send"): OperationTime(1, 2, 3, 10 * i) for i in range(6)}
    times |= {OTHER: OperationTime(1, 1, 1, 1), NOT_RECORDED: OperationTime(0, 0, 0, 1000)}
    rows = largest(times, 3)
    assert [key for key, _ in rows] == [("5", "send"), ("4", "send"), ("3", "send"), OTHER, NOT_RECORDED]
    assert rows[3][1] == OperationTime(4, 7, 3, 31)
    assert sum(row.gpu_ns for _, row in rows) == sum(row.gpu_ns for row in times.values())


def test_division_is_exact_and_in_proportion():
    """Against exact fractions: whole ns, in sum all of them, each within a ns an operation of its share."""
    for seed in range(200):
        check_division(seed)


def check_division(seed: int) -> None:
    chosen = random.Random(seed)
    parts = [chosen.choice((0, 1, chosen.randrange(1 << 40))) for _ in range(chosen.randint(1, 9))]
    before = [chosen.randint(0, part) for part in parts]
    total = chosen.choice((0, 1, chosen.randrange(1 << 42), sum(parts)))
    found, rest = divide(
        Exposed(
            sums_of(
                OperationRow(str(i), "send", 1, 0, ns, b)
                for i, (ns, b) in enumerate(zip(parts, before, strict=True))
            ),
            total,
        )
    )
    own = [ns - b for ns, b in zip(parts, before, strict=True)]
    assert sum(found) + rest == total and min(found) >= 0
    if sum(own) <= total:
        assert found == own
    else:
        assert rest == 0
        for ns_found, ns_own in zip(found, own, strict=True):
            assert abs(ns_found - Fraction(ns_own * total, sum(own))) < len(parts)


def test_ranks_are_summed_as_one_by_one():
    chosen = random.Random(5)
    ranks = []
    for _ in range(40):
        attempts = [
            Exposed(
                sums_of(
                    OperationRow(
                        *key, chosen.randint(1, 9), chosen.randint(0, 99), chosen.randint(0, 10**9), 0
                    )
                    for key in chosen.sample(
                        [DP, TP, ("dp", "broadcast"), ("pp", "send")], chosen.randint(0, 4)
                    )
                ),
                chosen.randint(0, 10**9),
            )
            for _ in range(chosen.randint(1, 3))
        ]
        ranks.append((chosen.choice((1, 8)), attempts))
    found = by_operation(ranks)
    for key in {*found} - {NOT_RECORDED}:
        alone = [(devices, of_rank(attempts).get(key)) for devices, attempts in ranks]
        assert found[key][:4] == (
            sum(row.calls for _, row in alone if row),
            sum(row.bytes for _, row in alone if row),
            sum(row is not None for _, row in alone),
            sum(row.gpu_ns * devices for devices, row in alone if row),
        )
    whole = sum(one.ns * devices for devices, attempts in ranks for one in attempts)
    assert sum(row.gpu_ns for row in found.values()) == whole


def test_sums_stored_without_issue_times_are_read():
    """Accounts that earlier versions stored have four or five numbers a key."""
    rows = [(*DP, 4, 100, 9, 2), (*TP, 5, 200, 8, 1)]
    stored = OperationSums((DP, TP), pack("<8q", *(number for row in rows for number in row[2:])))
    assert [tuple(row) for row in rows_of(stored)] == [tuple(OperationRow(*row)) for row in rows]
    assert divide(Exposed(stored, 20)) == ([7, 7], 6) and list(issue_times(stored)) == []
    five = OperationSums((DP, TP), pack("<10q", 4, 100, 9, 2, 6, 5, 200, 8, 1, 7))
    assert dict(issue_times(five)) == {DP: 6, TP: 7} and [row.size for row in rows_of(five)] == [0, 0]
    assert divide(Exposed(five, 20)) == ([7, 7], 6)
    assert rows_of(sums_of(rows)) == rows_of(stored) and dict(issue_times(sums_of(rows))) == {DP: 0, TP: 0}


def test_bus_rate_is_of_the_rank_that_waited_least():
    """Rank 1 of 4 comes last: it waits 0.5 s for 1 GB, in two attempts."""
    gigabyte = 10**9

    def exposed(*rows: tuple[int, float]) -> list[Exposed]:
        return [
            Exposed(sums_of([OperationRow(*DP, 1, size, ns(spent), 0, size=4)]), 0) for size, spent in rows
        ]

    ranks = [exposed((gigabyte, 2.0)), exposed((gigabyte // 2, 0.3), (gigabyte // 2, 0.2)), exposed((0, 0.1))]
    row = by_operation((1, rank) for rank in ranks)[DP]
    assert (row.size, row.ranks, row.least_bytes, row.least_ns) == (4, 3, gigabyte, ns(0.5))
    assert bus_rate_max("all_reduce", row) == pytest.approx(1e9 / 0.5 * 2 * 3 / 4)
    assert bus_rate_max("all_gather", row) == pytest.approx(4e9 / 0.5 * 3 / 4)
    assert bus_rate_max("send", row) == pytest.approx(1e9 / 0.5)
    assert bus_rate_max("barrier", row) is bus_rate_max("all_reduce", row._replace(size=1)) is None
    assert bus_rate_max("all_reduce", row._replace(least_ns=0)) is None
    other = [Exposed(sums_of([OperationRow(*DP, 1, 1, 1, 0, size=8)]), 0)]
    assert by_operation([(1, other), (1, ranks[0])])[DP].size == 0, "groups of different sizes"


def test_no_sums_divide_nothing():
    assert divide(Exposed(NO_SUMS, 7)) == ([], 7) and not is_cut(Exposed(NO_SUMS, 7))


@given(runs(), st.data())
def test_every_history_closes(run, data):
    """Hostile ones, with any sums."""
    number = st.integers(0, 1 << 62) | st.integers(0, 10**10)
    for attempt in run.attempts.values():
        rows = data.draw(st.lists(st.tuples(st.sampled_from(["a", "b"]), *[number] * 4), max_size=3))
        attempt.collectives = sums_of(OperationRow(f"{i}", *row) for i, row in enumerate(rows))
    account = compute(run, data.draw(st.integers(0, 1 << 62)))
    for rank in account.ranks:
        found = of_rank(rank.exposed, account.least_waits)
        rows, straggler = found.values(), rank.states[INDEX["straggler"]]
        assert min((min(row.skew_ns, row.transfer_ns) for row in rows), default=0) >= 0
        assert sum(row.skew_ns for row in rows) <= straggler
        assert sum(row.transfer_ns for row in rows) <= waited(rank) - straggler
        if found:
            assert sum(row.gpu_ns for row in found.values()) == waited(rank)
            assert min(row.gpu_ns for row in found.values()) >= 0
    found = document(account)
    if found["collectives"]:
        assert sum(row["gpu_seconds"] for row in found["collectives"]) == pytest.approx(
            sum(found["states"][state] for state in WAITING)
        )


def test_hidden_time_by_hand():
    """Two ranks with two devices each have hidden 0.5 to 1 s of their all-reduces; one of them knows nothing of broadcasts."""
    known, none = (ns(0.5), ns(1)), (-1, -1)
    ranks = []
    for number, of_broadcast in ((0, known), (1, none)):
        sums = sums_of(
            OperationRow("dp", operation, 4, 100, ns(0.2), 0, 0, 2, *hidden)
            for operation, hidden in (("all_reduce", known), ("broadcast", of_broadcast))
        )
        process = Process(number, sums=sums, devices=2)
        ranks.append(process.steps(4, forward=1, communication=0.1).finished())
    account = account_of(*ranks)
    found = document(account)
    rows = {row["operation"]: row for row in found["collectives"]}
    bounds = ("hidden_gpu_seconds", "hidden_gpu_seconds_max")
    assert [rows["all_reduce"][name] for name in bounds] == [2, 4]
    assert [rows["broadcast"][name] for name in bounds] == [None, None]
    assert "hidden: 2.00 to 4.00 GPU-s" in " ".join(render(found, full=True).split())
    for rank in rank_collectives(account, 2, 0)["ranks"]:
        of_broadcast = known if rank["rank"] == 0 else (None, None)
        assert {row["operation"]: (row["hidden_ns"], row["hidden_max_ns"]) for row in rank["operations"]} == {
            "all_reduce": known,
            "broadcast": of_broadcast,
        }
