"""Dumps of the Flight Recorder: calls by group and operation, arrival on clocks that differ, and the verdict of a hang.

Real dumps of broken collectives are read in tests/frameworks/collectives/test_collective_faults.py.
"""

import json
import pickle

import pytest

from goodput.cli import main
from goodput.trace import TraceError
from goodput.trace.hangs.flight import analyze_flight

MS = 1_000_000
HOUR = 3600 * 10**9
BEGAN = 1_795_446_062_000_000_000
LATE = {0: 0, 1: 3 * MS, 2: MS}  # by rank, how late it comes to each call


def entry(sequence: int, created: int, completed: int, size: int = 256, operation="nccl:all_reduce", **given):
    return {
        "process_group": ["0", "default_pg"],
        "profiling_name": operation,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if completed else "started",
        "retired": bool(completed),
        "time_created_ns": created,
        "time_discovered_completed_ns": completed,
        **given,
    }


def dump(rank: int, calls: int = 6, **last) -> dict:
    """Calls every 10 ms, which end 5 ms after they begin; each host's clock is hours off. The last one is open."""
    ahead = (rank - 1) * HOUR + 123_457 * rank
    entries = [
        entry(at, BEGAN + ahead + 10 * at * MS + LATE[rank], BEGAN + ahead + (10 * at + 5) * MS)
        for at in range(1, calls)
    ]
    entries.append(entry(calls, BEGAN + ahead + 10 * calls * MS, 0, **last))
    return {
        "version": "2.10",
        "entries": entries,
        "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1, 2]"}},
    }


def written(directory, dumps: dict[int, dict], as_pickle: bool = False):
    for rank, one in dumps.items():
        body = pickle.dumps(one) if as_pickle else json.dumps(one).encode()
        (directory / f"nccl_trace_rank_{rank}").write_bytes(body)
    return directory


@pytest.mark.parametrize("as_pickle", [False, True])
def test_missing_rank_and_who_comes_last(tmp_path, as_pickle):
    behind = {**dump(1), "entries": dump(1)["entries"][:-1]}
    found = analyze_flight(written(tmp_path, {0: dump(0), 1: behind, 2: dump(2)}, as_pickle))
    assert (found["verdict"]["kind"], found["verdict"]["culprits"]) == ("missing", [1])
    assert (found["verdict"]["sequence"], found["verdict"]["operation"]) == (6, "all_reduce")
    (row,) = found["operations"]
    assert (row["ranks"], row["calls"], row["bytes"], row["open"]) == (3, 6, 6 * 1024, 2)
    assert (row["skew_ns"], row["last_rank"], row["last_share"]) == (3 * MS, 1, 1.0)


def test_other_sizes_and_operations_are_named(tmp_path):
    found = analyze_flight(written(tmp_path, {0: dump(0), 1: dump(1), 2: dump(2, size=512)}))
    assert (found["verdict"]["kind"], found["verdict"]["culprits"]) == ("size", [2])
    found = analyze_flight(written(tmp_path, {2: dump(2, operation="nccl:broadcast")}))
    assert (found["verdict"]["kind"], found["verdict"]["culprits"]) == ("operation", [2])


def test_rank_without_a_dump_is_missing(tmp_path):
    found = analyze_flight(written(tmp_path, {0: dump(0), 2: dump(2)}))
    assert (found["verdict"]["kind"], found["verdict"]["culprits"]) == ("missing", [1])


def test_finished_calls_are_no_hang(tmp_path):
    """Without the ends of calls there is no skew either."""
    dumps = {rank: dump(rank) for rank in range(3)}
    for one in dumps.values():
        for call in one["entries"]:
            call.update(time_discovered_completed_ns=0, retired=True, state="scheduled")
    found = analyze_flight(written(tmp_path, dumps))
    assert found["verdict"] is None
    assert found["operations"][0]["skew_ns"] is None and found["operations"][0]["open"] == 0


def test_clocks_are_aligned_by_calls_that_ranks_leave_together(tmp_path):
    """The root of a broadcast leaves when it has sent, before the others have come: such ends say nothing of clocks."""
    dumps = {rank: dump(rank, calls=6) for rank in range(3)}
    for rank, one in dumps.items():
        ahead = (rank - 1) * HOUR + 123_457 * rank
        for at in range(7, 30):
            came = BEGAN + ahead + 10 * at * MS + LATE[rank]
            left = came if rank == 0 else BEGAN + ahead + (10 * at + 5) * MS
            one["entries"].append(entry(at, came, left, operation="nccl:broadcast"))
    rows = {row["operation"]: row for row in analyze_flight(written(tmp_path, dumps))["operations"]}
    assert {name: (row["skew_ns"], row["last_rank"]) for name, row in rows.items()} == {
        "all_reduce": (3 * MS, 1),
        "broadcast": (3 * MS, 1),
    }


