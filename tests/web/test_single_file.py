"""The page that `replay --html` and `report --html` write to one file: complete, interactive, and without a network."""

import copy
import io
import json
import math
import random
import re
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.account.account_history import Process, run_of
from support.browser import Dom, dom_of, needs_chromium, press, text_of, until
from support.stories import event, with_story

pytest.importorskip("msgspec")

from goodput import web
from goodput.account import compute
from goodput.account.document import document as document_of_account
from goodput.account.states import STATES
from goodput.account.text import state_rows
from goodput.causes import explain
from goodput.cli import main
from goodput.web import single_file, timeline

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example-run.jsonl"
HOSTILE = (
    "<script>document.documentElement.dataset.ran=1</script>",
    '"><img src=x onerror=document.documentElement.dataset.ran=1>',
    "</script></title></style></svg><iframe src=//evil.example>",
    "&lt;b&gt; &amp; &#60;script&#62; <!-- {{constructor}} ${alert(1)}",
    "\x00\x1b[31m\u202eevil\ud800\ufeff\u2028",
)
NODES_MAX = 4000


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """(document, path of the page) of the example, both from the command."""
    out = tmp_path_factory.mktemp("example") / "account.html"
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["replay", str(EXAMPLE), "--json", "--html", str(out)]) == 0
    return json.loads(printed.getvalue()), out


@pytest.fixture
def document(example):
    return copy.deepcopy(example[0])


@pytest.fixture
def written(browser, tmp_path):
    """The DOM of the page with these documents."""

    def dom(documents, address="", **options):
        path = tmp_path / "page.html"
        path.write_text(single_file.render(documents, command="goodput replay", **options), encoding="utf-8")
        return dom_of(browser, f"file://{path}{address}")

    return dom


def document_of(*processes):
    run = run_of(*processes)
    account = compute(run, max(attempt.seen_ns for attempt in run.attempts.values()))
    return json.loads(json.dumps(document_of_account(account, explain(account))))


def blank(document):
    """The document with everything unknown that can be."""
    document["factors"] = dict.fromkeys(document["factors"])
    document["checkpoints"] |= {
        key: None for key in document["checkpoints"] if key.endswith(("seconds", "failures"))
    }
    document["throughput"] = dict.fromkeys(document["throughput"])
    for key in ("cost", "energy", "per_dollar", "per_joule", "pipeline", "samples"):
        document[key] = None
    for restart in document["restarts"]:
        restart |= dict.fromkeys(("down_seconds", "resume_step", "cost"))
    for cause in document["causes"]:
        cause |= dict.fromkeys(("gain", "cost"))
    document["coverage"] = dict.fromkeys(document["coverage"])
    document["straggler"] |= {"slowdown": None, "culprit": None, "because": None, "since_step": None}
    document["straggler"] |= {"shares": [], "hosts": [], "stages": [], "onsets": []}
    return document


def many_ranks(document, ranks):
    """As many ranks, with all states, of which the last is the worst."""
    chance = random.Random(7)
    document["ranks"] = [
        {
            "rank": rank,
            "host": f"node{rank // 8}",
            "devices": 1,
            "states": {state: chance.uniform(1, 9) for state in STATES} | {"productive": 90.0 + rank % 10},
            "steps": {"kept": 10, "lost": 1},
        }
        for rank in range(ranks)
    ]
    document["ranks"][-1]["states"]["productive"] = 1.0
    return document


def hostile(document, text):
    """The document with `text` wherever a text from outside can be, and a log likewise."""
    document["run"] = text
    document["errors"] = [text]
    for rank in document["ranks"]:
        rank["host"] = text
    straggler = document["straggler"]
    straggler |= {"because": text, "shares": [{"rank": 1, "host": text, "share": 0.5}]}
    straggler["hosts"] = [{"host": text, "share": 0.5}]
    for cause in document["causes"]:
        cause["advice"] = text
    document["checkpoints"]["source"] = document["status"] = text
    document["device_copies"] = {
        "ranks": 1,
        "rank": 0,
        "host": text,
        "h2d_bytes_per_second": 1e9,
        "reached_ratio": None,
    }
    log = document["log"] | {"problems": [{"line": 3, "problem": text}], "problem_count": 1}
    return document, log | {"ignored": {text: 2}, "broken": text}


def figure(dom, name):
    """What a block of #figures shows: "value detail"."""
    texts = dom.text("figures")
    return texts[texts.index(name) + len(name) :]


# ---- What it shows -----------------------------------------------------------------------------------------------


@needs_chromium
def test_states_are_the_documents_and_sum_to_100(browser, example):
    document, path = example
    dom = dom_of(browser, f"file://{path}")
    rows = dom.table("account-rows")
    assert [[row[0], *row[2:4]] for row in rows] == [
        [state, f"{seconds:,.2f}", share] for state, seconds, share, _ in state_rows(document)
    ]
    assert sum(round(10 * float(row[3])) for row in rows) == 1000
    assert [row[4] for row in rows] == [f"${document['cost']['states'][row[0]]:.4f}" for row in rows]
    assert [row[0] for row in rows if row[6].endswith("(an estimate)")] == ["compile"]
    assert dom.text("account-total").split() == ["total", "188.00", "100.0", "$0.1880"]
    label = next(found["aria-label"] for _, found in dom.tags if found.get("id") == "account-bar")
    assert all(f"{state} {share} %" in label for state, _, share, _ in state_rows(document))


