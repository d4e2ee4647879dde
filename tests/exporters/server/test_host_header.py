"""The Host header on loopback: a web page must not read the agent through a DNS name of its own."""

import socket
from contextlib import nullcontext

import pytest
from support.node.refusals import refused
from support.servers.certificates import Authority

from goodput.access import token_file
from goodput.access.certificate import Certificate
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput_exporters.server.authentication import NodeAuthenticator
from goodput_exporters.server.server import Server


@pytest.fixture
def serve():
    running = []

    def start(authenticator: NodeAuthenticator | None = None, host: str = "127.0.0.1") -> Server:
        running.append(
            Server(lambda format: b"goodput_host_cpus 4\n", lambda: None, (host, 0), authenticator)
        )
        running[-1].start()
        return running[-1]

    yield start
    for server in running:
        server.stop()


def status(server: Server, *lines: str, path: str = "/metrics") -> int:
    host, port = server.address
    head = "\r\n".join([f"GET {path} HTTP/1.1", *lines, "Connection: close", "", ""])
    with socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), 5) as client:
        client.sendall(head.encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert (b"goodput_host_cpus" in answer) == (b" 200 " in answer[:20] and path == "/metrics")
    return int(answer.split()[1])


def test_host_header_must_name_this_machine(serve):
    authenticator = NodeAuthenticator()
    server = serve(authenticator)
    for host in ("127.0.0.1", "localhost", "LOCALHOST:9470", "127.0.0.1:1", "[::1]:9470", "127.9.9.9"):
        assert status(server, f"Host: {host}") == 200, host
    wrong = ("evil.example", "evil.example:9470", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "",
             "[::1].evil.example", "localhost@evil.example")  # fmt: skip
    for host in wrong:
        for path in ("/metrics", "/", "/metrics?x", "/nothing"):
            assert status(server, f"Host: {host}", path=path) == 421, (host, path)
    assert status(server) == 421
    assert status(server, "Host: localhost", "Host: evil.example") == 421
    assert status(server, "Host: evil.example", path="/healthz") == 200, "/healthz reveals nothing"
    assert refused(authenticator)["host"] == 4 * len(wrong) + 2


def test_any_host_is_accepted_with_tokens_or_public_metrics(serve, tmp_path):
    text, token = make("prometheus", "metrics")
    with token_file.changing(tmp_path / "tokens.json") as kept:
        kept.append(token)
    server = serve(NodeAuthenticator(TokenCache(tmp_path / "tokens.json")))
    assert status(server, "Host: head", f"Authorization: Bearer {text}") == 200
    assert status(server, "Host: head") == 401
    assert status(serve(NodeAuthenticator(any_host=True)), "Host: head") == 200
    assert status(serve(host="0.0.0.0"), "Host: head") == 200, "the address is not loopback"


@pytest.mark.parametrize(
    ("words", "is_any"), [((), False), (("--metrics-public",), True), (("CA",), True), (("TLS",), False)]
)
def test_command_options_select_the_host_check(words, is_any, tmp_path):
    import argparse

    from goodput.access.options import add_access_options
    from goodput.cli.node import authenticator_of

    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("node"))
    tls = ["--tls-cert", cert, "--tls-key", key]
    given = {"CA": [*tls, "--client-ca", str(authority.cert)], "TLS": tls}
    parser = argparse.ArgumentParser()
    add_access_options(parser.add_argument)
    authenticator = authenticator_of(
        parser.parse_args([word for one in words for word in given.get(one, [one])])
    )
    with nullcontext() if is_any else pytest.raises(Refusal, match="only requests to localhost"):
        authenticator.check_request(["evil.example"], [])
    assert isinstance(authenticator.certificate, Certificate) == (words in (("CA",), ("TLS",)))
