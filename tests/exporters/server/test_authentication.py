"""Access to the agent's server, and the agent's own credentials for the aggregator."""

import shutil
import socket
import ssl
import time

import httpx
import pytest
from support.node.aggregator import Aggregator
from support.node.node_tree import collect
from support.node.refusals import refused
from support.servers.certificates import Authority

from goodput.access import token_file
from goodput.access.certificate import Certificate
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput_exporters.check import FAILED, OK, _aggregator
from goodput_exporters.push.client import printable
from goodput_exporters.push.credentials import Credentials, Unreachable
from goodput_exporters.push.pusher import Pusher
from goodput_exporters.server.authentication import NodeAuthenticator
from goodput_exporters.server.server import Server


@pytest.fixture
def tokens(tmp_path):
    made = {
        "read": make("read", "read"),
        "ingest": make("ingest", "ingest"),
        "metrics": make("metrics", "metrics"),
        "some": make("some", "read", runs=("a*",)),
        "old": make("old", "read", expires=1.0),
    }
    with token_file.changing(tmp_path / "tokens.json") as kept:
        kept += [token for _, token in made.values()]
    return {name: text for name, (text, _) in made.items()}


@pytest.fixture
def serve():
    running = []

    def start(authenticator: NodeAuthenticator) -> Server:
        running.append(
            Server(lambda format: b"goodput_host_cpus 4\n", lambda: None, authenticator=authenticator)
        )
        running[-1].start()
        return running[-1]

    yield start
    for server in running:
        server.stop()


def test_metrics_access_by_scope(tmp_path, tokens, serve):
    authenticator = NodeAuthenticator(TokenCache(tmp_path / "tokens.json"))
    server = serve(authenticator)
    for name, status, words in (
        ("metrics", 200, "goodput_host_cpus"),
        ("read", 200, "goodput_host_cpus"),
        ("ingest", 403, "has scope ingest"),
        ("some", 403, "limited to some runs"),
        ("old", 401, "has expired"),
    ):
        for path in ("/metrics", "/"):
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            answer = httpx.get(server.url + path, headers=headers, trust_env=False)
            assert answer.status_code == status and (path == "/" or words in answer.text), name
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert tokens[name] not in answer.text
    for headers in ({}, {"Authorization": "Basic eDp5"}, [("Authorization", f"Bearer {tokens['read']}")] * 2,
                    {"Authorization": b"Bearer \xff\xfe"}):  # fmt: skip
        answer = httpx.get(server.url + "/metrics", headers=headers, trust_env=False)
        assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Bearer")
    assert httpx.get(f"{server.url}/metrics?token={tokens['read']}", trust_env=False).status_code == 401
    assert httpx.get(server.url + "/healthz", trust_env=False).status_code == 200
    assert httpx.get(server.url + "//metrics", trust_env=False).status_code == 401
    counts = {"missing": 3, "malformed": 3, "unknown": 0, "expired": 2, "scope": 4, "host": 0}
    assert refused(authenticator) == counts


def test_tls_with_silent_and_plaintext_clients(tmp_path, serve):
    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("node"))
    server = serve(NodeAuthenticator(certificate=Certificate(cert, key)))
    silent = [socket.create_connection(server.address) for _ in range(3)]
    plain = socket.create_connection(server.address)
    plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    context = ssl.create_default_context(cafile=authority.cert)
    began = time.monotonic()
    answer = httpx.get(server.url + "/metrics", verify=context, trust_env=False)
    assert answer.status_code == 200 and time.monotonic() - began < 5, "a handshake delays no other client"
    assert b"goodput_host_cpus" not in plain.recv(4096)
    for one in [*silent, plain]:
        one.close()


