"""The routes: ingest for agents, the JSON API, Prometheus and the built-in page.

In: HTTP. Out: HTTP. Ingest is a raw ASGI route, since agents call it by the thousand; what a person calls is
FastAPI with an OpenAPI schema at /api/v1/openapi.json.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import time
from contextlib import asynccontextmanager
from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI, HTTPException, Query, Response
from starlette.responses import FileResponse
from starlette.routing import Route

from goodput import __version__, schema
from goodput.aggregator import models
from goodput.aggregator.accounts import Accounts
from goodput.aggregator.exposition import Exposition
from goodput.aggregator.health import HealthLog
from goodput.aggregator.health_costs import HealthView
from goodput.aggregator.history import History, HistoryError
from goodput.aggregator.ingest import Ingest
from goodput.aggregator.ledger import Ledger, LedgerError
from goodput.aggregator.store import Store

log = logging.getLogger("goodput.aggregator")
RUNS_LISTED_MAX = 1000
EVENTS_LISTED, EVENTS_LISTED_MAX = 100, 1000
_Severity = Literal["info", "warning", "critical"]
_Limit = Annotated[int, Query(ge=1, le=EVENTS_LISTED_MAX)]
HANGS_EVERY_SECONDS = 2.0
_SCRIPTS = (
    *("page", "words", "numbers", "nodes", "facts", "hang"),
    *("figures", "restarts", "rolling", "straggler", "health"),
)
_PAGE_FILES = {
    "": "text/html",
    "page.css": "text/css",
    **{f"{name}.js": "text/javascript" for name in _SCRIPTS},
}


def create_app(ledger_url: str, *, stall_seconds: float = 60.0, stale_seconds: float = 30.0) -> FastAPI:
    """The aggregator as an ASGI app over the ledger at `ledger_url` (an SQLAlchemy URL)."""
    store, ledger = Store(), Ledger(ledger_url)
    accounts = Accounts(
        store, stall_seconds=stall_seconds, stale_seconds=stale_seconds, history=History(ledger_url)
    )
    log_of_health = HealthLog()
    health = HealthView(log_of_health, accounts)
    ingest = Ingest(store, ledger, hangs=accounts.hangs, health=log_of_health)
    restored = ingest.restore(then=accounts.account)
    if restored:
        log.info("restored %d rank processes of %d runs", restored, len(store.runs))

    @asynccontextmanager
    async def lifespan(_app):
        looking = asyncio.create_task(_find_hangs(accounts))
        yield
        looking.cancel()
        ledger.close()

    app = FastAPI(
        title="goodput",
        version=__version__,
        description="Where the GPU time of training runs went.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.ledger_url = ledger.url
    app.router.routes.append(Route("/api/v1/ingest", _IngestRoute(ingest), methods=["POST"]))
    _add_health(app, health)
    _add_api(app, accounts)
    _add_operations(app, Exposition(accounts, ingest, health))
    _add_page(app)
    return app


async def _find_hangs(accounts: Accounts) -> None:
    took = 0.0
    while True:
        # Of many thousand ranks that hang it may take a tenth of a core, not more.
        await asyncio.sleep(max(HANGS_EVERY_SECONDS, 10 * took))
        began = time.perf_counter()
        try:
            accounts.find_hangs()
        except Exception:
            log.exception("looking for hangs failed")
        took = time.perf_counter() - began


class _IngestRoute:
    """POST a NodeReport (MessagePack), get an Ack. 400 malformed, 413 too large, 503 keep it and push again."""

    def __init__(self, ingest: Ingest):
        self._ingest = ingest

    async def __call__(self, scope, receive, send) -> None:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > schema.BODY_BYTES_MAX:
                self._ingest.counts["report", "malformed"] += 1
                return await _answer(send, 413, b"report too large\n", b"text/plain")
        try:
            ack = await self._ingest.take(bytes(body))
        except schema.SchemaError as error:
            return await _answer(send, 400, f"{error}\n".encode(), b"text/plain")
        except LedgerError as error:
            return await _answer(send, 503, f"{error}\n".encode(), b"text/plain")
        await _answer(send, 200, schema.encode(ack), schema.CONTENT_TYPE.encode())


async def _answer(send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _json(value) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _add_health(app: FastAPI, health: HealthView) -> None:
    """Before the routes of runs, whose names may hold slashes."""

    @app.get(
        "/api/v1/health", responses={200: {"model": models.Health}}, summary="Hardware's health, newest first"
    )
    async def everything(
        run: str | None = None,
        node: str | None = None,
        severity: _Severity | None = None,
        since: float | None = None,
        limit: _Limit = EVENTS_LISTED,
    ) -> Response:
        """XIDs, ECC errors, links that went down and the like. `since` is in unix seconds."""
        wanted = {"node": node, "severity": severity, "since_ns": 0 if since is None else _ns(since)}
        return _json({"events": health.all(run, limit=limit, **wanted)})

    @app.get(
        "/api/v1/runs/{run:path}/health",
        responses={200: {"model": models.RunHealth}, 404: {"description": "no such run"}},
        summary="What happened to the hardware under a run, newest first, and what it has cost",
    )
    async def of_run(
        run: str,
        severity: _Severity | None = None,
        since: float | None = None,
        limit: _Limit = EVENTS_LISTED,
    ) -> Response:
        """`gpu_seconds` is what the restarts cost that an event is taken to have led to; see the schema."""
        wanted = {"severity": severity, "since_ns": 0 if since is None else _ns(since)}
        try:
            return _json({"run": run, "events": health.of_run(run, limit=limit, **wanted)})
        except KeyError:
            raise HTTPException(404, f"no run {run!r}") from None


def _add_api(app: FastAPI, accounts: Accounts) -> None:
    @app.get("/api/v1/runs", responses={200: {"model": models.Runs}}, summary="All runs, newest first")
    async def runs() -> Response:
        rows = [accounts.summary(name) for name in list(accounts.store.runs)]
        rows.sort(key=lambda row: -row["start"])
        return _json({"runs": rows[:RUNS_LISTED_MAX]})

    @app.get(
        "/api/v1/runs/{run:path}/account",
        responses={
            200: {"model": models.Account},
            404: {"description": "no such run"},
            503: {"description": "busy"},
        },
        summary="A run's account in a window of its time",
    )
    async def account(run: str, start: float | None = None, end: float | None = None) -> Response:
        """`start` and `end` are unix seconds; left out, the run's own. What lies outside of the run is not counted."""
        window = tuple(None if at is None else _ns(at) for at in (start, end))
        if None not in window and window[0] >= window[1]:
            raise HTTPException(422, f"start {start} is not before end {end}")
        return _json(await _found(run, accounts.past(run, *window)))

    @app.get(
        "/api/v1/runs/{run:path}/rolling",
        responses={200: {"model": models.RollingWindows}, 404: {"description": "no such run"}},
        summary="The last 5 minutes, hour and day of a run, and its lifetime, side by side",
    )
    async def rolling(run: str) -> Response:
        return _json({"run": run, "windows": await _found(run, accounts.rolling(run))})

    @app.get(
        "/api/v1/runs/{run:path}",
        responses={200: {"model": models.Run}, 404: {"description": "no such run"}},
        summary="A run's account, factors, coverage and ranks",
    )
    async def run(run: str) -> Response:
        try:
            return _json(accounts.document(run))
        except KeyError:
            raise HTTPException(404, f"no run {run!r}") from None


def _ns(seconds: float) -> int:
    if not abs(seconds) < 4e9:
        raise HTTPException(422, f"{seconds}: want unix seconds")
    return round(seconds * 1e9)


async def _found(run: str, coming):
    """What comes of a run, or the status that says why it does not."""
    try:
        return await coming
    except KeyError:
        raise HTTPException(404, f"no run {run!r}") from None
    except HistoryError as error:
        raise HTTPException(503, str(error)) from None


def _add_operations(app: FastAPI, exposition: Exposition) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(exposition.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")


def _add_page(app: FastAPI) -> None:
    folder = importlib.resources.files("goodput.aggregator") / "page"
    # The page shows names that anybody who can push chose, so the browser is told to run and load nothing else.
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }

    def answer(name: str) -> Response:
        if name not in _PAGE_FILES:
            raise HTTPException(404, "not found")
        path = folder / (name or "page.html")
        return FileResponse(str(path), media_type=_PAGE_FILES[name], headers=headers)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def front() -> Response:
        return answer("")

    @app.api_route("/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(name: str) -> Response:
        return answer(name)
