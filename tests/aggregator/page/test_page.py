"""The built-in page in a real browser, on a real aggregator over HTTP.

page_browser.py makes node reports of whole runs: ranks in lock step, one of them with a slow loader, a kill and a
restart. Chromium is asked for the page's DOM after it has run for some seconds of virtual time.
"""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from support.aggregator.page_browser import (
    SECOND,
    Dom,
    aggregator,
    app_module,
    attempt_reports,
    changed,
    document,
    finished_run,
    get,
    hung_run,
    look,
    msgspec,
    needs_chromium,
    push,
    serving,
)

from goodput.account.states import MEANINGS, STATES
from goodput.account.text import percent, state_rows
from goodput.wire import schema

PAGE_FOLDER = Path(app_module.__file__).parents[1] / "page"
SCRIPTS = sorted(name for name in app_module._PAGE_FILES if name)
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
        ("/page.js", "text/javascript"),
        ("/nodes.js", "text/javascript"),
        ("/rolling.js", "text/javascript"),
        ("/figures.js", "text/javascript"),
        ("/page.css", "text/css"),
    ],
)
def test_files_come_with_headers_that_let_nothing_else_run(served, path, kind):
    status, headers, body = get(served, path)
    assert status == 200 and body
    assert headers["Content-Type"].startswith(kind)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/page.html", "/app.py", "/..%2fapp.py", "/nothing", "/%2e%2e/app.py"])
def test_other_names_are_not_found(served, path):
    assert get(served, path)[0] == 404


def test_the_page_asks_nobody_else_and_has_no_inline_code():
    html = (PAGE_FOLDER / "page.html").read_text()
    forms = {"login.html", "login.css"}  # They have routes of their own.
    assert {path.name for path in PAGE_FOLDER.iterdir()} == {"page.html", *SCRIPTS} | forms, (
        "all that is there is served"
    )
    sources = [html, *((PAGE_FOLDER / name).read_text() for name in SCRIPTS)]
    # An address within the page, such as that of a hatch, loads nothing.
    sources = [source.replace("url(#", "") for source in sources]
    assert not any(word in source for source in sources for word in ("http:", "https:", "@import", "url("))
    assert not any("innerHTML" in source or "insertAdjacentHTML" in source for source in sources)
    dom = Dom(html)
    assert [found.get("src") for tag, found in dom.tags if tag == "script"] == ["theme.js", "page.js"]
    assert not any(name.startswith("on") or name == "style" for _, found in dom.tags for name in found)


def test_every_state_has_its_colour_and_its_meaning():
    script, sheet = (PAGE_FOLDER / "words.js").read_text(), (PAGE_FOLDER / "page.css").read_text()
    for state in STATES:
        assert f'  {state}: "{MEANINGS[state]}",\n' in script
        assert f".s-{state} {{" in sheet and f"--{state}: #" in sheet


# ---- What a person sees --------------------------------------------------------------------------------------


@needs_chromium
def test_a_run_shows_what_the_api_says_and_closes_to_100(served, tmp_path):
    run = document(served, "llama-7b/pretrain")
    dom = look(f"{served}/#run=llama-7b%2Fpretrain", tmp_path)
    assert dom.text("run-head").split()[:2] == ["llama-7b/pretrain", "finished"]
    rows = dom.table("account-rows")
    expected = [(state, f"{seconds:,.2f}", share, what) for state, seconds, share, what in state_rows(run)]
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == expected
    assert sum(round(10 * float(row[2])) for row in rows) == 1000
    assert dom.text("account-total").split()[:3] == ["total", f"{run['gpu_seconds']:,.2f}", "100.0"]
    for factor in ("goodput", "availability", "step_efficiency", "compute_efficiency", "mfu"):
        assert percent(run["factors"][factor]) in dom.text("main")
    assert dom.text("title") == f"{percent(run['factors']['goodput'])} llama-7b/pretrain – goodput"