@needs_chromium
def test_bars_of_states_lead_from_productive_to_all(tab, example):
    """Of 188 GPU-seconds 58.5 are productive, and 40 % of these are at the peak."""
    page = tab(f"file://{example[1]}")
    until(page, "document.querySelectorAll('#account-rows tr').length > 0")
    parts = page.evaluate(
        "[...document.querySelectorAll('.cascade')].map((row) => [row, row.firstElementChild].map((node) => {"
        "const { left, right } = node.getBoundingClientRect(); return [left, right]; }))"
    )
    left, right = parts[0][0]
    ends = [left]
    for _, (start, end) in parts:
        assert start == pytest.approx(ends[-1], abs=1.5)
        ends.append(end)
    assert ends[-1] == pytest.approx(right, abs=2)
    assert (ends[1] - left) / (right - left) == pytest.approx(0.311, abs=0.005)
    useful = page.evaluate("document.querySelector('.cascade b').getBoundingClientRect().right")
    assert (useful - left) / (ends[1] - left) == pytest.approx(0.4, abs=0.01)


@needs_chromium
def test_headline_shows_factors_cost_and_leading_cause(browser, example):
    document, path = example
    dom = dom_of(browser, f"file://{path}")
    main_text = dom.text("main")
    for name, value in (("goodput", "31.1 %"), ("availability", "47.9 %"), ("step efficiency", "65.0 %")):
        assert f"{name}{value}" in main_text
    assert "MFU12.4 %" in main_text and "compute efficiency40.0 %" in main_text
    facts = dom.text("facts")
    assert "GPU-seconds188.00" in facts and "Not productive129.50, $0.1295" in facts
    assert "Start0.0 s" in facts, "the log counts from zero"
    cause, advice = dom.text("cause"), {one["state"]: one["advice"] for one in document["causes"]}
    assert "13.8 % of all, went to lost:" in cause and advice["lost"] in cause
    assert "1.16× as fast, by its share alone" in cause and "26.00 GPU-seconds and $0.0260" in cause
    others = dom.text("causes")
    assert all(text in others for state, text in advice.items() if state != "lost")
    assert dom.text("age").startswith("written by goodput replay on 20")


@needs_chromium
def test_recurring_cause_leads_a_short_run(written):
    """20 s of startup and 5 of 100 steps of 1.5 s: 2.5 s of loader are 50 of 170 s, and lead."""
    document = document_of(
        Process(total_steps=100).between(none=20).steps(5, forward=1, loader=0.5).finished()
    )
    cause = written([document]).text("cause")
    assert "The largest part that can be avoided, 9.1 % of all, went to loader" in cause
    assert "Over the whole run of 100 steps it would be 29.4 %, an estimate." in cause
    assert "Paid once, at the run's start and end: startup 72.7 %." in cause
    document["whole_run"] |= {"basis": "typical", "steps": 10_000}
    typical = (
        "In a run of 10,000 steps (a typical length, since total_steps is not declared) it would be 29.4 %"
    )
    assert typical in written([document]).text("cause")
    document["whole_run"] |= {"done": 10_000}
    assert "it would be" not in written([document]).text("cause")


@needs_chromium
def test_cause_has_the_share_of_the_table_of_states(written):
    """Three thirds sum to 100.0 as 33.3, 33.4 and 33.3 %; an estimated state is marked in the sentence."""
    document = document_of(Process().between(none=4).steps(4, forward=1, loader=1).finished())
    document["states"] = dict.fromkeys(STATES, 0.0) | {"productive": 4.0, "loader": 4.0, "startup": 4.0}
    document["basis"]["loader"] = "estimated"
    dom = written([document])
    shares = {row[0]: row[3] for row in dom.table("account-rows")}
    assert shares == {"productive": "33.3", "loader": "33.4", "startup": "33.3"}
    cause = dom.text("cause")
    assert "33.4 % of all, went to loader: waiting for the data loader (an estimate)." in cause


@needs_chromium
def test_document_of_an_earlier_version_keeps_its_order(written):
    document = document_of(Process().between(none=20).steps(5, forward=1, loader=0.5).finished())
    for name in ("advice_order", "whole_run"):
        del document[name]
    for cause in document["causes"]:
        for name in ("once_gpu_seconds", "whole_run_gpu_seconds", "whole_run_share"):
            del cause[name]
    cause = written([document]).text("cause")
    assert "The largest part of it, 72.7 % of all, went to startup" in cause and "Paid once" not in cause


@needs_chromium
def test_restarts_and_figures_are_the_documents(browser, example):
    document, path = example
    dom = dom_of(browser, f"file://{path}")
    assert dom.table("restart-rows") == [
        ["2", "58.0 s", "3", "10.0 s", "4", "26.00", "18.00", "64.00", "$0.0640"]
    ]
    assert figure(dom, "Best checkpoint interval").startswith(
        "18.3 s"
    ) and "2 committed, 1 failure" in dom.text("figures")
    assert figure(dom, "Throughput goodput").startswith("47.9 %360 kept samples, 3.83 samples/s")
    assert figure(dom, "Cost").startswith("$0.1880$0.0585 of it productive. For each dollar 311 productive")
    assert "1.24 PFLOP" in figure(dom, "Cost") and figure(dom, "Energy").startswith("unknown")
    (source,) = [
        found["title"]
        for tag, found in dom.tags
        if document["checkpoints"]["source"] in found.get("title", "")
    ]
    assert source.startswith("Best interval after ")
    assert "Lines40" in dom.text("log") and "Nothing is wrong with it." in dom.text("log")


