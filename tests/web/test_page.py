"""The built-in page served by a real aggregator: its files, and what it shows in a browser."""

from __future__ import annotations

import datetime
import re
import time
from urllib.parse import quote

import pytest
from msgspec.structs import replace
from support.aggregator.page_server import (
    SECOND,
    aggregator,
    attempt_reports,
    changed,
    document,
    finished_run,
    get,
    hung_run,
    msgspec,
    push,
    serving,
)
from support.browser import Dom, dom_of, needs_chromium, text_of, until, wait_for_answers

from goodput import web
from goodput.account.states import MEANINGS, STATES
from goodput.account.text import percent, state_rows
from goodput.wire import schema

SCRIPTS = sorted(web.assets())
HOSTILE = (
    '"><script>document.documentElement.dataset.ran=1</script><img src=x onerror=alert(1)>/../a b?c#d%2F&amp;'
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An aggregator with a finished run, a running one and one whose name is an attack."""
    now_ns = time.time_ns()
    with serving(aggregator(tmp_path_factory.mktemp("ledger"))) as url:
        push(url, finished_run("llama-7b/pretrain", now_ns - 1000 * SECOND))
        push(url, attempt_reports("sft-small", 1, now_ns - 130 * SECOND, range(115), slow=1, seen=3))
        push(url, attempt_reports(HOSTILE, 1, now_ns - 90 * SECOND, range(20), ended="finished"))
        yield url


# ---- What is served ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/scripts/main.js", "text/javascript"),
        ("/scripts/dom/nodes.js", "text/javascript"),
        ("/scripts/run/recent_windows.js", "text/javascript"),
        ("/scripts/theme.js", "text/javascript"),
        ("/page.css", "text/css"),
    ],
)
def test_files_have_a_strict_content_policy(served, path, kind):
    status, headers, body = get(served, path)
    assert status == 200 and body
    assert headers["Content-Type"].startswith(kind)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/page.html",
        "/__init__.py",
        "/scripts/..%2f__init__.py",
        "/nothing",
        "/scripts/",
        "/%2e%2e/web/__init__.py",
    ],
)
def test_other_names_are_not_found(served, path):
    assert get(served, path)[0] == 404


def test_page_has_no_foreign_requests_or_inline_code():
    html = (web.FOLDER / "page.html").read_text()
    others = {"page.html", "login.html", "login.css"}  # They have routes of their own.
    files = {
        path.relative_to(web.FOLDER).as_posix() for path in web.FOLDER.rglob("*.*") if "py" not in path.suffix
    }
    assert files == {*SCRIPTS} | others, "all files are served"
    sources = [html, *((web.FOLDER / name).read_text() for name in SCRIPTS)]
    # An address within the page, such as that of a hatch, loads nothing.
    sources = [source.replace("url(#", "") for source in sources]
    assert not any(word in source for source in sources for word in ("http:", "https:", "@import", "url("))
    assert not any("innerHTML" in source or "insertAdjacentHTML" in source for source in sources)
    dom = Dom(html)
    assert [found.get("src") for tag, found in dom.tags if tag == "script"] == [
        "scripts/theme.js",
        "scripts/main.js",
    ]
    assert not any(name.startswith("on") or name == "style" for _, found in dom.tags for name in found)


def test_every_state_has_its_colour_and_its_meaning():
    script, sheet = (web.FOLDER / "scripts/text/states.js").read_text(), (web.FOLDER / "page.css").read_text()
    for state in STATES:
        assert f'  {state}: "{MEANINGS[state]}",\n' in script
        assert f".s-{state} {{" in sheet and f"--{state}: " in sheet


# ---- What a person sees --------------------------------------------------------------------------------------


@needs_chromium
def test_run_equals_the_api_and_sums_to_100_percent(browser, served):
    run = document(served, "llama-7b/pretrain")
    dom = dom_of(browser, f"{served}/#run=llama-7b%2Fpretrain")
    assert dom.text("run-head").split()[:2] == ["llama-7b/pretrain", "finished"]
    rows = dom.table("account-rows")
    expected = [(state, f"{seconds:,.2f}", share, what) for state, seconds, share, what in state_rows(run)]
    assert [(row[0], row[2], row[3], row[6]) for row in rows] == expected
    assert sum(round(10 * float(row[3])) for row in rows) == 1000
    assert dom.text("account-total").split()[:3] == ["total", f"{run['gpu_seconds']:,.2f}", "100.0"]
    for factor in ("goodput", "availability", "step_efficiency", "compute_efficiency", "mfu"):
        assert percent(run["factors"][factor]) in dom.text("main")
    assert dom.text("title") == f"{percent(run['factors']['goodput'])} llama-7b/pretrain – goodput"


@needs_chromium
def test_run_shows_cause_slow_rank_restart_and_ranks(browser, served):
    run = document(served, "llama-7b/pretrain")
    assert (run["straggler"]["culprit"], len(run["restarts"])) == (3, 1), "the generator plants these"
    dom = dom_of(browser, f"{served}/#run={quote('llama-7b/pretrain', safe='')}")
    assert run["causes"][0]["state"] in dom.text("cause") and run["causes"][0]["advice"] in dom.text("cause")
    assert "rank 3 on gpu-node-01" in dom.text("straggler")
    assert "more time in loader" in dom.text("straggler")
    (restart,) = dom.table("restart-rows")
    assert (restart[0], restart[2], restart[4]) == ("2", "99", str(run["restarts"][0]["lost_steps"]))
    ranks = dom.table("rank-rows")
    assert ranks[0][0] == "3", "the slow rank comes first"
    kept = {rank["rank"]: f"{rank['steps']['kept']} / {rank['steps']['lost']}" for rank in run["ranks"]}
    assert {int(row[0]): row[7] for row in ranks} == kept
    bars = {
        found["aria-label"] for _, found in dom.tags if found.get("role") == "img" and "aria-label" in found
    }
    pictures = {label for label in bars if label.startswith(("From peak", "GPU time by state", "Own time"))}
    assert len(bars - pictures) == 1 + 4 + 2 and all("productive" in label for label in bars - pictures)


@needs_chromium
def test_story_is_the_apis(tab, served):
    story = msgspec.json.decode(get(served, f"/api/v1/runs/{quote('llama-7b/pretrain', safe='')}/story")[2])
    assert {event["kind"] for event in story["events"]} >= {"restart", "slow rank"}
    page = tab(f"{served}/#run=llama-7b%2Fpretrain")
    until(page, "document.querySelectorAll('#story-events > li').length > 0")
    shown = text_of(page, "#story-events")
    for event in story["events"]:
        assert event["title"] in shown
        assert all(f"{claim['basis']} {claim['text']}" in shown for claim in event["claims"])
    page.evaluate("location.hash = '#runs'")
    until(page, "!document.querySelector('#runs').hidden")
    page.evaluate("location.hash = '#run=sft-small'")
    until(page, "document.querySelector('#story-sum').textContent !== 'Loading …'")
    assert "restart" not in text_of(page, "#story-events"), "the story of the run that was shown before"


@needs_chromium
@pytest.mark.parametrize("address", ["#runs", f"#run={quote(HOSTILE, safe='')}"])
def test_a_hostile_name_is_text(browser, served, address):
    dom = dom_of(browser, f"{served}/{address}")
    if address == "#runs":
        names = [row["run"] for row in msgspec.json.decode(get(served, "/api/v1/runs")[2])["runs"]]
        rows = [row[0].removesuffix("1 restart") for row in dom.table("runs-rows")]
        assert HOSTILE in names and sorted(rows) == sorted(names)
    else:
        assert HOSTILE in dom.text("h1") and dom.table("account-rows")
    assert [found.get("src") for tag, found in dom.tags if tag == "script"] == [
        "scripts/theme.js",
        "scripts/main.js",
    ]
    assert not any(tag in ("img", "iframe", "object") for tag, _ in dom.tags)
    assert not any("data-ran" in found for _, found in dom.tags)


STACK = """Process 4711
Thread 0x7F12 (active): "MainThread"
    read_shard (data/shards.py:88)
    <script>document.documentElement.dataset.ran=1</script>
    main (train.py:31)"""


@needs_chromium
def test_hang_names_a_host_once(browser, tmp_path):
    """Both ranks of a node are dead; the two others wait."""
    with serving(aggregator(tmp_path)) as url:
        reports = hung_run("hung", time.time_ns(), 200)
        reports = [
            replace(one, live=replace(one.live, alive=one.identity.host != "gpu-node-01")) for one in reports
        ]
        push(url, reports)
        hang = document(url, "hung")["hang"]
        shown = dom_of(browser, f"{url}/#run=hung").text("hang")
    assert (hang["host"], hang["host_ranks"]) == ("gpu-node-01", 2)
    assert shown.startswith("Hangs: host gpu-node-01, all 2 of its ranks") and "other suspect" not in shown


@needs_chromium
def test_hang_shows_culprit_duration_and_stack(browser, tmp_path):
    began = time.monotonic()
    with serving(aggregator(tmp_path)) as url:
        reports = hung_run("hung", time.time_ns(), 200, device_uuid="GPU-1")
        assert push(url, reports).wanted == []
        assert document(url, "hung")["hang"]["stack"] is None
        (wanted,) = push(url, reports).wanted
        push(url, reports, [schema.Stack(wanted, time.time_ns(), STACK)])
        hang = document(url, "hung")["hang"]
        dom = dom_of(browser, f"{url}/#run=hung", timezone_id="Asia/Kolkata")
        took = time.monotonic() - began
        runs = dom_of(browser, f"{url}/#runs")
    assert (hang["culprit"], hang["host"], hang["phase"], hang["victims"]) == (2, "gpu-node-01", "loader", 3)
    shown = dom.text("hang")
    duration = r"(\d) min (\d+) s"
    hangs = re.match(f"Hangs: rank 2 on gpu-node-01 in loader for {duration}", shown)
    stands = re.search(f"No rank has completed a step for {duration}", shown)
    assert hangs and stands, shown
    for minutes, seconds in (hangs.groups(), stands.groups()):
        assert 200 <= 60 * int(minutes) + int(seconds) <= 201 + took
    assert "3 ranks wait in communication." in shown
    assert "Stack of rank 2 at" in shown and " ".join(STACK.split()) in shown
    assert dom.text("run-head").split()[:2] == ["hung", "hangs"], "not running, in green, above it"
    (badge,) = [
        found for _, found in dom.tags if found.get("data-f") == "status" and "hangs" in found["class"]
    ]
    assert badge["class"] == "status hangs"
    # Readers in other time zones see these times too.
    kolkata = datetime.timezone(datetime.timedelta(hours=5.5))
    since = datetime.datetime.fromtimestamp(hang["since"], kolkata).strftime("%Y-%m-%d %H:%M:%S UTC+05:30")
    assert f"since {since}." in shown and re.search(r"Stack of rank 2 at [-\d]+ [:\d]+ UTC\+05:30", shown)
    assert re.search(r"Start *[-\d]+ [:\d]+ UTC\+05:30", dom.text("facts"))
    assert dom.text("zone") == "UTC+05:30"
    assert not any("data-ran" in found for _, found in dom.tags)
    (details,) = [found for tag, found in dom.tags if tag == "details" and found.get("class") == "stack"]
    assert "open" not in details and "hidden" not in details, "there, and collapsed"
    (row,) = runs.table("runs-rows")
    assert row[1] == "hangs"


@needs_chromium
def test_hang_without_culprit_and_no_hang(browser, served, tmp_path):
    assert dom_of(browser, f"{served}/#run=sft-small").text("hang") == ""
    with serving(aggregator(tmp_path)) as url:
        push(url, [report for report in hung_run("hung", time.time_ns(), 200) if report.identity.rank != 2])
        shown = dom_of(browser, f"{url}/#run=hung").text("hang")
    assert shown.startswith("Hangs, and no rank stands out")
    assert "it may be the network" in shown and "1 rank never reported" in shown


@needs_chromium
def test_unreported_rank_and_unknown_mfu_are_shown(browser, served):
    dom = dom_of(browser, f"{served}/#run=sft-small")
    first = dom.table("rank-rows")[0]
    assert (first[0], first[8]) == ("3", "never seen no report yet")
    assert "MFU unknown".replace(" ", "") in dom.text("main").replace(" ", "")
    assert "flops_per_step" in dom.text("main")


@needs_chromium
def test_empty_page_explains_how_to_send_runs(browser, tab, tmp_path):
    with serving(aggregator(tmp_path)) as url:
        empty = dom_of(browser, url).text("empty")
        page = tab(url)
        page.evaluate("location.hash = '#run=%E0%A4%A'")  # Playwright does not open such an address.
        until(page, "!document.querySelector('#missing').hidden")
        assert text_of(page, "#missing-name") == "%E0%A4%A", "an address that is no UTF-8 is shown as it is"
    assert "import goodput" in empty and f"goodput node --aggregator {url}" in empty
    assert "goodput run train.py" in empty
    # To an aggregator with tokens and a certificate of its own the first line alone would lead nowhere.
    assert "--token-file FILE" in empty and "--ca-file FILE" in empty and "create --scope ingest" in empty


@needs_chromium
def test_only_run_is_opened_and_silence_is_shown(browser, tmp_path):
    """The aggregator answers three questions and then fails; what was seen stays, marked as old."""
    requests = []

    def failing(status, body):
        requests.append(status)
        return (status, body) if len(requests) <= 3 else (500, b"")

    with serving(changed(aggregator(tmp_path), "/api/v1/runs", failing)) as url:
        push(url, attempt_reports("only one", 1, time.time_ns() - 60 * SECOND, range(10), ended="finished"))
        dom = dom_of(browser, url, seconds=20)
    assert len(requests) > 5
    assert "only one" in dom.text("run-head") and len(dom.table("rank-rows")) == 4
    assert "HTTP 500" in dom.text("silent-what") and "last update" in dom.text("silent-age")
    assert dom.text("age").startswith("last update")


@needs_chromium
def test_refresh_keeps_focus_and_hidden_tabs_do_not_poll(tab, tmp_path):
    requests = []

    def advance(seconds):
        before = len(requests)
        for _ in range(2 * seconds):
            page.clock.run_for(500)
            wait_for_answers(page, checks=1)
        return len(requests) - before

    def set_hidden(hidden):
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    with serving(aggregator(tmp_path)) as url:
        push(url, attempt_reports("sft-small", 1, time.time_ns() - 130 * SECOND, range(110), slow=1))
        push(url, attempt_reports("other", 1, time.time_ns() - 60 * SECOND, range(10), ended="finished"))
        page = tab(f"{url}/#runs", seconds=1)
        page.on("request", lambda request: requests.append(request.url))
        page.evaluate("location.hash = '#run=sft-small'")
        page.wait_for_selector("[data-state=straggler]")
        page.evaluate("document.querySelector('[data-state=straggler]').click()")
        page.evaluate("document.querySelector('[data-state=straggler]').focus()")
        page.evaluate("window.scrollTo(0, 40)")
        assert advance(5) >= 2
        kept = "[document.activeElement.dataset.state, document.activeElement.ariaPressed, window.scrollY]"
        assert page.evaluate(kept) == ["straggler", "true", 40]
        order = page.evaluate(
            "[...document.querySelectorAll('#rank-rows th')].map((cell) => cell.textContent)"
        )
        assert order[-1] == "1", "ordered by time lost to the slow rank, which itself lost none"
        set_hidden("true")
        advance(1)
        assert advance(7) == 0
        set_hidden("false")
        assert advance(2) >= 1
        page.go_back()
        until(page, "location.hash === '#runs' && !document.querySelector('#runs').hidden")
        assert page.evaluate("document.querySelector('#run').hidden")
