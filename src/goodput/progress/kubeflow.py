"""Reports progress to Kubeflow Trainer, whose controller writes it into the TrainJob's `status.trainerStatus`.

Names and body are those of KEP-2779 of github.com/kubeflow/trainer, in releases from 2.2 on with the feature gate
TrainJobStatus: KUBEFLOW_TRAINER_SERVER_URL is where to POST, KUBEFLOW_TRAINER_SERVER_CA_CERT the file with its authority,
KUBEFLOW_TRAINER_SERVER_TOKEN the file with the bearer token, which is replaced from time to time.

    sender = Sender.from_environment(os.environ)
    if sender: problem = sender.send(progress, time.time())
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from goodput.progress import KUBEFLOW_URL
from goodput.progress.estimate import Progress

CA_CERT, TOKEN = "KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"
OFF = "GOODPUT_KUBEFLOW"  # "0" turns it off
TIMEOUT_SECONDS, TOKEN_BYTES_MAX = 5.0, 16 << 10
_INT32_MAX = 2**31 - 1


class Sender:
    """Posts to one URL. Redirects and proxies are not followed, so the token is sent nowhere else."""

    def __init__(self, url: str, ca_cert: str, token: str):
        self._url, self._ca_cert, self._token = urlsplit(url), ca_cert, token

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Sender | None:
        """None where a variable is missing, as outside of a TrainJob."""
        found = [environ.get(name) for name in (KUBEFLOW_URL, CA_CERT, TOKEN)]
        if not all(found) or environ.get(OFF) == "0":
            return None
        return cls(*map(str, found))

    def send(self, progress: Progress, now: float) -> str:
        """Post the progress at `now`, unix seconds; returns why that failed, "" if it did not. Raises nothing."""
        try:
            return self._post(json.dumps(body(progress, now)).encode())
        except (OSError, ValueError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__

    def _post(self, content: bytes) -> str:
        if self._url.scheme != "https" or not self._url.hostname:
            return f"{KUBEFLOW_URL} is no https address"
        with open(self._token, "rb") as file:
            token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        context = ssl.create_default_context(cafile=self._ca_cert)
        connection = http.client.HTTPSConnection(
            self._url.hostname, self._url.port, timeout=TIMEOUT_SECONDS, context=context
        )
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            path = self._url.path + (f"?{self._url.query}" if self._url.query else "")
            connection.request("POST", path, content, headers)
            status = connection.getresponse().status
            return "" if 200 <= status < 300 else f"HTTP {status}"
        finally:
            connection.close()


def body(progress: Progress, now: float) -> dict[str, Any]:
    """The request's JSON object; what is unknown is left out. Metrics are texts, as the API has them."""
    status: dict[str, Any] = {"lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))}
    if progress.status == "finished":
        status["progressPercentage"] = 100
    elif progress.share is not None:
        status["progressPercentage"] = int(100 * progress.share)
    if progress.remaining_seconds is not None:
        status["estimatedRemainingSeconds"] = min(round(progress.remaining_seconds), _INT32_MAX)
    figures = {
        "goodput": progress.goodput,
        "stepsPerSecond": progress.steps_per_second,
        "currentStep": progress.done,
        "totalSteps": progress.total,
        "restarts": progress.restarts,
        "slowestRank": progress.slowest_rank,
    }
    status["metrics"] = [
        {"name": name, "value": f"{value:.6g}" if isinstance(value, float) else str(value)}
        for name, value in figures.items()
        if value is not None
    ]
    return {"trainerStatus": status}
