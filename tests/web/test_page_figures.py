"""What the page shows beyond the account: figures, wrong inputs, cost of restarts, slow places, recent windows."""

from __future__ import annotations

import re
import time

import pytest
from support.aggregator.page_server import (
    SECOND,
    aggregator,
    attempt_reports,
    changed,
    document,
    finished_run,
    get,
    msgspec,
    push,
    serving,
)
from support.browser import dom_of, needs_chromium, until

from goodput.account.text import percent
from goodput.wire import schema

pytestmark = needs_chromium
HOSTILE_HOST = "<img src=x onerror=document.documentElement.dataset.ran=1>"


def staged_run(run: str, start_ns: int, steps: int = 40, again: int = 60) -> list[schema.RankReport]:
    """Eight ranks on four hosts, a stage each, rank 3 slow; killed half a minute before its second attempt."""
    declared = {"flops_per_step": 4.0e14, "hardware_flops_per_step": 5.0e14, "peak_flops_per_second": 9.89e14}
    declared |= {
        "gpu_hour_cost": 2.5,
        "gpu_power_watts": 500.0,
        "microbatches": 8,
        "ideal_samples_per_second": 40.0,
    }
    first = attempt_reports(run, 1, start_ns, range(steps), ranks=8, slow=3, alive=False, **declared)
    again_ns = max(report.live.now_ns for report in first) + 31 * SECOND
    second = attempt_reports(
        run, 2, again_ns, range(steps, steps + again), ranks=8, slow=3, ended="finished", **declared
    )
    return [_with_events(report, 15) for report in first + second]