def test_agent_certificates_are_reloaded(tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("one")
    held = Credentials(None, str(authority.cert), str(cert), str(key))
    mark = held.mark()
    assert held.mark() == mark and isinstance(held.context(), ssl.SSLContext)
    for new, old in zip(authority.issue("two"), (cert, key), strict=True):
        shutil.copy(new, old)
    assert held.mark() != mark
    cert.write_text("nonsense")
    with pytest.raises(Unreachable, match=r"one\.pem") as error:
        held.context()
    assert error.value.reason == "tls" and "nonsense" not in str(error.value)


def test_push_failure_reasons(tmp_path):
    (tmp_path / "token").write_text("sec ret")
    silent = socket.create_server(("127.0.0.1", 0))
    nobody = socket.create_server(("127.0.0.1", 0))
    port = nobody.getsockname()[1]
    nobody.close()
    for url, credentials, reason in (
        (f"http://127.0.0.1:{port}", Credentials(), "connect"),
        (f"http://127.0.0.1:{silent.getsockname()[1]}", Credentials(), "timeout"),
        (f"http://127.0.0.1:{port}", Credentials(str(tmp_path / "token")), "token"),
        (f"https://127.0.0.1:{port}", Credentials(ca_file=str(tmp_path / "token")), "tls"),
    ):
        pusher = Pusher(url, "n0", credentials=credentials, timeout_seconds=0.3)
        assert pusher.push(probe=True) == "unreachable"
        found = {
            key[1][0]: value for key, value in collect(pusher).items() if key[0].endswith("failures_total")
        }
        assert {name for name, count in found.items() if count} == {reason}
        pusher.stop(0.0)
    silent.close()


def test_clear_text_token_is_logged_once(tmp_path, caplog):
    (tmp_path / "token").write_text("secret")
    for url in ("https://head:9471", "http://127.0.0.1:9471", "http://localhost:9471", "http://head:9471"):
        Pusher(url, "n0", credentials=Credentials(str(tmp_path / "token"))).stop(0.0)
    (record,) = caplog.records
    assert "in clear text to http://head:9471" in record.getMessage() and "secret" not in record.getMessage()


def test_printable_removes_control_characters():
    assert printable(b"no\x1b[31m\r\nroot\xff") == "no [31m  root\ufffd"


def test_reload_failing_until_the_file_is_valid(tmp_path, tokens):
    cert, key = map(str, Authority(tmp_path).issue("node"))
    authenticator = NodeAuthenticator(TokenCache(tmp_path / "tokens.json"), Certificate(cert, key))
    good = (tmp_path / "tokens.json").read_text()

    def failing() -> dict[str, float]:
        authenticator.reload()
        found = collect(authenticator)
        return {labels[0]: value for (name, labels), value in found.items() if name.endswith("_failing")}

    assert failing() == {"tokens": 0, "certificate": 0}
    (tmp_path / "tokens.json").write_text("{")
    assert failing() == failing() == {"tokens": 1, "certificate": 0}
    (tmp_path / "tokens.json").write_text(good)
    (tmp_path / "node.pem").write_text("nonsense")
    assert failing() == {"tokens": 0, "certificate": 1}


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """An aggregator behind TLS, its authority, and an unrelated authority."""
    folder = tmp_path_factory.mktemp("secured")
    authority, other = Authority(folder), Authority(folder, "other")
    aggregator = Aggregator(host="", certificate=authority.issue("head"))
    yield aggregator, str(authority.cert), str(other.cert)
    aggregator.close()


def test_connection_errors_say_what_to_do(secured, caplog):
    aggregator, authority, other = secured
    tls, plain = f"https://127.0.0.1:{aggregator.port}", Aggregator()
    for url, ca_file, words in (
        (tls.replace("https", "http"), None, "the server uses TLS; the address must begin with https://"),
        (plain.url.replace("http", "https"), authority, "begin with http://?"),
        (tls, other, f"not signed by an authority in --ca-file {other}"),
        (tls, None, "pass its authority with --ca-file"),
        (tls.replace("127.0.0.1", "127.0.0.2"), authority, "it is valid for localhost, 127.0.0.1"),
    ):
        credentials = Credentials(ca_file=ca_file)
        found = _aggregator(url, "n0", credentials)
        assert found.status == FAILED and found.detail.startswith(url) and words in found.detail, found
        caplog.clear()
        pusher = Pusher(url, "n0", credentials=credentials, timeout_seconds=3.0)
        assert pusher.push(probe=True) == pusher.push(probe=True) == "unreachable"
        # A server that speaks TLS may end a plain connection in two ways.
        lines = [record.getMessage() for record in caplog.records]
        assert 1 <= len(set(lines)) == len(lines) <= 2 and all(words in line for line in lines), lines
        pusher.stop(0.0)
    assert _aggregator(tls, "n0", Credentials(ca_file=authority)).status == OK
    plain.close()


def test_redirects_and_empty_answers_are_explained(caplog):
    aggregator = Aggregator()
    for status, more, words in (
        (
            301,
            {"Location": "https://head:9471/api/v1/ingest?token=x"},
            "redirected: use https://head:9471 as",
        ),
        (301, {}, "Moved Permanently"),
        (502, {}, "Bad Gateway"),
    ):
        aggregator.answer = lambda *_, status=status: (status, b"")
        aggregator.headers = more
        found = _aggregator(aggregator.url, "n0", Credentials())
        assert found.status == FAILED and f"HTTP {status}: {words}" in found.detail
        assert "token" not in found.detail
        caplog.clear()
        pusher = Pusher(aggregator.url, "n0")
        pusher.push(probe=True)
        assert f"HTTP {status}: {words}" in caplog.text and "token=" not in caplog.text
        pusher.stop(0.0)
    aggregator.close()


def test_check_warns_of_clear_text_token(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("secret")
    aggregator = Aggregator()
    held = Credentials(str(tmp_path / "token"))
    assert _aggregator(aggregator.url, "n0", held).detail.endswith("accepts this node's reports")
    monkeypatch.setattr("goodput_exporters.push.client.is_loopback", lambda host: False)
    found = _aggregator(aggregator.url, "n0", held)
    assert found.status == OK and "the token is sent in clear text: use https" in found.detail
    assert "clear" not in _aggregator(aggregator.url, "n0", Credentials()).detail
    aggregator.close()
