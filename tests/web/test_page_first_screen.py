"""The first screen of a run on a laptop: status, goodput, money lost, the culprit, what to do, and where more is."""

from __future__ import annotations

import time

import pytest
from support.aggregator.page_server import (
    SECOND,
    aggregator,
    document,
    finished_run,
    hung_run,
    push,
    serving,
)
from support.browser import needs_chromium, text_of, until

READY = "!document.querySelector('#timeline-body').hidden && document.querySelector('#heat-canvas').width > 0"
LAPTOP = {"width": 1280, "height": 800}
# Moves of nodes that no input caused, from the first paint on.
SHIFTS = """window.shifts = [];
new PerformanceObserver((list) => shifts.push(...list.getEntries().map((one) =>
  [one.value, one.sources.map((source) => source.node?.id || source.node?.className || source.node?.nodeName)])))
  .observe({ type: 'layout-shift', buffered: true });"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, finished_run("team/one", now_ns - 1000 * SECOND))
        push(url, hung_run("hung", now_ns, 200, gpu_hour_cost=2.5))
        yield url


@pytest.fixture
def one(tab, served):
    page = tab(f"{served}/#run=team%2Fone", **LAPTOP)
    until(page, READY)
    return page


def bottom(page, selector: str) -> float:
    return page.evaluate(
        "(selector) => document.querySelector(selector).getBoundingClientRect().bottom", selector
    )


@needs_chromium
def test_first_screen_answers_what_why_and_what_to_do(one, served):
    run = document(served, "team/one")
    lost = run["cost"]["total"] - run["cost"]["states"]["productive"]
    assert text_of(one, "#run-head").startswith("team/one finished")
    assert f"goodput {100 * run['factors']['goodput']:.1f} %" in text_of(one, "#run .tiles")
    assert text_of(one, "#tile-lost").startswith(f"lost ${lost:.2f} ")
    assert text_of(one, "#tile-culprit") == "culprit rank 3 on gpu-node-01, loader, slow from the start"
    assert run["causes"][0]["advice"] in text_of(one, "#cause")
    for selector in ("#run-head", "#tile-lost", "#tile-culprit", "#cause", "#timeline h2"):
        assert bottom(one, selector) < LAPTOP["height"], selector


@needs_chromium
def test_hang_names_the_culprit_and_since_when(tab, served):
    page = tab(f"{served}/#run=hung", **LAPTOP)
    until(page, READY)
    shown = text_of(page, "#tile-culprit")
    assert shown.startswith("culprit rank 2 on gpu-node-01, in loader for ") and "hangs since 20" in shown
    assert bottom(page, "#cause") < LAPTOP["height"]


@needs_chromium
def test_sections_have_links_that_stay_in_sight(one):
    names = "[...document.querySelectorAll('#sections button')].map((button) => button.textContent)"
    assert one.evaluate(names) == one.evaluate(
        "[...document.querySelectorAll('#run > [data-nav]')].filter((one) => !one.hidden).map((one) => one.dataset.nav)"
    )
    one.click("#sections [data-key=all-ranks]")
    top = "document.querySelector('#all-ranks').getBoundingClientRect().top"
    until(one, f"{top} >= 0 && {top} < 800")
    assert one.evaluate("document.activeElement.id") == "h-ranks"
    assert one.evaluate("location.hash") == "#run=team%2Fone"
    assert one.evaluate("document.querySelector('#sections').getBoundingClientRect().top") == 0


@needs_chromium
def test_nothing_moves_while_parts_are_loading(tab, served):
    page = tab("about:blank", **LAPTOP)
    page.add_init_script(SHIFTS)
    page.goto(f"{served}/#run=team%2Fone")
    until(page, READY)
    until(page, "document.querySelectorAll('#story-events > li').length > 0")
    moved = [one for one in page.evaluate("shifts") if one[0] > 0.02]
    assert moved == []


@needs_chromium
def test_states_without_restarts_or_culprit_take_no_room(tab, served):
    page = tab(f"{served}/#run=hung", **LAPTOP)
    until(page, READY)
    assert not page.is_visible("#all-restarts") and not page.is_visible("#straggler")
    assert "Restarts" not in text_of(page, "#sections")


def scroll_to(page, selector: str) -> None:
    """Until the scrolling, which closes the text beside the pointer, is over."""
    page.evaluate(
        "(selector) => new Promise((done) => { document.querySelector(selector).scrollIntoView({ block: 'center' });"
        "requestAnimationFrame(() => requestAnimationFrame(done)); })",
        selector,
    )


@needs_chromium
def test_pointer_over_timeline_says_time_state_and_share(one, served):
    run = document(served, "team/one")
    scroll_to(one, "#timeline-picture")
    x, y, wide, high = one.evaluate(
        "(({ x, y, width, height }) => [x, y, width, height])"
        "(document.querySelector('#timeline-picture').getBoundingClientRect())"
    )
    at = (x + 46 + (wide - 46) * 0.6, y + high - 40)
    one.mouse.move(*at)
    shown = text_of(one, "#tip")
    assert " productive " in shown and " %, " in shown and " GPU-s" in shown
    assert one.evaluate("document.querySelector('.cross').getAttribute('visibility')") == "visible"
    one.mouse.down()
    one.mouse.up()
    one.mouse.move(at[0] + 100, at[1])
    assert text_of(one, "#tip") == shown, "a press pins it"
    one.keyboard.press("Escape")
    assert not one.is_visible("#tip")
    scroll_to(one, "#account-bar")
    one.hover("#account-bar .s-loader")
    assert f"{run['states']['loader']:,.1f} GPU-s".replace(".0 ", " ").split(".")[0] in text_of(one, "#tip")


@needs_chromium
def test_finger_on_heat_map_says_rank_and_ratio(tab, served):
    page = tab(f"{served}/#run=team%2Fone", width=400, height=800)
    until(page, READY)
    scroll_to(page, "#heat-canvas")
    box = page.query_selector("#heat-canvas").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] - 20, box["y"] + 5)
    assert text_of(page, "#tip").startswith("rank 3 on gpu-node-01 20")
    assert "of its own per step, 1.1" in text_of(page, "#tip")
