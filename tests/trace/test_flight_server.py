"""The Flight Recorder of a process that still answers: recorded answers of a worker server, also slow, cut and damaged ones."""

import json
import socket
import threading

import pytest
from support.frameworks.script_process import run_script
from support.installed import need

from goodput.trace import TraceError
from goodput.trace.hangs import flight_server
from goodput.trace.hangs.flight import analyze_flight

# As PyTorch 2.13 answers for gloo.
CALL = {
    "collective_seq_id": 1, "input_dtypes": ["Float"], "input_sizes": [[10]], "is_p2p": False, "op_id": 1,
    "output_dtypes": ["Float"], "output_sizes": [[10]], "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce", "record_id": 0, "retired": True, "state": "scheduled", "thread_id": "1",
    "thread_name": "python", "time_created_ns": 1795481128687838555, "time_discovered_completed_ns": 0,
    "time_discovered_started_ns": 0, "timeout_ms": 1800000,
}  # fmt: skip
OPEN = {**CALL, "collective_seq_id": 2, "retired": False}


def body(*entries: dict) -> bytes:
    return json.dumps({"comm_lib_version": "", "entries": entries, "version": "2.10"}).encode()


def answer(raw: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(raw) if length is None else length}\r\n\r\n"
    return head.encode() + raw


@pytest.fixture
def serve(tmp_path):
    """A function that makes a socket in the folder which gives this answer, and keeps the connection if it is slow."""
    over, servers, threads = threading.Event(), [], []

    def make(name: str, raw: bytes, is_slow: bool = False) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / name))
        server.listen()
        servers.append(server)

        def run():
            try:
                connection, _ = server.accept()
                with connection:
                    assert connection.recv(1000).startswith(b"POST /handler/fr_trace_json ")
                    connection.sendall(raw)
                    over.wait(30 if is_slow else 0)
            except OSError:
                pass  # The test is over.

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield make
    over.set()
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join(30)


def test_rank_that_has_not_come_is_named(serve, tmp_path):
    serve("rank_0.sock", answer(body(CALL, OPEN)))
    serve("rank_1.sock", answer(body(CALL)))
    found = analyze_flight(tmp_path)
    assert (found["ranks"], found["errors"]) == ([0, 1], [])
    assert (found["verdict"]["kind"], found["verdict"]["culprits"]) == ("missing", [1])
    assert found["verdict"]["seconds"] > 0, "until the answer"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (answer(body(CALL))[:-30], "30 bytes short"),
        (answer(b"", length=50), "50 bytes short"),
        (answer(b"no such handler", "404 Not Found"), "answers 404: 'no such handler'"),
        (answer(b"[]"), "no dump of a Flight Recorder"),
        (answer(b'{"entries": [{}]}'), "`process_group` of call 1 is missing"),
        (b"\x00\xff\r\n\r\n", "no answer"),
        (b"", "no answer"),
    ],
)
def test_answer_that_is_cut_or_damaged_is_reported(serve, tmp_path, raw, words):
    """The others are judged."""
    serve("rank_0.sock", answer(body(CALL, OPEN)))
    serve("rank_1.sock", raw)
    found = analyze_flight(tmp_path)
    assert found["ranks"] == [0] and found["verdict"]["operation"] == "all_reduce"
    (error,) = found["errors"]
    assert words in error and "rank_1.sock" in error


def test_slow_and_large_answers_are_given_up(serve, tmp_path):
    for name, raw, bytes_max, words in (
        ("0.sock", b"", 1000, "timed out"),
        ("1.sock", answer(body(CALL))[:60], 1000, "timed out"),
        ("2.sock", answer(bytes(5000)), 1000, "more than 1000 bytes"),
    ):
        serve(name, raw, is_slow=True)
        with pytest.raises(TraceError, match=words):
            flight_server.ask(tmp_path / name, bytes_max, seconds=0.2)


def test_socket_without_a_server_is_reported(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "rank_3.sock"))
    with pytest.raises(TraceError, match=r"rank_3\.sock: no answer of a worker server: .*refused"):
        analyze_flight(tmp_path)


def test_process_that_hangs_answers(tmp_path):
    """Its main thread waits in an all-reduce to which the other rank does not come."""
    need("torch")
    done = run_script("collectives/flight_server.py", tmp_path, forked="torch")
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["ranks"], found["errors"]) == ([0, 1], [])
    verdict = found["verdict"]
    assert (verdict["kind"], verdict["culprits"], verdict["sequence"]) == ("missing", [1], 2)
    assert (verdict["operation"], verdict["description"]) == ("all_reduce", "default_pg")
