"""The aggregator's app on the HTTP server of `goodput serve`, on a free port of loopback, in a thread."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.aggregator.reports import body_of

from goodput.cli.serve import listening_socket, server_of
from goodput.metrics import CATALOGUE
from goodput.wire import schema

READY_SECONDS_MAX = 60


@contextmanager
def serving(app, whole: bool = True):
    """Yields an httpx.Client of the running app, once it has read its ledger, or with `whole` false as it listens."""
    server = server_of(app)
    server.config.timeout_graceful_shutdown = 2
    listener = listening_socket("127.0.0.1", 0)
    # Not uvloop, which `goodput serve` takes: it runs Python between fork and exec, and in a process of tests that has
    # used PyTorch's gloo a destructor waits there for ever.
    server.config.loop = "asyncio"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not (server.started and (app.state.startup.is_whole or not whole)):
        assert thread.is_alive() and time.monotonic() < deadline, "the aggregator did not start"
        time.sleep(0.002)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        # Without trust_env a proxy of the environment would be used for loopback.
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(READY_SECONDS_MAX)
        listener.close()


def push(client, *ranks: schema.RankReport, **given) -> schema.Ack:
    answer = client.post("/api/v1/ingest", content=body_of(*ranks, **given))
    assert (answer.status_code, answer.headers["content-type"]) == (200, schema.CONTENT_TYPE), answer.text
    return schema.decode_ack(answer.content)


def samples(client) -> dict[tuple, float]:
    """(series, label values in the catalogue's order …) and value of everything on /metrics."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    found = [sample for family in families for sample in family.samples]
    return {
        (s.name, *(s.labels[name] for name in CATALOGUE[s.name].labels)): s.value
        for s in found
        if s.name in CATALOGUE
    }