class Harmful:
    def __reduce__(self):
        return print, ("called",)


def test_unusable_files_are_listed_and_call_nothing(tmp_path, capsys):
    written(tmp_path, {0: dump(0), 1: dump(1), 2: dump(2)})
    (tmp_path / "trace_7").write_bytes(pickle.dumps({"entries": [Harmful()]}))
    (tmp_path / "trace_8.json").write_text('{"entries": [{}]}')
    (tmp_path / "trace_9").write_bytes(b"")
    (tmp_path / "readme.txt").write_text("no dump")
    found = analyze_flight(tmp_path)
    assert found["ranks"] == [0, 1, 2] and len(found["errors"]) == 3
    assert "STACK_GLOBAL" in found["errors"][0] and capsys.readouterr().out == ""
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        with pytest.raises(TraceError, match=folder):
            analyze_flight(tmp_path / folder)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"input_sizes": [[-5]]}, "call 3 has a tensor of an impossible shape"),
        ({"input_sizes": [["5"]]}, "call 3 has a tensor of an impossible shape"),
        ({"input_sizes": [[1 << 1000] * 60]}, "call 3 has a tensor of an impossible shape"),
        ({"input_sizes": [[1] * 65]}, "65 dimensions, 64 at most"),
        ({"input_sizes": [[1]] * 70_000}, "70000 tensors, 65536 at most"),
        ({"input_sizes": [[1 << 61]]}, "a number or a time out of range"),
        ({"sequence": 1 << 90}, "a number or a time out of range"),
        ({"created": -1}, "a number or a time out of range"),
        ({"sequence": float("inf")}, "`collective_seq_id` of call 3 is a float, want a whole number"),
        ({"process_group": []}, "`process_group` of call 3 is empty"),
    ],
)
def test_impossible_call_is_an_error_with_its_place(tmp_path, given, why):
    written(tmp_path, {0: dump(0), 1: dump(1), 2: dump(2)})
    bad = dump(2)
    bad["entries"][2] = entry(**{"sequence": 3, "created": BEGAN, "completed": 0, **given})
    (tmp_path / "trace_3").write_bytes(pickle.dumps(bad))
    found = analyze_flight(tmp_path)
    assert found["ranks"] == [0, 1, 2] and len(found["errors"]) == 1
    assert "trace_3" in found["errors"][0] and why in found["errors"][0]


def test_dump_of_an_older_format_says_what_it_lacks(tmp_path):
    """PyTorch before 2.4 numbered collectives and point-to-point calls together."""
    old = dump(1)
    for one in old["entries"]:
        one["seq_id"] = one.pop("collective_seq_id")
    old["version"] = "1.5"
    found = analyze_flight(written(tmp_path, {0: dump(0), 1: old}))
    assert found["ranks"] == [0]
    assert "its calls have no `collective_seq_id`; its version is '1.5'" in found["errors"][0]
    for entries in (5, None, "abc"):
        written(tmp_path, {1: {**dump(1), "entries": entries}})
        assert "it has no list of `entries`" in analyze_flight(tmp_path)["errors"][0]


@pytest.mark.parametrize("ranks", ["[-1, 0]", "[0, 0]", "[1, 2,", "[4294967296]", 7])
def test_impossible_ranks_of_a_group_are_an_error(tmp_path, ranks):
    bad = {**dump(1), "pg_config": {"0": {"ranks": ranks}}}
    found = analyze_flight(written(tmp_path, {0: dump(0), 1: bad}))
    assert found["ranks"] == [0] and len(found["errors"]) == 1


def test_second_dump_of_a_rank_is_left_out(tmp_path):
    written(tmp_path, {0: dump(0), 1: dump(1), 2: dump(2)})
    (tmp_path / "older_1.json").write_text(json.dumps(dump(1, calls=2)))
    found = analyze_flight(tmp_path)
    assert found["ranks"] == [0, 1, 2]
    (error,) = found["errors"]
    assert "older_1.json: nccl_trace_rank_1 is of rank 1, too" in error


def test_command_prints_verdict_and_table(tmp_path, capsys):
    written(tmp_path, {0: dump(0), 1: dump(1), 2: dump(2, size=512)})
    assert main(["analyze", "--flight", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "different sizes under number 6 of group default_pg (ranks 0-2)" in " ".join(out.split())
    assert "all_reduce" in out and "    1, 100 %" in out and max(map(len, out.splitlines())) <= 80
    assert main(["analyze", "--flight", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["kind"] == "size"
    with pytest.raises(SystemExit) as caught:
        main(["analyze"])
    assert caught.value.code == 2
