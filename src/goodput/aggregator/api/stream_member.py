"""An aggregator as one of several over a stream: its partitions, pushes into the stream, and requests about other runs."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import parse_qs, urlencode

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from goodput.account import FINAL_STATUSES
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthEvents
from goodput.aggregator.accounts.run_summaries import RunPage, RunSummary
from goodput.aggregator.api.responses import body_of, json_response, unavailable
from goodput.aggregator.api.run_memory import RunMemory
from goodput.aggregator.http.limits import END_BYTES_MAX
from goodput.aggregator.http.middleware import FORWARDED
from goodput.aggregator.ingest.health_log import NODE_WEIGHT_MAX
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.fence import Fence
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.ledger.threads import in_thread
from goodput.aggregator.memory_bound import MemoryBound
from goodput.aggregator.stream import cancellation
from goodput.aggregator.stream.connection import Stream
from goodput.aggregator.stream.decoding import decode
from goodput.aggregator.stream.errors import Elsewhere, StreamError
from goodput.aggregator.stream.forwarding import (
    ForwardedAnswer,
    ForwardedRequest,
    Forwarder,
    Responder,
    answer_of,
    forwarded,
)
from goodput.aggregator.stream.members import Members
from goodput.aggregator.stream.ownership import Partitions
from goodput.aggregator.stream.partitions import partition_of
from goodput.aggregator.stream.publisher import Publisher
from goodput.metrics import Families

log = logging.getLogger("goodput.aggregator")
LISTED_MAX = 1000  # of one request: see run_routes
# Says in an answer about all runs why some are missing.
INCOMPLETE = "goodput-incomplete"


class PartitionRuns:
    """Brings the runs of a partition into memory and out of it: see stream.ownership.Runs."""

    def __init__(self, ledger: Ledger, ingest: Ingest, accounts: Accounts, memory: RunMemory, count: int):
        self._ledger, self._ingest, self._accounts, self._memory = ledger, ingest, accounts, memory
        self._count = count
        self._loading: dict[int, asyncio.Task] = {}

    async def take(self, partition: int) -> None:
        """The runs are served at once; those that are not over are read from the ledger one after the other."""
        starts, closed, health = await in_thread(self._read, partition)
        store = self._accounts.store
        store.stored |= {run: ns for run, ns in starts.items() if run not in store.runs}
        self._memory.note_closed(closed & starts.keys())
        for node, event in health:
            self._ingest.health.restore(node, event)
        open_runs = [run for run in starts if run not in closed]
        self._loading[partition] = asyncio.create_task(self._load(open_runs))

    async def drop(self, partition: int) -> None:
        await cancellation.end(self._loading.pop(partition, None))
        gone = await self._ingest.let_go(lambda run: partition_of(run, self._count) == partition)
        for run in gone:
            self._accounts.forget(run)
            self._memory.forget(run)

    async def flush(self) -> None:
        await self._ingest.flush()

    def _read(self, partition: int):
        starts = {
            run: ns
            for run, ns in self._ledger.starts().items()
            if partition_of(run, self._count) == partition
        }
        closed = closed_runs.closed(self._ledger).keys() if starts else set()
        return starts, closed, list(self._ledger.health(NODE_WEIGHT_MAX))

    async def _load(self, runs: list[str]) -> None:
        for run in runs:
            if not self._memory.has_room():
                return
            try:
                await self._memory.load(run)
            except LedgerError as error:
                log.warning("run %r was not read yet: %s", run, error)


class StreamMember:
    """`partitions` are what this process serves of the stream's."""

    def __init__(
        self,
        stream: Stream,
        name: str,
        ledger: Ledger,
        ingest: Ingest,
        accounts: Accounts,
        memory: RunMemory,
        bound: MemoryBound,
        publisher: Publisher | None = None,
    ):
        """`name` is this process's, unique among all, without dots or spaces; `publisher` takes its pushes, if any."""
        self.stream, self._name, self._publisher = stream, name, publisher
        self._members = Members(stream, name)
        runs = PartitionRuns(ledger, ingest, accounts, memory, stream.count)

        def fence() -> Fence:
            return Fence(ledger, stream.id, lambda run: partition_of(run, stream.count))

        self.partitions = Partitions(stream, self._members, fence, runs, ingest, bound)
        self._forwarder = Forwarder(stream, self._members)

    async def run(self, app) -> None:
        """Serve partitions, and `app` to other aggregators, until cancelled. The stream is connected."""
        responder = Responder(self.stream, self._name, app)
        await asyncio.gather(self.partitions.run(), responder.run())

    async def stop(self) -> None:
        if self.stream.is_connected:
            await self.partitions.stop()
        await self.stream.close()

    # ---- Requests

    def check(self, request: Request, run: str) -> None:
        """Raise Elsewhere for a run that another aggregator serves, StreamError for one that was forwarded to the wrong one.

        Without a connection this process goes on with what it served.
        """
        partition = partition_of(run, self.stream.count)
        if self.partitions.holds(partition):
            return
        if request.scope.get(FORWARDED):
            raise StreamError("this aggregator does not serve the run any more; try again in some seconds")
        if self.stream.is_connected or not self.partitions.serves(partition):
            raise Elsewhere(partition)

    async def answer_elsewhere(self, request: Request, elsewhere: Exception) -> Response:
        """The answer of the aggregator that serves the run."""
        assert isinstance(elsewhere, Elsewhere)
        try:
            body = await body_of(request, END_BYTES_MAX)
            return _response(
                await self._forwarder.to_owner(elsewhere.partition, forwarded(request.scope, body))
            )
        except HTTPException as refusal:
            return JSONResponse({"detail": refusal.detail}, refusal.status_code)
        except StreamError as error:
            return await unavailable(request, error)

    # ---- Series

    def collect(self, families: Families) -> None:
        partitions = self.partitions
        families.add("goodput_aggregator_stream_connected", {}, int(self.stream.is_connected))
        families.add("goodput_aggregator_partitions", {}, len(partitions.held()))
        families.add("goodput_aggregator_partitions_unserved", {}, len(partitions.unowned()))
        families.add("goodput_aggregator_partition_takeovers_total", {}, partitions.counts["takeovers"])
        families.add("goodput_aggregator_stream_pending_messages", {}, partitions.pending())
        families.add("goodput_aggregator_stream_delay_seconds", {}, partitions.delay_seconds())
        read = {what: partitions.counts[what] for what in ("read", "malformed", "failed", "newer")}
        families.add_counts("goodput_aggregator_stream_read_total", "outcome", read)
        if self._publisher:
            self._publisher.collect(families)

    # ---- Lists of all runs

    def everywhere(self, app):
        """An ASGI app that answers lists of runs and of hardware events from all aggregators, the rest by `app`."""
        lists = {"/api/v1/runs": self._runs, "/api/v1/health": self._health}

        async def everywhere(scope, receive, send) -> None:
            of_all = lists.get(scope.get("path", "")) if scope["type"] == "http" else None
            if of_all is None or scope["method"] != "GET" or scope.get(FORWARDED):
                return await app(scope, receive, send)
            response = await of_all(app, forwarded(scope))
            await response(scope, receive, send)

        return everywhere

    async def _runs(self, app, request: ForwardedRequest) -> Response:
        own = await answer_of(app, request)
        if own.status != 200:
            return _response(own)
        query = {name: values[-1] for name, values in parse_qs(request.query.decode("latin-1")).items()}
        limit, offset = int(query.get("limit", LISTED_MAX)), int(query.get("offset", 0))
        rows: list[RunSummary] = []
        total, missing, at, is_more = 0, self._missing(), 0, True
        wanted = offset + limit
        while is_more and at < wanted:
            part = {**query, "offset": str(at), "limit": str(min(LISTED_MAX, wanted - at))}
            pages, failed = await self._ask_all(app, request, urlencode(part), RunPage)
            rows += [row for page in pages for row in page.runs]
            total = sum(page.total for page in pages) if at == 0 else total
            missing = [*missing, *(one for one in failed if one not in missing)]
            is_more, at = any(page.truncated for page in pages), at + LISTED_MAX
        is_open = query.get("order") == "open"
        rows.sort(key=lambda row: (is_open and row.status in FINAL_STATUSES, -row.start, row.run))
        shown = rows[offset:wanted]
        return _incomplete(json_response(RunPage(shown, total, offset + len(shown) < total)), missing)

    async def _health(self, app, request: ForwardedRequest) -> Response:
        own = await answer_of(app, request)
        if own.status != 200:
            return _response(own)
        found, failed = await self._ask_all(app, request, request.query.decode("latin-1"), HealthEvents)
        events: dict = {}
        for event in (event for one in found for event in one.events):
            key = event.node, event.number
            if key not in events or (event.gpu_seconds or 0) > (events[key].gpu_seconds or 0):
                events[key] = event
        limit = int(parse_qs(request.query.decode("latin-1")).get("limit", ["100"])[-1])
        newest = sorted(events.values(), key=lambda event: (-event.time, event.node, event.number))
        return _incomplete(json_response(HealthEvents(newest[:limit])), [*self._missing(), *failed])

    async def _ask_all(self, app, request: ForwardedRequest, query: str, type_: type):
        """The answers of all aggregators, and why some are missing."""
        forwarded = msgspec.structs.replace(request, query=query.encode("latin-1"))
        own, others = await asyncio.gather(answer_of(app, forwarded), self._forwarder.to_all(forwarded))
        found, failed = [], []
        for member, answer in {self._name: own, **others}.items():
            if isinstance(answer, StreamError):
                failed.append(str(answer))
            elif answer.status == 200:
                try:
                    found.append(decode(msgspec.json.Decoder(type_), answer.body))
                except msgspec.DecodeError as error:  # of another version of the program
                    failed.append(f"aggregator {member}: its answer cannot be read: {error}")
            else:
                failed.append(f"aggregator {member}: {answer.body[:200].decode('utf-8', 'replace')}")
        return found, failed

    def _missing(self) -> list[str]:
        unowned = self.partitions.unowned()
        return [f"{len(unowned)} of {self.stream.count} partitions are not served"] if unowned else []


def _response(answer: ForwardedAnswer) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers = [*answer.headers]
    return response


def _incomplete(response: Response, missing: list[str]) -> Response:
    if missing:
        response.headers[INCOMPLETE] = "; ".join(missing)[:512].encode("latin-1", "replace").decode("latin-1")
    return response
