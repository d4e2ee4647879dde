"""HTTP servers that stand in for others: on loopback, in threads, silent about requests and about clients that leave."""

from __future__ import annotations

import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Handler(BaseHTTPRequestHandler):
    # An answer in one piece: two would each time wait for the kernel's delayed acknowledgement.
    wbufsize = -1

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> bool:
        """Send a whole answer; an underscore in a header's name stands for a hyphen. Returns True."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **named}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        return True

    def log_message(self, *_):
        pass


class HttpServer(ThreadingHTTPServer):
    """Serves from when it is made until `close`, over TLS with a (certificate, key)."""

    daemon_threads, block_on_close = True, False

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], certificate=None, host: str = "127.0.0.1", port: int = 0
    ):
        super().__init__((host, port), handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.port = self.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http{'s' * bool(certificate)}://{self.address}"
        self._thread = Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def handle_error(self, *_):
        pass

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
