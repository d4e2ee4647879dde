"""Posts what /metrics shows to an OTLP receiver at intervals, from a thread of its own.

Nothing is queued: a request is made, sent for at most the timeout (10 s, OTEL_EXPORTER_OTLP_TIMEOUT) and forgotten. What
is lost with a failed one are points in time; counters go on, and the next export has their newest values. A receiver that
is dead, slow or refuses delays this thread alone. An answer is read up to ANSWER_BYTES_MAX.

    exporter = OtlpExporter(OtlpSettings("http://127.0.0.1:4318/v1/metrics"), "goodput_node", agent.samples, {})
    exporter.start(); exporter.stop()
"""

from __future__ import annotations

import io
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping

import requests
import urllib3
import urllib3.connection
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from requests.adapters import HTTPAdapter

from goodput import __version__
from goodput.access.exchange_deadline import ExchangeDeadline
from goodput.otlp.points import Points
from goodput.otlp.settings import Collect, OtlpSettings

log = logging.getLogger("goodput.otlp")
ANSWER_BYTES_MAX, ANSWER_SECONDS_MAX = 65_536, 10.0
JOIN_SECONDS_MAX = 1.0
ACCEPTED, REFUSED, UNREACHABLE, FAILED = "accepted", "refused", "unreachable", "failed"


class OtlpExporter:
    """`prefix` is that of its own series; `attributes` describe the resource, where the environment does not."""

    def __init__(
        self, settings: OtlpSettings, prefix: str, collect: Collect, attributes: Mapping[str, str], **options
    ):
        """`options` are OTLPMetricExporter's, instead of the environment's."""
        self._settings, self._prefix, self._collect = settings, prefix, collect
        self._points = Points(resource_of(attributes, settings.cluster))
        self._session = BoundedSession()
        # It logs each failure; `_log_change` logs each change once.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._client = OTLPMetricExporter(settings.url, session=self._session, **options)
        self._exports: Counter[str] = Counter(dict.fromkeys((ACCEPTED, REFUSED, UNREACHABLE, FAILED), 0))
        self._sent: Counter[str] = Counter(dict.fromkeys((ACCEPTED, "rejected", "lost"), 0))
        self._accepted = time.monotonic()
        self._problem: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_seconds: float = JOIN_SECONDS_MAX) -> None:
        """End the thread; a request that is under way is given `wait_seconds`."""
        self._stopping.set()
        self._client.shutdown()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def collect(self, families) -> None:
        families.add_counts(f"{self._prefix}_otlp_exports_total", "outcome", self._exports)
        families.add_counts(f"{self._prefix}_otlp_points_total", "outcome", self._sent)
        families.add(f"{self._prefix}_otlp_accepted_age_seconds", {}, time.monotonic() - self._accepted)

    def export(self) -> str:
        """Collect and send once; returns the outcome, which is counted. The first request that fails ends it."""
        outcome, problem = FAILED, None
        try:
            samples = self._collect()
            for request in self._points.requests(samples.parts, samples.unix_ns):
                outcome, problem = self._send(request)
                if outcome != ACCEPTED:
                    break
            else:
                self._accepted = time.monotonic()
        except Exception as error:
            problem = f"{error!r}"
        self._exports[outcome] += 1
        self._log_change(problem)
        return outcome

    def _run(self) -> None:
        # Nodes that were started together do not export together.
        wait_seconds = random.uniform(0, self._settings.interval_seconds)
        while not self._stopping.wait(wait_seconds):
            began = time.monotonic()
            self.export()
            took = time.monotonic() - began
            wait_seconds = max(self._settings.interval_seconds - took, 0.1)

    def _send(self, request: MetricsData) -> tuple[str, str | None]:
        self._session.answer, self._session.error = None, ""
        result = self._client.export(request)
        answer, points = self._session.answer, count_points(request)
        # The library reports a redirect, which it does not follow, as success; a proxy's page to sign in has status 200.
        is_success = result is MetricExportResult.SUCCESS
        if is_success and answer is not None and answer.status < 300 and not answer.is_page:
            rejected = min(answer.rejected_points, points)
            self._sent.update({ACCEPTED: points - rejected, "rejected": rejected})
            problem = f"{rejected} points rejected: {answer.message}" if rejected else None
            return ACCEPTED, problem
        self._sent["lost"] += points
        if answer is None:
            return UNREACHABLE, f"no answer ({self._session.error})"
        page = ", with a page for browsers: no OTLP receiver" if answer.is_page else ""
        return REFUSED, f"HTTP status {answer.status}{page}"

    def _log_change(self, problem: str | None) -> None:
        """Log a problem that was not there at the last export, and its end."""
        if problem == self._problem:
            return
        self._problem = problem
        if problem is None:
            log.warning("export to %s works again", self._settings.url)
        else:
            log.warning("export to %s: %s", self._settings.url, _printable(problem))