@needs_chromium
def test_timeline_is_the_account_of_each_part(browser, example):
    document, path = example
    data = json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"))[1])
    found = data["timelines"]["example"]
    assert len(found["buckets"]) == 60
    for state, seconds in document["states"].items():
        total = sum(bucket["states"].get(state, 0) for bucket in found["buckets"])
        assert total == pytest.approx(seconds, abs=1e-6), state
    dom = dom_of(browser, f"file://{path}")
    assert {found["data-area"] for _, found in dom.tags if "data-area" in found} == {
        state for state, seconds in document["states"].items() if seconds
    }
    assert sum(found.get("class") == "mark restart" for _, found in dom.tags) == 1
    assert dom.text("timeline-words").startswith("92.4 s to 94.0 s")


def log_of(path: Path, runs: dict[str, list[float]], steps: int = 100) -> Path:
    """A log of runs whose ranks take so many seconds of their own per step, in lock step."""
    lines = []
    for run, own in runs.items():
        lines += [{"kind": "run", "time": 0, "run": run, "world_size": len(own)}]
        lines += [
            {"kind": "attempt", "time": 0, "run": run, "rank": rank, "attempt": 1, "host": f"n{rank // 8}"}
            for rank in range(len(own))
        ]
        length = max(own) + 0.1
        for step in range(steps):
            lines += [
                {"kind": "step", "time": (step + 1) * length, "run": run, "rank": rank, "attempt": 1, "step": step,
                 "seconds": length, "phases": {"forward": seconds, "communication": length - seconds}}
                for rank, seconds in enumerate(own)
            ]  # fmt: skip
        lines += [{"kind": "run_end", "time": steps * length, "run": run}]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def data_of(page: Path) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])


@needs_chromium
def test_heat_map_of_a_written_page_names_the_slow_rank(tab, tmp_path):
    log, out = log_of(tmp_path / "log", {"r": [0.5, 0.5, 0.5, 1.0]}), tmp_path / "page.html"
    assert main(["replay", str(log), "--html", str(out)]) == 0
    heat = data_of(out)["timelines"]["r"]["heat"]
    assert heat["others"] is None and [one["host"] for one in heat["ranks"]] == ["n0"] * 4
    # In the first column lies the first step alone, which is no measure of a rank's own time.
    assert set(heat["median"][1:]) == {0.5} and set(heat["ranks"][3]["own_seconds"][1:]) == {1.0}
    page = tab(f"file://{out}")
    page.wait_for_selector("#heat-worst li")
    assert text_of(page, "#heat-worst") == "rank 3 on n0 slow 2.00× the median, 100.0 % of the waiting"
    page.evaluate("location.hash = '#run=r&rank=3'")
    until(page, "document.querySelector('#rank-own-picture svg') !== null")
    assert "own time per step 2.00×" in text_of(page, "#rank-tiles")


PAINTED = """(() => {
  const [canvas, probe] = [document.querySelector("#heat-canvas"), document.createElement("i")];
  document.querySelector("#heat-legend").append(probe);
  const colours = [...Array(7).keys(), "none"].map((one) => {
    probe.className = `h-${one}`;
    return getComputedStyle(probe).backgroundColor.match(/\\d+/g).join();
  });
  const found = new Set();
  for (const high of [0.25, 0.75]) {
    const row = canvas.getContext("2d").getImageData(70, Math.floor(high * canvas.height), canvas.width - 80, 1).data;
    for (let i = 0; i < row.length; i += 4) found.add(row[i + 3] ? colours.indexOf(row.slice(i, i + 3).join()) : "bare");
  }
  return [...found].filter((one) => one !== -1).sort();  // Between cells colours are mixed.
})()"""


@needs_chromium
def test_heat_map_has_a_colour_where_no_step_is(tab, tmp_path):
    """And its own colours after the list of runs, whose legend is of states, was shown."""
    log, out = log_of(tmp_path / "log", {"a": [0.5, 0.5], "b": [0.2, 0.9]}, steps=40), tmp_path / "page.html"
    assert main(["replay", str(log), "--html", str(out)]) == 0
    page = tab(f"file://{out}")
    until(page, "document.querySelectorAll('#fleet-legend .swatch').length > 0")
    page.evaluate("location.hash = '#run=b'")
    page.wait_for_selector("#heat-worst li")
    until(page, "document.querySelector('#heat-canvas').width > 200")
    found = page.evaluate(PAINTED)
    assert 7 in found and "bare" not in found and set(found) & {*range(7)}


@needs_chromium
def test_file_without_a_timeline_waits_for_no_heat_map(tab, tmp_path):
    """Of a log that is too long for one."""
    log, out = log_of(tmp_path / "log", {"r": [0.5, 0.5, 0.5, 1.0]}), tmp_path / "page.html"
    assert main(["replay", str(log), "--html", str(out)]) == 0
    whole = data_of(out)
    text = json.dumps({**whole, "timelines": {"r": None}}).replace("<", "\\u003c")
    page_text = re.sub(r'(id="data">).*?(</script>)', lambda m: m[1] + text + m[2], out.read_text())
    out.write_text(page_text, encoding="utf-8")
    page = tab(f"file://{out}")
    until(page, "document.querySelectorAll('#rank-rows tr').length === 4")
    assert page.evaluate("[...document.querySelectorAll('#timeline, #heat')].every((node) => node.hidden)")
    assert "Loading" not in page.evaluate("document.body.innerText")


