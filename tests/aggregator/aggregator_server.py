"""The aggregator's app on a real HTTP server of its own, on a free port of loopback, in a thread."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import httpx
import uvicorn

READY_SECONDS_MAX = 10


@contextmanager
def serving(app):
    """Yields an httpx.Client of the running app."""
    config = {"host": "127.0.0.1", "port": 0, "log_level": "critical", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=2, **config))
    listener = server.config.bind_socket()
    # run(), not serve() on a loop of ours: it takes uvloop, as `goodput serve` does.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the aggregator did not start"
        time.sleep(0.002)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        # Without trust_env a proxy of the environment would be asked for loopback.
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(READY_SECONDS_MAX)
        listener.close()
