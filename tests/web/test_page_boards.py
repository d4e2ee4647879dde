"""Links from runs and ranks to their boards in Grafana, where `goodput serve --grafana` names one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from support.aggregator.page_server import SECOND, aggregator, document, finished_run, hung_run, push, serving
from support.browser import needs_chromium, until

from goodput.cli.serve import grafana_url

GRAFANA = "https://grafana.example.com/boards"
BOARDS = Path(__file__).parents[2] / "dashboards" / "generated"
RUN = "team/one & two"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(aggregator(tmp_path_factory.mktemp("ledger"), grafana=GRAFANA)) as url:
        push(url, finished_run(RUN, time.time_ns() - 1000 * SECOND))
        push(url, hung_run("hung", time.time_ns(), 200))
        yield url


def host_of(run: str, served: str, rank: int = 2) -> str:
    return document(served, run)["ranks"][rank]["host"]


def links(page, place: str) -> dict[str, str]:
    until(page, f"document.querySelector('{place} a')?.checkVisibility()")
    return dict(
        page.evaluate(
            f"[...document.querySelectorAll('{place} a')].map((one) => [one.textContent, one.href])"
        )
    )


def query_of(link: str) -> dict[str, str]:
    """The variables and the time range of a link to a board that exists and has these variables."""
    parts = urlsplit(link)
    uid = parts.path.removeprefix("/boards/d/")
    board = json.loads((BOARDS / f"{uid}.json").read_text())
    query = {name: values[0] for name, values in parse_qs(parts.query, strict_parsing=True).items()}
    variables = {f"var-{one['name']}" for one in board["templating"]["list"]}
    assert board["uid"] == uid and query.keys() - {"from", "to"} <= variables
    return query


@needs_chromium
def test_run_links_to_its_board(tab, served):
    run = document(served, RUN)
    found = links(tab(f"{served}/#run=team%2Fone%20%26%20two"), "#run-boards")
    query = query_of(found["Grafana: this run"])
    assert query["var-run"] == RUN
    assert int(query["from"]) == pytest.approx(1000 * run["start"], abs=1)
    assert int(query["to"]) == pytest.approx(1000 * run["end"], abs=1)


@needs_chromium
def test_rank_links_to_its_board_until_now(tab, served):
    found = links(tab(f"{served}/#run=hung&rank=2"), "#rank-boards")
    query = query_of(found["Grafana: this rank"])
    assert (query["var-run"], query["var-rank"], query["to"]) == ("hung", "2", "now")
    node = query_of(found["Grafana: its node"])
    assert (node["var-run"], node["var-node"]) == ("hung", host_of("hung", served))


@needs_chromium
def test_without_grafana_there_is_no_link(tab, tmp_path):
    with serving(aggregator(tmp_path)) as url:
        push(url, finished_run("one", time.time_ns() - 1000 * SECOND))
        page = tab(f"{url}/#run=one")
        until(page, "document.querySelectorAll('#rank-rows tr').length === 4")
        assert not page.is_visible("#run-boards")


def test_address_of_grafana_may_end_with_a_slash():
    assert grafana_url(f"{GRAFANA}/") == GRAFANA


@pytest.mark.parametrize(
    "text", ["grafana.example.com", "javascript://x", "https://g?orgId=1", "https://a:b@g"]
)
def test_serve_refuses_what_is_no_address_of_grafana(text):
    command = [sys.executable, "-m", "goodput", "serve", "--grafana", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--grafana" in done.stderr
