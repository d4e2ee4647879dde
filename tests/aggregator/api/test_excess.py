"""Far more than an aggregator is made for: gigabytes of body, a million labels of one rank, every report ten times."""

from __future__ import annotations

import resource
import socket
import threading

import httpx
import pytest
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report, story
from support.aggregator.serve_process import push, samples, serving

from goodput.aggregator.api.app import create_app
from goodput.aggregator.http import limits
from goodput.wire import schema

GIB, MIB = 1 << 30, 1 << 20
COPIES, NODES = 10, 2


@pytest.fixture
def client(tmp_path):
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as found:
        yield found


@pytest.mark.faults
def test_gigabyte_bodies_are_refused_before_they_are_taken(client):
    """An announced one at its first byte, a chunked one at the bound, after which little more is read; memory does not grow with what is offered."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    address, sent = (client.base_url.host, client.base_url.port), 0
    head = f"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {GIB}\r\n\r\n"
    with socket.create_connection(address, timeout=60) as announced:
        announced.sendall(head.encode() + b"x")
        assert announced.recv(100).startswith(b"HTTP/1.1 413 ")
    part = b"100000\r\n" + b"x" * MIB + b"\r\n"
    head = "POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(address, timeout=60) as endless:
        endless.sendall(head.encode())
        try:
            while sent < GIB:
                endless.sendall(part)
                sent += MIB
        except OSError:
            pass  # It is refused and closed.
    assert sent < schema.BODY_BYTES_MAX + limits.REFUSED_BODY_BYTES_MAX + 32 * MIB  # in buffers of the kernel
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * schema.BODY_BYTES_MAX >> 10
    assert push(client, rank_report(Process().steps(1, forward=1))).accepted == 1


@pytest.mark.faults
@pytest.mark.parametrize(
    "field, value_of",
    [
        ("phases", lambda million: ["none", *million]),
        ("phase_states", lambda million: dict.fromkeys(million, "loader")),
    ],
    ids=["phases", "phase_states"],
)
def test_rank_with_a_million_labels_costs_itself_alone(client, field, value_of):
    """Its agent finds it by pushing halves of what was refused; no series has any of its names."""
    good, bad = (rank_report(Process(rank, world_size=2).steps(3, forward=1)) for rank in range(2))
    bad = replace(bad, **{field: value_of([f"label-{number}" for number in range(1_000_000)])})
    refused = client.post("/api/v1/ingest", content=body_of(good, bad))
    alone = client.post("/api/v1/ingest", content=body_of(bad))
    for answer in (refused, alone):
        rejections = schema.decode_ack(answer.content).rejected if answer.status_code == 200 else []
        assert answer.status_code == 400 or [one.rank for one in rejections] == [1]
    assert push(client, good).accepted == 1
    text = client.get("/metrics").text
    assert "label-" not in text and len(text) < MIB
    assert client.get("/api/v1/runs/r1").json()["steps"]["kept"] == 3


@pytest.mark.faults
def test_reports_ten_times_change_nothing(tmp_path, client):
    """Every push of every node by ten senders at once, in any order: all are answered, and the account is that of one."""
    pushes = story(ranks=NODES)
    bodies = [body_of(rank, node=f"n{at}") for ranks in pushes for at, rank in enumerate(ranks)]
    statuses: list[int] = []

    def send(first: int) -> None:
        with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False) as own:
            for body in (*bodies[first:], *bodies[:first]):
                statuses.append(own.post("/api/v1/ingest", content=body).status_code)

    senders = [threading.Thread(target=send, args=(at * len(bodies) // COPIES,)) for at in range(COPIES)]
    for one in senders:
        one.start()
    for one in senders:
        one.join(120)
    assert statuses == [200] * (COPIES * len(bodies))
    with serving(create_app(f"sqlite:///{tmp_path}/once.db")) as once:
        for body in bodies:
            assert once.post("/api/v1/ingest", content=body).status_code == 200
        wanted, found = (one.get("/api/v1/runs/r1").json() for one in (once, client))
    assert found["steps"] == {"kept": 16 * NODES, "lost": 4 * NODES}
    names = ("gpu_seconds", "states", "steps", "restarts", "ranks")
    assert {name: found[name] for name in names} == {name: wanted[name] for name in names}
    assert samples(client)["goodput_aggregator_reports_total", "accepted"] == COPIES * len(bodies)
