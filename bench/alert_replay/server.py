"""A Prometheus process that is filled with samples of the past by remote write, and evaluates expressions over them.

Rules are not loaded into it: a Prometheus evaluates rules only at the present. Its head block is given a length of 62
days, so that it accepts samples of any series in any order within half of that, and nothing is compacted meanwhile.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import httpx
import msgspec
import numpy as np

from bench.alert_replay import wire

READY_SECONDS_MAX = 30
# Prometheus returns no more points of a series in one answer.
POINTS_MAX = 11_000
BATCH_SAMPLES = 400_000
QUERIES_AT_ONCE = 3


class _Row(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Row]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


_decode = msgspec.json.Decoder(_Answer).decode
Matrix = list[tuple[dict[str, str], np.ndarray, np.ndarray]]  # labels, times in seconds, values


class PrometheusError(RuntimeError):
    """Prometheus refused a request; the message has its error and the expression."""


class Server:
    """A context manager; the data lies in `directory`, which the caller removes."""

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        if shutil.which("prometheus") is None:
            raise PrometheusError("prometheus is not installed (Debian package prometheus)")
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=600, trust_env=False)
        self._process: subprocess.Popen | None = None
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(QUERIES_AT_ONCE)
        self._log = self.directory / "prometheus.log"
        self.written = self.queries = 0

    def __enter__(self) -> Server:
        config = self.directory / "prometheus.yml"
        config.write_text("global: {}\n")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self.directory / 'data'}",
                    *("--storage.tsdb.min-block-duration=62d", "--storage.tsdb.max-block-duration=62d"),
                    *("--storage.tsdb.retention.time=20y", "--storage.tsdb.wal-compression"),
                    *("--query.max-samples=200000000", "--query.timeout=10m"),
                    *("--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{self.port}"),
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        end = time.monotonic() + READY_SECONDS_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise PrometheusError(f"prometheus did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._http.close()
        if self._process is not None and self._process.poll() is None:
            # Killed: its data is not kept, so it need not write its head block.
            self._process.kill()
            self._process.wait(10)

    def write(self, series: Iterable[tuple[dict[str, str], np.ndarray, np.ndarray]]) -> None:
        """Send series (labels with __name__, times in s, values), each newer than what was sent of it before."""
        batch, count = [], 0
        for labels, times, values in series:
            if not len(values):
                continue
            batch.append((labels, np.rint(times * 1000).astype(np.int64), values))
            count += len(values)
            if count >= BATCH_SAMPLES:
                self._send(batch)
                batch, count = [], 0
        if batch:
            self._send(batch)

    def matrix(self, expr: str, start: float, end: float, step: float) -> Matrix:
        """The expression's values at start, start + step, … up to end."""
        found: dict[tuple, tuple[dict, list, list]] = {}
        pieces = []
        while start <= end:
            until = min(end, start + (POINTS_MAX - 1) * step)
            pieces.append((start, until))
            start = until + step
        for rows in self._pool.map(lambda piece: self._query(expr, piece[0], piece[1], step), pieces):
            for row in rows:
                at, value = zip(*row.values, strict=True)
                kept = found.setdefault(tuple(sorted(row.metric.items())), (row.metric, [], []))
                kept[1].append(np.array(at))
                kept[2].append(np.array(value, float))
        return [(m, np.concatenate(t), np.concatenate(v)) for m, t, v in found.values()]

    def matrices(self, queries: list[tuple[str, float, float, float]]) -> list[Matrix]:
        """The results of several (expression, start, end, step), in order."""
        return list(self._pool.map(lambda query: _matrix(self._query(*query)), queries))

    def _query(self, expr: str, start: float, end: float, step: float) -> list[_Row]:
        parameters = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        self.queries += 1
        # Tens of thousands of small queries: httpx takes longer for each than Prometheus does.
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection("127.0.0.1", self.port, timeout=600)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self._local.connection.request("POST", "/api/v1/query_range", urlencode(parameters), form)
        answer = _decode(self._local.connection.getresponse().read())
        if answer.status != "success":
            raise PrometheusError(f"{answer.error}\nin: {expr}")
        return answer.data.result

    def _send(self, batch: list) -> None:
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        answer = self._http.post("/api/v1/write", content=wire.request(batch), headers=headers)
        if answer.status_code != 204:
            raise PrometheusError(f"remote write: {answer.status_code} {answer.text[:500]}")
        self.written += sum(len(values) for _, _, values in batch)

    def _is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False


def _matrix(rows: list[_Row]) -> Matrix:
    found = []
    for row in rows:
        at, value = zip(*row.values, strict=True)
        found.append((row.metric, np.array(at), np.array(value, float)))
    return found
