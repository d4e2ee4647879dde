"""The list of runs in a browser: what is broken stands first, and every run can be opened."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from support.aggregator.page_server import (
    SECOND,
    aggregator,
    attempt_reports,
    changed,
    finished_run,
    hung_run,
    msgspec,
    push,
    serving,
)
from support.browser import needs_chromium, text_of, until, wait_for_answers

pytestmark = needs_chromium
BLANK, SHOWN = " ", "“\u00a0”"


def _with_abandoned(status, body):
    """One of the runs of the list as if nothing had been heard of it for a day."""
    found = msgspec.json.decode(body)
    for run in found.get("runs", ()):
        if run["run"] == "forgotten":
            run["status"] = "abandoned"
    return status, msgspec.json.encode(found)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Runs of every kind; those in trouble are the oldest."""
    app, now_ns = aggregator(tmp_path_factory.mktemp("ledger")), time.time_ns()
    with serving(changed(app, "/api/v1/runs", _with_abandoned)) as url:
        push(url, hung_run("hung", now_ns, 500))
        push(url, attempt_reports("down", 1, now_ns - 900 * SECOND, range(20), alive=False))
        push(url, attempt_reports("forgotten", 1, now_ns - 800 * SECOND, range(20), alive=False))
        push(url, finished_run("finished", now_ns - 700 * SECOND))
        push(url, attempt_reports(BLANK, 1, now_ns - 130 * SECOND, range(110)))
        # Cancelled after half a minute, and started again eight minutes later.
        push(url, attempt_reports("..", 1, now_ns - 640 * SECOND, range(20), alive=False))
        httpx.post(f"{url}/api/v1/runs/-/end?run=..", json={}).raise_for_status()
        push(url, attempt_reports("..", 2, now_ns - 120 * SECOND, range(100)))
        yield url


def names(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('#runs-rows [data-f=name]')].map((a) => a.textContent)"
    )


def test_list_opens_with_what_is_broken(tab, served):
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows tr').length === 6")
    until(page, "document.querySelector('#runs-rows .status').textContent === 'hangs'")
    assert names(page)[:2] == ["hung", "down"] and set(names(page)[4:]) == {"forgotten", "finished"}
    assert page.evaluate("document.querySelector('#runs-sort').value") == "status"
    assert page.evaluate("location.hash") == "", "the default order is not in the address"


def test_abandoned_runs_waste_nothing(tab, served):
    """Nobody knows when such a run ended, so its time is not in the sum."""
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows tr').length === 6")
    tiles = text_of(page, "#fleet-tiles")
    assert "; without 1 abandoned run lost" in tiles
    page.fill("#runs-filter", "forgotten")
    until(page, "document.querySelectorAll('#runs-rows tr').length === 1")
    until(page, "document.querySelector('#fleet-tiles').innerText.includes('unknown')")
    assert "goodput unknown of 0.0 GPU-s" in text_of(page, "#fleet-tiles"), (
        "its own row has the time, the sum has none"
    )


def test_tiles_are_of_all_listed_runs(tab, served):
    runs = [run for run in httpx.get(f"{served}/api/v1/runs").json()["runs"] if run["status"] != "abandoned"]
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows tr').length === 6")
    tiles = text_of(page, "#fleet-tiles")
    assert "hanging 1 hung" in tiles and "lost $" in tiles
    time = sum(run["gpu_seconds"] for run in runs)
    shown = float(re.search(r"goodput ([\d.]+) %", tiles)[1])
    assert shown == pytest.approx(100 * (1 - sum(run["waste_gpu_seconds"] for run in runs) / time), abs=1)
    legend = page.evaluate("[...document.querySelectorAll('#fleet-legend li')].map((one) => one.textContent)")
    assert {"productive", "stall"} <= set(legend)


def test_tile_counts_gpus_of_running_runs(tab, served):
    running = [run for run in httpx.get(f"{served}/api/v1/runs").json()["runs"] if run["status"] == "running"]
    assert {(run["gpus"], run["is_on_cpu"]) for run in running} == {(4, False)}
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows tr').length === 6")
    names = (
        "[...document.querySelectorAll('#fleet-tiles > *')].map((tile) => tile.firstElementChild.textContent)"
    )
    assert page.evaluate(names) == ["goodput", "lost", "hanging", "GPUs"]
    gpus, number = 4 * len(running), len(running)
    assert text_of(page, "#fleet-tiles > :last-child") == f"GPUs {gpus} {gpus} ranks in {number} running runs"


TREND = """Object.fromEntries([...document.querySelectorAll('#runs-rows tr')].map((row) =>
  [row.querySelector('a').textContent, row.querySelector('.trend').getAttribute('aria-label')]))"""


def test_each_row_has_its_goodput_over_time(tab, served):
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows .trend svg').length === 6")
    timeline = httpx.get(f"{served}/api/v1/runs/finished/timeline?points=24").json()["buckets"]
    shares = [one["states"].get("productive", 0) / one["gpu_seconds"] for one in timeline]
    first, last, low, high = (
        f"{100 * share:.1f} %" for share in (shares[0], shares[-1], min(shares), max(shares))
    )
    assert page.evaluate(TREND)["finished"] == (
        f"goodput over time: {first} at first, {last} at last, from {low} to {high}"
    )