@needs_chromium
def test_a_run_shows_its_cause_its_slow_rank_its_restart_and_its_ranks(served, tmp_path):
    run = document(served, "llama-7b/pretrain")
    assert (run["straggler"]["culprit"], len(run["restarts"])) == (3, 1), "the generator plants these"
    dom = look(f"{served}/#run={quote('llama-7b/pretrain', safe='')}", tmp_path)
    assert run["causes"][0]["state"] in dom.text("cause") and run["causes"][0]["advice"] in dom.text("cause")
    assert "rank 3 on gpu-node-01" in dom.text("straggler")
    assert "more time in loader" in dom.text("straggler")
    (restart,) = dom.table("restart-rows")
    assert (restart[0], restart[2], restart[4]) == ("2", "99", str(run["restarts"][0]["lost_steps"]))
    ranks = dom.table("rank-rows")
    assert ranks[0][0] == "3", "the slow rank comes first"
    kept = {rank["rank"]: f"{rank['steps']['kept']} / {rank['steps']['lost']}" for rank in run["ranks"]}
    assert {int(row[0]): row[4] for row in ranks} == kept
    bars = {
        found["aria-label"] for _, found in dom.tags if found.get("role") == "img" and "aria-label" in found
    }
    pictures = {label for label in bars if label.startswith(("From peak", "GPU time by state", "Own time"))}
    assert len(bars - pictures) == 1 + 4 + 2 and all("productive" in label for label in bars - pictures)


@needs_chromium
@pytest.mark.parametrize("address", ["#runs", f"#run={quote(HOSTILE, safe='')}"])
def test_a_hostile_name_is_text(served, tmp_path, address):
    dom = look(f"{served}/{address}", tmp_path)
    if address == "#runs":
        names = [row["run"] for row in msgspec.json.decode(get(served, "/api/v1/runs")[2])["runs"]]
        rows = [row[0].removesuffix("1 restart") for row in dom.table("runs-rows")]
        assert HOSTILE in names and rows == names
    else:
        assert HOSTILE in dom.text("h1") and dom.table("account-rows")
    assert [found.get("src") for tag, found in dom.tags if tag == "script"] == ["theme.js", "page.js"]
    assert not any(tag in ("img", "iframe", "object") for tag, _ in dom.tags)
    assert not any("data-ran" in found for _, found in dom.tags)


STACK = """Process 4711
Thread 0x7F12 (active): "MainThread"
    read_shard (data/shards.py:88)
    <script>document.documentElement.dataset.ran=1</script>
    main (train.py:31)"""


@needs_chromium
def test_a_hang_is_on_top_with_who_where_since_when_and_the_stack_as_text(tmp_path, monkeypatch):
    with serving(aggregator(tmp_path)) as url:
        reports = hung_run("hung", time.time_ns(), 200, device_uuid="GPU-1")
        assert push(url, reports).wanted == []
        assert document(url, "hung")["hang"]["stack"] is None
        (wanted,) = push(url, reports).wanted
        push(url, reports, [schema.Stack(wanted, time.time_ns(), STACK)])
        hang = document(url, "hung")["hang"]
        monkeypatch.setenv("TZ", "Asia/Kolkata")
        dom = look(f"{url}/#run=hung", tmp_path)
        runs = look(f"{url}/#runs", tmp_path)
    assert (hang["culprit"], hang["host"], hang["phase"], hang["victims"]) == (2, "gpu-node-01", "loader", 3)
    said = dom.text("hang")
    assert said.startswith("HangDetector: rank 2 on gpu-node-01 in loader for 3 min 2"), said
    assert "No rank has completed a step for 3 min 2" in said and "3 ranks wait in communication." in said
    assert "Stack of rank 2 at" in said and " ".join(STACK.split()) in said
    assert dom.text("run-head").split()[:2] == ["hung", "hangs"], "not running, in green, above it"
    (badge,) = [
        found for _, found in dom.tags if found.get("data-f") == "status" and "hangs" in found["class"]
    ]
    assert badge["class"] == "status hangs"
    # Somebody elsewhere reads these times too.
    kolkata = datetime.timezone(datetime.timedelta(hours=5.5))
    since = datetime.datetime.fromtimestamp(hang["since"], kolkata).strftime("%Y-%m-%d %H:%M:%S UTC+05:30")
    assert f"since {since}." in said and re.search(r"Stack of rank 2 at [-\d]+ [:\d]+ UTC\+05:30", said)
    assert re.search(r"Start *[-\d]+ [:\d]+ UTC\+05:30", dom.text("facts"))
    assert dom.text("zone") == "UTC+05:30"
    assert not any("data-ran" in found for _, found in dom.tags)
    (details,) = [found for tag, found in dom.tags if tag == "details" and found.get("class") == "stack"]
    assert "open" not in details and "hidden" not in details, "there, and collapsed"
    (row,) = runs.table("runs-rows")
    assert row[1] == "hangs"


@needs_chromium
def test_a_hang_that_blames_nobody_says_so_and_a_run_that_goes_on_says_nothing(served, tmp_path):
    assert look(f"{served}/#run=sft-small", tmp_path).text("hang") == ""
    with serving(aggregator(tmp_path)) as url:
        push(url, [report for report in hung_run("hung", time.time_ns(), 200) if report.identity.rank != 2])
        said = look(f"{url}/#run=hung", tmp_path).text("hang")
    assert said.startswith("HangDetector, and no rank stands out")
    assert "it may be the network" in said and "1 rank never reported" in said


