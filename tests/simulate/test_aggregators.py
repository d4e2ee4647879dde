"""Reads from several aggregators, some of which do not answer."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.servers.servers import free_ports

from goodput.simulate.check.simulation import MISSED_MAX, Watcher
from goodput.simulate.check.stack import SLOW_RANK, Aggregators, StackError


@pytest.fixture
def serve():
    """`serve({path: (status, text)})` gives the URL of a server; other paths are 404."""
    servers = []

    def start(answers: dict[str, tuple[int, str]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = answers.get(self.path, (404, "not here"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def slow(run: str, rank: int) -> tuple[int, str]:
    return 200, f'{SLOW_RANK}{{run="{run}",rank="{rank}"}} 1.5\n'


def test_series_of_all_that_answer(serve):
    """Each aggregator has the series of its own runs; one that has ended is left out."""
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    urls = [serve({"/metrics": slow("a", 1)}), gone, serve({"/metrics": slow("b", 2)})]
    with contextlib.closing(Aggregators(urls)) as aggregators:
        series = aggregators.series()
        assert [series.of(SLOW_RANK, run)[0][0]["rank"] for run in "ab"] == ["1", "2"]


def test_account_from_the_first_that_has_it(serve):
    path = "/api/v1/runs/a"
    urls = [serve({}), serve({path: (200, '{"run": "a"}')})]
    with contextlib.closing(Aggregators(urls)) as aggregators:
        assert aggregators.account("a") == {"run": "a"}
        with pytest.raises(StackError, match="/api/v1/runs/b: 404 not here"):
            aggregators.account("b")


def test_missed_scrapes_end_the_simulation_after_a_while(serve):
    """An aggregator that never answered is an error at once."""
    answers = {"/metrics": slow("a", 1)}
    with contextlib.closing(Aggregators([serve(answers)])) as aggregators:
        watcher = Watcher(aggregators, ["a"])
        watcher.scrape(0.0)
        answers.clear()
        for _ in range(MISSED_MAX):
            watcher.scrape(10.0)
        with pytest.raises(StackError, match="/metrics: 404"):
            watcher.scrape(20.0)
        assert [one.slow_rank for one in watcher.observations["a"]] == [1]
        with pytest.raises(StackError, match="/metrics: 404"):
            Watcher(aggregators, ["a"]).scrape(0.0)
