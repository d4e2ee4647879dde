"""The pages have no violations of axe-core's rules, on a laptop and a phone, light and dark, with all details open."""

from __future__ import annotations

import time

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from support.aggregator.page_server import (
    SECOND,
    aggregator,
    attempt_reports,
    document,
    finished_run,
    hung_run,
    push,
    serving,
)
from support.browser import needs_chromium, open_page, until, wait_for_answers
from support.compare.logs import write_log

from goodput.cli import main

pytestmark = needs_chromium
PAGES = {
    "#runs": "document.querySelectorAll('#runs-rows tr').length === 4",
    **{
        f"#run={run}": "!document.querySelector('#timeline-body').hidden && document.querySelectorAll('#rank-rows tr').length === 4"
        for run in ("healthy", "slow", "hung", "crashed")
    },
    "#run=slow&rank=3": "document.querySelectorAll('#rank-phase-rows tr').length > 0",
}
SIZES = [(1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark")]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"), grafana="https://grafana.example.com")) as url:
        start_ns = now_ns - 900 * SECOND
        push(url, attempt_reports("healthy", 1, start_ns, range(60), slow=None, ended="finished"))
        push(url, finished_run("slow", start_ns))
        push(url, hung_run("hung", now_ns, 200))
        push(url, attempt_reports("crashed", 1, start_ns, range(60), ended="failed"))
        document(url, "hung")
        yield url


def violations(page) -> list[str]:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    wait_for_answers(page)
    found = Axe().run(page).response
    assert len(found["passes"]) > 10, "the rules were applied"
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]]


@pytest.mark.parametrize("width, height, scheme", SIZES)
def test_pages_have_no_violations(browser, served, width, height, scheme):
    page = open_page(browser, "about:blank", width=width, height=height, color_scheme=scheme)
    for address, is_ready in PAGES.items():
        page.goto("about:blank")
        page.goto(f"{served}/{address}")
        until(page, is_ready)
        assert violations(page) == [], address
    page.context.close()


def test_violation_is_found(browser, served):
    page = open_page(browser, f"{served}/#runs")
    until(page, "document.querySelectorAll('#runs-rows tr').length === 4")
    page.evaluate("document.querySelector('#runs h1').append(document.createElement('button'))")
    assert any(one.startswith("button-name: ") for one in violations(page))
    page.context.close()


@pytest.mark.parametrize("width, height, scheme", SIZES)
def test_comparison_has_no_violations(browser, tmp_path, width, height, scheme):
    lengths, out = 1 + 0.01 * np.sin(np.arange(200) * 7), tmp_path / "compared.html"
    before, after = (
        write_log(tmp_path / f"{name}.jsonl", factor * lengths, 0.1, name=name)
        for name, factor in (("before", 1.9), ("after", 1.0))
    )
    assert main(["compare", before, after, "--html", str(out)]) == 0
    page = open_page(browser, f"file://{out}", width=width, height=height, color_scheme=scheme)
    assert violations(page) == []
    page.context.close()
