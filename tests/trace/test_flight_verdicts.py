"""Verdicts on Flight Recorder dumps: states on the device, coalesced calls, sends and receives, beside PyTorch's analysis."""

import json
import pickle
import subprocess
import sys

import pytest
from support.installed import need
from support.trace.flight_maker import Recorder, written

from goodput.cli import main
from goodput.trace.hangs.flight import analyze_flight

PAIRS = {"0": ("default_pg", [0, 1, 2]), "5": ("pipeline", [0, 2])}


def ranks(**more) -> list[Recorder]:
    """Three ranks after four all-reduces to which all came at once."""
    found = [Recorder(rank, **more) for rank in range(3)]
    for one in found:
        for _ in range(4):
            one.collective("all_reduce")
    return found


def verdict(tmp_path, recorders: list[Recorder]) -> dict | None:
    found = analyze_flight(written(tmp_path / "dumps", recorders))
    assert found["errors"] == []
    return found["verdict"]


def text(tmp_path, capsys, recorders: list[Recorder]) -> str:
    assert main(["analyze", "--flight", str(written(tmp_path / "dumps", recorders))]) == 0
    return " ".join(capsys.readouterr().out.split())


# -- what the command prints


def test_text_where_no_rank_comes_last(tmp_path, capsys):
    """All clocks agree to the nanosecond, so the skew is 0 and nobody is last."""
    out = text(tmp_path, capsys, ranks())
    assert "no call is open that explains a hang" in out
    assert "default_pg all_reduce 3 4 4.1 kB 0 0 ns -" in out


def test_rank_without_a_dump_is_named_as_that(tmp_path, capsys):
    first, _, third = ranks()
    for one in (first, third):
        one.collective("all_reduce", state="started")
    out = text(tmp_path, capsys, [first, third])
    assert (
        "rank 1 has not come to all_reduce" in out and "there is no dump of it; ranks 0, 2 wait in it" in out
    )


def test_missing_rank_is_said_to_be_in_another_call(tmp_path, capsys):
    """No sentence of two halves: it is in a call, or in none that is open."""
    first, second, third = ranks(groups=PAIRS)
    first.collective("all_reduce", state="started")
    second.collective("all_reduce", state="started")
    third.transfer("send 1->0", 64, group="5")
    out = text(tmp_path, capsys, [first, second, third])
    assert "no call that is open" not in out and "it is in" not in out.replace(
        "it is in send 1 of group pipeline", ""
    )
    out = text(tmp_path, capsys, [*ranks()[2:], first, second])
    assert "it is in no call that is open; ranks 0, 1 wait in it" in out


# -- states on the device


def test_device_that_has_not_begun_the_call_is_named(tmp_path):
    """It has been issued, so no rank is missing, and the network has nothing to do with it."""
    found = ranks()
    for one, state in zip(found, ("started", "scheduled", "started"), strict=True):
        one.collective("all_reduce", state=state)
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"], judged["sequence"]) == ("missing", [1], 5)
    assert "the device of rank 1 has not begun it, while 2 of 3 have" in judged["reason"]
    assert "look at its kernels" in judged["reason"] and "network" not in judged["reason"]


def test_no_device_has_begun_the_call(tmp_path):
    found = ranks()
    for one in found:
        one.collective("all_reduce", state="scheduled")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"]) == ("missing", [])
    assert "the devices of ranks 0, 1, 2 have not begun it" in judged["reason"]


def test_states_without_timing_say_nothing_of_devices(tmp_path):
    """Without start events a call is scheduled until it is over."""
    found = ranks(timing=False)
    for one in found:
        one.collective("all_reduce", state="scheduled")
    assert verdict(tmp_path, found)["kind"] == "network"
    found[0].entries[-1].update(state="completed", retired=True)
    judged = verdict(tmp_path, found)
    assert judged["kind"] == "network" and "1 of 3 have left it" in judged["reason"]


def test_all_devices_in_the_call_blame_the_network(tmp_path):
    found = ranks()
    for one in found:
        one.collective("all_reduce", state="started")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"]) == ("network", [])


def test_device_in_a_call_of_another_group_is_told(tmp_path):
    """Rank 2 is inside a call of a group whose other rank has no dump; it cannot begin the common one."""
    groups = {"0": ("default_pg", [0, 1, 2]), "5": ("tensor", [2, 3])}
    found = ranks(groups=groups)
    found[2].collective("all_gather", state="started", group="5")
    for one in found:
        one.collective("all_reduce", state="scheduled" if one.rank == 2 else "started")
    judged = verdict(tmp_path, found)
    assert judged["kind"] == "missing" and judged["culprits"] == [3]
    assert "rank 3 has not come to all_gather" in judged["reason"]


