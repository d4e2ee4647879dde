"""An OTLP/HTTP receiver on loopback that decodes with the official protobufs and misbehaves on call."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Point(NamedTuple):
    """One data point; `kind` is gauge, counter, updowncounter or histogram."""

    name: str
    unit: str
    kind: str
    attributes: dict[str, str]
    resource: dict[str, str]
    data: object  # the message


class Receiver:
    """`answer(handler, body)` answers by itself and returns True, or returns what is answered with status 200."""

    def __init__(self, certificate: tuple[Path, Path] | None = None):
        """With a certificate and its key it speaks TLS."""
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable = lambda handler, body: ExportMetricsServiceResponse().SerializeToString()
        self.arrived = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.headers.append({"path": self.path, **dict(self.headers)})
                outer.arrived.set()
                answer = outer.answer(self, body)
                if answer is not True:
                    outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                    send(self, 200, answer)

            def log_message(self, *_):
                pass

        class Listening(ThreadingHTTPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, *_):
                pass

        self._server = Listening(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' * bool(certificate)}://127.0.0.1:{self._server.server_address[1]}/v1/metrics"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def points(self) -> list[Point]:
        """All points of all requests."""
        return [point for request in self.requests for point in points_of(request)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def send(handler, status: int, body: bytes, **headers: str) -> bool:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
    return True


def points_of(request: ExportMetricsServiceRequest) -> list[Point]:
    found = []
    for of_resource in request.resource_metrics:
        resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                which = metric.WhichOneof("data")
                data = getattr(metric, which)
                kind = which if which != "sum" else "counter" if data.is_monotonic else "updowncounter"
                for point in data.data_points:
                    attributes = {one.key: one.value.string_value for one in point.attributes}
                    assert len(attributes) == len(point.attributes), "attributes are unique"
                    found.append(Point(metric.name, metric.unit, kind, attributes, resource, point))
    return found
