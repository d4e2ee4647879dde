"""An aggregator for the tests: a real HTTP server on loopback that collects decoded reports and misbehaves on call.

Reports are kept with their steps as rows, whatever version they came in.
"""

from __future__ import annotations

from msgspec.structs import replace
from support.aggregator.reports import in_rows
from support.servers import http_server

from goodput.wire import schema


class Aggregator:
    """`answer(report, body)` gives (status, body) or None for a plain Ack; it may block or raise."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1", certificate=None):
        self.reports: list[schema.NodeReport] = []  # those that were taken
        self.requests: list[tuple[str, dict, int]] = []  # path, headers, body length of all
        self.answer = lambda report, body: None
        self.versions: tuple[int, ...] = (
            schema.VERSIONS
        )  # supported; (1,) answers as the release with version 1 did
        self.refused = 0  # reports of other versions
        self.headers: dict[str, str] = {}  # further ones of each answer
        outer = self

        class Handler(http_server.Handler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.body()
                outer.requests.append((self.path, dict(self.headers), len(body)))
                status, answer = outer.take(body)
                versions = {schema.VERSIONS_HEADER: ", ".join(map(str, outer.versions))}
                self.answer(status, answer, **outer.headers, **(versions if outer.versions != (1,) else {}))

        self.server = http_server.HttpServer(Handler, certificate, host, port)
        self.port, self.url, self.close = self.server.port, self.server.url, self.server.close

    def take(self, body: bytes) -> tuple[int, bytes]:
        report = schema.decode(body)
        if report.version not in self.versions:
            self.refused += 1
            supported = " and ".join(map(str, self.versions))
            return 400, f"report version {report.version}, this aggregator supports {supported}\n".encode()
        for rank in report.ranks:
            schema.check(rank)
        report = replace(report, ranks=[in_rows(rank) for rank in report.ranks])
        given = self.answer(report, body)
        if given is not None and given[0] != 200:
            return given
        self.reports.append(report)
        return given or (200, schema.encode(schema.Ack(accepted=len(report.ranks))))

    def rows(self) -> dict[tuple[str, int, int], list[int]]:
        """Row numbers taken, by (run, rank, attempt), in the order they came."""
        found: dict = {}
        for report in self.reports:
            for rank in report.ranks:
                key = rank.identity.run, rank.identity.rank, rank.identity.attempt
                found.setdefault(key, []).extend(row.number for row in rank.steps)
        return found
