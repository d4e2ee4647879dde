"""The agent's HTTP server: `/metrics`, `/healthz`, and `/` with links to them.

In: a function that gives the exposition, one that says what is wrong, and a gate that says who may read and whether TLS
is spoken. Out: answers to GET and HEAD. A
client that hangs has a thread of its own and IDLE_SECONDS_MAX between two bytes; of more than CONNECTIONS_MAX
clients the one connected longest is cut off, so that slow ones cannot keep Prometheus out.

It does not know what it serves.

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
from goodput_exporters.server.authentication import Gate

log = logging.getLogger("goodput.node")

CONNECTIONS_MAX = 32
IDLE_SECONDS_MAX = 30.0
TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
SECURITY = (
    ("X-Content-Type-Options", "nosniff"),
    (
        "Content-Security-Policy",
        "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
)
INDEX = b"""<!doctype html><html lang="en"><head><title>goodput node</title></head><body>
<h1>goodput node agent</h1>
<ul><li><a href="/metrics">/metrics</a></li><li><a href="/healthz">/healthz</a></li></ul>
</body></html>
"""


class Server:
    """Serves until `stop`. `address` is (host, port); port 0 takes a free one, see `address` and `url`."""

    def __init__(
        self,
        exposition: Callable[[], bytes],
        health: Callable[[], str | None],
        address: tuple[str, int] = ("127.0.0.1", 0),
        gate: Gate | None = None,
    ):
        gate = gate or Gate()
        answers = {
            "exposition": staticmethod(exposition),
            "health": staticmethod(health),
            "gate": gate,
            "is_on_loopback": is_loopback(address[0]),
        }
        server = Listening6 if ":" in address[0] else Listening
        self._server = server(address, type("NodeHandler", (Handler,), answers))
        self._server.gate = gate
        self._scheme = "https" if gate.context else "http"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.5,), name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        return self._server.server_address[:2]

    @property
    def url(self) -> str:
        host, port = self.address
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(1.0)
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "goodput", ""
    timeout = IDLE_SECONDS_MAX
    # Without it the body waits for the client's delayed acknowledgement of the headers.
    disable_nagle_algorithm = True
    exposition: Callable[[], bytes]
    health: Callable[[], str | None]
    gate: Gate
    is_on_loopback: bool

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        refusal = None if path == "/healthz" else self._refusal()
        if refusal:
            self._answer(refusal[0], TEXT, f"{refusal[1]}\n".encode())
        elif path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            problem = self.health()
            self._answer(503 if problem else 200, TEXT, f"{problem or 'ok'}\n".encode())
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", INDEX)
        else:
            self._answer(404, TEXT, b"not found\n")

    do_HEAD = do_GET

    def _refusal(self) -> tuple[int, str] | None:
        hosts = self.headers.get_all("Host", [])
        misnamed = self.gate.misnamed(hosts) if self.is_on_loopback else None
        return misnamed or self.gate.refusal(self._authorization())

    def _authorization(self) -> str | None:
        """None where the header is absent, and what is no token where it is there twice."""
        found = self.headers.get_all("Authorization", [])
        return found[0] if len(found) == 1 else "twice" if found else None

    def _metrics(self) -> None:
        try:
            body = self.exposition()
        except Exception:
            log.exception("no exposition")
            self._answer(500, TEXT, b"no exposition, see the agent's log\n")
            return
        self._answer(200, METRICS, body)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in SECURITY:
            self.send_header(name, value)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Bearer realm="goodput"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments) -> None:
        pass


class Listening(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    gate: Gate

    def __init__(self, address: tuple[str, int], handler: type):
        self._open: dict[int, socket.socket] = {}  # oldest first
        self._open_lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service who we are, which can take many seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def get_request(self):
        """The handshake comes with the first byte that is read, in the client's own thread and within its time."""
        request, client_address = super().get_request()
        if self.gate.context:
            request.settimeout(IDLE_SECONDS_MAX)
            hello = {"server_side": True, "do_handshake_on_connect": False, "suppress_ragged_eofs": True}
            request = self.gate.context.wrap_socket(request, **hello)
        return request, client_address

    def service_actions(self) -> None:
        try:
            self.gate.look()
        except Exception:
            log.exception("looking at tokens and certificates failed")

    def process_request(self, request, client_address) -> None:
        with self._open_lock:
            if len(self._open) >= CONNECTIONS_MAX:
                cut(self._open.pop(next(iter(self._open))))
            self._open[id(request)] = request
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        with self._open_lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._open_lock:
            for request in self._open.values():
                cut(request)
            self._open.clear()

    def handle_error(self, request, client_address) -> None:
        pass  # A client that went away is its own affair.


class Listening6(Listening):
    address_family = socket.AF_INET6


def cut(request: socket.socket) -> None:
    """End a connection from outside its thread, which then sees the end of the stream."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
