"""The routes: ingest for agents, the JSON API, Prometheus and the built-in page.

In: HTTP that the guard has let in, with who asks in `scope["access"]`. Out: HTTP. Ingest is a raw ASGI route, since
agents call it by the thousand; what a person calls is FastAPI with an OpenAPI schema at /api/v1/openapi.json. A run that
whoever asks may not see is answered as one that is not there.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import time
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from starlette.responses import FileResponse
from starlette.routing import Route

from goodput import __version__
from goodput.access.tokens import EVERYTHING, Access
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthView
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api import models
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.api.responses import found, in_json, no_run, unix_ns, window_ns
from goodput.aggregator.api.routes_end import add_end
from goodput.aggregator.api.routes_runs import add_runs
from goodput.aggregator.http import limits, sign_in
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.http.headers import PAGE_POLICY, header_values
from goodput.aggregator.http.middleware import RequestMiddleware
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.run_end import Ending
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.wire import schema

log = logging.getLogger("goodput.aggregator")
INGEST = "/api/v1/ingest"
EVENTS_LISTED, EVENTS_LISTED_MAX = 100, 1000
_Severity = Literal["info", "warning", "critical"]
_Limit = Annotated[int, Query(ge=1, le=EVENTS_LISTED_MAX)]
HANGS_EVERY_SECONDS, FILES_EVERY_SECONDS = 2.0, 1.0
_PAGE = importlib.resources.files("goodput.aggregator") / "page"
_PAGE_FILES = {
    "": "text/html",
    "page.css": "text/css",
    **{one.name: "text/javascript" for one in _PAGE.iterdir() if one.name.endswith(".js")},
}


def create_app(
    ledger_url: str,
    *,
    stall_seconds: float = 60.0,
    stale_seconds: float = 30.0,
    authenticator: RequestAuthenticator | None = None,
) -> FastAPI:
    """The aggregator as an ASGI app over the ledger at `ledger_url` (an SQLAlchemy URL).

    Without an authenticator every client that names this machine as its host has full access.
    """
    authenticator = authenticator or RequestAuthenticator()
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
        looking = [
            asyncio.create_task(_find_hangs(accounts)),
            asyncio.create_task(_reload_files(authenticator)),
        ]
        yield
        for task in looking:
            task.cancel()
        ledger.close()

    app = _App(
        title="goodput",
        version=__version__,
        description="Where the GPU time of training runs went.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # A redirect would name the host that the request named.
        redirect_slashes=False,
        dependencies=[Depends(_check_run)],
    )
    app.add_middleware(RequestMiddleware, authenticator=authenticator)
    app.state.ledger_url, app.state.authenticator = ledger.url, authenticator
    pushes = _IngestRoute(ingest, authenticator.metrics)
    app.push = RequestMiddleware(pushes, authenticator)
    # Of what is no POST: 405.
    app.router.routes.append(Route(INGEST, pushes, methods=["POST"]))
    sign_in.add_routes(app, authenticator)
    _add_health(app, health)
    add_runs(app, accounts)
    add_end(app, Ending(store, ledger, stale_seconds=stale_seconds))
    _add_api(app, accounts)
    _add_operations(app, Exposition(accounts, ingest, health, authenticator))
    _add_page(app)
    return app


class _App(FastAPI):
    """FastAPI, but that a push is led through the guard to its route: what lies between takes as long as the push."""

    push: RequestMiddleware

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http" and scope["path"] == INGEST and scope["method"] == "POST":
            return await self.push(scope, receive, send)
        return await super().__call__(scope, receive, send)


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


async def _reload_files(authenticator: RequestAuthenticator) -> None:
    while True:
        await asyncio.sleep(FILES_EVERY_SECONDS)
        try:
            authenticator.reload()
        except Exception:
            log.exception("reloading tokens and certificates failed")


class _Unread(Exception):
    """A body that is not read to its end: status, the refusal's name, the line that answers."""


