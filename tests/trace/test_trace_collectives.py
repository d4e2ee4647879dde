"""Collectives in traces of GPUs, written as Kineto writes `record_param_comms`: hand-worked sums, arrivals and errors."""

import json

import pytest
from support.trace.trace_maker import event, kernel, launch, op, step, write

from goodput.cli import main
from goodput.trace import analyze
from goodput.trace.text import render

MS = 1_000_000
ELEMENTS = 1 << 20
NAMES = {"_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter"}


def comms(start, length, number, name="allreduce", ranks=(0, 1), group="0", seq=None, **args) -> dict:
    """A kernel of NCCL with the arguments of the call that launched it."""
    found = kernel(
        start, length, f"ncclDevKernel_{NAMES.get(name, 'AllReduce')}_Sum_f32", stream=20, correlation=number
    )
    found["args"] |= {
        "Collective name": name,
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
        "Group size": len(ranks),
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": "default_pg" if group == "0" else "dp",
        "Process Group Ranks": str(list(ranks)),
        **({} if seq is None else {"Seq": seq}),
        **args,
    }
    return found


def rank_trace(path, rank: int, late: int = 0, ahead: int = 0, steps: int = 4, has_seq: bool = False, **args):
    """Steps of 10 ms in which a rank computes until 3 ms and then some; an all-reduce ends at 6 ms in all ranks.

    All times are `ahead` us later in the trace. In every second step nobody is late."""
    events = []
    for i in range(steps):
        at = 10_000 * i + ahead
        came = 3000 + (late if i % 2 == 0 else 0)
        events += [
            step(i, at, 9000),
            op(at, 50),
            launch(at + 100, 5, 2 * i + 1),
            launch(at + 200, 5, 2 * i + 2),
        ]
        events += [kernel(at + 1000, came - 1000, correlation=2 * i + 1)]
        events += [comms(at + came - 500, 6500 - came, 2 * i + 2, seq=100 + i if has_seq else None, **args)]
        events += [event("cpu_op", "record_param_comms", at + 195, 20, **events[-1]["args"])]
    place = {"backend": "nccl", "rank": rank, "world_size": 2}
    return write(path, events, rank=None, distributedInfo=place)


def two(tmp_path, **args):
    return [
        rank_trace(tmp_path / "a.json", 0, **args),
        rank_trace(tmp_path / "b.json", 1, late=2000, ahead=7_000_000_123, **args),
    ]


@pytest.mark.parametrize("has_seq", [False, True])
def test_bytes_time_and_bandwidth_by_hand(tmp_path, has_seq):
    document = analyze(two(tmp_path, has_seq=has_seq))
    (row,) = document["collectives"]
    assert (row["group"], row["operation"], row["size"]) == ("default_pg", "all_reduce", 2)
    assert (row["ranks"], row["calls"], row["bytes"]) == (2, 8, 8 * 4 * ELEMENTS)
    # From 2.5 ms, or 4.5 ms, to 6 ms; compute until 3 ms, or 5 ms.
    assert row["hidden_ns"] == 8 * MS // 2
    assert row["exposed_ns"] == 6 * 3 * MS + 2 * 1 * MS
    assert row["exposed_ns"] == document["total"]["states_ns"]["communication"]
    # The last rank is in it for 3.5 ms when nobody is late, else for 1.5 ms. 2 (n - 1) / n is 1.
    assert row["algorithm_bytes_per_second"] == pytest.approx(4 * 4 * ELEMENTS / (2 * 3.5e-3 + 2 * 1.5e-3))
    assert row["bus_bytes_per_second"] == row["algorithm_bytes_per_second"]
    assert (row["waited_ns"], row["transfer_ns"]) == (2 * 2 * MS, 2 * (2 * 3_500_000 + 2 * 1_500_000))


def test_late_rank_on_clocks_that_differ(tmp_path):
    (row,) = analyze(two(tmp_path))["collectives"]
    assert (row["compared"], row["skew_ns"], row["skew_uncertainty_ns"]) == (
        4,
        0,
        0,
    )  # the lower of the middle two
    assert row["last_rank"] is None
    (row,) = analyze(two(tmp_path, steps=5))["collectives"]
    assert (row["compared"], row["skew_ns"], row["skew_uncertainty_ns"]) == (5, 2 * MS, 0)
    assert (row["last_rank"], row["last_share"]) == (1, 3 / 5)


def test_factor_of_the_bus_and_size_of_a_gather(tmp_path):
    ranks = tuple(range(8))
    paths = [
        rank_trace(tmp_path / f"{rank}.json", rank, name="_allgather_base", ranks=ranks, group="4")
        for rank in (0, 1)
    ]
    (row,) = analyze(paths)["collectives"]
    assert (row["group"], row["operation"], row["size"]) == ("dp", "all_gather", 8)
    assert row["algorithm_bytes_per_second"] == pytest.approx(8 * 4 * ELEMENTS / 3.5e-3)
    assert row["bus_bytes_per_second"] == pytest.approx(row["algorithm_bytes_per_second"] * 7 / 8)


def test_one_rank_has_sums_and_no_arrivals(tmp_path, capsys):
    path = rank_trace(tmp_path / "a.json", 0)
    (row,) = analyze([path])["collectives"]
    assert (row["calls"], row["compared"], row["skew_ns"], row["bus_bytes_per_second"]) == (4, 0, None, None)
    assert main(["analyze", str(path)]) == 0
    out = capsys.readouterr().out
    assert "  default_pg    all_reduce" in out and "arrivals" not in out and "together" not in out


