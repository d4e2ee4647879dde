"""NVIDIA GPUs from the /metrics page of a dcgm-exporter, where DCGM itself cannot be accessed.

The exporter collects every 30 s by default: a page with the same content is the same measurement, so `monotonic_ns`
is when the page last changed. The page only has each GPU's last XID, from 4.4 on not before there was one, and no
GPU that was lost; collectors/gpus/damage.py makes events of both. Pids are not on it.

The page is not trusted: at most PAGE_BYTES_MAX, SECONDS_MAX in all, no redirect, no proxy; a bad line costs only that
line and is a problem. Each distinct label set is parsed once: 8 GPUs × 30 lines cost 1.2 ms, and nothing while the
page does not change. Fetching with a plain HTTP/1.0 request takes 2 MiB less memory than urllib.request and 12 MiB
less than httpx, and bounds the time of the whole page.
"""

from __future__ import annotations

import functools
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.pci import normalize
from goodput_exporters.gpu.sample import GPUS_MAX, PODS_MAX, PROBLEMS_MAX, TEXT_MAX, Gpu, Sample

PAGE_BYTES_MAX = 8 << 20
SECONDS_MAX = 3.0
_LABEL_SETS_MAX = 16_384
_NAME_END = re.compile(r"[{\s]")
_LINE_MAX = 4096
# Longer than any device name, and short enough that two fit into a text.
_LABEL_MAX = 100
_CHUNK_BYTES = 1 << 16


class Source(NamedTuple):
    """The GPU of a line and, with MIG, the instance, from its labels."""

    uuid: str
    index: int
    model: str
    pci: str
    driver_version: str
    instance: str
    profile: str


Pod = tuple[str, str, str]  # its name, its namespace, and the container


class Device(NamedTuple):
    """A GPU or an instance: its identity, its values by field ID, and the pods of its lines, in order."""

    source: Source
    values: dict[int, float]
    pods: dict[Pod, None]


Devices = dict[tuple[str, str], Device]  # by UUID and instance


class LineError(ValueError):
    """A line of the page is unusable."""


class DcgmEndpoint:
    name = "dcgm_endpoint"

    def __init__(self, options: Options, monotonic_ns: Callable[[], int] = time.monotonic_ns):
        self._url, self._monotonic_ns = options.dcgm_endpoint, monotonic_ns
        self._page: bytes | None = None
        self._changed_ns = 0
        self._gpus: list[Gpu] = []
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
            self._page, self._changed_ns = page, self._monotonic_ns()
            devices, self._problems = parse_page(page.decode("utf-8", "replace"))
            if not devices:
                self._problems.append(f"{self._url}: no GPU values on the page")
            self._gpus = [self._gpu(*device) for device in devices.values()]
            self._cycles.keep(set(devices))
        return Sample(
            driver=self.name,
            monotonic_ns=self._changed_ns,
            gpus=self._gpus,
            full=True,  # the page has everything
            problems=self._problems[:PROBLEMS_MAX],
        )

    def _gpu(self, source: Source, values: dict[int, float], pods: dict[Pod, None]) -> Gpu:
        readings = fields.readings_of(values, bool(source.instance))
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
            readings=readings,
            last_xid=None if source.instance else last_xid(values),
            pods=list(pods),
        )


def last_xid(values: Mapping[int, object]) -> int | None:
    number = fields.number_of(fields.FIELDS[fields.XID], values.get(fields.XID))
    return None if number is None else int(number)


def parse_page(text: str) -> tuple[Devices, list[str]]:
    """The devices on a page, and its problems."""
    devices: Devices = {}
    problems: list[str] = []
    for at, line in enumerate(text.split("\n"), 1):
        try:
            _add_line(line.strip(), devices)
        except (LineError, ValueError) as error:
            if len(problems) < PROBLEMS_MAX:
                problems.append(f"line {at}: {error}"[:TEXT_MAX])
    return devices, problems


