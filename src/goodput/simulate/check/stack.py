"""What the stack reports of a simulated cluster: a client of the aggregator, and what its series name at each scrape."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from goodput.wire import schema
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable

INGEST = "/api/v1/ingest"
# An own aggregator on a loaded machine may take long for a scrape.
TIMEOUT_SECONDS, BUSY_SECONDS = 120.0, 0.5
ONE_OF_SEVERAL_SECONDS = 10.0  # one of several aggregators, which may be stopped, as Prometheus waits
_SAMPLE = re.compile(r"^(goodput_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class StackError(Exception):
    """The aggregator does not answer as it should; the text quotes its answer."""


class StackClient:
    """Raises StackError, except `post`, which returns None where an agent would try again."""

    def __init__(
        self, url: str, credentials: Credentials = NONE_NEEDED, timeout_seconds: float = TIMEOUT_SECONDS
    ):
        self.url, self._timeout_seconds = url.rstrip("/"), timeout_seconds
        try:
            verify = credentials.context() if url.startswith("https:") else False
            headers = credentials.headers()
        except Unreachable as error:
            raise StackError(str(error)) from None
        self._client = httpx.Client(
            base_url=self.url, verify=verify, headers=headers, timeout=timeout_seconds, trust_env=False
        )

    def close(self) -> None:
        self._client.close()

    def post(self, body: bytes) -> bytes | None:
        """Push a node report; the body of the answer."""
        try:
            answer = self._client.post(INGEST, content=body, headers={"Content-Type": schema.CONTENT_TYPE})
        except httpx.TransportError:
            return None
        if answer.status_code in (429, 503):
            return None
        if answer.status_code != 200:
            raise StackError(f"{self.url}{INGEST}: {answer.status_code} {answer.text[:300]}")
        return answer.content

    def account(self, run: str, start: float | None = None, end: float | None = None) -> dict:
        """The account of a run, or of the window from `start` to `end`, unix seconds."""
        path = f"/api/v1/runs/{quote(run, safe='')}" + ("" if start is None else "/account")
        return self._get(path, {} if start is None else {"start": start, "end": end}).json()

    def series(self) -> Series:
        return Series(self._get("/metrics", {}).text)

    def reach(self) -> None:
        """Any answer will do: a push says what else is wrong."""
        try:
            self._client.get("/readyz")
        except httpx.TransportError as error:
            raise StackError(f"{self.url}: {error or type(error).__name__}") from None

    def is_ready(self) -> bool:
        try:
            return self._client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _get(self, path: str, parameters: dict) -> httpx.Response:
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                answer = self._client.get(path, params=parameters)
            except httpx.TransportError as error:
                raise StackError(f"{self.url}{path}: {error or type(error).__name__}") from None
            if answer.status_code == 200:
                return answer
            if answer.status_code != 503 or time.monotonic() > deadline:
                raise StackError(f"{self.url}{path}: {answer.status_code} {answer.text[:300]}")
            time.sleep(BUSY_SECONDS)


class Aggregators:
    """Reads from the aggregators of one installation: each shows its own runs on /metrics, and answers for all others.

    Raises StackError where none of them answers.
    """

    def __init__(self, urls: Sequence[str], credentials: Credentials = NONE_NEEDED):
        timeout = TIMEOUT_SECONDS if len(urls) == 1 else ONE_OF_SEVERAL_SECONDS
        self._clients = [StackClient(url, credentials, timeout) for url in urls]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def series(self) -> Series:
        """The series of all that answer."""
        found, errors = Series(""), []
        for client in self._clients:
            try:
                found.add(client.series())
            except StackError as error:
                errors.append(error)
        if len(errors) == len(self._clients):
            raise errors[0]
        return found

    def account(self, run: str, start: float | None = None, end: float | None = None) -> dict:
        """The account of a run, from the first one that has it: see StackClient."""
        errors = []
        for client in self._clients:
            try:
                return client.account(run, start, end)
            except StackError as error:
                errors.append(error)
        raise errors[0]


class Series:
    """The samples of a scrape by name, as (labels, value)."""

    def __init__(self, text: str):
        self._found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for name, labels, value in _SAMPLE.findall(text):
            if name in WATCHED:
                self._found[name].append((dict(_LABEL.findall(labels)), float(value)))

    def add(self, other: Series) -> None:
        for name, samples in other._found.items():
            self._found[name] += samples

    def of(self, name: str, run: str) -> list[tuple[dict[str, str], float]]:
        return [(labels, value) for labels, value in self._found[name] if labels["run"] == run]

    def one(self, name: str, run: str) -> tuple[dict[str, str], float] | None:
        return next(iter(self.of(name, run)), None)


HANG, HANG_CULPRIT = "goodput_hang_seconds", "goodput_hang_culprit_seconds"
SLOW_RANK, SLOW_STAGE = "goodput_straggler_culprit_slowness_ratio", "goodput_straggler_stage_slowness_ratio"
GPU_SECONDS, HEALTH_EVENTS = "goodput_gpu_seconds", "goodput_run_health_events"
WATCHED = {HANG, HANG_CULPRIT, SLOW_RANK, SLOW_STAGE, GPU_SECONDS, HEALTH_EVENTS}


@dataclass
class Observation:
    """What one scrape, at `now` seconds, has of a run: for how long it hangs and by which rank, which rank or stage is slow."""

    now: float
    hang_seconds: float
    hang_rank: int | None
    slow_rank: int | None
    slow_stage: int | None


def observation(series: Series, run: str, now: float) -> Observation:
    hang, culprit = series.one(HANG, run), series.one(HANG_CULPRIT, run)
    rank, stage = series.one(SLOW_RANK, run), series.one(SLOW_STAGE, run)
    return Observation(
        now,
        hang[1] if hang else 0.0,
        int(culprit[0]["rank"]) if culprit else None,
        int(rank[0]["rank"]) if rank else None,
        int(stage[0]["stage"]) if stage else None,
    )
