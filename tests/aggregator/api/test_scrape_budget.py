"""What a scrape of many small runs costs is bounded: it gets what was rendered last, each run with the time of that."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving

from goodput.aggregator.api import exposition
from goodput.aggregator.api.app import create_app

RUNS = 40


@pytest.fixture
def client(tmp_path):
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        push(client, *(report(number) for number in range(RUNS)))
        yield client


def report(number: int, steps: int = 20):
    one = Process(0, 1, time.time() - 60, world_size=1).steps(steps, loader=0.1, forward=1)
    return rank_report(one, f"r{number}", host=f"n{number}")


def rendered(client) -> dict[str, float]:
    """When the series of each run were rendered, in a scrape."""
    text = client.get("/metrics").text
    found = [one for family in text_string_to_metric_families(text) for one in family.samples]
    at = {one.labels["run"]: one.value for one in found if one.name == "goodput_run_series_timestamp_seconds"}
    shown = {one.labels["run"] for one in found if one.name == "goodput_gpu_seconds"}
    assert shown == set(at), "no figure without its time"
    assert any(one.name == "goodput_aggregator_info" for one in found)
    return at


def scrapes_until(client, condition) -> list[dict[str, float]]:
    found, deadline = [], time.monotonic() + 60
    while not found or not condition(found[-1]):
        assert time.monotonic() < deadline, "no scrape had what it should have"
        found.append(rendered(client))
        time.sleep(0.01)
    return found


def test_small_installation_is_rendered_at_each_scrape(monkeypatch, client):
    monkeypatch.setattr(exposition, "SCRAPE_CPU_SECONDS", 60.0)
    before = rendered(client)
    assert len(before) == RUNS
    time.sleep(0.01)
    after = rendered(client)
    assert all(after[run] > at for run, at in before.items())


def test_scrape_that_takes_long_gets_what_there_is(monkeypatch, client):
    """A budget that the first run uses up stands for 800 runs. Every scrape is answered; every run has its turn."""
    monkeypatch.setattr(exposition, "SCRAPE_CPU_SECONDS", 0.0)
    first = scrapes_until(client, lambda at: len(at) == RUNS)
    assert len(first) > 1 and len(first[0]) < RUNS, "answered before all runs were rendered"
    for before, after in pairwise(first):
        assert before.keys() <= after.keys(), "a run that was shown stays"
    last = first[-1]
    renewed = scrapes_until(client, lambda at: all(at[run] > last[run] for run in last))
    assert all(len(at) == RUNS for at in renewed)
    assert any(len(set(at.values())) > 1 and min(at.values()) < max(at.values()) for at in renewed)


def test_costly_refresh_takes_a_part_of_a_core(monkeypatch, client):
    """Scrapes that come one after the other do not begin it anew each time."""
    monkeypatch.setattr(exposition, "SCRAPE_CPU_SECONDS", 0.0)
    monkeypatch.setattr(exposition, "COSTLY_TIMES", 1e6)
    begun = []
    refresh = exposition.Exposition.refresh

    async def counted(self):
        begun.append(self)
        await refresh(self)

    monkeypatch.setattr(exposition.Exposition, "refresh", counted)
    scrapes_until(client, lambda at: len(at) == RUNS)
    # The first scrape of a format may begin two; none that comes after all runs are shown begins another.
    before = len(begun)
    assert before >= 1
    assert all(len(rendered(client)) == RUNS for _ in range(20)) and len(begun) == before


def test_old_figures_are_not_served(monkeypatch, client):
    """Where nobody has scraped for long, what was rendered then is left out until it is renewed."""
    before = scrapes_until(client, lambda at: len(at) == RUNS)[-1]
    monkeypatch.setattr(exposition, "SCRAPE_CPU_SECONDS", 0.0)
    monkeypatch.setattr(exposition, "COSTLY_TIMES", 0)
    since = time.monotonic()
    monkeypatch.setattr(exposition.Exposition, "_age_seconds_max", lambda self: time.monotonic() - since)
    found = scrapes_until(client, lambda at: len(at) == RUNS)
    assert len(found[0]) < RUNS
    for at in found:
        assert all(value > before[run] for run, value in at.items())


def test_pushes_are_answered_while_runs_are_rendered(monkeypatch, client):
    monkeypatch.setattr(exposition, "SCRAPE_CPU_SECONDS", 0.0)
    rendered(client)
    assert push(client, report(RUNS)).accepted == 1
    scrapes_until(client, lambda at: f"r{RUNS}" in at)
