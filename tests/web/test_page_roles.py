"""A run of several roles on the built-in page: an account for each, and a column of the table of ranks."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace
from support.aggregator.page_server import (
    SECOND,
    RankProcess,
    aggregator,
    attempt_reports,
    document,
    push,
    serving,
)
from support.browser import dom_of, needs_chromium, text_of, until

from goodput.account.text import percent


def reinforcement_learning(run: str, start_ns: int) -> list:
    """Two trainers that declare no role, and two generators; rollouts of eight seconds."""
    trainers = attempt_reports(run, 1, start_ns, range(30), ranks=2, slow=1, ended="finished")
    trainers = [replace(one, identity=replace(one.identity, world_size=4)) for one in trainers]
    generators = []
    for rank in (2, 3):
        one = RankProcess(run, rank, 1, 4, start_ns, role="generator")
        one.spend("none", 4.0, outside=True)
        for _ in range(4):
            one.spend("rollout", 8.0, outside=True)
        generators.append(one.report("finished", alive=False))
    return trainers + generators


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, reinforcement_learning("ppo", now_ns - 100 * SECOND))
        push(url, attempt_reports("plain", 1, now_ns - 100 * SECOND, range(20), ranks=2, ended="finished"))
        yield url


@needs_chromium
def test_each_role_has_a_row_that_closes(browser, served):
    run = document(served, "ppo")
    assert [one["role"] for one in run["roles"]] == ["generator", "trainer"]
    dom = dom_of(browser, f"{served}/#run=ppo")
    rows = dom.table("role-rows")
    generator, trainer = rows
    assert (generator[0], generator[2], generator[4]) == ("generator", "2", "makes no steps")
    assert (
        generator[5]
        == f"rollout, {percent(run['roles'][0]['states']['rollout'] / run['roles'][0]['gpu_seconds'])}"
    )
    assert (trainer[0], trainer[4]) == ("trainer", percent(run["roles"][1]["goodput"]))
    assert sum(float(row[3]) for row in rows) == pytest.approx(run["gpu_seconds"], abs=0.02)
    labels = [found["aria-label"] for _, found in dom.tags if found.get("aria-label", "").startswith("role ")]
    for label in labels:
        shares = [float(part.split()[-2]) for part in label.partition(": ")[2].split(", ")]
        assert sum(shares) == pytest.approx(100)
    assert len(labels) == 2


@needs_chromium
def test_ranks_show_and_filter_by_role(tab, served):
    page = tab(f"{served}/#run=ppo")
    until(page, "document.querySelectorAll('#rank-rows tr').length === 4")
    roles = "[...document.querySelectorAll('#rank-rows .c-role')].map((cell) => cell.innerText)"
    assert sorted(page.evaluate(roles)) == ["generator"] * 2 + ["trainer"] * 2
    page.fill("#ranks-filter", "generator")
    until(page, "document.querySelectorAll('#rank-rows tr').length === 2")
    assert page.evaluate(roles) == ["generator", "generator"]
    assert text_of(page, "#ranks-count").startswith("2 of 4 ranks")


@needs_chromium
def test_one_role_has_no_table_and_no_column(tab, served):
    page = tab(f"{served}/#run=plain")
    until(page, "document.querySelectorAll('#rank-rows tr').length === 2")
    assert not page.is_visible("#by-role") and not page.is_visible("#rank-rows .c-role")
    page.goto(f"{served}/#run=ppo")
    until(page, "document.querySelectorAll('#rank-rows tr').length === 4")
    assert page.is_visible("#by-role") and page.is_visible("#rank-rows .c-role")
