"""A pipeline of which one stage has more work: it is named with links, and its ranks stand first."""

from __future__ import annotations

import time

import pytest
from support.aggregator.page_server import SECOND, RankProcess, aggregator, push, serving
from support.browser import needs_chromium, text_of, until

pytestmark = needs_chromium
READY = "document.querySelectorAll('#rank-rows tr').length === 8 && document.querySelectorAll('#heat-worst li').length === 2"
RANKS = "[...document.querySelectorAll('#rank-rows tr')].map((row) => [...row.children].map((cell) => cell.innerText.replace(/\\s+/g, ' ').trim()))"


def pipeline(run: str, start_ns: int):
    """Four stages of two ranks; the third computes longer and the others wait for it."""
    processes = [RankProcess(run, rank, 1, 8, start_ns, stage=rank // 2, microbatches=8) for rank in range(8)]
    for one in processes:
        one.spend("none", 6.0, outside=True)
    for step in range(200):
        for one in processes:
            forward = 0.6 if one.identity.stage == 2 else 0.4
            one.step(
                step, {"loader": 0.02, "forward": forward, "backward": 0.3, "communication": 0.8 - forward}
            )
    return [one.report("finished") for one in processes]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, pipeline("team/piped", time.time_ns() - 900 * SECOND))
        push(url, pipeline("another", time.time_ns() - 900 * SECOND))
        yield url


@pytest.fixture
def piped(tab, served):
    page = tab(f"{served}/#run=team%2Fpiped")
    until(page, READY)
    return page


def test_every_mention_of_a_stage_is_a_link(piped):
    for place in ("#tile-culprit", "#cause", "#straggler .headline", "#shares", "#heat-worst", "#rank-rows"):
        hrefs = piped.evaluate(
            "(place) => [...document.querySelectorAll(`${place} a.rank`)].map((link) => link.getAttribute('href'))",
            place,
        )
        assert "#run=team%2Fpiped&stage=2" in hrefs, place


def test_link_of_a_stage_lists_its_ranks(piped):
    piped.click("#tile-culprit a")
    until(piped, "document.querySelectorAll('#rank-rows tr').length === 2")
    assert {row[0] for row in piped.evaluate(RANKS)} == {"4", "5"}
    assert piped.evaluate("document.querySelector('#ranks-filter').value") == "stage 2"
    until(piped, "document.querySelector('#all-ranks').getBoundingClientRect().top < innerHeight")
    piped.go_back()
    until(piped, "document.querySelectorAll('#rank-rows tr').length === 8")


def test_list_of_runs_links_to_the_slow_stage(tab, served):
    page = tab(f"{served}/#runs")
    until(page, "document.querySelectorAll('#runs-rows tr').length === 2")
    links = page.evaluate(
        "[...document.querySelectorAll('#runs-rows .c-culprit a')].map((a) => [a.textContent, a.getAttribute('href')])"
    )
    assert sorted(links) == [["stage 2", "#run=another&stage=2"], ["stage 2", "#run=team%2Fpiped&stage=2"]]


def test_worst_first_is_by_the_waiting_caused(piped):
    """The ranks of the slow stage wait least, so that their productive share is the largest."""
    rows = piped.evaluate(RANKS)
    assert [row[0] for row in rows[:2]] == ["4", "5"]
    assert rows[0][1:3] == ["gpu-node-02 slow stage", "stage 2"]
    assert "0.0 %, its stage 100.0 %" in rows[0] and "0.0 %" in rows[2]
    slowest = text_of(piped, "#heat-worst > :first-child")
    assert slowest.startswith("rank 4 on gpu-node-02 stage 2 slow stage ") and slowest.endswith(
        ", 100.0 % of the waiting"
    )