@needs_chromium
def test_a_rank_nobody_reported_and_an_unknown_mfu_are_said(served, tmp_path):
    dom = look(f"{served}/#run=sft-small", tmp_path)
    first = dom.table("rank-rows")[0]
    assert (first[0], first[5]) == ("3", "never seen no report yet")
    assert "MFU unknown".replace(" ", "") in dom.text("main").replace(" ", "")
    assert "flops_per_step" in dom.text("main")


@needs_chromium
def test_without_runs_the_page_says_how_to_send_some(tmp_path):
    with serving(aggregator(tmp_path)) as url:
        empty = look(url, tmp_path).text("empty")
        missing = look(f"{url}/#run=%E0%A4%A", tmp_path)
    assert "import goodput" in empty and f"goodput node --aggregator {url}" in empty
    assert "goodput run train.py" in empty
    # To an aggregator with tokens and a certificate of its own the first line alone would lead nowhere.
    assert "--token-file FILE" in empty and "--ca-file FILE" in empty and "create --scope ingest" in empty
    assert missing.text("missing-name") == "%E0%A4%A", "an address that is no UTF-8 is shown as it is"


@needs_chromium
def test_the_only_run_is_opened_and_silence_is_admitted(tmp_path):
    """The aggregator answers three questions and then fails; what was seen stays, marked as old."""
    asked = []

    def failing(status, body):
        asked.append(status)
        return (status, body) if len(asked) <= 3 else (500, b"")

    with serving(changed(aggregator(tmp_path), "/api/v1/runs", failing)) as url:
        push(url, attempt_reports("only one", 1, time.time_ns() - 60 * SECOND, range(10), ended="finished"))
        dom = look(url, tmp_path, budget_ms=20_000)
    assert len(asked) > 5
    assert "only one" in dom.text("run-head") and len(dom.table("rank-rows")) == 4
    assert "HTTP 500" in dom.text("silent-what") and "last update" in dom.text("silent-age")
    assert dom.text("age").startswith("last update")


ACT = """
const wait = (ms) => new Promise((resume) => setTimeout(resume, ms));
const asked = () => performance.getEntriesByType("resource").filter((one) => one.name.includes("/api/")).length;
const seen = {};
await wait(500);
location.hash = "#run=sft-small";
await wait(1500);
const button = document.querySelector('[data-state="straggler"]');
button.click(); button.focus(); window.scrollTo(0, 40);
let before = asked();
await wait(5000);
seen.asked = asked() - before;
seen.kept = [document.activeElement === button, button.ariaPressed, window.scrollY];
seen.order = [...document.querySelectorAll("#rank-rows th")].map((cell) => cell.textContent);
Object.defineProperty(document, "hidden", { value: true, configurable: true });
document.dispatchEvent(new Event("visibilitychange"));
await wait(500);
before = asked();
await wait(7000);
seen.asked_hidden = asked() - before;
Object.defineProperty(document, "hidden", { value: false });
document.dispatchEvent(new Event("visibilitychange"));
await wait(1500);
seen.asked_again = asked() - before;
history.back();
await wait(1500);
seen.back = [location.hash, document.querySelector("#runs").hidden, document.querySelector("#run").hidden];
document.documentElement.dataset.seen = JSON.stringify(seen);
"""


@needs_chromium
def test_a_refresh_keeps_focus_and_scroll_a_hidden_tab_is_quiet_and_back_works(tmp_path):
    """A script served with the page (the policy allows no other) acts as a person and writes down what it saw."""
    with serving(
        changed(aggregator(tmp_path), "/page.js", lambda status, body: (status, body + ACT.encode()))
    ) as url:
        push(url, attempt_reports("sft-small", 1, time.time_ns() - 130 * SECOND, range(110), slow=1))
        push(url, attempt_reports("other", 1, time.time_ns() - 60 * SECOND, range(10), ended="finished"))
        dom = look(f"{url}/#runs", tmp_path, budget_ms=25_000)
    (seen,) = (msgspec.json.decode(found["data-seen"]) for _, found in dom.tags if "data-seen" in found)
    assert seen["asked"] >= 2 and seen["kept"] == [True, "true", 40]
    assert seen["order"][-1] == "1", "ordered by time lost to the slow rank, which itself lost none"
    assert seen["asked_hidden"] == 0 and seen["asked_again"] >= 1
    assert seen["back"] == ["#runs", False, True]
