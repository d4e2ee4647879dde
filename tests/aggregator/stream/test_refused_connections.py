"""A server that refuses this process, or is refused by it, is distinguished from one that is down."""

import asyncio
import logging
import subprocess

import pytest
from support.servers import servers
from support.servers.certificates import Authority

from goodput.aggregator.stream.connection import Stream, StreamSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(port, authority) of a server with a user and TLS."""
    servers.require("nats-server")
    folder = tmp_path_factory.mktemp("nats")
    authority = Authority(folder)
    cert, key = authority.issue("server")
    (port,) = servers.free_ports(1)
    (folder / "server.conf").write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n'
        'authorization { users: [{user: goodput, password: "right"}] }\n'
        f'jetstream {{ store_dir: "{folder / "store"}" }}\n'
    )
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(["nats-server", "-c", folder / "server.conf"], stdout=log, stderr=log)
    try:
        servers.wait_until(lambda: b"Server is ready" in (folder / "log.txt").read_bytes(), 30, "nats-server")
        yield port, authority
    finally:
        process.kill()
        process.wait(30)


def connecting(caplog, url: str, **settings) -> str:
    """What is logged first of a connection; empty where it succeeds."""

    async def main() -> str:
        stream = Stream(StreamSettings((url,), replicas=1, bytes_max=1 << 20, **settings))
        task = asyncio.create_task(stream.connect())
        try:
            for _ in range(2000):
                logged = [one.getMessage() for one in caplog.records if one.name == "goodput.aggregator"]
                if logged:
                    return logged[0]
                if task.done():
                    task.result()
                    return ""
                await asyncio.sleep(0.01)
            raise AssertionError("neither connected nor logged why not")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.close()

    caplog.set_level(logging.WARNING, "goodput.aggregator")
    return asyncio.run(main())


def test_connection_ended_by_a_server_is_replaced(server, caplog, tmp_path):
    """nats-py closes after an error message; subscriptions continue, and password and authority are read again."""
    port, authority = server
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    login, ca = tmp_path / "login", tmp_path / "ca.crt"
    login.write_text("goodput:right\n")
    ca.write_bytes(authority.cert.read_bytes())
    url = f"tls://127.0.0.1:{port}"
    settings = StreamSettings((url,), replicas=1, bytes_max=1 << 20, credentials=str(login), ca=str(ca))

    async def main() -> list[bytes]:
        stream, heard = Stream(settings), []

        async def listen() -> None:
            async for message in stream.messages("goodput.members"):
                heard.append(message.data)

        async def until_heard(body: bytes) -> None:
            while body not in heard:
                await stream.client.publish("goodput.members", body)
                await asyncio.sleep(0.05)

        await asyncio.wait_for(stream.connect(), 30)
        listening = asyncio.create_task(listen())
        await asyncio.wait_for(until_heard(b"before"), 30)
        login.write_text("goodput:wrong\n")
        stream.client._transport.write(b"no operation of NATS\r\n")
        while "a server refuses this user or password" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not stream.is_connected
        ca.write_bytes(other.cert.read_bytes())
        login.write_text("goodput:right\n")
        while "a server's certificate is not valid here" not in caplog.text:
            await asyncio.sleep(0.01)
        ca.write_bytes(authority.cert.read_bytes())
        while not stream.is_connected:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(until_heard(b"after"), 30)
        await stream.publish(0, b"push", "id")
        listening.cancel()
        await stream.close()
        return heard

    caplog.set_level(logging.WARNING, "goodput.aggregator")
    heard = asyncio.run(asyncio.wait_for(main(), 60))
    assert (heard[0], heard[-1]) == (b"before", b"after")
    assert "a server ended the connection: unknown protocol operation; connecting anew" in caplog.text


def test_refused_connections_say_what_to_mend(server, caplog, tmp_path):
    port, authority = server
    login, wrong = tmp_path / "login", tmp_path / "wrong"
    login.write_text("goodput:right\n")
    wrong.write_text("goodput:wrong\n")
    other, ca = Authority(tmp_path, "other"), str(authority.cert)
    url = f"tls://127.0.0.1:{port}"
    (unused,) = servers.free_ports(1)
    password = "a server refuses this user or password (--stream-credentials)"
    for of, settings, text in (
        (url, {"ca": ca, "credentials": str(wrong)}, password),
        (url, {"ca": ca}, password),
        (url, {"ca": str(other.cert), "credentials": str(login)}, "certificate is not valid here: "),
        (url, {"credentials": str(login)}, "(--stream-ca)"),
        (f"tls://127.0.0.1:{unused}", {"ca": ca}, "no server answers"),
    ):
        logged = connecting(caplog, of, **settings)
        assert logged.startswith(f"stream {of}: ") and text in logged and logged.endswith("; trying again")
        caplog.clear()
    assert connecting(caplog, url, ca=ca, credentials=str(login)) == ""
    assert connecting(caplog, f"tls://goodput:right@127.0.0.1:{port}", ca=ca) == ""


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_password_is_not_sent_without_tls(server, caplog, scheme):
    """To servers that say they need no TLS, which may be somebody between this process and the real ones.

    They name each other, as those of a cluster do, after which nats-py would try them for ever by itself.
    """
    authority, received, ports = server[1], [], []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        urls = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        writer.write(f'INFO {{"max_payload": 1048576, "connect_urls": [{urls}]}}\r\n'.encode())
        received.append(await reader.read(4096))
        writer.close()

    async def main() -> None:
        listening = [await asyncio.start_server(plain, "127.0.0.1", 0) for _ in range(2)]
        ports.extend(one.sockets[0].getsockname()[1] for one in listening)
        urls = tuple(f"{scheme}://goodput:right@127.0.0.1:{port}" for port in ports)
        stream = Stream(StreamSettings(urls, ca=str(authority.cert)))
        task = asyncio.create_task(stream.connect())
        while not received or "trying again" not in caplog.text:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.close()
        for one in listening:
            one.close()

    caplog.set_level(logging.WARNING, "goodput.aggregator")
    asyncio.run(asyncio.wait_for(main(), 30))
    assert set(received) == {b""}
    assert "a server does not use TLS (tls:// in --stream); trying again" in caplog.text
    assert "right" not in caplog.text


@pytest.mark.parametrize(
    ("jetstream", "text"),
    [
        ("", "the servers have no JetStream, or it is still starting (`jetstream` in their configuration)"),
        ("max_file_store: 100KB", "(code 10047; --stream-bytes is above max_file_store)"),
    ],
)
def test_servers_that_cannot_store_the_stream(caplog, tmp_path, jetstream, text):
    servers.require("nats-server")
    (port,) = servers.free_ports(1)
    storage = f'jetstream {{ store_dir: "{tmp_path}", {jetstream} }}' if jetstream else ""
    (tmp_path / "server.conf").write_text(f'listen: "127.0.0.1:{port}"\n{storage}\n')
    process = subprocess.Popen(["nats-server", "-c", tmp_path / "server.conf", "-l", tmp_path / "log.txt"])
    try:
        servers.wait_until(lambda: (tmp_path / "log.txt").exists(), 30, "nats-server")
        servers.wait_until(
            lambda: b"Server is ready" in (tmp_path / "log.txt").read_bytes(), 30, "nats-server"
        )
        assert text in connecting(caplog, f"nats://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait(30)