def test_devices_in_calls_of_two_groups_are_a_cycle(tmp_path):
    """Both ranks issue both calls, which their streams begin in different order."""
    groups = {"0": ("default_pg", [0, 1]), "5": ("tensor", [0, 1])}
    first, second = (Recorder(rank, groups=groups) for rank in (0, 1))
    for one in (first, second):
        one.collective("all_reduce").collective("all_gather", group="5")
    first.collective("all_reduce", state="started").collective("all_gather", state="scheduled", group="5")
    second.collective("all_reduce", state="scheduled").collective("all_gather", state="started", group="5")
    judged = verdict(tmp_path, [first, second])
    assert (judged["kind"], judged["culprits"]) == ("deadlock", [])
    assert [(one["rank"], one["group"], one["waits_for"]) for one in judged["cycle"]] == [
        (0, "default_pg", 1),
        (1, "tensor", 0),
    ]


def test_first_call_that_hangs_is_judged(tmp_path):
    """Hosts have issued two more calls, which no device has begun."""
    found = ranks()
    for one in found:
        one.collective("all_gather", state="scheduled" if one.rank == 1 else "started")
        one.collective("all_reduce", state="scheduled").collective("all_reduce", state="scheduled")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"]) == ("missing", [1])
    assert (judged["sequence"], judged["operation"], judged["entered"]) == (5, "all_gather", 3)


@pytest.mark.parametrize("issued", [2, 1, 0])
def test_host_that_issued_less_is_not_blamed_for_the_first_hang(tmp_path, issued):
    """All devices are inside call 5; that the host of rank 2 is behind with later calls explains nothing."""
    found = ranks()
    for one in found:
        one.collective("all_gather", state="started")
        for _ in range(issued if one.rank == 2 else 2):
            one.collective("all_reduce", state="scheduled")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"], judged["sequence"]) == ("network", [], 5)
    assert "all ranks have entered all_gather 5 of group default_pg, and none has left it" in judged["reason"]


# -- coalesced calls


