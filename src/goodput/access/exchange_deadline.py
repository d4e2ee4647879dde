"""A deadline for a whole exchange with a server, from the connection to the end of the answer.

HTTP libraries have a timeout for each read, which an answer that comes byte by byte never reaches.

    deadline = ExchangeDeadline()
    with deadline.within(10.0) as is_late:
        ...  # connect, then call `deadline.connected(socket)`; reading ends in an error once is_late()
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class ExchangeDeadline:
    """The deadline of one connection, which may serve several exchanges, one at a time."""

    def __init__(self):
        self._socket: socket.socket | None = None
        self._late = threading.Event()  # of the exchange in progress

    def connected(self, connection: socket.socket | None) -> None:
        """The exchange, and later ones, use this connection; it ends at once if connecting took too long."""
        self._socket = connection
        if self._late.is_set():
            self._disconnect()

    @contextmanager
    def within(self, seconds: float) -> Iterator[Callable[[], bool]]:
        """Ends the connection after so long; yields whether that has happened."""
        late = self._late = threading.Event()

        def disconnect() -> None:
            late.set()
            self._disconnect()

        watchdog = threading.Timer(seconds, disconnect)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield late.is_set
        finally:
            watchdog.cancel()

    def _disconnect(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # It is closed.
                self._socket.shutdown(socket.SHUT_RDWR)