@needs_chromium
def test_list_in_a_file_names_the_run_that_hangs(tab, tmp_path):
    log, out = log_of(tmp_path / "log", {"well": [0.5, 0.5], "stuck": [0.5, 0.5]}), tmp_path / "page.html"
    lines = log.read_text().splitlines()[:-1]
    for rank, phase in ((0, "communication"), (1, "loader")):
        beat = {"kind": "beat", "time": 900, "run": "stuck", "rank": rank, "attempt": 1, "phase": phase}
        lines.append(json.dumps({**beat, "phase_seconds": 840.0, "phases": {phase: 840.0}}))
    lines.append(json.dumps({"kind": "look", "time": 900, "run": "stuck"}))
    log.write_text("\n".join(lines), encoding="utf-8")
    assert main(["replay", str(log), "--html", str(out)]) == 0
    page = tab(f"file://{out}")
    until(page, "document.querySelectorAll('#fleet-legend .swatch').length > 0")
    said = page.evaluate("document.body.innerText").lower()
    assert "no run hangs" not in said and "hangs" in said
    page.evaluate("location.hash = '#run=stuck'")
    until(
        page,
        "document.querySelector('#hang') && document.querySelector('#cause').innerText.includes('rank 1')",
    )
    page.evaluate("location.hash = '#runs'")
    until(
        page,
        "[...document.querySelectorAll('tr')].some((row) => row.innerText.includes('stuck') && row.innerText.includes('rank 1'))",
    )


@needs_chromium
def test_failure_leads_the_page(tab, tmp_path):
    """What ended the run, and what to do, in place of its largest loss, which stays in the list of causes."""
    log, out = log_of(tmp_path / "log", {"r": [0.5, 0.5]}), tmp_path / "page.html"
    lines = log.read_text().splitlines()[:-1]
    ends = [
        {
            "kind": "end",
            "time": 60.1,
            "run": "r",
            "rank": rank,
            "attempt": 1,
            "reason": "failed",
            "over": "failed",
        }
        for rank in range(2)
    ]
    ends[1] |= {"time": 60.05, "step": 100, "text": "ValueError: the learning rate is negative"}
    log.write_text("\n".join([*lines, *map(json.dumps, ends)]), encoding="utf-8")
    assert main(["replay", str(log), "--html", str(out)]) == 0
    (found,) = data_of(out)["runs"]
    page = tab(f"file://{out}")
    until(page, "document.querySelector('#cause').innerText.includes('What to do')")
    said = text_of(page, "#cause")
    assert "Failed in step 100 on rank 1 on n0: ValueError: the learning rate is negative" in said
    assert "fix what ended it" in said and "Without it the run" not in said
    listed = page.evaluate("document.querySelectorAll('#causes dt').length")
    assert listed == len(found["advice_order"]) > 0


def test_ranks_that_do_not_stand_out_are_quantiles_in_a_file(tmp_path):
    own = [0.5 + 0.001 * (rank % 5) for rank in range(80)]
    own[70] = 0.9
    log, out = log_of(tmp_path / "log", {"r": own}, steps=30), tmp_path / "page.html"
    assert main(["replay", str(log), "--html", str(out)]) == 0
    heat = data_of(out)["timelines"]["r"]["heat"]
    assert len(heat["ranks"]) == 64 and 70 in {one["rank"] for one in heat["ranks"]}
    assert heat["others"]["ranks"] == 16 and max(filter(None, heat["others"]["p100"])) < 0.51


def test_every_run_of_a_log_has_its_timeline(tmp_path):
    log, out = log_of(tmp_path / "log", {"a": [0.5, 0.5], "b": [0.2, 0.9]}, steps=40), tmp_path / "page.html"
    assert main(["replay", str(log), "--html", str(out)]) == 0
    timelines = data_of(out)["timelines"]
    assert {name: len(one["buckets"]) >= 12 for name, one in timelines.items()} == {"a": True, "b": True}
    # A step of a second is longer than a column, and counts in the one in which it ends.
    assert set(timelines["b"]["heat"]["ranks"][1]["own_seconds"]) == {0.9, None}


def test_long_logs_have_fewer_parts_and_too_long_ones_none():
    run = run_of(Process().steps(20, forward=1).finished())
    account = compute(run, max(attempt.seen_ns for attempt in run.attempts.values()))
    document = json.loads(json.dumps(document_of_account(account, explain(account))))

    def slow(window):
        time.sleep(0.01)
        return compute(run, account.end_ns, window=window)

    found = timeline.timeline(account, document, slow, seconds=0.2)
    assert found is not None and 12 <= len(found["buckets"]) <= 20
    assert timeline.timeline(account, document, slow, seconds=0.2, seconds_max=0.05) is None