class _IngestRoute:
    """POST a NodeReport (MessagePack), get an Ack.

    400 malformed, 413 too large, 415 packed, 503 keep it and push again.
    """

    def __init__(self, ingest: Ingest, requests):
        self._ingest, self._requests = ingest, requests
        self._reading_bytes = 0

    async def __call__(self, scope, receive, send) -> None:
        try:
            body = await self._body(scope["headers"], receive)
        except _Unread as unread:
            status, reason, text = unread.args
            self._requests.refused[reason] += 1
            if reason == "body":
                self._ingest.counts["report", "malformed"] += 1
            return await _answer(send, status, f"{text}\n".encode(), b"text/plain")
        if body is None:
            return None
        try:
            ack = await self._ingest.take(body, scope["access"])
        except schema.SchemaError as error:
            return await _answer(send, 400, f"{error}\n".encode(), b"text/plain")
        except LedgerError as error:
            return await _answer(send, 503, f"{error}\n".encode(), b"text/plain")
        await _answer(send, 200, schema.encode(ack), schema.CONTENT_TYPE.encode())

    async def _body(self, headers, receive) -> bytes | None:
        """The whole body; None from a client that went away. Raises _Unread."""
        if header_values(headers, b"content-encoding"):
            # What is not unpacked cannot become more than it was when it came.
            raise _Unread(415, "encoding", "reports come as they are, without Content-Encoding")
        length = (header_values(headers, b"content-length") or [b"0"])[0]
        if len(length) > 15 or int(length) > schema.BODY_BYTES_MAX:
            raise _Unread(413, "body", f"report too large: {schema.BODY_BYTES_MAX} bytes at most")
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part, more = message.get("body", b""), message.get("more_body", False)
                if self._reading_bytes + len(part) > limits.BODIES_BYTES_MAX:
                    raise _Unread(503, "busy", "too many reports at a time; push it again")
                self._reading_bytes += len(part)
                body += part
                if len(body) > schema.BODY_BYTES_MAX:
                    raise _Unread(413, "body", f"report too large: {schema.BODY_BYTES_MAX} bytes at most")
        finally:
            self._reading_bytes -= len(body)
        return bytes(body)


async def _answer(send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _add_health(app: FastAPI, health: HealthView) -> None:
    """Before the routes of runs, whose names may hold slashes."""

    @app.get(
        "/api/v1/health", responses={200: {"model": models.Health}}, summary="Hardware's health, newest first"
    )
    async def everything(
        request: Request,
        run: str | None = None,
        node: str | None = None,
        severity: _Severity | None = None,
        since: float | None = None,
        limit: _Limit = EVENTS_LISTED,
    ) -> Response:
        """XIDs, ECC errors, links that went down and the like. `since` is in unix seconds."""
        wanted = {"node": node, "severity": severity, "since_ns": 0 if since is None else unix_ns(since)}
        return in_json({"events": health.all(run, access=_access(request), limit=limit, **wanted)})

    @app.get(
        "/api/v1/runs/{run:run}/health",
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
        wanted = {"severity": severity, "since_ns": 0 if since is None else unix_ns(since)}
        try:
            return in_json({"run": run, "events": health.of_run(run, limit=limit, **wanted)})
        except KeyError:
            raise no_run(run) from None


def _access(request: Request) -> Access:
    return request.scope["access"]


async def _check_run(request: Request) -> None:
    """Before every route of one run: whoever asks may see it, or it is not there."""
    run = request.path_params.get("run")
    access = _access(request)
    if run is not None and not access.may(run):
        if "ingest" in access.scopes:
            # Said whether it is there or not.
            raise HTTPException(
                403, f"run {run[:64]!r} is none of the runs that the token {access.name} is for"
            )
        raise no_run(run)


def _add_api(app: FastAPI, accounts: Accounts) -> None:
    @app.get(
        "/api/v1/runs/{run:run}/account",
        responses={
            200: {"model": models.Account},
            404: {"description": "no such run"},
            503: {"description": "busy"},
        },
        summary="A run's account in a window of its time",
    )
    async def account(
        request: Request, run: str, start: float | None = None, end: float | None = None
    ) -> Response:
        """`start` and `end` are unix seconds; left out, the run's own. What lies outside of the run is not counted."""
        window = window_ns(start, end)
        return in_json(await found(run, accounts.past(run, *window, _access(request).token_id)))

    @app.get(
        "/api/v1/runs/{run:run}/rolling",
        responses={200: {"model": models.RollingWindows}, 404: {"description": "no such run"}},
        summary="The last 5 minutes, hour and day of a run, and its lifetime, side by side",
    )
    async def rolling(request: Request, run: str) -> Response:
        windows = await found(run, accounts.rolling(run, _access(request).token_id))
        return in_json({"run": run, "windows": windows})

    @app.get(
        "/api/v1/runs/{run:run}",
        responses={200: {"model": models.Run}, 404: {"description": "no such run"}},
        summary="A run's account, factors, coverage and ranks",
    )
    async def run(run: str) -> Response:
        try:
            return in_json(accounts.document(run))
        except KeyError:
            raise no_run(run) from None


def _add_operations(app: FastAPI, exposition: Exposition) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        text = await exposition.text(_access(request) or EVERYTHING)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")


def _add_page(app: FastAPI) -> None:
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": PAGE_POLICY}

    def answer(name: str) -> Response:
        if name not in _PAGE_FILES:
            raise HTTPException(404, "not found")
        path = _PAGE / (name or "page.html")
        return FileResponse(str(path), media_type=_PAGE_FILES[name], headers=headers)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def front() -> Response:
        return answer("")

    @app.api_route("/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(name: str) -> Response:
        return answer(name)
