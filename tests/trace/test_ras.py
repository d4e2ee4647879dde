"""What NCCL's RAS answers, against a server of recorded answers: missing, failed and late ranks, and answers that are none."""

import copy
import json
import socket
import threading

import pytest

from goodput.cli import main
from goodput.trace import TraceError
from goodput.trace.hangs.ras import analyze_ras

STATUS = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def rank(number: int, calls: int = 40, **status) -> dict:
    counts = {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": calls}
    place = {
        "rank": number,
        "host": "172.16.64.245",
        "pid": 1524344 + number,
        "cuda_dev": number,
        "nvml_dev": number,
    }
    return {**place, "status": {**STATUS, **status}, "collective_counts": counts}


def missing(number: int, dead: bool) -> dict:
    """As in NVIDIA's documentation."""
    status = {"unresponsive": True, "considered_dead": dead}
    return {"rank": number, "host": "172.16.64.246", "pid": 7, "cuda_dev": 1, "nvml_dev": 1, "status": status}


def answer(*ranks: dict, gone: tuple = ()) -> dict:
    one = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(gone),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(gone),
        "ranks": list(ranks),
        "missing_ranks": list(gone),
    }
    head = {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "timestamp": "2025-12-19 13:06:53"}
    ras = {"collection_time_sec": 0.0, "timeouts_count": 0}
    return {**head, "communicators_count": 1, "communicators": [one], "ras": ras}


@pytest.fixture
def served():
    """A function that serves these answers, one a connection, and returns the address."""
    servers, threads, asked = [], [], []

    def serve(*answers: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run():
            for one in answers:
                connection, _ = server.accept()
                with connection:
                    received = b""
                    while received.count(b"\n") < 2:
                        received += connection.recv(1000)
                    asked.append(received)
                    connection.sendall(one)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    serve.asked = asked
    yield serve
    for server in servers:
        server.close()
    for thread in threads:
        thread.join(30)


def recorded(*documents: dict) -> list[bytes]:
    return [b"OK\n" + json.dumps(one, indent=2).encode() for one in documents]


def judged(served, first: dict, last: dict | None = None) -> dict:
    address = served(*recorded(first, last or first))
    (one,) = analyze_ras(address, sleep=lambda seconds: None)["communicators"]
    return one


def test_it_is_asked_for_json(served):
    judged(served, answer(rank(0)))
    assert served.asked == [b"SET FORMAT json\nVERBOSE STATUS\n"] * 2


def test_missing_ranks_are_named(served):
    one = judged(served, answer(rank(0), gone=(missing(1, dead=False), missing(2, dead=True))))
    assert (one["kind"], one["size"], [rank["rank"] for rank in one["missing"]]) == ("missing", 3, [1, 2])
    assert one["reason"] == (
        "rank 1 on 172.16.64.246 (pid 7) is unresponsive; rank 2 on 172.16.64.246 (pid 7) is dead"
    )


def test_failed_ranks_are_named(served):
    one = judged(served, answer(rank(0, async_error=6), rank(1, init_state=7), rank(2, abort_flag=True)))
    assert (one["kind"], [rank["rank"] for rank in one["failed"]]) == ("failed", [0, 2])
    assert "an asynchronous error (ncclResult_t 6)" in one["reason"] and "it was aborted" in one["reason"]


def test_rank_behind_is_named_where_nobody_moves(served):
    stuck = answer(rank(0), rank(1, calls=38), rank(2))
    one = judged(served, stuck)
    assert (one["kind"], one["is_moving"], one["calls"]) == (
        "behind",
        False,
        {"all_reduce": 40, "broadcast": 1},
    )
    assert one["reason"] == "rank 1 on 172.16.64.245 (pid 1524345) has made 38 calls of all_reduce, others 40"
    before = answer(rank(0), rank(1, calls=37), rank(2))
    assert judged(served, before, stuck)["kind"] == "ok", "the rank is late for a moment"


def test_same_calls_are_no_finding(served):
    one = judged(served, answer(rank(0), rank(1)))
    assert (one["kind"], one["is_moving"]) == ("ok", False)
    assert (
        judged(served, answer(rank(0, 39), rank(1, 39)), answer(rank(0), rank(1)))["reason"]
        == "ranks make calls"
    )


def test_answer_in_a_file(tmp_path, capsys):
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(answer(rank(0), rank(1, calls=3))))
    assert main(["analyze", "--ras", str(path)]) == 0
    out = capsys.readouterr().out
    assert "behind: rank 1 on 172.16.64.245" in out and max(map(len, out.splitlines())) <= 100
    assert main(["analyze", "--ras", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["communicators"][0]["is_moving"] is None


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no JSON, which NCCL's RAS has from 2.28.7 on"),
        (b"ERROR: Unknown command\n", "'ERROR: Unknown command'"),
        (b'OK\n{"communicators": [', "no answer of NCCL's RAS"),
        (b'OK\n{"communicators": 3}', "no list"),
        (b'OK\n{"communicators": [3]}', "TypeError"),
        (b'OK\n{"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": "a"}]}]}', "ValueError"),
        (b"OK\n" + b'{"a":' * 100_000, "no answer of NCCL's RAS"),
    ],
)
def test_answers_that_are_none(served, raw, words):
    with pytest.raises(TraceError) as caught:
        analyze_ras(served(raw))
    assert words in str(caught.value)


def test_nobody_listens_and_no_address(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["analyze", "--ras", f"127.0.0.1:{port}"]) == 1
    assert "no answer of NCCL's RAS" in capsys.readouterr().err
    assert main(["analyze", "--ras", "nowhere"]) == 1
    assert "neither a file nor HOST:PORT" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["analyze", "--ras", "a:1", "--flight", "b"])
    assert caught.value.code == 2


def test_odd_fields_are_unknown(served):
    odd = copy.deepcopy(answer(rank(0), rank(1)))
    odd["communicators"][0]["ranks"][1] |= {
        "status": None,
        "collective_counts": [1],
        "host": "\x1b[31m",
        "pid": "x",
    }
    one = judged(served, odd)
    assert one["kind"] == "behind" and one["behind"][0]["pid"] is None