@needs_chromium
def test_slow_ranks_are_named_by_rank_host_and_stage(written, document):
    document["straggler"] |= {"since_step": 1234, "stages": [{"stage": 3, "share": 0.25}]}
    document["pipeline"] = dict.fromkeys(("microbatches", "bubble", "ideal_bubble", "excess")) | {"stages": 4}
    document["straggler"]["onsets"] = [
        {"rank": 0, "attempt": 1, "first_step": 5, "last_step": 9},
        {"rank": 1, "attempt": 1, "first_step": 1234, "last_step": None},
    ]
    dom = written([document])
    shown = dom.text("straggler")
    assert "rank 1 on n1" in shown and "more time in productive" in shown
    assert "since step 1234" in shown and "1.05× slower" in shown
    assert "rank 1100.0 %" in shown and "stage 325.0 %" in shown
    assert dom.text("stretches") == "2 stretches of slow stepsrank 1: since step 1,234rank 0: steps 5 to 9"
    assert [(row[0], row[1], row[6]) for row in dom.table("rank-rows")] == [
        ("1", "n1 slow", "33.5 %"),
        ("0", "n0", "28.7 %"),
    ]


@needs_chromium
def test_phase_of_a_slow_rank_or_stage_is_shown(written, document):
    slow = {"culprit": 1, "because": "productive", "because_phase": "backward", "since_step": None}
    document["straggler"] |= slow
    assert "of kept steps), mostly in backward, than the median" in written([document]).text("straggler")
    document["straggler"] |= {"because": "loader", "because_phase": "loader"}
    assert "mostly in" not in written([document]).text("straggler")
    document["straggler"] |= {"culprit": None, "because": None, "because_phase": None}
    document["straggler"] |= {"culprit_stage": 2, "stage_because_phase": "forward"}
    shown = written([document]).text("straggler")
    assert "stage 2" in shown and "stages of the pipeline, mostly in forward: move layers" in shown


@needs_chromium
def test_rank_with_slow_calls_is_shown(written, document):
    document["straggler"] |= {"culprit": None, "because": None, "because_phase": None, "culprit_stage": None}
    slow = {"rank": 1, "host": "n1", "group": "<b>dp", "operation": "all_reduce"}
    document["straggler"]["slow_issue"] = slow | {"seconds": 0.051, "usual_seconds": 0.0002}
    shown = written([document]).text("straggler")
    assert "rank 1 on n1" in shown and "No single rank" not in shown
    assert "takes 51 ms a step to start all_reduce in <b>dp, others 200 µs: all ranks wait" in shown
    document["straggler"] |= {"culprit": 0, "because": "productive"}
    assert "of its group. Rank 1 takes 51 ms" in written([document]).text("straggler")


@needs_chromium
def test_rank_with_a_slow_link_is_shown(written, document):
    document["straggler"] |= {"culprit": None, "because": None, "because_phase": None, "culprit_stage": None}
    document["straggler"]["slow_link"] = {
        "rank": 1, "host": "n1", "address": "10.0.0.1", "sender": 1, "sender_host": "n1", "receiver": 2,
        "receiver_host": "<b>n2", "receiver_address": "10.0.0.2", "flows": 2, "bytes_per_second": 111e6,
        "usual_bytes_per_second": 2e9, "busy_share": 0.9, "retransmitted_share": 0.02, "rtt_seconds": 0.021,
        "retransmits": 0, "silent_seconds": 0.0,
    }  # fmt: skip
    shown = written([document]).text("straggler")
    assert "rank 1 on n1" in shown and "No single rank" not in shown
    assert (
        "The link of rank 1 (10.0.0.1) is slow: rank 1 sends rank 2 on <b>n2 (10.0.0.2) 111 MB/s while"
        in shown
    )
    assert (
        "other links carry 2 GB/s. 2.0 % of the segments were sent again, the round trip takes 21 ms."
        in shown
    )
    document["straggler"] |= {"culprit": 0, "because": "productive"}
    assert "of its group. The link of rank 1" in written([document]).text("straggler")


@needs_chromium
def test_stretches_say_when_they_began_and_ended(written, document):
    stretches = ((0, 0, 213, True), (1, 0, None, True), (2, 350, None, False), (3, 100, 1213, False))
    names = ("rank", "first_step", "last_step", "from_start")
    document["straggler"]["onsets"] = [
        {"attempt": 1, **dict(zip(names, one, strict=True))} for one in stretches
    ]
    document["straggler"] |= {"culprit": 1, "since_step": 0, "since_start": True}
    dom = written([document])
    assert "than the median of its group, from the start." in dom.text("straggler")
    assert dom.text("stretches") == (
        "4 stretches of slow steps"
        "rank 2: since step 350rank 1: from the startrank 3: steps 100 to 1,213rank 0: from the start until step 213"
    )


@needs_chromium
def test_energy_pipeline_and_log_problems_are_shown(written, document):
    joules = {state: 700 * seconds for state, seconds in document["states"].items()}
    document["energy"] = {"total": 700 * 188.0, "states": joules}
    document["pipeline"] = {"stages": 4, "microbatches": 16, "bubble": 0.25}
    document["pipeline"] |= {"ideal_bubble": 3 / 19, "excess": 0.25 - 3 / 19}
    log = document["log"] | {
        "problems": [{"line": 17, "problem": "not JSON"}],
        "problem_count": 250,
        "dropped": 3,
        "ignored": {"kind 'gpu'": 12},
        "broken": "the file ends within a line",
    }
    document["errors"] = ["MFU would be 312 %"]
    dom = written([document], log=log)
    assert figure(dom, "Energy").startswith("132 kJ")
    assert any(found.get("title") == "58.5 GPU-seconds, 40,950 J" for _, found in dom.tags)
    assert figure(dom, "Pipeline bubble").startswith(
        "25.0 %4 stages. 15.8 % cannot be avoided with 16 microbatches; 9.2 % can"
    )
    assert dom.table("log-problem-rows") == [["17", "not JSON"]]
    assert dom.table("log-ignored-rows") == [["kind 'gpu'", "12"]]
    shown = dom.text("log")
    assert "Problems250" in shown and "The first 1 of 250 problems" in shown and "their times3" in shown
    assert "the file ends within a line" in shown and "Nothing is wrong" not in shown
    assert "MFU would be 312 %" in dom.text("errors")