@pytest.mark.parametrize("end", ["nccl:coalesced", "nccl:ALLGATHER_coalesced"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_part_of_a_coalesced_call_of_another_size(tmp_path, end, part):
    found = ranks()
    for one in found:
        sizes = [100, 200, 300]
        sizes[part] += 7 * (one.rank == 1)
        one.coalesced([("_all_gather_base", size) for size in sizes], end, state="started")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"], judged["sequence"]) == ("size", [1], 5)
    assert f"this is part {part + 1} of 3 of a coalesced call" in judged["reason"]


def test_coalesced_call_with_a_part_less(tmp_path):
    found = ranks()
    for one in found:
        one.coalesced([("all_reduce", 100)] * (3 - (one.rank == 2)), state="started")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"]) == ("size", [2])
    assert "ranks have different numbers of parts" in judged["reason"]


def test_other_operation_within_a_coalesced_call(tmp_path):
    found = ranks()
    for one in found:
        second = "reduce_scatter" if one.rank == 0 else "all_reduce"
        one.coalesced([("all_reduce", 100), (second, 100)], state="started")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"]) == ("operation", [0])


def test_parts_of_a_coalesced_call_end_with_it(tmp_path):
    """A recorder leaves the parts as scheduled; what is over explains no hang, and its parts count as calls."""
    found = ranks()
    for one in found:
        one.coalesced([("all_reduce", 100), ("all_reduce", 200)])
        one.coalesced(
            [(f"send {one.rank}->{(one.rank + 1) % 3}", 8), (f"recv {one.rank}<-{(one.rank - 1) % 3}", 8)]
        )
    document = analyze_flight(written(tmp_path / "dumps", found))
    assert document["verdict"] is None
    rows = {row["operation"]: (row["calls"], row["open"]) for row in document["operations"]}
    assert rows == {"all_reduce": (6, 0), "send": (1, 0), "recv": (1, 0)}


def test_missing_rank_in_a_coalesced_call(tmp_path):
    first, second, third = ranks()
    for one in (first, third):
        one.coalesced([("all_reduce", 100), ("all_reduce", 200)], state="started")
    judged = verdict(tmp_path, [first, second, third])
    assert (judged["kind"], judged["culprits"], judged["sequence"]) == ("missing", [1], 5)


@pytest.mark.parametrize(("received", "kind"), [(100, "network"), (150, "size")])
def test_all_to_all_receives_what_is_sent(tmp_path, received, kind):
    """The sizes of ranks may differ, but not what all of them send and receive together."""
    found = ranks()
    for one, sent in zip(found, (100, 200, 300), strict=True):
        one.collective("all_to_all", sent, state="started")
        one.entries[-1]["output_sizes"] = [[received if sent == 100 else 500 - sent]]
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"], judged["sequence"]) == (kind, [], 5)
    assert ("send 2.4 kB in this all_to_all and receive 2.6 kB" in judged["reason"]) == (kind == "size")


# -- sends and receives


@pytest.mark.parametrize(("call", "has_not"), [("send 0->1", "received"), ("recv 0<-1", "sent")])
@pytest.mark.parametrize("coalesced", [False, True])
def test_lone_transfer_names_its_peer(tmp_path, call, has_not, coalesced):
    """By its number in the group, which is not its rank: number 1 of the pipeline is rank 2."""
    found = ranks(groups=PAIRS)
    if coalesced:
        found[0].coalesced([(call, 64)], state="started", group="5")
    else:
        found[0].transfer(call, 64, group="5")
    judged = verdict(tmp_path, found)
    assert (judged["kind"], judged["culprits"], judged["description"]) == ("missing", [2], "pipeline")
    assert f"rank 2 has not {has_not} the data" in judged["reason"]


def test_transfers_in_a_ring_are_a_cycle(tmp_path):
    """Each rank receives first, so nobody sends."""
    found = ranks()
    for one in found:
        one.transfer(f"recv {one.rank}<-{(one.rank - 1) % 3}", 64)
    judged = verdict(tmp_path, found)
    assert judged["kind"] == "deadlock"
    assert [(one["rank"], one["waits_for"]) for one in judged["cycle"]] == [(0, 2), (2, 1), (1, 0)]


@pytest.mark.parametrize(
    ("length", "dtype", "kind"), [(64, "Float", "network"), (65, "Float", "size"), (64, "Half", "dtype")]
)
@pytest.mark.parametrize("others_wait", [False, True])
def test_send_and_its_receive_are_compared(tmp_path, length, dtype, kind, others_wait):
    found = ranks()
    found[0].transfer("send 0->2", 64)
    found[2].transfer("recv 2<-0", length, dtype=dtype)
    if others_wait:
        found[1].collective("all_reduce", state="started")
    judged = verdict(tmp_path, found)
    if others_wait and kind == "network":
        assert judged["kind"] == "missing" and set(judged["culprits"]) == {0, 2}
        return
    assert (judged["kind"], judged["culprits"]) == (kind, [])
    assert "rank 0 sends 256 B float32 to rank 2" in judged["reason"]


def test_transfer_of_an_unknown_form_names_nobody(tmp_path):
    found = ranks()
    found[0].transfer("send", 64)
    assert verdict(tmp_path, found) is None


# -- PyTorch's own analysis

ANALYSIS = """
import argparse, json, sys
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.loader import read_dir

for directory in sys.argv[1:]:
    arguments = argparse.Namespace(
        trace_dir=directory, prefix="nccl_trace_rank_", verbose=False, just_print_entries=False,
        allow_incomplete_ranks=True, mismatch_cap=10,
    )
    details, version = read_dir(arguments)
    details = dict(sorted(details.items()))  # The first one is what the others are compared with.
    bad = [one for one in build_db(details, arguments, version).collectives if not one.pass_check or one.missing_ranks]
    wrong = {
        (one.collective_seq_id, rank, str(found.type_of_mismatch.state.name))
        for one in bad for rank, found in (one.mismatch_collectives or {}).items()
    }
    missing = {(one.collective_seq_id, rank, "MISSING") for one in bad for rank in one.missing_ranks or ()}
    print(json.dumps(sorted(wrong | missing)), file=sys.stderr)
"""


def _planted() -> dict[str, tuple[list[Recorder], list]]:
    """By name the dumps, and the first difference that PyTorch finds: number, rank, what."""
    cases = {"healthy": (ranks(), [])}
    cases["missing"] = (ranks(), [5, 1, "MISSING"])
    cases["size"] = (ranks(), [5, 2, "SIZE_OR_SYNTAX_MISMATCH"])
    cases["dtype"] = (ranks(), [5, 1, "COLLECTIVE_DTYPE_MISMATCH"])
    cases["operation"] = (ranks(), [5, 2, "COLLECTIVE_TYPE_MISMATCH"])
    cases["state"] = (ranks(), [5, 1, "COLLECTIVE_STATE_MISMATCH"])
    cases["coalesced"] = (ranks(), [5, 1, "SIZE_OR_SYNTAX_MISMATCH"])
    for name, (recorders, found) in cases.items():
        for one in recorders if found else ():
            is_culprit = one.rank == found[1]
            if name == "coalesced":
                parts = [("all_reduce", 100), ("all_reduce", 207 if is_culprit else 200), ("all_reduce", 300)]
                one.coalesced(parts, "nccl:allreduce_coalesced", state="started")
            elif name != "missing" or not is_culprit:
                operation = "_reduce_scatter_base" if name == "operation" and is_culprit else "all_reduce"
                one.collective(
                    operation,
                    512 if name == "size" and is_culprit else 256,
                    dtype="Half" if name == "dtype" and is_culprit else "Float",
                    state="scheduled" if name == "state" and is_culprit else "started",
                )
    return cases


def test_analysis_of_pytorch_finds_the_same_rank(tmp_path):
    """One process for all cases: to import torch takes seconds."""
    need("torch")
    cases = _planted()
    for name, (recorders, _) in cases.items():
        written(tmp_path / name, recorders)
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ANALYSIS, *(str(tmp_path / name) for name in cases)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [json.loads(line) for line in made.stderr.splitlines() if line.startswith("[")]
    assert len(lines) == len(cases), made.stderr[-3000:]
    for (name, (_, planted)), theirs in zip(cases.items(), lines, strict=True):
        judged = analyze_flight(tmp_path / name)["verdict"]
        if not planted:
            assert theirs == [] and judged is None
            continue
        assert theirs[0] == planted, name
        assert (judged["sequence"], judged["culprits"]) == (planted[0], [planted[1]]), name
        assert judged["kind"] == {"coalesced": "size", "state": "missing"}.get(name, name)


# -- dumps that are damaged


def test_rank_whose_dump_cannot_be_read_is_not_blamed(tmp_path, capsys):
    """Its file is there; what it says is not known, also where only an old call is broken."""
    found = ranks()
    for one in found[:2]:
        one.collective("all_reduce", state="started")
    found[2].collective("all_reduce", state="started")
    found[2].entries[0]["time_created_ns"] = None
    assert main(["analyze", "--flight", str(written(tmp_path / "dumps", found))]) == 1
    out, err = capsys.readouterr()
    out = " ".join(out.split())
    assert "2 of 3 ranks wait in all_reduce number 5; whether rank 2 came to it is unknown" in out
    assert "has not come" not in out
    assert "`time_created_ns` of call 1 is null, want a whole number" in " ".join(err.split())
    judged = analyze_flight(tmp_path / "dumps")["verdict"]
    assert (judged["kind"], judged["culprits"]) == ("missing", [])


def nested(depth: int) -> list:
    """Lists that share their parts: small in a pickle, 2 ** depth values to whoever prints or hashes them."""
    found: list = []
    for _ in range(depth):
        found = [found, found]
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("process_group", [None]),
        ("process_group", {"a": 1}),
        ("process_group", "default_pg"),
        ("process_group", nested(60)),
        ("profiling_name", None),
        ("profiling_name", ["nccl:all_reduce"]),
        ("profiling_name", nested(60)),
        ("collective_seq_id", True),
        ("collective_seq_id", 1.5),
        ("collective_seq_id", "5"),
        ("time_created_ns", 1.5e18),
        ("time_discovered_completed_ns", "1"),
        ("input_dtypes", [nested(60)]),
        ("input_sizes", [7]),
        ("state", 3),
        ("is_p2p", "no"),
    ],
)
def test_value_of_another_type_is_no_fact(tmp_path, name, value):
    """The dump is refused, with the call and the field."""
    found = ranks()
    for one in found:
        one.collective("all_reduce", state="started")
    found[1].entries[-1][name] = value
    found = analyze_flight(written(tmp_path / "dumps", found))
    (error,) = found["errors"]
    assert "nccl_trace_rank_1: no dump of a Flight Recorder: " in error and "call 5" in error
    assert found["ranks"] == [0, 2] and found["verdict"]["culprits"] == []


@pytest.mark.parametrize("place", ["version", "pg_config", "ranks", "entries"])
def test_deep_values_around_the_calls_are_refused_at_once(tmp_path, place):
    found = written(tmp_path / "dumps", ranks())
    damaged = ranks()[1].dump()
    if place == "ranks":
        damaged["pg_config"]["0"]["ranks"] = nested(60)
    elif place == "version":
        damaged["version"] = nested(60)
        del damaged["entries"][0]["p2p_seq_id"]
    else:
        damaged[place] = nested(60)
    (found / "nccl_trace_rank_1").write_bytes(pickle.dumps(damaged, 2))
    assert len(analyze_flight(found)["errors"]) == 1