def _with_events(report: schema.RankReport, every: int) -> schema.RankReport:
    """With a stage, and a checkpoint at each so many steps; the second attempt resumed where the first ended."""
    identity, kinds = report.identity, []
    if identity.attempt > 1:
        kinds.append(("resumed", identity.start_ns + 9 * SECOND, report.steps[0].step - 1))
    for row in report.steps:
        if row.step % every == every - 1:
            kinds += [("checkpoint_begun", row.end_ns - SECOND // 2, row.step)]
            kinds += [("checkpoint_committed", row.end_ns, row.step)]
    events = [schema.EventRow(number, *what) for number, what in enumerate(kinds, 1)]
    identity = msgspec.structs.replace(identity, stage=identity.rank // 2)
    return msgspec.structs.replace(report, identity=identity, events=events)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, staged_run("staged", now_ns - 300 * SECOND))
        wrong = {"flops_per_step": 4.0e15, "peak_flops_per_second": 9.89e14}
        push(url, attempt_reports("wrong", 1, now_ns - 60 * SECOND, range(20), ended="finished", **wrong))
        push(url, finished_run("six minutes", now_ns - 1000 * SECOND))
        yield url


def test_figures_equal_the_api_and_name_their_basis(browser, served):
    run = document(served, "staged")
    dom = dom_of(browser, f"{served}/#run=staged")
    shown = dom.text("figures")
    saving, rate, pipe = run["checkpoints"], run["throughput"], run["pipeline"]
    best = f"Best checkpoint interval{saving['best_interval_seconds']:.2f} s"
    assert f"{best}Estimate, for the failures seen. Now one is saved each" in shown
    assert f"{saving['interval_seconds']:.1f} s and takes {saving['save_seconds']:.2f} s." in shown
    assert (
        f"Throughput goodput{percent(rate['goodput'])}{rate['samples'] / 1e3:.3g}k kept samples, "
        f"{rate['samples_per_second']:.3g} samples/s of 320" in shown
    )
    assert (pipe["stages"], round(pipe["ideal_bubble"], 4)) == (4, 0.2727)
    assert f"Pipeline bubble{percent(pipe['bubble'])}4 stages. 27.3 % cannot be avoided with 8" in shown
    cost, per = run["cost"], run["per_dollar"]
    assert (
        f"Cost${cost['total']:.4f}${cost['states']['productive']:.4f} of it productive. For each dollar"
        in shown
    )
    assert f"{per['productive_gpu_seconds']:.0f} productive GPU-seconds" in shown
    assert f"{per['samples'] / 1e3:.3g}k samples, {per['flops'] / 1e15:.0f} PFLOP." in shown
    assert f"Energy{run['energy']['total'] / 3.6e6:.3g} kWhEstimate. For each kWh" in shown
    joule = run["per_joule"]
    assert (
        f"For each kWh {3.6e6 * joule['productive_gpu_seconds'] / 1e3:.3g}k productive GPU-seconds" in shown
    )
    assert (
        f"{3.6e6 * joule['samples'] / 1e3:.3g}k samples, {3.6e6 * joule['flops'] / 1e18:.3g} EFLOP." in shown
    )
    assert f"HFU {percent(run['factors']['hfu'])}" in dom.text("main")
    rows = {row[0]: row for row in dom.table("account-rows")}
    assert rows["loader"][4] == f"${cost['states']['loader']:.4f}"
    assert not dom.is_shown("errors") and dom.text("errors") == ""


def test_undeclared_figures_are_unknown_with_a_hint(browser, served):
    shown = dom_of(browser, f"{served}/#run=wrong").text("figures")
    assert "Best checkpoint intervalunknownNo checkpoint was committed." in shown
    assert "CostunknownNeeds gpu_hour_cost" in shown and "EnergyunknownNeeds gpu_power_watts" in shown
    assert "Pipeline" not in shown, "there are no stages"


def test_wrong_input_is_shown_at_the_top(browser, served):
    (error,) = document(served, "wrong")["errors"]
    dom = dom_of(browser, f"{served}/#run=wrong")
    assert dom.text("errors") == f"Wrong input{error}" and "261.4 % is above 100 %" in error
    (section,) = [given for _, given in dom.tags if given.get("id") == "errors"]
    assert (section["class"], section["role"]) == ("notice warn errors", "alert")
    shown = dom.text("main")
    assert shown.index("Wrong input") < shown.index("availability")
    assert "MFUunknownabove 100 %, which cannot be" in shown and "flops_per_step and peak" not in shown


def test_figures_of_wrong_input_are_grey(tab, served):
    assert document(served, "wrong")["wrong_figures"] == ["mfu", "compute_efficiency"]
    page = tab(f"{served}/#run=wrong")
    until(page, "document.querySelector('[data-factor=mfu].wrong') !== null")
    colour = "(selector) => getComputedStyle(document.querySelector(selector)).color"
    grey, plain = page.evaluate(colour, "#run .muted"), page.evaluate(colour, "[data-factor=goodput] strong")
    assert grey != plain and page.evaluate(colour, "[data-factor=mfu] strong") == grey
    wrong = "[...document.querySelectorAll('#run .wrong')].map((one) => one.dataset.factor)"
    assert page.evaluate(wrong) == ["mfu", "compute_efficiency"]


def test_a_restart_says_what_it_cost_in_all(browser, served):
    run = document(served, "staged")
    (restart,) = run["restarts"]
    dom = dom_of(browser, f"{served}/#run=staged")
    (row,) = dom.table("restart-rows")
    expected = ["2", "39", "31.0 s", "0"]
    expected += [
        f"{restart[name]:.2f}" for name in ("lost_gpu_seconds", "startup_gpu_seconds", "gpu_seconds")
    ]
    assert [row[0], *row[2:]] == [*expected, f"${restart['cost']:.4f}"]
    assert dom.text("restarts-sum").startswith(
        f"1 restart took {restart['gpu_seconds']:.2f} GPU-seconds and ${restart['cost']:.4f}:"
    )
    assert not dom_of(browser, f"{served}/#run=wrong").is_shown("all-restarts"), "there are none"


def test_slow_rank_shows_onset_host_and_stage(browser, served):
    straggler = document(served, "staged")["straggler"]
    assert straggler["since_step"] is not None and len(straggler["onsets"]) > 0
    shown = dom_of(browser, f"{served}/#run=staged").text("straggler")
    since = ", from the start" if straggler["since_start"] else f", since step {straggler['since_step']}"
    assert f"than the median of its group{since}." in shown
    shares = {name: f"{100 * straggler[name][0]['share']:.1f} %" for name in ("shares", "hosts", "stages")}
    assert f"rank 3{shares['shares']}" in shown and f"host gpu-node-01{shares['hosts']}" in shown
    assert f"stage 1{shares['stages']}" in shown


def test_hosts_that_are_code_are_text(browser, tmp_path):
    with serving(aggregator(tmp_path)) as url:
        reports = staged_run("staged", time.time_ns() - 300 * SECOND)
        identity = [msgspec.structs.replace(one.identity, host=HOSTILE_HOST) if one.identity.rank // 2 == 1
                    else one.identity for one in reports]  # fmt: skip
        push(url, [msgspec.structs.replace(r, identity=i) for r, i in zip(reports, identity, strict=True)])
        dom = dom_of(browser, f"{url}/#run=staged")
    assert re.search(rf"host {re.escape(HOSTILE_HOST)}9\d\.\d %", dom.text("straggler"))
    assert not any(tag == "img" or "data-ran" in found for tag, found in dom.tags)


# ---- Rolling windows


def rolling(url: str, run: str) -> list[dict]:
    return msgspec.json.decode(get(url, f"/api/v1/runs/{run.replace(' ', '%20')}/rolling")[2])["windows"]


def test_the_last_minutes_stand_beside_the_lifetime(browser, served):
    dom = dom_of(browser, f"{served}/#run=six%20minutes")
    windows = {one["name"]: one for one in rolling(served, "six minutes")}
    assert 300 < windows["lifetime"]["seconds"] < 3600
    rows = dom.table("rolling-rows")
    for row, name, shown in zip(rows, ("5m", "lifetime"), ("last 5 min", "lifetime"), strict=True):
        found = windows[name]
        names = ("goodput", "availability", "step_efficiency", "mfu")
        assert row[0] == shown and row[2:6] == [percent(found["factors"][one]) for one in names]
        assert row[6:] == [f"{found['gpu_seconds']:,.2f}", found["leading_cause"]]
    assert rows[0][2] != rows[1][2] and dom.text("rolling-note").startswith("Up to 20")
    bars = [
        given["aria-label"] for _, given in dom.tags if given.get("role") == "img" and "aria-label" in given
    ]
    (label,) = [bar for bar in bars if bar.startswith("last 5 min: ")]
    seconds = windows["5m"]["states"]["productive"] / windows["5m"]["gpu_seconds"]
    assert f"productive {100 * seconds:.1f} %" in label


def test_a_young_run_has_no_windows(browser, served):
    dom = dom_of(browser, f"{served}/#run=wrong")
    assert not dom.is_shown("rolling") and dom.table("rolling-rows") == []


class Rolling:
    """The app, whose rolling windows are answered with the next of `statuses`, the last of them for ever.

    They are computed once, by `compute`, and then answered at once: the page waits four times as long as an answer took.

    The browser's time goes faster than the clock of the aggregator, so the test ends the run a second later at each
    question unless it `is_over`.
    """

    def __init__(self, app, run: str, statuses: list[int], is_over: bool = False):
        self.statuses, self.is_over, self.requests, self.polls = statuses, is_over, 0, 0
        self.inner, self.path, self.body = app, f"/api/v1/runs/{run}/rolling", b""
        self.app = changed(self.rolling, f"/api/v1/runs/{run}", self.later)

    def compute(self, url: str) -> None:
        self.body = get(url, self.path)[2]

    async def rolling(self, scope, receive, send) -> None:
        if scope.get("path") != self.path or not self.body:
            return await self.inner(scope, receive, send)
        status = self.statuses[min(self.requests, len(self.statuses) - 1)]
        self.requests += 1
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        body = self.body if status == 200 else b'{"detail": "busy"}'
        return await send({"type": "http.response.body", "body": body})

    def later(self, status: int, body: bytes) -> tuple[int, bytes]:
        found = msgspec.json.decode(body)
        if "live" not in found or self.is_over:
            return status, body
        self.polls += 1
        return status, msgspec.json.encode({**found, "end": found["end"] + self.polls})


@pytest.mark.parametrize(
    "statuses, is_over, seconds, least, most",
    [
        pytest.param([200], False, 40, 2, 3, id="each 15 s"),
        pytest.param([503, 200], False, 55, 2, 3, id="after 30 s, then each 15 s"),
        pytest.param([503], False, 55, 2, 2, id="after 30 s, then 60 s"),
        pytest.param([200], True, 40, 1, 1, id="once, since it is over"),
    ],
)
def test_windows_are_requested_at_intervals(browser, tmp_path, statuses, is_over, seconds, least, most):
    """No request is due at the end; less often when the server is busy, and not again of a run that does not go on."""
    rolling = Rolling(aggregator(tmp_path), "long", statuses, is_over)
    with serving(rolling.app) as url:
        push(url, attempt_reports("long", 1, time.time_ns() - 440 * SECOND, range(320)))
        rolling.compute(url)
        dom = dom_of(browser, f"{url}/#run=long", seconds=seconds)
    assert least <= rolling.requests <= most
    rows = [row[0] for row in dom.table("rolling-rows")]
    if statuses[-1] == 200:
        assert rows == ["last 5 min", "lifetime"] and dom.text("rolling-note").startswith("Up to 20")
    else:
        assert rows == ["lifetime"], "the rest of the page does not need them"
        assert dom.text("rolling-note") == "The aggregator is busy; retrying."
    assert not dom.is_shown("silent") and dom.table("rank-rows")
