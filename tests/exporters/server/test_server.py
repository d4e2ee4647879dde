"""The agent's HTTP server over real sockets."""

import http.client
import socket
import threading
import time

import httpx
import pytest
from support.node.node_tree import wait_until

from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.metrics.text_format import TextWriter
from goodput_exporters.server.server import CONNECTIONS_MAX, Server


@pytest.fixture
def health():
    return []


@pytest.fixture
def server(health):
    running = Server(lambda format: b"goodput_host_cpus 4\n", lambda: health[0] if health else None)
    running.start()
    yield running
    running.stop()


def get(server, path: str) -> httpx.Response:
    return httpx.get(server.url + path, timeout=60, trust_env=False)


def test_stop_wakes_the_server(monkeypatch):
    monkeypatch.setattr("goodput_exporters.server.server.RELOAD_SECONDS", 3600.0)
    server = Server(lambda format: b"", lambda: None)
    server.start()
    assert get(server, "/healthz").status_code == 200
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive() and not server._thread.is_alive()


def test_port_zero_gives_the_real_port(server):
    host, port = server.address
    assert host == "127.0.0.1" and port > 0 and server.url == f"http://127.0.0.1:{port}"


def test_metrics_returns_the_exposition(server):
    answer = get(server, "/metrics")
    assert answer.status_code == 200 and answer.content == b"goodput_host_cpus 4\n"
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert get(server, "/metrics?collect[]=host").status_code == 200


def test_healthz_returns_the_problem(server, health):
    assert (get(server, "/healthz").status_code, get(server, "/healthz").text) == (200, "ok\n")
    health.append("the last poll was long ago")
    assert (get(server, "/healthz").status_code, get(server, "/healthz").text) == (
        503, "the last poll was long ago\n",
    )  # fmt: skip


def test_index_links_to_all_paths(server):
    text = get(server, "/").text
    for path in ("/metrics", "/healthz"):
        assert f'href="{path}"' in text


@pytest.mark.parametrize("path", ["/metricsx", "/metrics/", "/../etc/passwd", "/%00"])
def test_other_paths_are_not_found(server, path):
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    connection.request("GET", path)
    assert connection.getresponse().status == 404
    connection.close()


def test_only_get_and_head(server):
    assert httpx.post(server.url + "/metrics", trust_env=False).status_code == 501
    head = httpx.head(server.url + "/metrics", trust_env=False)
    assert head.status_code == 200 and head.content == b"" and head.headers["Content-Length"] == "20"


def test_one_connection_serves_many_scrapes(server):
    with httpx.Client(trust_env=False) as client:
        assert {client.get(server.url + "/metrics").status_code for _ in range(50)} == {200}


def test_hanging_clients_do_not_block_scrapes(server):
    """With twice the maximum of silent connections the oldest are disconnected and a scrape still works."""
    hanging = []
    try:
        for _ in range(2 * CONNECTIONS_MAX):
            client = socket.create_connection(server.address, timeout=60)
            client.sendall(b"GET /metrics HTT")
            hanging.append(client)
        began = time.monotonic()
        assert get(server, "/metrics").status_code == 200
        assert time.monotonic() - began < 5
        assert hanging[0].recv(1) == b""  # disconnected
        wait_until(lambda: len(server._connections) <= CONNECTIONS_MAX)
    finally:
        for client in hanging:
            client.close()


def test_failing_exposition_gives_500():
    def fail(format):
        raise RuntimeError("no")

    server = Server(fail, lambda: None)
    server.start()
    assert get(server, "/metrics").status_code == 500
    assert get(server, "/healthz").status_code == 200
    server.stop()


def test_a_slow_scrape_does_not_block_health():
    release = threading.Event()

    def slow(format):
        release.wait(120)
        return b""

    server = Server(slow, lambda: None)
    server.start()
    scrape = threading.Thread(target=get, args=(server, "/metrics"))
    scrape.start()
    assert get(server, "/healthz").status_code == 200
    release.set()
    scrape.join(60)
    server.stop()


def test_address_in_use_raises_os_error(server):
    with pytest.raises(OSError):
        Server(lambda format: b"", lambda: None, server.address)


def test_ipv6_address():
    try:
        server = Server(lambda format: b"x 1\n", lambda: None, ("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    server.start()
    assert server.url.startswith("http://[::1]:") and get(server, "/metrics").status_code == 200
    server.stop()


def test_stop_without_start_and_twice():
    server = Server(lambda format: b"", lambda: None)
    server.stop()
    server.stop()


def test_format_follows_the_accept_header():
    server = Server(lambda format: format.__name__.encode(), lambda: None)
    server.start()
    try:
        ours, text = ProtobufWriter.content_type, TextWriter.content_type
        for accept, content_type in (
            (ours, ours),
            (f"{ours};q=0.5,text/plain;q=0.2", ours),
            ("text/plain", text),
            ("", text),
            (f"{ours};q=1.5", text),
            (ours.replace("delimited", "text"), text),
            ("x" * 60_000, text),
        ):
            answer = httpx.get(
                server.url + "/metrics", headers={"Accept": accept}, timeout=10, trust_env=False
            )
            assert (answer.status_code, answer.headers["Content-Type"]) == (200, content_type), accept[:80]
            assert answer.headers["Vary"] == "Accept"
    finally:
        server.stop()


def test_health_has_warnings_after_its_ok():
    server = Server(lambda format: b"", lambda: None, warnings=lambda: "2 rank pages of user 7 are refused")
    server.start()
    answer = get(server, "/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n2 rank pages of user 7 are refused\n")
    server.stop()