@needs_chromium
def test_unknown_is_never_0(written, document):
    dom = written([blank(document)])
    main_text = dom.text("main")
    for name in ("goodput", "availability", "step efficiency", "MFU", "compute efficiency"):
        assert f"{name}unknown" in main_text
    for name in ("Best checkpoint interval", "Throughput goodput", "Cost", "Energy"):
        assert figure(dom, name).startswith("unknown"), name
    (restart,) = dom.table("restart-rows")
    assert [restart[i] for i in (2, 3, 8)] == ["unknown"] * 3
    assert {row[5] for row in dom.table("account-rows")} == {""}
    assert "Observedunknown" in dom.text("facts") and "Device clockunknown" in dom.text("facts")
    assert "Samplesunknown" in dom.text("facts") and dom.text("tile-culprit").startswith("culpritunknown")
    assert not re.search(r"NaN|null|undefined|Infinity", main_text)


@needs_chromium
def test_run_without_time_is_shown(written, document):
    blank(document)
    document |= {"gpu_seconds": 0.0, "states": dict.fromkeys(STATES, 0.0), "causes": [], "restarts": []}
    document["ranks"] = [{**document["ranks"][0], "states": dict.fromkeys(STATES, 0.0)}]
    dom = written([document])
    assert dom.table("rank-rows")[0][6] == "unknown" and dom.table("account-rows") == []
    assert "No GPU time is known." in dom.text("cause")


@needs_chromium
def test_no_gain_is_promised_for_unobserved_time(written, document):
    document["causes"] = [{**document["causes"][0], "state": "unobserved", "gain": 1.5}]
    assert "1.50" not in written([document]).text("cause")


@needs_chromium
def test_goodput_of_a_rank_without_reports_is_unknown(written, document):
    many_ranks(document, 60)["straggler"]["culprit"] = None
    document["ranks"][50]["states"] = dict.fromkeys(STATES, 0.0) | {"unobserved": 94.0}
    dom, worst = written([document]), document["ranks"][59]["states"]
    goodput = f"{100 * worst['productive'] / sum(worst.values()):.1f} %"
    shown = [(row[0], row[6]) for row in dom.table("rank-rows")]
    assert shown[0] == ("50", "unknown") and ("59", goodput) in shown
    assert f"goodput {goodput} to" in dom.text("ranks-count")


@needs_chromium
def test_samples_that_were_not_reported_are_unknown(written, document):
    document["samples"] = document["throughput"]["samples"] = 0
    document["clocks"] = [{"host": "n1", "ahead_seconds": -300.2}, {"host": "n2", "ahead_seconds": 7.0}]
    dom = written([document])
    assert "Clocks offn1 5 min behind, n2 7.00 s ahead" in dom.text("facts")
    assert "Samplesunknown" in dom.text("facts") and "No samples were reported." in dom.text("figures")
    document["steps"]["kept"] = 0
    assert "Samples0" in written([document]).text("facts")


@needs_chromium
def test_copies_of_traced_steps_stand_beside_the_probe(written, document):
    copies = {
        "ranks": 1,
        "rank": 3,
        "host": "n1",
        "h2d_bytes_per_second": 2.26e10,
        "reached_bytes_per_second": None,
    }
    document["device_copies"] = {**copies, "reached_ratio": None}
    assert "Copies to GPU22.6 GB/s" in written([document]).text("facts")
    document["device_copies"] |= {"ranks": 8, "reached_bytes_per_second": 5.5e10, "reached_ratio": 0.4109}
    dom = written([document])
    assert "Copies to GPU22.6 GB/s, 41.1 % of what the node can do" in dom.text("facts")
    assert any(
        "rank 3" in given.get("title", "") and "the lowest of 8 ranks" in given["title"]
        for _, given in dom.tags
    )
    for known in (None, ...):
        document["device_copies"] = known
        if known is ...:
            del document["device_copies"]  # of an earlier version
        assert "Copies to GPU" not in written([document]).text("facts")


# ---- Several runs ------------------------------------------------------------------------------------------------


@needs_chromium
def test_several_runs_are_a_list_with_links(written, document):
    other = {**copy.deepcopy(document), "run": "a/b c", "gpu_seconds": 1.0}
    dom = written([document, other], log=document["log"])
    rows = dom.table("runs-rows")
    assert sorted(row[0].removesuffix("1 restart") for row in rows) == ["a/b c", "example"]
    assert dom.is_shown("runs") and "Lines40" in dom.text("log")
    assert {found["href"] for tag, found in dom.tags if found.get("data-f") == "name" and tag == "a"} == {
        "#run=example",
        "#run=a%2Fb%20c",
    }
    assert written([document, other], "#run=a%2Fb%20c").text("h1").endswith("a/b c")


# ---- It is interactive, and asks no network ----------------------------------------------------------------------


