"""The aggregator's read API as documents, with errors that an assistant can act on.

One request at a time: the tools of a server share one connection.
"""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlencode

from goodput_exporters.push.client import AggregatorClient, Answer, run_path
from goodput_exporters.push.credentials import NONE_NEEDED, Credentials, Unreachable

TIMEOUT_SECONDS = 60.0  # History of a large run takes seconds.
DOCUMENT_BYTES_MAX = 128 << 20  # That of a run with 100 000 ranks has some 40 MB.
NAMES_SUGGESTED_MAX = 5
DETAIL_CHARS_MAX = 500


class ApiError(Exception):
    """Why there is no answer, and what to do, in one line."""


class ReadApi:
    """Documents of the aggregator at `url`; each method raises ApiError."""

    def __init__(self, url: str, credentials: Credentials = NONE_NEEDED):
        self._client, self._lock = AggregatorClient(url, credentials, DOCUMENT_BYTES_MAX), threading.Lock()

    @property
    def token_is_exposed(self) -> bool:
        return self._client.token_is_exposed

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **parameters: object) -> dict[str, Any]:
        """The document at `path`; parameters that are None are left out."""
        given = urlencode({name: value for name, value in parameters.items() if value is not None})
        with self._lock:
            try:
                answer = self._client.get(f"{path}?{given}" if given else path, TIMEOUT_SECONDS)
            except Unreachable as error:
                raise ApiError(f"{self._client.url}: {self._client.explain(error)}") from error
        if answer.status != 200:
            raise ApiError(self._refusal(answer))
        found = answer.document()
        if found is None:
            raise ApiError(f"{self._client.url}: the server at this address is not an aggregator")
        return found

    def run(self, name: str, part: str = "", **parameters: object) -> dict[str, Any]:
        """A run's document, or a part of it: account, timeline, health. An unknown name lists similar ones."""
        try:
            return self.get(run_path(name, part, **parameters))
        except ApiError as error:
            if name in (".", "..") or not str(error).startswith("no run"):
                raise
            raise ApiError(f"{error}; {self._names_like(name)}") from None

    def _names_like(self, name: str) -> str:
        names = [
            run["run"] for run in self.get("/api/v1/runs", q=name[:32], limit=NAMES_SUGGESTED_MAX)["runs"]
        ]
        if names:
            return f"runs with that in their name: {', '.join(map(repr, names))}"
        names = [run["run"] for run in self.get("/api/v1/runs", limit=NAMES_SUGGESTED_MAX)["runs"]]
        return f"the newest runs are {', '.join(map(repr, names))}" if names else "there are no runs yet"

    def _refusal(self, answer: Answer) -> str:
        text = answer.detail()[:DETAIL_CHARS_MAX]
        if answer.status == 404 and text.startswith("no run"):
            return text
        advice = {
            401: "; a token of scope read is needed: goodput mcp --token-file FILE",
            403: "; the token needs the scope read",
            503: f"; try again in {answer.retry_seconds:.0f} s",
        }
        return f"{self._client.url}: HTTP {answer.status}: {text}{advice.get(answer.status, '')}"
