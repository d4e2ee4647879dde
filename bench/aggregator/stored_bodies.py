"""A peer of bench.aggregator.serve: it stores each push as it came, as one row in SQLite, and answers a constant Ack.

python -m bench.aggregator.stored_bodies       # prints its address, serves until it is ended

The least that an aggregator in Python can do that answers when pushes are stored: no authentication, and nothing is
decoded. Pushes of 25 ms are written in one transaction, as the aggregator's are.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import uvloop

from goodput.wire import schema

ACK = schema.encode(schema.Ack(accepted=8))
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/msgpack\r\ncontent-length: %d\r\n\r\n%s" % (
    len(ACK),
    ACK,
)
GATHER_SECONDS = 0.025

Push = tuple[asyncio.WriteTransport, bytes]


class Writer:
    def __init__(self, directory: str):
        self._database = sqlite3.connect(
            f"{directory}/bodies.db", check_same_thread=False, isolation_level=None
        )
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE bodies(id INTEGER PRIMARY KEY, body BLOB)",
        ):
            self._database.execute(statement)
        self._waiting: list[Push] = []
        self._thread = ThreadPoolExecutor(1)

    def add(self, push: Push) -> None:
        self._waiting.append(push)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._begin)

    def _begin(self) -> None:
        pushes, self._waiting = self._waiting, []
        self._thread.submit(self._write, pushes, asyncio.get_running_loop())

    def _write(self, pushes: list[Push], loop: asyncio.AbstractEventLoop) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO bodies(body) VALUES (?)", [(body,) for _, body in pushes])
        self._database.execute("COMMIT")
        loop.call_soon_threadsafe(_answer, pushes)


def _answer(pushes: list[Push]) -> None:
    for transport, _ in pushes:
        transport.write(ANSWER)


class Connection(asyncio.Protocol):
    """Takes one request after the other, as the load sends them, by the length that its head states."""

    def __init__(self, writer: Writer):
        self._writer, self._parts, self._left = writer, [], 0

    def connection_made(self, transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        body = data
        if not self._left:
            head, _, body = data.partition(b"\r\n\r\n")
            self._parts, self._left = [], int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        self._parts.append(body)
        self._left -= len(body)
        if not self._left:
            self._writer.add((self._transport, b"".join(self._parts)))


async def serve(directory: str) -> None:
    writer = Writer(directory)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(writer), "127.0.0.1", 0)
    print(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        uvloop.new_event_loop().run_until_complete(serve(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
