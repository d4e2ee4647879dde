"""An OTLP/HTTP receiver on loopback that decodes with the official protobufs and misbehaves on call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from support.servers import http_server


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

        class Handler(http_server.Handler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.body()
                outer.headers.append({"path": self.path, **dict(self.headers)})
                outer.arrived.set()
                answer = outer.answer(self, body)
                if answer is not True:
                    outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                    self.answer(200, answer)

        self._server = http_server.HttpServer(Handler, certificate)
        self.url = f"{self._server.url}/v1/metrics"

    def points(self) -> list[Point]:
        """All points of all requests."""
        return [point for request in self.requests for point in points_of(request)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()


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
