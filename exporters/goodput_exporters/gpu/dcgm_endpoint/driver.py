"""A dcgm-exporter's page: what DCGM says of a node's GPUs, where the exporter has it and we may not ask DCGM itself.

In: Options.dcgm_endpoint, as http://127.0.0.1:9400/metrics. Out: `Sample`s. Names are mapped to field IDs, and from
there on it is dcgm_fields.py; labels are known in each of their spellings (UUID, gpu_uuid; modelName, model_name).

The exporter collects every 30 s by default, whatever we ask for: a page with the same content is the same measurement,
so `monotonic_ns` is when the page last changed, and `window_ns` is 0, since nothing says what its activities are the
mean of. An XID on the page is the last one there was; it becomes an event when it changes to another, never at first.

The page is hostile: at most PAGE_BYTES_MAX, SECONDS_MAX in all, no redirect, no proxy; a line that cannot be read
(malformed, not a number, without the GPU's UUID, a second value for the same thing) costs that line and is a problem.
Labels are parsed by prometheus_client, once for each set of them that lasts: 8 GPUs × 30 lines then cost 1.2 ms,
and nothing while the page is the same.
The request is a plain HTTP/1.0 one, read within its bounds and then parsed by http.client: that takes 2 MiB less memory
than urllib.request and 12 MiB less than httpx, and bounds the time of the whole page. It does not know processes, and
not whether a GPU was lost: the exporter then leaves its lines out.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from goodput_exporters.collector import CollectorError, NoData
from goodput_exporters.gpu.drivers import Options
from goodput_exporters.gpu.nvidia import dcgm_fields as fields
from goodput_exporters.gpu.nvidia.xid import lookup
from goodput_exporters.gpu.pci import normal
from goodput_exporters.gpu.sample import EVENTS_MAX, GPUS_MAX, PROBLEMS_MAX, TEXT_MAX, Event, Gpu, Sample

PAGE_BYTES_MAX = 8 << 20
SECONDS_MAX = 3.0
_LABEL_SETS_MAX = 16_384
_NAME_END = re.compile(r"[{\s]")
_LINE_MAX = 4096
# Longer than any name of a device, and short enough for what is made of two.
_LABEL_MAX = 100
_CHUNK_BYTES = 1 << 16


class Source(NamedTuple):
    """What a line's labels say: the GPU it is of and, with MIG, the instance."""

    uuid: str
    index: int
    model: str
    pci: str
    driver_version: str
    instance: str
    profile: str


# By UUID and, with MIG, instance: what the labels say, and values by field ID.
Devices = dict[tuple[str, str], tuple[Source, dict[int, float]]]


class LineError(ValueError):
    """A line of the page that cannot be used; the text says why."""


class DcgmEndpoint:
    name = "dcgm_endpoint"

    def __init__(
        self,
        options: Options,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ):
        self._url = options.dcgm_endpoint
        self._monotonic_ns, self._unix_ns = monotonic_ns, unix_ns
        self._page: bytes | None = None
        self._changed_ns = 0
        self._parser = PageParser()
        self._gpus: list[Gpu] = []
        self._problems: list[str] = []
        self._xids: dict[str, int] = {}
        self._cycles = fields.SmCycles()

    def open(self) -> None:
        if not self._url:
            raise NoData("no dcgm-exporter was named")
        parts_of(self._url)

    def close(self) -> None:
        self._page = None

    def sample(self, full: bool) -> Sample:
        page = fetch(self._url)
        events: list[Event] = []
        if page != self._page:
            self._page, self._changed_ns = page, self._monotonic_ns()
            devices, self._problems = self._parser.parse(page.decode("utf-8", "replace"))
            if not devices:
                self._problems.append(f"{self._url}: no value of a GPU on the page")
            self._gpus = [self._gpu(*device) for device in devices.values()]
            self._cycles.keep(set(devices))
            events = self._events(devices)
        return Sample(
            driver=self.name,
            monotonic_ns=self._changed_ns,
            gpus=self._gpus,
            # The page has all in one; so has each sample.
            full=True,
            window_ns=0,
            events=events[:EVENTS_MAX],
            problems=self._problems[:PROBLEMS_MAX],
        )

    def _gpu(self, source: Source, values: dict[int, float]) -> Gpu:
        readings = fields.readings_of(values, bool(source.instance))
        share = self._cycles.ratio((source.uuid, source.instance), values)
        if share is not None:
            readings.setdefault("activity/sm", share)
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
        )

    def _events(self, devices: Devices) -> list[Event]:
        events, now = [], {}
        for source, values in devices.values():
            number = fields.number_of(fields.FIELDS[fields.XID], values.get(fields.XID))
            if number is None:
                continue
            now[source.uuid] = int(number)
            if number and self._xids.get(source.uuid, number) != number:
                what = lookup(int(number))
                events.append(
                    Event("xid", source.uuid, self._unix_ns(), int(number), what.name, what.severity)
                )
        # A GPU whose line is missing for a while keeps what it had; the bound is that of a sample.
        self._xids = dict(list({**self._xids, **now}.items())[-GPUS_MAX:])
        return events


