"""The part of a Kubernetes API server that lists pods: TLS, a bearer token, a label selector, pages, and errors on request.

with KubernetesApi(folder, certificate, key) as api:
    api.pods["train-0"] = api.pod("train", "Running")
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PATH, TOKEN, PAGE = "/api/v1/pods", "service-account-token", 2


class KubernetesApi:
    """`pods` by name; `status` is what is answered instead of a list; `lists` counts whole lists that were read."""

    def __init__(self, certificate: str, key: str):
        self.pods: dict[str, dict] = {}
        self.status, self.lists, self.problems = 200, 0, list[str]()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.port = self._server.server_address[1]

    def __enter__(self) -> KubernetesApi:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

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

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, document = api.answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