def test_groups_of_other_ranks_are_not_mixed(tmp_path):
    """Two data-parallel groups have one description, and their calls the same numbers."""
    paths = []
    for rank in range(4):
        own = (0, 2) if rank % 2 == 0 else (1, 3)
        path = rank_trace(
            tmp_path / f"{rank}.json",
            rank,
            late=1000 * (rank == 2),
            ranks=own,
            group=f"{1 + rank % 2}",
            has_seq=True,
        )
        paths.append(path)
    (row,) = analyze(paths)["collectives"]
    assert (row["group"], row["size"], row["ranks"], row["calls"], row["compared"]) == ("dp", 2, 4, 16, 8)
    assert row["last_rank"] is None and row["waited_ns"] == 2 * MS


def test_step_in_which_ranks_have_other_calls_is_left_out(tmp_path):
    paths = two(tmp_path, steps=6)
    trace = json.loads(paths[0].read_text())
    events = trace["traceEvents"]
    lost = [one for one in events if one["cat"] == "kernel" and "Collective name" in one["args"]][1]
    events.remove(lost)
    paths[0].write_text(json.dumps(trace))
    (row,) = analyze(paths)["collectives"]
    assert (row["calls"], row["compared"]) == (11, 5)


@pytest.mark.parametrize(
    "args",
    [
        {"dtype": "Float7"},
        {"In msg nelems": -3},
        {"In msg nelems": "many"},
        {"In msg nelems": 1 << 62},
        {"dtype": None},
    ],
)
def test_missing_sizes_are_unknown(tmp_path, args, capsys):
    paths = two(tmp_path, **args)
    (row,) = analyze(paths)["collectives"]
    assert (row["calls"], row["bytes"], row["calls_without_size"]) == (8, None, 8)
    assert row["bus_bytes_per_second"] is None and row["skew_ns"] is not None
    assert main(["analyze", *map(str, paths)]) == 0
    assert "8 calls have no size in the traces" in capsys.readouterr().out


@pytest.mark.parametrize("colour", [False, True])
def test_escapes_in_names_reach_no_terminal(tmp_path, colour):
    """Those of every text of a trace, on a terminal with colours too."""
    names = dict.fromkeys(
        ("Process Group Description", "Process Group Name", "Collective name", "dtype"), "\x1b[2J"
    )
    shown = render(analyze(two(tmp_path, **names)), colour)
    assert "?[2J" in shown and "\x1b[2J" not in shown
    assert ("\x1b[32m" in shown) == colour


@pytest.mark.parametrize("ranks", ["[0, 1, ..., 99]", "[[[[", '["a"]', "[" * 9000, [0, 1], {"a": 1}, None])
def test_ranks_that_are_no_list_of_numbers(tmp_path, ranks):
    paths = two(
        tmp_path, **{"Process Group Ranks": ranks, "Group size": 2, "Seq": "x", "Collective name": "a" * 900}
    )
    (row,) = analyze(paths)["collectives"]
    assert row["calls"] == 8 and row["operation"] == "a" * 40


def test_kernels_without_arguments_are_classified_by_their_names(tmp_path):
    events = [
        step(0, 0, 1000),
        launch(5, 5, 1),
        kernel(100, 200, "ncclKernel_ReduceScatter_RING(int)", correlation=1),
    ]
    events += [kernel(400, 100, "ncclDevKernel_SendRecv(int)"), kernel(600, 50, "deep_ep::dispatch")]
    rows = analyze([write(tmp_path / "a.json", events)])["collectives"]
    assert [(row["operation"], row["group"], row["bytes"]) for row in rows] == [
        ("reduce_scatter", "", None),
        ("send and recv", "", None),
        ("other", "", None),
    ]


def test_two_files_of_a_rank_are_not_compared(tmp_path, capsys):
    paths = [rank_trace(tmp_path / f"{name}.json", 0) for name in "ab"]
    document = analyze(paths)
    assert "are both of rank 0" in document["collectives_problem"]
    assert document["collectives"][0]["skew_ns"] is None and document["collectives"][0]["calls"] == 8
    assert main(["analyze", *map(str, paths)]) == 0
    assert "are both of rank 0" in capsys.readouterr().out.replace("\n    ", " ")


def test_files_of_other_runs_are_not_compared(tmp_path):
    paths = two(tmp_path)
    paths[1].write_text(paths[1].read_text().replace('"world_size": 2', '"world_size": 4'))
    assert "runs of 2 and 4 ranks" in analyze(paths)["collectives_problem"]


def test_text_and_json_of_the_command(tmp_path, capsys):
    paths = [*map(str, two(tmp_path, steps=5))]
    assert main(["analyze", *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [" ".join(line.split()) for line in lines if "all_reduce" in line and "default_pg" in line]
    assert table == [
        "default_pg all_reduce 10 41.9 MB 24 ms 5 ms 1.82 GB/s",
        "default_pg all_reduce 5 2 ms 0 ns 21 % 1 in 60 %",
    ]
    assert main(["analyze", "--json", *paths]) == 0
    assert json.loads(capsys.readouterr().out)["collectives"][0]["calls"] == 10