def _add_line(line: str, devices: Devices) -> None:
    if not line.startswith("DCGM_FI_") or fields.field_of_name(_NAME_END.split(line, 1)[0]) is None:
        return  # a comment, a series of the exporter itself, or a field that is not used
    if len(line) > _LINE_MAX:
        raise LineError(f"{len(line)} characters, {_LINE_MAX} at most")
    head, brace, tail = line.rpartition("}")
    name, source, pod = source_of(head + brace)
    value = value_of(tail)
    field = fields.field_of_name(name, value)
    if field is None:
        return
    whole = source._replace(instance="", profile="")
    # With MIG the exporter repeats the whole GPU's values for each instance.
    values, pods = _device_of(devices, source if field.instance else whole)
    if field.instance and source.instance:
        _device_of(devices, whole)
    # A pod that has an instance has not the whole GPU.
    if pod is not None and (field.instance or not source.instance) and len(pods) < PODS_MAX:
        pods[pod] = None
    known = values.setdefault(field.number, value)
    if known != value and (field.instance or not source.instance):
        raise LineError(f"a second value for {name} of {source.uuid}")


def _device_of(devices: Devices, source: Source) -> tuple[dict[int, float], dict[Pod, None]]:
    """The values and pods of a device, which is added or completed."""
    key = (source.uuid, source.instance)
    known, values, pods = devices.get(key) or (None, {}, {})
    if known is None and len(devices) >= GPUS_MAX:
        raise LineError(f"more than {GPUS_MAX} GPUs and instances")
    if known != source:
        # Not every line has every label: combine all lines of a GPU; where they differ, the first wins.
        if known is not None:
            source = Source._make(old or new for old, new in zip(known, source, strict=True))
        devices[key] = Device(source, values, pods)
    return values, pods


@functools.lru_cache(_LABEL_SETS_MAX)
def source_of(head: str) -> tuple[str, Source, Pod | None]:
    """A line's name, device and pod. Raises ValueError."""
    if not head:
        raise LineError("no labels")
    try:
        (family,) = text_string_to_metric_families(head + " 0")
        (sample,) = family.samples
    except Exception as error:
        # The parser has no exception of its own and raises IndexError for some texts.
        raise LineError(f"malformed: {type(error).__name__}") from None
    # Normalise the spellings: UUID and gpu_uuid, modelName and model_name, GPU_I_ID and gpu_i_id.
    labels = {name.replace("_", "").lower(): value[:_LABEL_MAX] for name, value in sample.labels.items()}
    uuid = labels.get("uuid") or labels.get("gpuuuid") or ""
    if not uuid:
        raise LineError("no label with the GPU's UUID (UUID, gpu_uuid)")
    index = labels.get("gpu", "")
    pod = labels.get("pod", ""), labels.get("namespace", ""), labels.get("container", "")
    source = Source(
        uuid=uuid,
        index=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else 0,
        model=labels.get("modelname", ""),
        pci=normalize(labels.get("pcibusid", "")),
        driver_version=labels.get("dcgmfidriverversion") or labels.get("dcgmfisystemdriverversion") or "",
        instance=labels.get("gpuiid", ""),
        profile=labels.get("gpuiprofile", ""),
    )
    return sample.name, source, pod if pod[0] else None


def value_of(text: str) -> float:
    """A line's value; an int where it is written as one, since some fields differ in that. Raises LineError."""
    parts = text.split()
    if not 1 <= len(parts) <= 2:  # The second is a timestamp.
        raise LineError("no value, or more than one")
    try:
        if "_" in parts[0]:
            raise ValueError
        value = int(parts[0]) if parts[0].lstrip("+-").isdigit() else float(parts[0])
    except ValueError:
        raise LineError(f"{parts[0][:32]!r} is not a number") from None
    if value != value or abs(value) == float("inf"):
        raise LineError(f"the value is {value}")
    return value


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
