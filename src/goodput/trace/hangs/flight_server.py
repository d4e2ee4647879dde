"""Asks a process that still answers for its Flight Recorder: PyTorch's worker server on a Unix socket.

A training has one with `torch.distributed.elastic.control_plane.worker_main` and TORCH_WORKER_SERVER_SOCKET. It answers in
a thread of its own, in C++, while the others hang in a collective.

    raw = ask(Path("dumps/rank_0.sock"), bytes_max=1 << 28)    # JSON
"""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path

from goodput.trace.stream import TraceError

ANSWER_SECONDS = 10.0
_HANDLER = "/handler/fr_trace_json"


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, seconds: float):
        super().__init__("localhost", timeout=seconds)
        self._path, self._seconds = path, seconds

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._seconds)
        self.sock.connect(str(self._path))


def ask(path: Path, bytes_max: int, seconds: float = ANSWER_SECONDS) -> bytes:
    """The recorder's entries as JSON, within so many bytes and seconds. Raises TraceError with the path and the reason."""
    end, parts, received = time.monotonic() + seconds, [], 0
    connection = _LocalConnection(path, seconds)
    try:
        connection.request("POST", _HANDLER, body=b"")
        response = connection.getresponse()
        while part := response.read1(1 << 16):
            parts.append(part)
            received += len(part)
            if received > bytes_max:
                raise TraceError(f"{path}: an answer of more than {bytes_max} bytes")
            if time.monotonic() > end:
                raise TimeoutError("timed out")
    except (OSError, http.client.HTTPException) as error:
        raise TraceError(f"{path}: no answer of a worker server: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        begins = b"".join(parts)[:80].decode("utf-8", "replace")
        raise TraceError(f"{path}: the worker server answers {response.status}: {begins!r}")
    if response.length:
        raise TraceError(f"{path}: the worker server's answer is {response.length} bytes short")
    return b"".join(parts)
