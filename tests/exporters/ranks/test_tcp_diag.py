"""TCP connections of a process as the kernel has them, against `ss`, and messages that are none."""

import os
import re
import shutil
import socket
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_exporters.collector import CollectorError
from goodput_exporters.system import tcp_diag
from goodput_exporters.system.tcp_diag import dump, host_of, is_loopback, parse, socket_inodes


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request):
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip(f"no {request.param} here")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def inode_of(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def exchange(client: socket.socket, accepted: socket.socket, size: int) -> None:
    client.sendall(bytes(size))
    while size:
        size -= len(accepted.recv(1 << 16))


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss of iproute2")
def test_figures_are_those_of_ss(pair):
    client, accepted = pair
    for size in (1000, 200_000, 50_000):
        exchange(client, accepted, size)
    accepted.sendall(b"answer")
    client.recv(100)
    port = client.getsockname()[1]
    shown = subprocess.run(
        ["ss", "-tinH", "sport", "=", str(port)], capture_output=True, text=True, check=True
    )
    found = dump(os.getpid(), socket_inodes(os.getpid()))[inode_of(client)]

    def figure(name: str, default: str = "0") -> str:
        match = re.search(rf"\s{name}:([\d.]+)", shown.stdout)
        return match[1] if match else default

    assert (found.bytes_acked, found.segments) == (int(figure("bytes_acked")), int(figure("data_segs_out")))
    assert found.rtt_us == round(1000 * float(figure("rtt"))) and found.unacked == int(figure("unacked"))
    assert found.busy_us // 1000 == int(figure("busy")) and found.retransmitted == 0
    assert found.bytes_acked - 1 == 251_000, "and the SYN"
    assert host_of(found.local) in shown.stdout and found.remote.endswith(f":{accepted.getsockname()[1]}")
    assert is_loopback(found)


def test_only_the_requested_sockets_are_found(pair):
    client, accepted = pair
    assert set(dump(os.getpid(), {inode_of(accepted), 1})) == {inode_of(accepted)}
    assert {inode_of(client), inode_of(accepted)} <= socket_inodes(os.getpid())


def test_process_that_is_gone_is_an_error():
    for call in (socket_inodes, tcp_diag.namespace_of, lambda pid: dump(pid, set())):
        with pytest.raises(CollectorError, match="999999999"):
            call(999_999_999)


def test_more_than_the_bound_is_an_error(pair, monkeypatch):
    monkeypatch.setattr(tcp_diag, "DUMP_BYTES_MAX", 1)
    with pytest.raises(CollectorError, match="cannot be read"):
        dump(os.getpid(), set())


@given(st.binary(max_size=400))
def test_any_message_is_a_connection_or_none(raw):
    message = struct.pack("=B71x", socket.AF_INET) + raw
    found = parse(memoryview(message))
    assert found is None or min(found[2:]) >= 0


def test_short_info_of_old_kernels_is_left_out():
    head, info = struct.pack("=B71x", socket.AF_INET), struct.pack("=HH", 4 + 104, 2) + bytes(104)
    assert parse(memoryview(head + info)) is None
    whole = struct.pack("=HH", 4 + 192, 2) + bytes(192)
    assert parse(memoryview(head + whole)) == tcp_diag.Connection("0.0.0.0:0", "0.0.0.0:0", *[0] * 9)
