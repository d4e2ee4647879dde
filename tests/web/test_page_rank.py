"""The page of one rank: its own time and states beside its group's, its node and stack, and the links to it."""

from __future__ import annotations

import time
from statistics import median

import httpx
import pytest
from support.aggregator.page_server import (
    SECOND,
    aggregator,
    document,
    finished_run,
    hung_run,
    push,
    schema,
    serving,
)
from support.browser import needs_chromium, text_of, until

DRAWN = "document.querySelector('#rank-own-picture svg') !== null"
STACK = "Thread 1 (idle)\n    read_shard (data/shards.py:88)\n    <b>main</b> (train.py:31)"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, finished_run("team/one", now_ns - 1000 * SECOND))
        hung = hung_run("hung", now_ns, 200, device_uuid="GPU-1")
        push(url, hung)
        document(url, "hung")
        for wanted in push(url, hung).wanted:
            push(url, hung, [schema.Stack(wanted, time.time_ns(), STACK)])
        yield url


def cells(page) -> dict[str, list[str]]:
    rows = page.evaluate(
        "[...document.querySelectorAll('#rank-state-rows tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return {row[0]: row[1:] for row in rows}


@needs_chromium
def test_rank_stands_beside_the_median_of_its_group(tab, served):
    run = document(served, "team/one")
    page = tab(f"{served}/#run=team%2Fone&rank=3")
    until(page, DRAWN)
    assert text_of(page, "#rank h1") == "Rank 3" and page.title() == "rank 3 of team/one – goodput"
    assert "on gpu-node-01" in text_of(page, "#rank .runhead")
    shares = [one["states"]["loader"] / sum(one["states"].values()) for one in run["ranks"]]
    assert cells(page)["loader"][1:3] == [f"{100 * shares[3]:.1f} %", f"{100 * median(shares):.1f} %"]
    tiles = text_of(page, "#rank-tiles")
    assert "own time per step 1.1" in tiles and "waiting that it caused 100.0 %" in tiles
    assert text_of(page, "#rank-neighbours").startswith("rank 2 ")
    page.click("#rank-neighbours a")
    until(page, "document.querySelector('#rank h1').textContent === 'Rank 2'")
    page.click("#rank .crumb a")
    until(page, "!document.querySelector('#run').hidden")


@needs_chromium
def test_every_mention_of_a_rank_leads_to_its_page(tab, served):
    page = tab(f"{served}/#run=team%2Fone")
    until(page, "document.querySelectorAll('#story-events > li').length > 0")
    for place in ("#tile-culprit", "#cause", "#straggler", "#shares", "#story-events", "#rank-rows"):
        hrefs = page.evaluate(
            "(place) => [...document.querySelectorAll(`${place} a.rank`)].map((link) => link.getAttribute('href'))",
            place,
        )
        assert "#run=team%2Fone&rank=3" in hrefs, place
    page.click("#tile-culprit a")
    until(page, "!document.querySelector('#rank').hidden")
    assert page.evaluate("location.hash") == "#run=team%2Fone&rank=3"


@needs_chromium
def test_phases_of_a_rank_stand_beside_the_median(tab, served):
    """Rank 3 loads three times as long as the others."""
    found = httpx.get(f"{served}/api/v1/runs/team%2Fone/ranks/3/phases").json()
    assert (found["attempt"], found["compared"], found["stage"]) == (2, 4, None)
    loader = next(one for one in found["phases"] if one["phase"] == "loader")
    assert loader["state"] == "loader" and loader["share"] > 2 * loader["median_share"]
    assert sum(one["share"] for one in found["phases"]) == pytest.approx(1)
    page = tab(f"{served}/#run=team%2Fone&rank=3")
    until(page, "document.querySelectorAll('#rank-phase-rows tr').length > 0")
    rows = page.evaluate(
        "[...document.querySelectorAll('#rank-phase-rows tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    assert [row[0] for row in rows] == [
        one["phase"].replace("none", "in no phase") for one in found["phases"]
    ]
    shares = [f"{100 * loader[name]:.1f} %" for name in ("share", "median_share")]
    assert [row[2:4] for row in rows if row[0] == "loader"] == [shares]
    assert text_of(page, "#rank-gpu") == "GPU NVIDIA H100 80GB HBM3"


@needs_chromium
def test_uuid_of_its_gpu_is_shown(tab, served):
    page = tab(f"{served}/#run=hung&rank=1")
    until(page, "document.querySelector('#rank-gpu').innerText.includes('GPU-1')")
    assert "GPU's UUID GPU-1" in text_of(page, "#rank-gpu")


def test_phases_of_a_rank_that_nobody_reported_are_not_found(served):
    answer = httpx.get(f"{served}/api/v1/runs/hung/ranks/77/phases")
    assert answer.status_code == 404 and answer.json()["detail"] == "no rank 77 of run 'hung' has reported"


@needs_chromium
def test_stack_of_a_rank_that_hangs_is_shown(tab, served):
    page = tab(f"{served}/#run=hung&rank=2")
    until(page, "document.querySelector('#rank-stack').checkVisibility()")
    assert text_of(page, "#rank-stack-text") == " ".join(STACK.split())
    page.evaluate("location.hash = '#run=hung&rank=1'")
    until(page, "document.querySelector('#rank h1').textContent === 'Rank 1'")
    assert not page.is_visible("#rank-stack")


@needs_chromium
def test_rank_that_is_not_there_is_said(tab, served):
    page = tab(f"{served}/#run=hung&rank=77")
    until(page, "!document.querySelector('#rank-missing').hidden")
    assert text_of(page, "#rank-missing") == "No account of a rank 77 is here: the run has 4 ranks."
    assert not page.is_visible("#rank-body")


@needs_chromium
def test_rank_page_fits_a_phone(tab, served):
    page = tab(f"{served}/#run=team%2Fone&rank=3", width=360, height=740)
    until(page, DRAWN)
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]
