"""The part of a Kubernetes API server that lists pods: TLS, a bearer token, a label selector, pages, and errors on request.

with KubernetesApi(folder, certificate, key) as api:
    api.pods["train-0"] = api.pod("train", "Running")
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

from support.servers import http_server

PATH, TOKEN, PAGE = "/api/v1/pods", "service-account-token", 2


class KubernetesApi:
    """`pods` by name; `status` is what is answered instead of a list; `lists` counts whole lists that were read."""

    def __init__(self, certificate: str, key: str):
        self.pods: dict[str, dict] = {}
        self.status, self.lists, self.problems = 200, 0, list[str]()
        self._server = http_server.HttpServer(self._handler(), (certificate, key))
        self.port = self._server.port

    def __enter__(self) -> KubernetesApi:
        return self

    def __exit__(self, *_) -> None:
        self._server.close()

    @staticmethod
    def pod(run: str, phase: str, finished: str | None = None) -> dict:
        """As the API shows it; `finished` is when its container ended."""
        state = {"terminated": {"exitCode": 1, "finishedAt": finished}} if finished else {"running": {}}
        labels = {"app": "train", "goodput-run": run}
        return {
            "metadata": {"name": run, "namespace": "ml", "labels": labels},
            "status": {"phase": phase, "containerStatuses": [{"name": "train", "state": state}]},
        }

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict]:
        url = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if authorization != f"Bearer {TOKEN}":
            return 401, {"kind": "Status", "status": "Failure", "code": 401}
        if url.path != PATH or query.keys() - {"labelSelector", "limit", "continue"}:
            self.problems.append(path)
            return 404, {"kind": "Status", "status": "Failure", "code": 404}
        if self.status != 200:
            return self.status, {"kind": "Status", "status": "Failure", "code": self.status}
        found = [one for one in self.pods.values() if query["labelSelector"] in one["metadata"]["labels"]]
        begin = int(query.get("continue", 0))
        rest = begin + PAGE < len(found)
        self.lists += not rest
        metadata = {"resourceVersion": "1", **({"continue": str(begin + PAGE)} if rest else {})}
        return 200, {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": found[begin : begin + PAGE],
        }

    def _handler(self):
        api = self

        class Handler(http_server.Handler):
            def do_GET(self):
                status, document = api.answer(self.path, self.headers.get("Authorization"))
                self.answer(status, json.dumps(document).encode(), Content_Type="application/json")

        return Handler
