"""A real aggregator over HTTP and node reports of whole runs, with ranks in lock step, for the tests of the page."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from goodput.cli.serve import listening_socket
from goodput.wire import schema

uvicorn = pytest.importorskip("uvicorn")
msgspec = pytest.importorskip("msgspec")
app_module = pytest.importorskip("goodput.aggregator.api.app")

PHASES = (
    "none",
    "loader",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "restore",
    "rollout",
)
SECOND = 1_000_000_000


# ---- A run, as the agents of its nodes would report it -------------------------------------------------------


class RankProcess:
    """One rank process and what its page would hold; `spend` advances its clock."""

    def __init__(self, run: str, rank: int, attempt: int, world_size: int, start_ns: int, **identity):
        self.identity = schema.Identity(
            run=run, rank=rank, attempt=attempt, world_size=world_size, host=f"gpu-node-{rank // 2:02d}",
            pid=1000 * attempt + rank, start_ns=start_ns, **({"device": "NVIDIA H100 80GB HBM3"} | identity),
        )  # fmt: skip
        self.now_ns = self.last_ns = start_ns
        self.totals, self.outside = [0] * len(PHASES), [0] * len(PHASES)
        self.rows: list[schema.StepRow] = []
        self.phase = "none"

    def spend(self, phase: str, seconds: float, outside: bool = False) -> None:
        ns = round(seconds * SECOND)
        self.last_ns, self.phase = self.now_ns, phase
        self.now_ns += ns
        self.totals[PHASES.index(phase)] += ns
        if outside:
            self.outside[PHASES.index(phase)] += ns

    def step(self, step: int, parts: dict[str, float]) -> None:
        begun_ns = self.now_ns
        for phase, seconds in parts.items():
            self.spend(phase, seconds)
        number = len(self.rows) + 1
        self.rows.append(
            schema.StepRow(
                number, step, begun_ns, self.now_ns, 32 * number, tuple(self.totals), tuple(self.outside)
            )
        )

    def report(self, ended: str = "", alive: bool = True) -> schema.RankReport:
        live = schema.Live(
            now_ns=self.now_ns, last_ns=self.last_ns if alive else self.now_ns, phase=self.phase,
            step_next=self.rows[-1].step + 1 if self.rows else 0, steps_done=len(self.rows),
            samples=32 * len(self.rows), alive=alive, ended=ended, end_ns=self.now_ns if ended else 0,
            totals=tuple(self.totals),
        )  # fmt: skip
        return schema.RankReport(self.identity, len(self.rows), PHASES, live, steps=self.rows)


def attempt_reports(
    run, attempt, start_ns, steps, *, ranks=4, slow=3, ended="", alive=True, seen=None, **identity
):
    """One attempt of `ranks` ranks in lock step over `steps`; rank `slow` waits three times as long for data."""
    processes = [RankProcess(run, rank, attempt, ranks, start_ns, **identity) for rank in range(ranks)]
    for one in processes:
        one.spend("none", 6.0, outside=True)
        one.spend("restore", 3.5 if attempt > 1 else 0.0, outside=True)
    for step in steps:
        own = [
            {"loader": (0.24 if r == slow else 0.08) + 0.01 * ((step * 7 + r) % 3), "h2d": 0.03}
            for r in range(ranks)
        ]
        for r, parts in enumerate(own):
            parts |= {"forward": 0.31 + 0.002 * r, "backward": 0.52, "optimizer": 0.05}
            parts |= {"checkpoint": 0.6} if step % 50 == 49 else {}
        longest = max(sum(parts.values()) for parts in own)
        for one, parts in zip(processes, own, strict=True):
            one.step(step, {"none": 0.012, **parts, "communication": 0.07 + longest - sum(parts.values())})
    if alive and not ended:
        for one in processes:
            slow_one = one.identity.rank == slow
            one.spend("loader" if slow_one else "communication", 0.2)
    return [one.report(ended, alive) for one in (processes if seen is None else processes[:seen])]


def finished_run(run: str, start_ns: int) -> list[schema.RankReport]:
    """120 steps, killed, down for half a minute, resumed after step 99, finished."""
    prices = {"flops_per_step": 4.0e14, "peak_flops_per_second": 9.89e14, "gpu_hour_cost": 2.5}
    first = attempt_reports(run, 1, start_ns, range(120), alive=False, **prices)
    again_ns = max(report.live.now_ns for report in first) + 31 * SECOND
    return first + attempt_reports(run, 2, again_ns, range(100, 260), ended="finished", **prices)


def hung_run(run: str, now_ns: int, hung_seconds: float, **identity) -> list[schema.RankReport]:
    """30 steps; then rank 2 stays in its loader and the others in communication, as seen now."""
    start_ns = now_ns - round((hung_seconds + 60) * SECOND)
    processes = [RankProcess(run, rank, 1, 4, start_ns, **identity) for rank in range(4)]
    for one in processes:
        one.now_ns = now_ns - round((hung_seconds + 30) * SECOND)
        for step in range(30):
            one.step(step, {"loader": 0.1, "forward": 0.4, "backward": 0.4, "communication": 0.1})
        one.spend("loader" if one.identity.rank == 2 else "communication", hung_seconds)
    return [one.report() for one in processes]


def push(url: str, ranks: list[schema.RankReport], stacks: list[schema.Stack] | None = None) -> schema.Ack:
    body = schema.encode(schema.NodeReport("gpu-node", time.time_ns(), ranks, stacks=stacks or []))
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/api/v1/ingest", data=body), timeout=60
    ) as answer:
        ack = schema.decode_ack(answer.read())
    assert ack.accepted == len(ranks), ack.rejected
    return ack


# ---- A server ------------------------------------------------------------------------------------------------


@contextmanager
def serving(app):
    """The app on a free port of loopback; yields its URL."""
    config = {"host": "127.0.0.1", "port": 0, "log_level": "warning", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=2, **config))
    listener = listening_socket("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the aggregator did not start within 60 s"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def aggregator(folder, **options):
    return app_module.create_app(f"sqlite:///{folder}/ledger.db", **options)


def document(url: str, run: str) -> dict:
    with urllib.request.urlopen(f"{url}/api/v1/runs/{quote(run, safe='')}", timeout=60) as answer:
        return msgspec.json.decode(answer.read())


def get(url: str, path: str):
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def changed(inner, path: str, answer):
    """The app, with `answer(status, body)` -> (status, body) applied to its responses under `path`."""

    async def outer(scope, receive, send):
        if scope["type"] != "http" or not scope["path"].startswith(path):
            return await inner(scope, receive, send)
        start, body = {}, b""

        async def hold(message):
            nonlocal start, body
            start = message if "status" in message else start
            body += message.get("body", b"")

        await inner(scope, receive, hold)
        status, body = answer(start["status"], body)
        headers = [
            (name, value) for name, value in start["headers"] if name not in (b"content-length", b"etag")
        ]
        await send({**start, "status": status, "headers": headers})
        return await send({"type": "http.response.body", "body": body})

    return outer
