"""The part of a Kubernetes API server that lists the pods of a namespace: TLS, a token, a selector, pages, and errors.

with KubernetesApi(folder, certificate, key) as api:
    api.pods["train-0"] = api.pod("train", "Running")
"""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

from support.servers import http_server

TOKEN, PAGE = "service-account-token", 2
PATH = re.compile(r"/api/v1/namespaces/([a-z0-9-]+)/pods")


class KubernetesApi:
    """`pods` by name; `status` is what is answered instead of a list, and with 403 where the account has no Role: in
    other namespaces than `allowed`. `lists` counts whole lists that were read."""

    def __init__(self, certificate: str, key: str):
        self.pods: dict[str, dict] = {}
        self.status, self.lists, self.problems = 200, 0, list[str]()
        self.allowed = {"ml"}
        self._server = http_server.HttpServer(self._handler(), (certificate, key))
        self.port = self._server.port

    def __enter__(self) -> KubernetesApi:
        return self

    def __exit__(self, *_) -> None:
        self._server.close()

    @staticmethod
    def pod(run: str, phase: str, finished: str | None = None, namespace: str = "ml", **labels: str) -> dict:
        """As the API shows it; `finished` is when its container ended."""
        state = {"terminated": {"exitCode": 1, "finishedAt": finished}} if finished else {"running": {}}
        labels = {"app": "train", "goodput-run": run, **labels}
        return {
            "metadata": {"name": run, "namespace": namespace, "labels": labels},
            "status": {"phase": phase, "containerStatuses": [{"name": "train", "state": state}]},
        }

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict]:
        url = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if authorization != f"Bearer {TOKEN}":
            return 401, {"kind": "Status", "status": "Failure", "code": 401}
        asked = PATH.fullmatch(url.path)
        if asked is None or query.keys() - {"labelSelector", "limit", "continue"}:
            self.problems.append(path)
            return 404, {"kind": "Status", "status": "Failure", "code": 404}
        if self.status != 200:
            return self.status, {"kind": "Status", "status": "Failure", "code": self.status}
        if asked[1] not in self.allowed:
            return 403, {"kind": "Status", "status": "Failure", "code": 403}
        found = [
            one
            for one in self.pods.values()
            if one["metadata"]["namespace"] == asked[1]
            and selects(query["labelSelector"], one["metadata"]["labels"])
        ]
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


def selects(selector: str, labels: dict[str, str]) -> bool:
    """Of the grammar of selectors only `name` and `name=value`, with commas between."""
    for term in selector.split(","):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True