def test_trends_are_requested_for_rows_on_the_screen(tab, served):
    """One at a time: the timeline of a run that is over is read from the ledger."""
    page = tab("about:blank", width=1280, height=420)
    asked = []
    page.on("request", lambda request: "points=24" in request.url and asked.append(request.url))
    page.goto(served)
    until(page, "document.querySelectorAll('#runs-rows .trend svg').length > 0")
    wait_for_answers(page)
    assert 0 < len(asked) < 6
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    until(page, "document.querySelectorAll('#runs-rows .trend svg').length === 6")
    assert len(set(asked)) == 6


def test_each_row_has_its_culprit_with_a_link(tab, served):
    page = tab(served)
    until(page, "document.querySelector('#runs-rows .status')?.textContent === 'hangs'")
    found = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#runs-rows tr')].map((row) => [row.querySelector('a').textContent, "
        "[row.querySelector('.c-culprit').innerText.replace(/\\s+/g, ' ').trim(), row.querySelector('.c-culprit a').getAttribute('href')]]))"
    )
    assert found["hung"] == ["rank 2 gpu-node-01", "#run=hung&rank=2"]
    assert found["finished"] == ["rank 3 gpu-node-01", "#run=finished&rank=3"]


def test_a_column_has_one_unit(tab, served):
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows tr').length === 6")
    for column in ("time", "waste", "cost"):
        cells = page.evaluate(
            f"[...document.querySelectorAll('#runs-rows .c-{column}')].map((cell) => cell.textContent)"
        )
        assert all(re.fullmatch(r"[\d,]*(\.\d\d)?", cell) for cell in cells), cells


@pytest.mark.parametrize("link, heading", [(SHOWN, "“ ”"), ("..", "..")])
def test_runs_with_odd_names_can_be_opened(tab, served, link, heading):
    """Their account and their timeline; URLs have no name `..` in their path."""
    page = tab(served)
    until(page, "document.querySelectorAll('#runs-rows tr').length === 6")
    assert link in names(page)
    page.get_by_role("link", name=link, exact=True).click()
    until(page, "!document.querySelector('#run').hidden")
    assert text_of(page, "#run-head h1").replace("\u00a0", " ") == heading
    assert page.evaluate("document.querySelectorAll('#rank-rows tr').length") == 4
    until(page, "document.querySelector('#timeline-picture svg') !== null")


def test_time_between_two_allocations_is_nobodys(tab, served):
    page = tab(f"{served}/#run=..")
    until(page, "document.querySelector('#timeline-picture svg') !== null")
    page.focus("#timeline-picture")
    for key in ("Home", *["ArrowRight"] * 40):
        page.keyboard.press(key)
    assert "no GPUs allocated" in text_of(page, "#timeline-words")


def test_installation_shows_bounds_versions_and_refusals(tab, served):
    page = tab(f"{served}/#installation")
    until(page, "!document.querySelector('#installation-body').hidden")
    bounds = page.evaluate(
        "[...document.querySelectorAll('#bounds-rows th')].map((cell) => cell.textContent)"
    )
    assert {"runs", "connections", "sessions", "health events", "stack samples", "history queries"} <= set(
        bounds
    )
    assert page.evaluate("document.querySelector('#agents-rows').textContent") == "unknown1"
    assert "Runs in memory" in text_of(page, "#installation-facts")
    assert page.evaluate("document.querySelector('#installation-problems').hidden")
    page.evaluate("location.hash = '#runs'")
    until(page, "!document.querySelector('#runs').hidden")


def test_installation_names_what_is_wrong(tab, served):
    """A full bound, clocks that differ, agents of two versions and a token that expires, before all figures."""
    page = tab(f"{served}/#runs")
    wrong = {
        "bounds": {"runs": 1.0, "sessions": 0.1},
        "agents": {"1.0": 3, "1.1": 2},
        "clock_offsets": [{"node": "n7", "seconds": -300.0}, {"node": "n1", "seconds": 0.002}],
        "expires": {"token": time.time() + 3 * 86_400},
        "failing_files": ["certificate"],
    }
    page.route("**/api/v1/installation", lambda route: _answer(route, wrong))
    page.evaluate("location.hash = '#installation'")
    until(page, "document.querySelector('#installation-problems li')")
    lines = page.evaluate(
        "[...document.querySelectorAll('#installation-problems li')].map((one) => one.textContent)"
    )
    assert [line.split(":")[0].split(",")[0] for line in lines] == [
        "runs",
        "the newest certificate file cannot be loaded; the previous one is in use",
        "the next token expires in 3 d",
        "1 node with a clock that is more than 5 s off",
        "agents of 2 versions",
    ]
    assert "n7 by −5 min" in lines[3]


def _answer(route, changes: dict) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, json={**answer.json(), **changes})
