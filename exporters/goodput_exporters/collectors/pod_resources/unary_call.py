"""One gRPC call over a Unix socket, with h2 (the extra `pods`).

Not with grpcio, which takes 12 MiB and six threads after one call, where the agent's budget is 64 MiB; h2 takes 1.
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import socket
import struct
import time

from goodput_exporters.collector import CollectorError

ANSWER_BYTES_MAX = 16 << 20  # as much as the kubelet sends
_FRAME = struct.Struct(">BI")  # compressed or not, length


def unary_call(path: str, method: str, message: bytes, seconds: float) -> bytes:
    """The answer of `/package.Service/Method`. Raises CollectorError; ImportError without h2."""
    from h2.exceptions import ProtocolError

    deadline = time.monotonic() + seconds
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(path)
            body, status, text = _exchange(connection, method, message, deadline)
    except OSError as error:
        raise CollectorError(f"{path}: {error}") from None
    except (ProtocolError, ValueError) as error:  # The latter of headers that are no UTF-8.
        raise CollectorError(f"{path}: {type(error).__name__}: {error}") from None
    if status != "0":
        raise CollectorError(f"{path}: gRPC status {status or 'unknown'} {text}".rstrip())
    if len(body) < _FRAME.size or _FRAME.unpack_from(body) != (0, len(body) - _FRAME.size):
        raise CollectorError(f"{path}: the answer is no uncompressed message")
    return body[_FRAME.size :]


def _exchange(
    connection: socket.socket, method: str, message: bytes, deadline: float
) -> tuple[bytes, str, str]:
    """The framed answer, the status and its text."""
    from h2 import events
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    state = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    state.initiate_connection()
    stream = state.get_next_available_stream_id()
    headers = {":method": "POST", ":scheme": "http", ":authority": "localhost", ":path": method}
    headers |= {"content-type": "application/grpc", "te": "trailers"}
    state.send_headers(stream, list(headers.items()))
    state.send_data(stream, _FRAME.pack(0, len(message)) + message, end_stream=True)
    body, answered = bytearray(), {}
    while True:
        connection.sendall(state.data_to_send())
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        data = connection.recv(1 << 16)
        if not data or time.monotonic() >= deadline:
            raise OSError("the connection was closed" if not data else "timed out")
        for event in state.receive_data(data):
            if isinstance(event, events.ResponseReceived | events.TrailersReceived):
                answered.update(event.headers or ())
            elif isinstance(event, events.DataReceived):
                body += event.data or b""
                if len(body) > ANSWER_BYTES_MAX:
                    raise OSError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
                state.acknowledge_received_data(event.flow_controlled_length or 0, stream)
            elif isinstance(event, events.StreamReset | events.ConnectionTerminated):
                raise OSError(f"the call was ended: {event.error_code}")
            elif isinstance(event, events.StreamEnded):
                return bytes(body), answered.get("grpc-status", ""), answered.get("grpc-message", "")[:200]