@needs_chromium
def test_written_page_works_without_requests(tab, example):
    page = tab("about:blank")
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: page.errors.append(message.text))
    page.goto(f"file://{example[1]}")
    page.wait_for_selector("#rank-rows tr")
    page.click("[data-state=loader]")
    assert page.get_attribute("[data-state=loader]", "aria-pressed") == "true"
    press(page, "/")
    page.keyboard.type("n1")
    assert page.evaluate("document.activeElement.id") == "ranks-filter"
    assert page.evaluate("document.querySelectorAll('#rank-rows tr').length") == 1
    page.evaluate("document.activeElement.blur()")
    press(page, "?")
    assert "to the filter" in text_of(page, "#help")
    press(page, "Enter")
    assert page.is_hidden("#help")
    page.focus("#timeline-picture")
    press(page, "Home")
    assert text_of(page, "#timeline-words").startswith("0.0 s to 1.6 s · startup 100.0 %")
    press(page, "Shift+ArrowRight", 3)
    assert page.is_hidden("#timeline-show"), "a file has no accounts of parts"
    page.click("#theme")
    page.click("#all")
    page.wait_for_selector("#runs-rows tr")
    page.go_back()
    page.wait_for_selector("#rank-rows tr")
    assert requests == [f"file://{example[1]}"]


@needs_chromium
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_written_page_fits_a_phone(tab, example, color_scheme):
    page = tab(f"file://{example[1]}", width=360, height=740, color_scheme=color_scheme)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    edges = "Array.from(document.querySelectorAll('#run .card, #log'), (one) => one.getBoundingClientRect())"
    shown = f"{edges}.filter((one) => one.width > 300).map((one) => one.left)"
    assert len(page.evaluate(shown)) > 5 and len(set(page.evaluate(shown))) == 1, "one column of cards"


