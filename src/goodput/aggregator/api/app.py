"""The aggregator as an ASGI app: ingest, the JSON API, Prometheus series and the built-in page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import StringConstraints
from starlette.responses import JSONResponse
from starlette.routing import Route

from goodput import __version__
from goodput.access.tokens import EVERYTHING, RUN_CHARS_MAX
from goodput.aggregator.accounts.abandonment import Abandonment
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import ROW_BYTES, History, HistoryError
from goodput.aggregator.accounts.slices import in_slices
from goodput.aggregator.accounts.snapshots import INTERIM_SECONDS, Snapshots
from goodput.aggregator.accounts.stories import Stories
from goodput.aggregator.accounts.timelines.timeline_cache import TimelineCache
from goodput.aggregator.api import (
    access_route,
    end_route,
    health_routes,
    ingest_route,
    installation_route,
    page_routes,
    run_routes,
)
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.api.ingest_route import IngestRoute
from goodput.aggregator.api.ledger_maintenance import LedgerMaintenance
from goodput.aggregator.api.responses import REFERENCE, access_of, unavailable
from goodput.aggregator.api.run_memory import RunMemory
from goodput.aggregator.api.run_series import RANKS_SHOWN
from goodput.aggregator.api.startup import WAIT_SECONDS, Startup
from goodput.aggregator.clock import SKEW_NS, SteadyClock
from goodput.aggregator.fair_queue import QueueFull
from goodput.aggregator.http import sign_in
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.http.middleware import RequestMiddleware
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.node_clocks import NodeClocks, follow_step
from goodput.aggregator.ingest.run_end import RunEnder
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ingest.token_gpus import TokenGpus
from goodput.aggregator.ledger.compaction import DAY_NS, Keep
from goodput.aggregator.ledger.damage import without_damage
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.owner import CHECK_SECONDS, LedgerOwner
from goodput.aggregator.memory_bound import MemoryBound, Way, give_back_free_memory
from goodput.aggregator.stream.errors import Elsewhere, StreamError
from goodput.defaults import ABANDONED_SECONDS, STALE_SECONDS, STALL_SECONDS
from goodput.metrics.negotiation import negotiated
from goodput.otlp.settings import OtlpSettings
from goodput.slices import Slices

if TYPE_CHECKING:  # They need nats-py.
    from goodput.aggregator.api.stream_member import StreamMember
    from goodput.aggregator.api.stream_role import StreamRole

log = logging.getLogger("goodput.aggregator")
RUNS_ASKED_MAX = 64
_Work = Callable[[], Coroutine[object, object, None]]
_Run = Annotated[str, StringConstraints(max_length=RUN_CHARS_MAX)]
_Runs = Annotated[Sequence[_Run], Query(max_length=RUNS_ASKED_MAX)]
HANGS_EVERY_SECONDS, FILES_EVERY_SECONDS, CLOCK_EVERY_SECONDS = 2.0, 1.0, 1.0


def create_app(
    ledger_url: str,
    *,
    stall_seconds: float = STALL_SECONDS,
    stale_seconds: float = STALE_SECONDS,
    abandoned_seconds: float = ABANDONED_SECONDS,
    start_days_max: float | None = None,
    keep: Keep | None = None,
    authenticator: RequestAuthenticator | None = None,
    ranks_shown: int = RANKS_SHOWN,
    memory: MemoryBound | None = None,
    clock: SteadyClock | None = None,
    otlp: OtlpSettings | None = None,
    owner: LedgerOwner | None = None,
    stream: StreamRole | None = None,
    always_fresh: bool = False,
    grafana: str | None = None,
) -> FastAPI:
    """The aggregator as an ASGI app over the ledger at `ledger_url` (an SQLAlchemy URL), which it compacts as in `keep`.

    With an `owner` it ends unless it alone serves the ledger, or with a `stream` all that do are over this one.

    Without an authenticator every client that names this machine as its host has full access. `always_fresh` is Accounts'.
    A process that is not known may have begun `start_days_max` ago; None is no bound. `grafana` is PageSettings'.
    """
    authenticator = authenticator or RequestAuthenticator()
    memory, clock = memory or MemoryBound(), clock or SteadyClock()
    store, ledger = _store(start_days_max, authenticator), Ledger(ledger_url, migrate_later=True)
    ledger.rows_held, refused = memory.rows_held(ROW_BYTES, ledger.rows_held), ledger.refused
    history = History(ledger, memory)
    seconds = {"stall_seconds": stall_seconds, "stale_seconds": stale_seconds}
    clocks, health_log = NodeClocks(clock), HealthLog()
    accounts = Accounts(store, **seconds, history=history, clock_ns=clock, clocks=clocks, health=health_log)
    health = HealthCosts(health_log, accounts)
    ingest = Ingest(store, ledger, clock, hangs=accounts.hangs, health=health_log, clocks=clocks)
    accounts.flush, accounts.always_fresh = ingest.flush, always_fresh
    exposition = Exposition(accounts, ingest, health, authenticator, memory, clock, ranks_shown, refused)
    exposition.stories = stories = Stories(accounts, health)
    maintenance = LedgerMaintenance(ledger, ingest, accounts, keep or Keep(), memory)
    restoring = ledger, owner, ingest, maintenance, memory, stream is None
    startup = Startup(lambda startup: _restore(startup, *restoring))
    reloads = _repeat(_once(authenticator.reload), FILES_EVERY_SECONDS, "reloading tokens and certificates")
    hangs = _repeat(accounts.detecting_hangs, HANGS_EVERY_SECONDS, "hang detection")
    ender = RunEnder(store, ledger, stale_seconds=stale_seconds, clock_ns=clock, on_marked=accounts.expire)
    snapshots = Snapshots(accounts, ingest, INTERIM_SECONDS if stream else None)
    works = [hangs, exposition.keep_fresh, *maintenance.works(), snapshots.run, memory.run]
    works += [_following_steps(clock, clocks, store, accounts), *_exports(exposition, otlp)]
    checks = [partial(_check_owner, owner, startup)] if owner else []
    works += [Abandonment(accounts, ender, abandoned_seconds).run, *checks]
    member = stream.member(ledger, ingest, accounts, maintenance.memory, memory) if stream else None
    run_check = _run_check(store, maintenance.memory, member)
    app = _api(_lifespan(startup, reloads, works, history, member), run_check)
    if stream and member:
        _join(app, member, stream, works, startup)
        exposition.stream = member
    app.add_middleware(RequestMiddleware, authenticator=authenticator, check=startup.check)
    app.state.ledger_url, app.state.authenticator, app.state.startup = ledger.url, authenticator, startup
    app.state.pushes = IngestRoute(stream.pushed if stream else ingest, authenticator, memory, startup.check)
    app.push = RequestMiddleware(app.state.pushes, authenticator, startup.check)
    app.router.routes.append(Route(ingest_route.PATH, app.state.pushes, methods=["POST"]))  # 405 to others
    sign_in.add_routes(app, authenticator)
    access_route.add_access_route(app, authenticator)
    health_routes.add_health_routes(app, health)
    installation_route.add_installation_route(app, exposition, ingest)
    end_route.add_end_route(app, ender, authenticator.audit)
    timelines = run_routes.add_run_routes(app, accounts, stories, maintenance.memory.summaries)
    memory.ways = _ways_of_freeing(accounts, maintenance.memory, (timelines, stories))
    _add_operations(app, exposition, startup, clocks, stream)
    page_routes.add_page(app, grafana)
    return app


def _store(start_days_max: float | None, authenticator: RequestAuthenticator) -> Store:
    tokens = authenticator.tokens
    return Store(
        start_age_ns_max=None if start_days_max is None else int(start_days_max * DAY_NS),
        token_gpus=TokenGpus(tokens.gpus_max) if tokens else TokenGpus(),
    )


def _following_steps(clock: SteadyClock, clocks: NodeClocks, store: Store, accounts: Accounts) -> _Work:
    follow = _once(lambda: follow_step(clock, clocks, store, accounts.hangs))
    return _repeat(follow, CLOCK_EVERY_SECONDS, "following steps of the clock")


def _api(lifespan, run_check) -> App:
    """Without routes."""
    return App(
        title="goodput",
        version=__version__,
        description="Where the GPU time of training runs went.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # A redirect would repeat the Host header of the request.
        redirect_slashes=False,
        dependencies=[Depends(run_check)],
        exception_handlers=dict.fromkeys((HistoryError, LedgerError, QueueFull), unavailable),
    )


def _join(app: App, member: StreamMember, stream: StreamRole, works: list[_Work], startup: Startup) -> None:
    """Serve the app to other aggregators too, and with it what they serve."""

    async def run() -> None:
        try:
            await stream.stream.connect()
        except StreamError as error:
            return startup.fail(error)
        await asyncio.gather(member.run(app), *(work() for work in stream.works()))

    works.append(run)
    app.add_exception_handler(Elsewhere, member.answer_elsewhere)
    app.add_exception_handler(StreamError, unavailable)
    app.add_middleware(member.everywhere)


def _exports(exposition: Exposition, otlp: OtlpSettings | None) -> Iterator[_Work]:
    if otlp:
        from goodput.aggregator.api.otlp_export import OtlpExport

        yield OtlpExport(exposition, otlp).run


async def _check_owner(owner: LedgerOwner, startup: Startup) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await asyncio.to_thread(owner.check)
        except LedgerError as error:
            return startup.fail(error)


def _restore(
    startup: Startup,
    ledger: Ledger,
    owner: LedgerOwner | None,
    ingest: Ingest,
    maintenance: LedgerMaintenance,
    memory: MemoryBound,
    is_alone: bool,
) -> None:
    """Read the ledger; where it is shared, the runs of a partition are read when that is taken."""
    if owner:
        owner.acquire(lambda: startup.is_stopping)
    if ledger.is_old:
        ledger.migrate(startup.set_converted)
        maintenance.begin()
    if not is_alone:
        return

    def read() -> None:
        stored = maintenance.memory.find_stored()
        startup.begin_reading(ledger.count_processes() - stored)
        ingest.restore(maintenance.restored, startup.set_restored, memory.has_room)

    without_damage(ledger, read)
    # Of what reading took glibc would keep most in its heaps.
    give_back_free_memory()


def _ways_of_freeing(
    accounts: Accounts, runs: RunMemory, caches: tuple[TimelineCache, Stories]
) -> dict[str, Way]:
    """What may leave memory where it is full, first what is missed least."""

    async def clear_results(_is_enough: Callable[[], bool]) -> int:
        return sum(cache.clear() for cache in caches) + accounts.clear_results()

    return {"step rows": accounts.drop_folded_rows, "runs": runs.free, "results of queries": clear_results}


class App(FastAPI):
    """FastAPI, except that pushes bypass its router, which would take as long as the push itself."""

    push: RequestMiddleware

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http" and scope["path"] == ingest_route.PATH and scope["method"] == "POST":
            return await self.push(scope, receive, send)
        return await super().__call__(scope, receive, send)

    def openapi(self) -> dict:
        """The OpenAPI document, with the schemas of the msgspec types that routes refer to (responses.json_of)."""
        document = self.openapi_schema
        if document is None:
            types = (
                *(*run_routes.DOCUMENTS, *health_routes.DOCUMENTS),
                *(*end_route.DOCUMENTS, *access_route.DOCUMENTS, *installation_route.DOCUMENTS),
                *page_routes.DOCUMENTS,
            )
            _, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
            document = super().openapi()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(components)
            # A value of the right type that makes no sense is answered with a sentence.
            invalid = schemas["HTTPValidationError"]["properties"]
            invalid["detail"] = {"title": "Detail", "anyOf": [invalid["detail"], {"type": "string"}]}
        return document


def _accepts_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _lifespan(
    startup: Startup, reloads: _Work, works: Sequence[_Work], history: History, member: StreamMember | None
):
    """What runs beside requests: reading the ledger, `reloads`, and `works` once the runs are whole."""

    @asynccontextmanager
    async def lifespan(_app):
        tasks = [asyncio.create_task(reloads())]

        def begin() -> None:
            tasks.extend(asyncio.create_task(work()) for work in works)

        tasks.append(asyncio.create_task(startup.run(then=begin)))
        await asyncio.wait(tasks[1:], timeout=WAIT_SECONDS)
        yield
        startup.is_stopping = True
        if member:
            await member.stop()
        history.stop()
        for task in tasks:
            task.cancel()
        history.ledger.close()

    return lifespan


def _repeat(parts: Callable[[], Slices[None]], every_seconds: float, name: str) -> _Work:
    """Work that is done in slices, for ever; a tenth of a core at most, however long it takes."""
    took = 0.0

    def timed() -> Slices[None]:
        nonlocal took
        began, took = time.perf_counter(), 0.0
        for _ in parts():
            took += time.perf_counter() - began
            yield
            began = time.perf_counter()
        took += time.perf_counter() - began

    async def repeat() -> None:
        while True:
            await asyncio.sleep(max(every_seconds, 10 * took))
            try:
                await in_slices(timed())
            except Exception:
                log.exception("%s failed", name)

    return repeat


def _once(work: Callable[[], object]) -> Callable[[], Slices[None]]:
    def parts() -> Slices[None]:
        yield
        work()

    return parts


def _run_check(store: Store, memory: RunMemory, member: StreamMember | None):
    async def check(request: Request) -> AsyncIterator[None]:
        """Around every route of one run. A run that the token may not see is answered as unknown."""
        run, access = request.path_params.get("run"), access_of(request)
        if run is None:
            yield
            return
        if access.may(run):
            if member:
                member.check(request, run)
            with memory.requested(run):
                await memory.load(run)
                if run in store.runs:
                    yield
                    return
        if "ingest" in access.scopes and not access.may(run):
            # The same whether the run exists or not.
            raise HTTPException(403, f"token {access.name} is not for run {run[:64]!r}")
        raise HTTPException(404, f"no run {run!r}")

    return check


def _add_operations(
    app: FastAPI, exposition: Exposition, startup: Startup, clocks: NodeClocks, role: StreamRole | None
) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request, run: _Runs = ()) -> Response:
        """Series of the runs that `run` names (repeatable), or of all and the aggregator itself."""
        compressed = _accepts_gzip(request.headers.get("accept-encoding", ""))
        format = negotiated(",".join(request.headers.getlist("accept")))
        text = await exposition.text(access_of(request) or EVERYTHING, tuple(run), compressed, format)
        headers = {"Vary": "Accept, Accept-Encoding"} | ({"Content-Encoding": "gzip"} if compressed else {})
        return Response(text, headers=headers | {"Content-Type": format.content_type})

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        """503 only when a start does not advance, for a probe of liveness."""
        stall = startup.stall()
        off = clocks.count_skewed()
        skew = f"clocks more than {SKEW_NS // 10**9} s off: {off} nodes\n" if off else ""
        return Response(f"{stall or 'ok'}\n{skew}", 503 if stall else 200, media_type="text/plain")

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        """503 while runs are read from the ledger, and until the stream was reached once."""
        document, is_ready = startup.document(), startup.is_whole
        if is_ready and role and not role.stream.has_connected:
            document, is_ready = {**document, "status": "no stream"}, False
        return JSONResponse(document, 200 if is_ready else 503, {} if is_ready else {"Retry-After": "5"})