class Answer:
    """The status of an answer, and the points that it rejects with its message; `is_page` where it is HTML."""

    def __init__(self, status: int, body: bytes, content_type: str = ""):
        self.status, self.rejected_points, self.message = status, 0, ""
        self.is_page = content_type.lower().startswith("text/html")
        if status == 200 and body:
            message = ExportMetricsServiceResponse()
            try:
                message.ParseFromString(body)
            except Exception:
                return  # Some receivers answer with text.
            self.rejected_points = max(message.partial_success.rejected_data_points, 0)
            self.message = message.partial_success.error_message


class BoundedSession(requests.Session):
    """Reads a bounded part of each answer, within the timeout, and keeps what the last request ended with."""

    answer: Answer | None = None
    error = ""  # the kind of the last failure without an answer

    def __init__(self):
        super().__init__()
        self._deadline = ExchangeDeadline()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _DeadlineAdapter(self._deadline))

    def send(self, request, **options) -> requests.Response:
        seconds = options.get("timeout") or ANSWER_SECONDS_MAX
        deadline = time.monotonic() + seconds
        with self._deadline.within(seconds) as is_late:
            try:
                response = super().send(request, **{**options, "stream": True})
                if is_late():
                    # http.client takes headers that break off for whole ones.
                    raise requests.ReadTimeout("the headers were late", request=request)
            except OSError as error:  # requests' own errors are ones
                is_timeout = is_late() or isinstance(error, requests.Timeout)
                self.error = f"none within {round(seconds, 1):g} s" if is_timeout else type(error).__name__
                if is_late() and not isinstance(error, requests.Timeout):
                    # A connection error would be tried again.
                    raise requests.ReadTimeout(self.error, request=request) from error
                raise
            body = read_answer(response, deadline)
        response.raw = io.BytesIO(body)
        self.answer = Answer(response.status_code, body, response.headers.get("Content-Type", ""))
        return response

    def merge_environment_settings(self, *arguments) -> dict:
        """OTEL_EXPORTER_OTLP_CERTIFICATE prevails over REQUESTS_CA_BUNDLE, which requests itself would prefer."""
        found = dict(super().merge_environment_settings(*arguments))
        return found | ({"verify": self.verify} if isinstance(self.verify, str) else {})


class _DeadlineAdapter(HTTPAdapter):
    """Gives the sockets of all connections, also of those to a proxy, to the deadline."""

    def __init__(self, deadline: ExchangeDeadline):
        self._pools = _pools(deadline)
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *arguments, **options) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *arguments, **options):
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(deadline: ExchangeDeadline) -> dict[str, type]:
    """urllib3's pools, whose connections give their sockets to the deadline."""

    class Plain(urllib3.connection.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            deadline.connected(self.sock)

    class Tls(urllib3.connection.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            deadline.connected(self.sock)

    kinds = (("http", urllib3.HTTPConnectionPool, Plain), ("https", urllib3.HTTPSConnectionPool, Tls))
    return {scheme: type(pool.__name__, (pool,), {"ConnectionCls": kind}) for scheme, pool, kind in kinds}


def read_answer(response: requests.Response, deadline: float) -> bytes:
    """The body; empty if it is too long or not whole by the deadline, and then the connection is closed."""
    body, raw = b"", response.raw
    # One call of `read` waits until all bytes are there, however slowly they arrive.
    read = getattr(raw, "read1", raw.read)
    while len(body) <= ANSWER_BYTES_MAX and time.monotonic() < deadline:
        try:
            part = read(8192)
        except Exception:
            break  # The status was received; the body only explains it.
        if not part:
            return body
        body += part
    response.close()
    return b""


def count_points(request: MetricsData) -> int:
    return sum(
        len(metric.data.data_points)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )


def resource_of(attributes: Mapping[str, str], cluster: str) -> Resource:
    """The resource of everything exported; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME prevail."""
    own = {"service.version": __version__, **attributes}
    if cluster:
        own["goodput.cluster"] = cluster
    return Resource(own).merge(OTELResourceDetector().detect())


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:500])
