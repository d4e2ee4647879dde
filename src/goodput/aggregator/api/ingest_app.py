"""An ingest worker as an ASGI app: takes pushes into the stream, and shows its own series. It keeps nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from goodput import __version__
from goodput.access.tokens import EVERYTHING
from goodput.aggregator.api import ingest_route
from goodput.aggregator.api.exposition import add_requests, joined
from goodput.aggregator.api.ingest_route import IngestRoute
from goodput.aggregator.api.responses import access_of
from goodput.aggregator.api.startup import Startup
from goodput.aggregator.api.stream_role import StreamRole
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.http.middleware import RequestMiddleware
from goodput.aggregator.memory_bound import MemoryBound
from goodput.aggregator.stream.errors import StreamError
from goodput.aggregator.stream.publisher import Publisher
from goodput.metrics import Families
from goodput.metrics.negotiation import negotiated
from goodput.slices import result_of
from goodput.wire import schema

RELOAD_SECONDS = 1.0


def create_ingest_app(
    role: StreamRole, authenticator: RequestAuthenticator | None = None, memory: MemoryBound | None = None
) -> Starlette:
    """Without an authenticator every client that names this machine as its host has full access."""
    authenticator, memory = authenticator or RequestAuthenticator(), memory or MemoryBound()
    publisher = role.publisher
    assert publisher, "an ingest worker takes pushes"
    startup = Startup(lambda startup: None)
    pushes = IngestRoute(publisher, authenticator, memory, startup.check)

    async def metrics(request: Request) -> Response:
        if not (access_of(request) or EVERYTHING).is_of_all:
            return PlainTextResponse("the series of an ingest worker need a token for all runs\n", 403)
        format = negotiated(",".join(request.headers.getlist("accept")))
        bodies, out = format.bodies(families_of(role, publisher, authenticator)), []
        result_of(joined(format, [bodies], out))
        return Response(b"".join(out), headers={"Vary": "Accept", "Content-Type": format.content_type})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        """503 while the stream cannot be reached."""
        is_ready = role.stream.is_connected
        return JSONResponse({"status": "ready" if is_ready else "no stream"}, 200 if is_ready else 503)

    app = Starlette(
        routes=[
            Route(ingest_route.PATH, pushes, methods=["POST"]),
            *(Route(f"/{one.__name__}", one) for one in (metrics, healthz, readyz)),
        ],
        lifespan=_lifespan(role, authenticator, startup),
    )
    app.add_middleware(RequestMiddleware, authenticator=authenticator, check=startup.check)
    app.state.authenticator, app.state.startup, app.state.pushes = authenticator, startup, pushes
    return app


def _lifespan(role: StreamRole, authenticator: RequestAuthenticator, startup: Startup):
    async def work() -> None:
        try:
            await role.stream.connect()
        except StreamError as error:
            return startup.fail(error)
        await asyncio.gather(*(one() for one in role.works()))

    async def reload() -> None:
        while True:
            authenticator.reload()
            await asyncio.sleep(RELOAD_SECONDS)

    @asynccontextmanager
    async def lifespan(_app):
        await startup.run(then=lambda: None)
        tasks = [asyncio.create_task(work()), asyncio.create_task(reload())]
        yield
        for task in tasks:
            task.cancel()
        await role.stream.close()

    return lifespan


def families_of(role: StreamRole, publisher: Publisher, authenticator: RequestAuthenticator) -> Families:
    """The series of an ingest worker."""
    families, counts = Families("aggregator"), publisher.counts
    families.add("goodput_aggregator_info", {"version": __version__}, 1)
    reports = {outcome: counts["report", outcome] for outcome in ("accepted", "malformed", "failed")}
    families.add_counts("goodput_aggregator_reports_total", "outcome", reports)
    rejections = {reason: counts["rejection", reason] for reason in schema.REJECTED_FOR}
    families.add_counts("goodput_aggregator_rank_rejections_total", "reason", rejections)
    families.add("goodput_aggregator_ingest_seconds_total", {}, publisher.seconds)
    families.add("goodput_aggregator_stream_connected", {}, int(role.stream.is_connected))
    publisher.collect(families)
    families.add_process("goodput_aggregator")
    add_requests(families, authenticator)
    return families
