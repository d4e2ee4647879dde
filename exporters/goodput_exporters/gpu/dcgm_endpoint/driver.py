"""NVIDIA GPUs from the /metrics page of a dcgm-exporter, where DCGM itself cannot be accessed.

The exporter collects every 30 s by default: a page with the same content is the same measurement, so `monotonic_ns`
is when the page last changed. The page only has each GPU's last XID, from 4.4 on not before there was one, and no
GPU that was lost; collectors/gpus/damage.py makes events of both. Pids are not on it.

The page is not trusted: at most PAGE_BYTES_MAX, SECONDS_MAX in all, no redirect, no proxy. 8 GPUs × 30 lines cost 1.2 ms,
and nothing while the page does not change. Fetching with a plain HTTP/1.0 request takes 2 MiB less memory than urllib.request and 12 MiB
less than httpx, and bounds the time of the whole page.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from types import SimpleNamespace
from urllib.parse import urlsplit

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.dcgm_endpoint.page import Device, last_xid, parse_page
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.sample import PROBLEMS_MAX, Component, Gpu, Sample

PAGE_BYTES_MAX = 8 << 20
SECONDS_MAX = 3.0
_CHUNK_BYTES = 1 << 16


class DcgmEndpoint:
    name = "dcgm_endpoint"
    # Each page is requested anew. After an outage of minutes the process would be replaced minutes later.
    is_reopened = False

    def __init__(self, options: Options, monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self._url, self._monotonic_ns = options.dcgm_endpoint, monotonic_ns
        self._page: bytes | None = None
        self._changed_ns = 0
        self._gpus: list[Gpu] = []
        self._components: list[Component] = []
        self._extra = frozenset(options.dcgm_fields)
        self._problems: list[str] = []
        self._cycles = fields.SmCycles()

    def open(self) -> None:
        if not self._url:
            raise NoData("no dcgm-exporter is configured")
        parse_url(self._url)

    def close(self) -> None:
        self._page = None

    def sample(self, full: bool) -> Sample:
        page = fetch(self._url)
        if page != self._page:
            changed_ns = self._monotonic_ns()
            parsed = parse_page(page.decode("utf-8", "replace"), self._extra)
            self._problems, self._components = parsed.problems, parsed.component_records()
            if not parsed.devices:
                self._problems.append(f"{self._url}: no GPU values on the page")
            self._gpus = [self._gpu(device) for device in parsed.devices.values()]
            self._cycles.keep(set(parsed.devices))
            # Not before: a page that fails is read again, and is not taken for the one before it.
            self._page, self._changed_ns = page, changed_ns
        return Sample(
            driver=self.name,
            monotonic_ns=self._changed_ns,
            gpus=self._gpus,
            full=True,  # the page has everything
            problems=self._problems[:PROBLEMS_MAX],
            components=self._components,
        )

    def _gpu(self, device: Device) -> Gpu:
        source, values = device.source, device.values
        readings = fields.readings_of(values, bool(source.instance)) | device.readings
        self._cycles.add_activity((source.uuid, source.instance), values, readings)
        uuid = fields.instance_uuid(source.uuid, source.instance) if source.instance else source.uuid
        return Gpu(
            uuid=uuid,
            index=source.index,
            model=source.model,
            pci=source.pci,
            driver_version=source.driver_version,
            parent=source.uuid if source.instance else "",
            profile=source.profile,
            instance=source.instance,
            readings=readings,
            last_xid=None if source.instance else last_xid(values),
            pods=list(device.pods),
        )


def parse_url(url: str) -> tuple[bool, str, int | None, str]:
    """(TLS, host, port, path with query) of the endpoint. Raises CollectorError."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise CollectorError(f"dcgm-exporter endpoint {url[:100]!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or any(letter <= " " for letter in url):
        raise CollectorError(f"dcgm-exporter endpoint {url[:100]!r}: not an http:// or https:// URL")
    path = parts.path or "/metrics"
    return parts.scheme == "https", host, port, f"{path}?{parts.query}" if parts.query else path


def fetch(url: str, seconds_max: float = SECONDS_MAX) -> bytes:
    """The page. Raises CollectorError for a timeout, a status other than 200, or too large a page."""
    secure, host, port, path = parse_url(url)
    try:
        answer = _exchange(
            secure, host, port or (443 if secure else 80), path, time.monotonic() + seconds_max
        )
        # HTTPResponse uses nothing else of a socket.
        complete = SimpleNamespace(makefile=lambda mode: io.BytesIO(answer))
        response = http.client.HTTPResponse(complete)  # pyright: ignore[reportArgumentType]
        response.begin()
        if response.status != 200:
            hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
            raise CollectorError(f"{url}: status {response.status}{hint}")
        if encoding := response.getheader("Content-Encoding", ""):
            raise CollectorError(f"{url}: the page is compressed ({encoding[:32]}), which was not requested")
        return response.read()
    except TimeoutError:
        raise CollectorError(f"{url}: page not complete within {seconds_max:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CollectorError(f"{url}: {str(error)[:120] or type(error).__name__}") from None


def _exchange(secure: bool, host: str, port: int, path: str, end: float) -> bytes:
    """The whole response. HTTP/1.0, so that the server closes at its end; `end` is time.monotonic()."""
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: text/plain\r\n\r\n"
    chunks, size = [], 0
    with socket.create_connection((host, port), _left(end)) as plain:
        connection = (
            ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
        )
        connection.sendall(request.encode())
        while True:
            connection.settimeout(_left(end))
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                return b"".join(chunks)
            size += len(chunk)
            if size > PAGE_BYTES_MAX:
                raise ValueError(f"more than {PAGE_BYTES_MAX} bytes")
            chunks.append(chunk)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
