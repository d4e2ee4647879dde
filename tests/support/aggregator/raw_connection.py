"""A connection to an aggregator without an HTTP client."""

from __future__ import annotations

import socket


class Wire:
    """A raw connection."""

    def __init__(self, client):
        address = client.base_url.host, client.base_url.port
        self.socket = socket.create_connection(address, timeout=60)

    def send(self, body: bytes) -> None:
        self.socket.sendall(body)

    def until(self, end: bytes, count: int = 1) -> bytes:
        """What comes until this was there so often."""
        found = b""
        while found.count(end) < count:
            part = self.socket.recv(65536)
            assert part, f"ended after {found!r}"
            found += part
        return found

    def all(self) -> bytes:
        """What comes until the other side ends."""
        found = b""
        try:
            while part := self.socket.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        self.socket.close()
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