class PageParser:
    """Reads pages; what it keeps between them is the meaning of each set of labels."""

    def __init__(self):
        self._sources: dict[str, tuple[str, Source]] = {}

    def parse(self, text: str) -> tuple[Devices, list[str]]:
        """What each device on a page has, and what is wrong with the page."""
        devices: Devices = {}
        problems: list[str] = []
        for at, line in enumerate(text.split("\n"), 1):
            try:
                self._add(line.strip(), devices)
            except (LineError, ValueError) as error:
                if len(problems) < PROBLEMS_MAX:
                    problems.append(f"line {at}: {error}"[:TEXT_MAX])
        return devices, problems

    def _add(self, line: str, devices: Devices) -> None:
        if not line.startswith("DCGM_FI_") or fields.field_of_name(_NAME_END.split(line, 1)[0]) is None:
            return  # A comment, a series of the exporter's own, or a field that is none of ours.
        if len(line) > _LINE_MAX:
            raise LineError(f"{len(line)} characters, {_LINE_MAX} at most")
        head, brace, tail = line.rpartition("}")
        name, source = self._source(head + brace)
        value = value_of(tail)
        field = fields.field_of_name(name, value)
        whole = source._replace(instance="", profile="")
        # With MIG the exporter writes what is the whole GPU's once for each instance: it is one value.
        values = _values_of(devices, source if field.instance else whole)
        if field.instance and source.instance:
            _values_of(devices, whole)
        known = values.setdefault(field.number, value)
        if known != value and (field.instance or not source.instance):
            raise LineError(f"a second value for {name} of {source.uuid}")

    def _source(self, head: str) -> tuple[str, Source]:
        found = self._sources.get(head)
        if found is None:
            if len(self._sources) >= _LABEL_SETS_MAX:
                self._sources.clear()
            found = self._sources[head] = source_of(head)
        return found


def _values_of(devices: Devices, source: Source) -> dict[int, float]:
    key = (source.uuid, source.instance)
    known, values = devices.get(key) or (None, {})
    if known is None and len(devices) >= GPUS_MAX:
        raise LineError(f"more than {GPUS_MAX} GPUs and instances")
    if known != source:
        # Not every line has every label: a GPU is what all of its lines say, the first of them where they differ.
        source = (
            source if known is None else Source(*(old or new for old, new in zip(known, source, strict=True)))
        )
        devices[key] = (source, values)
    return values


def source_of(head: str) -> tuple[str, Source]:
    """A line's name and what its labels say. Raises ValueError."""
    if not head:
        raise LineError("no labels, so no GPU")
    try:
        (family,) = text_string_to_metric_families(head + " 0")
        (sample,) = family.samples
    except Exception as error:
        # The parser has no error of its own, and trips over some texts with an IndexError.
        raise LineError(f"malformed: {type(error).__name__}") from None
    # One spelling for all: UUID and gpu_uuid, modelName and model_name, GPU_I_ID and gpu_i_id.
    labels = {name.replace("_", "").lower(): value[:_LABEL_MAX] for name, value in sample.labels.items()}
    uuid = labels.get("uuid") or labels.get("gpuuuid") or ""
    if not uuid:
        raise LineError("no label says which GPU (UUID, gpu_uuid)")
    index = labels.get("gpu", "")
    return sample.name, Source(
        uuid=uuid,
        index=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else 0,
        model=labels.get("modelname", ""),
        pci=normal(labels.get("pcibusid", "")),
        driver_version=labels.get("dcgmfidriverversion") or labels.get("dcgmfisystemdriverversion") or "",
        instance=labels.get("gpuiid", ""),
        profile=labels.get("gpuiprofile", ""),
    )


def value_of(text: str) -> float:
    """A line's value: an int where it is written as one, since some fields differ by that. Raises LineError."""
    parts = text.split()
    if not 1 <= len(parts) <= 2:  # The second is a timestamp.
        raise LineError("no value, or more than one")
    try:
        if "_" in parts[0]:
            raise ValueError
        value = int(parts[0]) if parts[0].lstrip("+-").isdigit() else float(parts[0])
    except ValueError:
        raise LineError(f"{parts[0][:32]!r} is no number") from None
    if value != value or abs(value) == float("inf"):
        raise LineError(f"the value is {value}")
    return value


def parts_of(url: str) -> tuple[bool, str, int | None, str]:
    """(TLS, host, port, path with query) of the endpoint. Raises CollectorError."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise CollectorError(f"dcgm-exporter endpoint {url[:100]!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or any(letter <= " " for letter in url):
        raise CollectorError(f"dcgm-exporter endpoint {url[:100]!r}: not an http:// address")
    path = parts.path or "/metrics"
    return parts.scheme == "https", host, port, f"{path}?{parts.query}" if parts.query else path


def fetch(url: str, seconds_max: float = SECONDS_MAX) -> bytes:
    """The page's bytes. Raises CollectorError where it is not there in time, not 200, or too large."""
    secure, host, port, path = parts_of(url)
    try:
        answer = _exchange(
            secure, host, port or (443 if secure else 80), path, time.monotonic() + seconds_max
        )
        response = http.client.HTTPResponse(_Answer(answer))
        response.begin()
        if response.status != 200:
            hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
            raise CollectorError(f"{url}: status {response.status}{hint}")
        return response.read()
    except TimeoutError:
        raise CollectorError(f"{url}: not all of the page within {seconds_max:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CollectorError(f"{url}: {str(error)[:120] or type(error).__name__}") from None


def _exchange(secure: bool, host: str, port: int, path: str, end: float) -> bytes:
    """All that the server sends. HTTP/1.0, so that it ends by closing; bounds are of the whole, not of one read."""
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


class _Answer:
    """What http.client wants of a socket, over bytes that are all here."""

    def __init__(self, answer: bytes):
        self._answer = answer

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._answer)
