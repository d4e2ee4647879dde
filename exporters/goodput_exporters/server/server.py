"""The agent's HTTP server: /metrics, /healthz, and / with links to them.

A client that hangs occupies a thread of its own for IDLE_SECONDS_MAX between two bytes. Of more than CONNECTIONS_MAX
clients the one connected longest is disconnected, so slow clients cannot keep Prometheus out.

    server = Server(agent.exposition, agent.health, ("127.0.0.1", 0)); server.start(); print(server.url)
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from goodput.access.listening import is_loopback
from goodput.access.responses import SECURITY_HEADERS, Refusal
from goodput.metrics.negotiation import negotiated
from goodput_exporters.server.authentication import NodeAuthenticator

log = logging.getLogger("goodput.node")

CONNECTIONS_MAX = 32
IDLE_SECONDS_MAX = 30.0
RELOAD_SECONDS = 2.0  # of tokens and certificates
TEXT = "text/plain; charset=utf-8"
INDEX = b"""<!doctype html><html lang="en"><head><title>goodput node</title></head><body>
<h1>goodput node agent</h1>
<ul><li><a href="/metrics">/metrics</a></li><li><a href="/healthz">/healthz</a></li></ul>
</body></html>
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "goodput", ""
    timeout = IDLE_SECONDS_MAX
    # Otherwise the body waits for the client's delayed acknowledgement of the headers.
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            if path == "/healthz":
                problem = self.server.health()
                text = problem or "\n".join(filter(None, ("ok", self.server.warnings())))
                return self._answer(503 if problem else 200, TEXT, f"{text}\n".encode())
            hosts, authorizations = (self.headers.get_all(name, []) for name in ("Host", "Authorization"))
            self.server.authenticator.check_request(hosts, authorizations)
            if path == "/metrics":
                return self._answer_metrics()
            if path == "/":
                return self._answer(200, "text/html; charset=utf-8", INDEX)
            self._answer(404, TEXT, b"not found\n")
        except Refusal as refusal:
            self._answer(refusal.status, TEXT, f"{refusal}\n".encode())

    do_HEAD = do_GET

    def _answer_metrics(self) -> None:
        format = negotiated(",".join(self.headers.get_all("Accept", [])), has_openmetrics=True)
        try:
            body = self.server.exposition(format=format)
        except Exception:
            log.exception("/metrics failed")
            return self._answer(500, TEXT, b"internal error; see the agent's log\n")
        self._answer(200, format.content_type, body, ("Vary", "Accept"))

    def _answer(self, status: int, content_type: str, body: bytes, *more: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (*more, *SECURITY_HEADERS.items()):
            self.send_header(name, value)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Bearer realm="goodput"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Serves until `stop`. With port 0 a free one is chosen, see `address` and `url`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        exposition: Callable[..., bytes],
        health: Callable[[], str | None],
        address: tuple[str, int] = ("127.0.0.1", 0),
        authenticator: NodeAuthenticator | None = None,
        warnings: Callable[[], str] = str,
    ):
        """`health` returns why polling does not work, `warnings` what else to say in /healthz, with status 200."""
        self.exposition, self.health, self.warnings = exposition, health, warnings
        # Other addresses than loopback have an authenticator, or serve public series.
        self.authenticator = authenticator or NodeAuthenticator(any_host=not is_loopback(address[0]))
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._connections: dict[int, socket.socket] = {}  # oldest first
        self._connections_lock = threading.Lock()
        super().__init__(address, Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(RELOAD_SECONDS,), name="http", daemon=True
        )

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server_address[:2]
        return str(host), port

    @property
    def url(self) -> str:
        (host, port), scheme = self.address, "https" if self.authenticator.ssl_context else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            disconnect(self.socket)  # which `serve_forever` waits for
            self.shutdown()
            self._thread.join(1.0)
        self.server_close()

    def server_bind(self) -> None:
        # HTTPServer.server_bind resolves this host's name, which can take many seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.address

    def get_request(self):
        """The TLS handshake happens at the first read: in the client's own thread and within its timeout."""
        request, client_address = super().get_request()
        if context := self.authenticator.ssl_context:
            request.settimeout(IDLE_SECONDS_MAX)
            request = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, client_address

    def service_actions(self) -> None:
        """Called by `serve_forever` every RELOAD_SECONDS."""
        try:
            self.authenticator.reload()
        except Exception:
            log.exception("reloading tokens and certificates failed")

    def process_request(self, request: socket.socket, client_address) -> None:
        with self._connections_lock:
            if len(self._connections) >= CONNECTIONS_MAX:
                disconnect(self._connections.pop(next(iter(self._connections))))
            self._connections[id(request)] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        with self._connections_lock:
            self._connections.pop(id(request), None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._connections_lock:
            for request in self._connections.values():
                disconnect(request)
            self._connections.clear()

    def handle_error(self, request, client_address) -> None:
        pass  # The client disconnected.


def disconnect(request: socket.socket) -> None:
    """End a connection, or listening, from another thread; its own thread sees the end of the stream."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