def test_only_live_parts_need_an_aggregator(example):
    """Every script and style is inlined and allowed by its hash; nothing else may run or be loaded."""
    text = example[1].read_text(encoding="utf-8")
    dom = Dom(text)
    policy = next(
        found["content"] for _, found in dom.tags if found.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    hashes = re.findall(r"'[^']+'", rules["script-src"] + rules["style-src"])
    assert len(hashes) == 3 and all(found.startswith("'sha256-") for found in hashes)
    loading = [found for tag, found in dom.tags if tag in ("link", "img", "iframe") or "src" in found]
    assert loading == []
    ids = [found["id"] for _, found in dom.tags if "id" in found]
    assert len(set(ids)) == len(ids)


def test_bundle_holds_every_module_in_import_order():
    script = single_file.bundle("main.js")
    order = re.findall(r'^modules\["([^"]+)"\] = ', script, re.MULTILINE)
    modules = [name.removeprefix("scripts/") for name in web.assets() if name.endswith(".js")]
    assert sorted([*order, "theme.js"]) == sorted(modules) and order[-1] == "main.js"
    for at, name in enumerate(order):
        text = (web.FOLDER / "scripts" / name).read_text()
        used = re.findall(r'^import .* from "(?:.*/)?([\w]+\.js)";', text, re.MULTILINE)
        assert {Path(one).name for one in order[:at]} >= set(used), name


# ---- Hostile texts and sizes -------------------------------------------------------------------------------------


@needs_chromium
def test_hostile_texts_stay_texts(written, document):
    plain, log = hostile(copy.deepcopy(document), "plain")
    stories = with_story(plain, [event(1, claims=[{"basis": "measured", "text": "plain"}])])
    names = sorted(tag for tag, _ in written([plain], log=log, stories=stories).tags)
    for text in HOSTILE:
        found, log = hostile(copy.deepcopy(document), text)
        stories = with_story(found, [event(1, title=text, claims=[{"basis": text, "text": text}])])
        dom = written([found], log=log, stories=stories)
        assert sorted(tag for tag, _ in dom.tags) == names, text
        assert not any("data-ran" in attributes for _, attributes in dom.tags)
        shown = " ".join("".join(c if c.isprintable() else "?" for c in text).split())
        assert shown in dom.text("h1") and shown in dom.text("errors") and shown in dom.text("log-broken")
        assert dom.table("log-problem-rows") == [["3", shown]] and dom.table("log-ignored-rows") == [
            [shown, "2"]
        ]
        assert dom.table("rank-rows")[1][1] == shown and shown in dom.text("causes")
        assert dom.text("story-events").count(shown) == 3


def test_data_is_valid_json_for_any_document(document):
    """Numbers that are not finite become null, and no text can end the script element."""
    document["factors"]["mfu"] = math.nan
    document["straggler"]["slowdown"] = math.inf
    document["run"] = "</script><!--<script>"
    text = single_file.render([document], command="goodput replay")
    assert text.count("</script>") == 3
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    (run,) = data["runs"]
    assert run["factors"]["mfu"] is None and run["straggler"]["slowdown"] is None
    assert run["run"] == "</script><!--<script>"


@needs_chromium
def test_ten_thousand_ranks_open(tab, tmp_path, document):
    path = tmp_path / "page.html"
    stories = with_story(document, [event(number) for number in range(200)])
    path.write_text(
        single_file.render([many_ranks(document, 10_000)], command="goodput replay", stories=stories),
        encoding="utf-8",
    )
    page = tab(f"file://{path}")
    page.wait_for_selector("#rank-rows tr")
    assert page.evaluate("document.querySelectorAll('#rank-rows tr').length") == 64
    page.click("#story-more")
    assert page.evaluate("document.querySelectorAll('#story-events > li').length") == 200
    assert page.evaluate("document.querySelectorAll('*').length") < NODES_MAX + 200 * 9, "nine nodes an event"
    page.click("#story-more")
    assert page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
    # One row a host; those of the slow rank (a sign of trouble by itself) and of the worst come first, and open.
    assert page.evaluate("document.querySelectorAll('#rank-rows th')[1].textContent") == "8 ranks"
    ratios = [rank["states"]["productive"] / sum(rank["states"].values()) for rank in document["ranks"]]
    count = text_of(page, "#ranks-count")
    assert count.startswith(f"10,000 ranks; goodput {100 * min(ratios):.1f} % to {100 * max(ratios):.1f} %")
    page.click("#rank-rows tr:nth-child(2) a")
    opened = page.evaluate(
        "[...document.querySelectorAll('#rank-rows th')].map((cell) => Number(cell.textContent))"
    )
    assert opened[0] == 9999 and sorted(opened) == list(range(9992, 10_000))
    assert page.evaluate("document.activeElement.value") == "host node1249"


def test_left_out_parts_of_a_file_are_counted(document, monkeypatch):
    monkeypatch.setattr(single_file, "RUNS_MAX", 3)
    monkeypatch.setattr(single_file, "RANKS_MAX", 30)
    monkeypatch.setattr(single_file, "RESTARTS_MAX", 30)
    many_ranks(document, 100)
    first = document["restarts"][0]
    document["restarts"] = [{**first, "attempt": n, "gpu_seconds": float(n)} for n in range(2, 102)]
    document["straggler"]["onsets"] = [{"rank": n, "first_step": n, "last_step": n} for n in range(5000)]
    document["errors"] = ["&" * 5000]
    runs = [{**document, "run": f"r{n}", "gpu_seconds": 100.0 + n} for n in range(5)]
    data = json.loads(re.search(r'id="data">(.*?)</script>', single_file.render(runs, command="x"))[1])
    assert [run["run"] for run in data["runs"]] == ["r4", "r3", "r2"] and data["runs_left_out"] == 2
    run = data["runs"][0]
    assert run["left_out"] == {"ranks": 90, "restarts": 90}
    assert [restart["attempt"] for restart in run["restarts"]] == list(range(92, 102))
    worst = sorted(document["ranks"], key=lambda r: r["states"]["productive"] / sum(r["states"].values()))[
        :10
    ]
    assert [rank["rank"] for rank in run["ranks"]] == sorted(rank["rank"] for rank in worst)
    assert len(run["straggler"]["onsets"]) == 1000 and len(run["errors"][0]) == 2000


@needs_chromium
def test_page_says_what_a_file_leaves_out(written, document, monkeypatch):
    monkeypatch.setattr(single_file, "RUNS_MAX", 2)
    monkeypatch.setattr(single_file, "RANKS_MAX", 20)
    many_ranks(document, 100)
    runs = [{**document, "run": f"r{n}", "gpu_seconds": 100.0 + n} for n in range(5)]
    assert "The 2 runs with most GPU time of 5 are in this file." in written(runs).text("runs-cut")
    assert "The 10 ranks with the lowest goodput, of 100" in written(runs, "#run=r4").text("ranks-count")


# ---- Numbers -----------------------------------------------------------------------------------------------------

NUMBERS = """import('{module}').then(({{ percent, count, times, compact, duration, dollars, stepTime }}) => [
  percent(0.12345), percent(0), percent(null), percent(NaN), count(1234567), times(1.234), times(1234.5),
  compact(1.2446e15, "FLOP"), compact(0.5, "J"), compact(999400, "J"), duration(0), duration(0.0421), duration(0.00004),
  duration(9.5), duration(59.96), duration(94), duration(3599.6), duration(300000), duration(-5),
  dollars(0.0585, 0.188), dollars(1234.5, 1234.5), dollars(null),
  stepTime(0.0427), stepTime(0.62644, 4), stepTime(0.9997), stepTime(12.3456), stepTime(null)])"""


@needs_chromium
def test_numbers_read_as_people_write_them(tab, tmp_path):
    page = tab("about:blank")
    source = (web.FOLDER / "scripts/text/numbers.js").read_text()
    module = page.evaluate(
        "(source) => URL.createObjectURL(new Blob([source], { type: 'text/javascript' }))", source
    )
    assert page.evaluate(NUMBERS.format(module=module)) == [
        *(
            "12.3 %",
            "0.0 %",
            "unknown",
            "unknown",
            "1,234,567",
            "1.23×",
            "1,235×",
            "1.24 PFLOP",
            "0.5 J",
            "999 kJ",
        ),
        *("0 s", "42 ms", "40 µs", "9.50 s", "1 min", "1 min 34 s", "1 h", "3 d 11 h", "−5.00 s"),
        *("$0.0585", "$1,234.50", "unknown"),
        *("42.7 ms", "626.4 ms", "1.00 s", "12.3 s", "unknown"),
    ]


@needs_chromium
def test_compute_efficiency_against_the_probed_peak(written, document):
    assert "of the probed peak" not in written([document]).text("main")
    document["reachable"] = {"compute_efficiency": 0.7391}
    assert "73.9 % of the probed peak" in written([document]).text("main")
