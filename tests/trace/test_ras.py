"""What NCCL's RAS answers, against a server of recorded answers: missing, failed and late ranks, and answers that are none."""

import copy
import json
import socket

import pytest
from support.nccl_ras import RasServer, answer, missing, rank, recorded

from goodput.cli import main
from goodput.trace import TraceError
from goodput.trace.hangs.ras import RANK_MAX, analyze_ras, render


@pytest.fixture
def served():
    """A function that serves these answers, one a connection, and returns the address."""
    servers = []

    def serve(*answers: bytes) -> str:
        servers.append(RasServer(*answers))
        return servers[-1].address

    serve.servers = servers
    yield serve
    for server in servers:
        server.close()


def judged(served, first: dict, last: dict | None = None) -> dict:
    address = served(*recorded(first, last or first))
    (one,) = analyze_ras(address, sleep=lambda seconds: None)["communicators"]
    return one


def test_ras_is_queried_for_json(served):
    judged(served, answer(rank(0)))
    assert served.servers[0].requests == [b"SET FORMAT json\nVERBOSE STATUS\n"] * 2


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
    assert "behind: rank 1 on 172.16.64.245" in out and max(map(len, out.splitlines())) <= 80
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


ODD = [
    None,
    True,
    -1,
    1.5,
    float("inf"),
    float("nan"),
    1 << 80,
    "x",
    "",
    [],
    {},
    [1],
    {"a": 1},
    "\x1b[31m\n" * 50,
]


def places(value, place: tuple = ()):
    """The keys to every value inside of this one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*place, key)
        yield from places(one, (*place, key))


def test_any_odd_field_gives_a_document_or_an_error(tmp_path):
    """Each value of an answer in turn; numbers of the document fit into what the agent reports of it."""
    path = tmp_path / "ras.json"
    whole = answer(rank(0), rank(1, calls=3), gone=(missing(2, dead=True),))
    for place in places(whole):
        for value in ODD:
            odd = copy.deepcopy(whole)
            owner = odd
            for key in place[:-1]:
                owner = owner[key]
            owner[place[-1]] = value
            path.write_text(json.dumps(odd))
            try:
                found = analyze_ras(str(path))
            except TraceError:
                continue
            json.dumps(found, allow_nan=False)
            assert render(found).isascii()
            for one in found["communicators"]:
                numbers = [
                    one["size"],
                    *(each["rank"] for each in one["missing"] + one["failed"] + one["behind"]),
                ]
                assert min(numbers) >= 0 and max(numbers) <= RANK_MAX
