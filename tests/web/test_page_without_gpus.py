"""A run whose ranks use no GPU: the page counts seconds of processes, as the text report does."""

from __future__ import annotations

import re
import time

import pytest
from support.aggregator.page_server import SECOND, aggregator, attempt_reports, document, push, serving
from support.browser import needs_chromium, text_of, until

pytestmark = needs_chromium
CPU = "Intel(R) Xeon(R) Platinum 8481C, 8 threads"
READY = (
    "!document.querySelector('#timeline-body').hidden && document.querySelectorAll('#rank-rows tr').length === 4"
    " && !document.querySelector('#story-sum').textContent.startsWith('Loading')"
)
# What people read, hover over or hear.
WORDS = """[document.querySelector('main').innerText, ...[...document.querySelectorAll('main *')].filter((node) => node.checkVisibility())
  .flatMap((node) => ['title', 'aria-label', 'data-tip'].map((name) => node.getAttribute(name) ?? ''))].join('\\n')"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    start_ns = time.time_ns() - 900 * SECOND
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, attempt_reports("on-cpu", 1, start_ns, range(60), alive=False, device=CPU))
        push(
            url,
            attempt_reports("on-cpu", 2, start_ns + 120 * SECOND, range(60), ended="finished", device=CPU),
        )
        push(url, attempt_reports("on-gpu", 1, start_ns, range(60), ended="finished"))
        yield url


def test_run_without_gpus_counts_seconds_of_processes(tab, served):
    run = document(served, "on-cpu")
    assert run["is_on_cpu"]
    page = tab(f"{served}/#run=on-cpu")
    until(page, READY)
    assert "% of the process time was not productive" in text_of(page, "#cause")
    assert f"{run['gpu_seconds']:,.2f}" in text_of(page, "#account-table")
    heads = "[...document.querySelectorAll('#account-table thead th')].map((head) => head.textContent)"
    assert "Process-seconds" in page.evaluate(heads)
    assert "Down, per process" in text_of(page, "#restarts")
    assert re.search(r"lost [\d.,]+ s process-seconds: ", text_of(page, "#tile-lost"))
    found = [line for line in page.evaluate(WORDS).splitlines() if re.search(r"GPU(s|-| time)", line)]
    assert found == [], f"{found}: not a word of GPU time where there is none"


def test_rank_without_gpu_has_no_figure_of_one(tab, served):
    page = tab(f"{served}/#run=on-cpu&rank=3")
    until(page, "document.querySelector('#rank-own-picture svg') !== null")
    assert "GPU" not in text_of(page, "#rank-tiles")
    assert "process-s" in page.evaluate("document.querySelector('#rank-bar i').dataset.tip")


def test_list_sums_gpus_and_processes_apart(tab, served):
    page = tab(f"{served}/#runs")
    until(page, "document.querySelectorAll('#runs-rows tr').length === 2")
    time_of_gpus = document(served, "on-gpu")["gpu_seconds"]
    assert f"of {time_of_gpus:,.0f} GPU-s; without 1 run without GPUs" in text_of(page, "#fleet-tiles")
    tips = page.evaluate(
        "[...document.querySelectorAll('#runs-rows .bar i:first-child')].map((part) => part.dataset.tip)"
    )
    assert sorted("process-s" in tip for tip in tips) == [False, True]
    page.fill("#runs-filter", "on-cpu")
    until(page, "document.querySelector('#fleet-tiles').innerText.includes('process-s')")
    assert "GPU-s" not in text_of(page, "#fleet-tiles")
