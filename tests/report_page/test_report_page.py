"""The page of `goodput replay --html`: its figures are the document's, its texts are escaped, its size is bounded."""

import copy
import io
import json
import random
import re
import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.aggregator.html_reader import read

pytest.importorskip("msgspec")

from goodput.account.states import STATES
from goodput.account.text import state_rows
from goodput.cli import main
from goodput.report_page import page
from goodput.report_page.nodes import element, short
from goodput.report_page.numbers import amount, count, dollars, duration, moment, percent, scaled, times

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example-run.jsonl"
SIZE_MAX = 2_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></svg><iframe src=//evil.example>",
    "&lt;b&gt; &amp; &#60;script&#62;",
    "{{constructor}} ${alert(1)} <!-- ",
    "\x00\x1b[31m\u202eevil\ud800\ufeff",
)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """(document, page) of the example, both from the command."""
    out = tmp_path_factory.mktemp("example") / "account.html"
    command = ["replay", str(EXAMPLE), "--json", "--html", str(out)]
    with redirect_stdout(io.StringIO()) as said:
        assert main(command) == 0
    return json.loads(said.getvalue()), out.read_text(encoding="utf-8")


@pytest.fixture
def document(example):
    return copy.deepcopy(example[0])


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
    """As many ranks, with all states, and a known worst: the one with the highest number."""
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
    """`text` wherever a text from outside can be."""
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
    document["log"] |= {"problems": [{"line": 3, "problem": text}], "problem_count": 1}
    document["log"] |= {"ignored": {text: 2}, "broken": text}
    return document


# ---- What it says ------------------------------------------------------------------------------------------------


def test_the_states_are_the_documents_and_close_to_100(example):
    document, text = example
    card = read(text).card("run1-states")
    rows = card.rows()
    assert [row[:3] for row in rows] == [
        [state, f"{seconds:,.2f}", share] for state, seconds, share, _ in state_rows(document)
    ]
    assert sum(round(10 * float(row[2])) for row in rows) == 1000
    assert [row[3] for row in rows] == [f"${document['cost']['states'][row[0]]:.4f}" for row in rows]
    assert [row[0] for row in rows if row[4].endswith("(an estimate)")] == ["compile"]
    total = [cell.text() for cell in card.one("tfoot").children[0].children]
    assert total[:4] == ["total", "188.00", "100.0", "$0.1880"]


def test_the_bar_is_as_wide_as_the_states_and_says_them(example):
    document, text = example
    svg = read(text).card("run1-states").one("svg", class_="bar tall")
    rects = [rect for rect in svg.children if rect.name == "rect"]
    shares = {state: float(share) for state, _, share, _ in state_rows(document)}
    assert [(r.attributes["class"], float(r.attributes["width"][:-1])) for r in rects] == [
        (f"s-{state}", share) for state, share in shares.items()
    ]
    at = 0.0
    for rect in rects:
        assert float(rect.attributes["x"][:-1]) == pytest.approx(at, abs=0.01)
        at += float(rect.attributes["width"][:-1])
    assert at == pytest.approx(100)
    said = svg.one("title").text()
    assert all(f"{state} {share} %" in said for state, share in shares.items())


def test_the_chain_goes_from_the_peak_to_useful_work(example):
    """Of 188 GPU-seconds 90 are in kept steps, 58.5 are productive and 40 % of these are at the peak: 23.4."""
    svg = read(example[1]).one("svg", class_="waterfall")
    texts = [node.text() for node in svg.all("text")]
    assert list(zip(texts[::2], texts[1::2], strict=True)) == [
        ("allocated", "100.0 %, 188.00 GPU-seconds"),
        ("lost to: not in kept steps", "52.1 %, 98.00 GPU-seconds"),
        ("availability", "47.9 %, 90.00 GPU-seconds"),
        ("lost to: waiting inside steps", "16.8 %, 31.50 GPU-seconds"),
        ("× step efficiency 65.0 % = goodput", "31.1 %, 58.50 GPU-seconds"),
        ("lost to: slower than the peak", "18.7 %, 35.10 GPU-seconds"),
        ("× compute efficiency 40.0 % = MFU", "12.4 %, 23.40 GPU-seconds"),
    ]
    bars = [r.attributes for r in svg.all("rect") if r.attributes["class"] != "track"]
    spans = [(float(b["x"][:-1]), float(b["x"][:-1]) + float(b["width"][:-1])) for b in bars]
    expected = [(0, 100), (47.87, 100), (0, 47.87), (31.12, 47.87), (0, 31.12), (12.45, 31.12), (0, 12.45)]
    for (low, high), wanted in zip(spans, expected, strict=True):
        assert (low, high) == pytest.approx(wanted, abs=0.02)
    drops = [line.attributes for line in svg.all("line")]
    assert all(drop["x1"] == drop["x2"] for drop in drops)
    ends = [float(drop["x1"][:-1]) for drop in drops]
    assert ends == pytest.approx([100, 47.87, 47.87, 31.12, 31.12, 12.45], abs=0.02)
    assert all(text in svg.one("title").text() for text in texts[1::2])


def test_the_headline_names_factors_money_and_the_leading_cause(example):
    document, text = example
    root = read(text)
    shown = [
        (figure.all("span")[0].text(), figure.one("strong").text())
        for figure in root.all("div")
        if figure.attributes.get("class", "").startswith("figure")
    ]
    assert shown == [
        *(("goodput", "31.1 %"), ("availability", "47.9 %"), ("step efficiency", "65.0 %")),
        *(("MFU", "12.4 %"), ("goodput", "31.1 %"), ("compute efficiency", "40.0 %")),
    ]
    known = next(child for child in root.one("article").children if child.name == "dl")
    assert known.attributes == {"class": "facts"}
    pairs = {pair.children[0].text(): pair.children[1].text() for pair in known.children}
    assert pairs["GPU-seconds"] == "188.00" and pairs["Not productive"] == "129.50"
    assert pairs["Cost"] == "$0.1880" and pairs["Cost of what was not productive"] == "$0.1295"
    assert pairs["Energy, estimated"] == "unknown" and pairs["HFU"] == "unknown"
    cause = root.card("run1-cause").text()
    assert "startup 14.9 % of all GPU time" in cause and document["causes"][0]["advice"] in cause
    assert "at most 1.18× as fast" in cause and "28.00 GPU-seconds and $0.0280" in cause


def test_causes_restarts_and_rates_are_the_documents(example):
    document, text = example
    root = read(text)
    causes = root.card("run1-causes").rows()
    assert [row[0] for row in causes] == [cause["state"] for cause in document["causes"]]
    assert causes[1] == ["lost", "13.8 %", "26.00", "$0.0260", "1.16×", document["causes"][1]["advice"]]
    restarts = root.card("run1-restarts")
    assert restarts.rows() == [
        ["2", "58.0 s", "58.0 s", "10.0 s", "4", "26.00", "18.00", "64.00", "$0.0640", "after step 3"]
    ]
    saved = root.card("run1-checkpoints")
    assert saved.facts()["Best: one every"] == "18.3 s" and saved.facts()["One every"] == "unknown"
    assert document["checkpoints"]["source"] in saved.text()
    rates = root.card("run1-throughput").facts()
    assert rates["Kept samples"] == "360" and rates["Samples per second"] == "3.83"
    assert rates["Part of the ideal"] == "47.9 %"
    bought = root.card("run1-bought").facts()
    assert bought["Model FLOPs per dollar"] == "1.24 PFLOP"
    assert bought["Productive GPU-seconds per dollar"] == "311"
    assert bought["Model FLOPs per joule"] == "unknown"
    assert "fewer than two stages" in root.card("run1-pipeline").text()
    assert "Nothing is wrong with it." in root.card("log1").text()


def test_slow_ranks_are_named_by_rank_host_and_stage(document):
    document["straggler"] |= {"since_step": 1234, "stages": [{"stage": 3, "share": 0.25}]}
    document["straggler"]["onsets"] = [
        {"rank": 0, "first_step": 5, "last_step": 9},
        {"rank": 1, "first_step": 1234, "last_step": None},
    ]
    card = read(page([document])).card("run1-slow")
    assert "rank 1 on n1: it spends more time in productive" in card.text()
    assert "slow since step 1,234" in card.text() and "1.05× as long" in card.text()
    assert card.rows() == [
        *(["1", "100.0 %"], ["n1", "100.0 %"], ["3", "25.0 %"]),
        *(["1", "1,234", "slow still"], ["0", "5", "9"]),
    ]
    worst = read(page([document])).card("run1-ranks").rows()
    assert [row[0] for row in worst] == ["0", "slow1"]
    assert [row[3] for row in worst] == ["28.7 %", "33.5 %"]


def test_energy_pipeline_and_the_logs_faults_are_shown(document):
    joules = {state: 700 * seconds for state, seconds in document["states"].items()}
    document["energy"] = {"total": 700 * 188.0, "states": joules}
    document["pipeline"] = {
        "stages": 4,
        "microbatches": 16,
        "bubble": 0.25,
        "ideal_bubble": 3 / 19,
        "excess": 0.25 - 3 / 19,
    }
    document["log"] |= {
        "problems": [{"line": 17, "problem": "not JSON"}],
        "problem_count": 250,
        "dropped": 3,
        "ignored": {"kind 'gpu'": 12},
        "broken": "the file ends within a line",
    }
    document["errors"] = ["MFU would be 312 %"]
    root = read(page([document]))
    rows = root.card("run1-states").rows()
    assert rows[0] == ["productive", "58.50", "31.1", "$0.0585", "40.95", "compute phases of kept steps"]
    assert [cell.text() for cell in root.card("run1-states").one("thead").all("th")][4] == "kJ, estimated"
    bubble = root.card("run1-pipeline").facts()
    assert bubble["Bubble, of kept steps"] == "25.0 %" and bubble["What cannot be avoided"] == "15.8 %"
    assert bubble["Beyond that"] == "9.2 %"
    log = root.card("log1")
    assert log.rows() == [["17", "not JSON"], ["kind 'gpu'", "12"]]
    assert log.facts()["Problems"] == "250" and "The first 1 problems." in log.text()
    assert "the file ends within a line" in log.text() and "Nothing is wrong" not in log.text()
    assert "MFU would be 312 %" in root.one("section", class_="notice").text()


def test_what_is_unknown_is_never_0(document):
    root = read(page([blank(document)]))
    figures = [f for f in root.all("div") if f.attributes.get("class", "").startswith("figure")]
    assert [figure.one("strong").text() for figure in figures] == ["unknown"] * 6
    waterfall = root.one("svg", class_="waterfall")
    assert [t.text() for t in waterfall.all("text")][3::2] == ["unknown"] * 6
    assert [r.attributes["width"] for r in waterfall.all("rect") if r.attributes["class"] != "track"] == [
        "100%"
    ]
    for key in ("throughput", "bought"):
        assert set(root.card(f"run1-{key}").facts().values()) == {"unknown"}
    saved = root.card("run1-checkpoints").facts()
    assert saved.pop("Committed") == "2" and saved.pop("One not committed") == "no"
    assert set(saved.values()) == {"unknown"}
    restart = root.card("run1-restarts").rows()[0]
    assert [restart[i] for i in (3, 8, 9)] == ["unknown"] * 3
    assert {(row[3], row[4]) for row in root.card("run1-causes").rows()} == {("unknown", "unknown")}
    assert root.card("run1-slow").text().count("unknown") == 2
    facts = next(child for child in root.one("article").children if child.name == "dl")
    pairs = {pair.children[0].text(): pair.children[1].text() for pair in facts.children}
    for name in ("Cost", "Energy, estimated", "HFU", "Observed", "On the device clock", "Samples done"):
        assert pairs[name] == "unknown", name
    body = root.one("body").text()
    assert "None" not in body.replace("None.", "") and "nan" not in body and "null" not in body


def test_a_run_without_time_is_a_page_too(document):
    blank(document)
    document |= {"gpu_seconds": 0.0, "states": dict.fromkeys(STATES, 0.0), "causes": [], "restarts": []}
    document["ranks"] = [{**document["ranks"][0], "states": dict.fromkeys(STATES, 0.0)}]
    del document["log"]
    root = read(page([document]))
    assert root.card("run1-ranks").rows()[0][3] == "unknown"
    assert "unknown" in root.card("run1-cause").text()
    assert root.card("run1-states").rows() == []


def test_no_gain_is_promised_for_what_nobody_saw(document):
    document["causes"] = [{**document["causes"][0], "state": "unobserved", "gain": 1.5}]
    root = read(page([document]))
    assert root.card("run1-causes").rows()[0][4] == "unknown"
    assert "1.50" not in root.card("run1-cause").text() and "unknown" in root.card("run1-cause").text()


# ---- What it must not do -----------------------------------------------------------------------------------------


def test_hostile_texts_stay_texts(document):
    plain = read(page([hostile(copy.deepcopy(document), "plain")]))
    names = [node.name for node in plain.all()]
    for text in HOSTILE:
        root = read(page([hostile(copy.deepcopy(document), text)]))
        assert [node.name for node in root.all()] == names, text
        for node in root.all():
            assert not any(key.startswith("on") or key in ("src", "style") for key in node.attributes)
        shown = text if text.isprintable() else "??[31m?evil??"
        assert root.one("h1").text() == f"run {shown}"
        assert root.card("log1").rows() == [["3", shown], [shown, "2"]]
        assert root.card("run1-ranks").rows()[0][1] == shown
        assert root.card("run1-causes").rows()[0][5] == shown


def test_no_text_from_outside_is_a_number_in_disguise(document):
    """Figures that are no finite numbers are unknown."""
    document["factors"]["mfu"] = float("nan")
    document["straggler"]["slowdown"] = float("inf")
    document["throughput"]["samples_per_second"] = "<b>1</b>"
    root = read(page([document]))
    assert root.card("run1-throughput").facts()["Samples per second"] == "unknown"
    assert "inf" not in root.card("run1-slow").text() and not root.all("b", class_=None)


def test_nothing_is_loaded_and_nothing_runs(example):
    root = read(example[1])
    metas = root.one("head").all("meta")
    assert metas[0].attributes == {"charset": "utf-8"}
    policy = metas[1].attributes
    assert policy["http-equiv"] == "Content-Security-Policy"
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
    assert rules["default-src"] == "'none'" and rules["style-src"] == "'unsafe-inline'"
    assert set(rules) <= {"default-src", "style-src", "base-uri", "form-action"}
    ids = [node.attributes["id"] for node in root.all() if "id" in node.attributes]
    assert len(set(ids)) == len(ids)
    for node in root.all():
        assert node.name not in (
            "script",
            "link",
            "iframe",
            "img",
            "image",
            "object",
            "embed",
            "base",
            "form",
            "use",
        )
        for key, value in node.attributes.items():
            assert not key.startswith("on") and "//" not in value and "url(" not in value, (node.name, key)
            if key in ("href", "xlink:href"):
                assert value[0] == "#" and value[1:] in ids
            if key == "aria-labelledby":
                assert value in ids
    sheet = root.one("style").text()
    assert "@import" not in sheet and "//" not in sheet
    targets = re.findall(r"url\(([^)]*)\)", sheet)
    assert targets and all(target[0] == "#" and target[1:] in ids for target in targets)


def test_pictures_and_tables_can_be_heard(example):
    root = read(example[1])
    assert root.one("html").attributes["lang"] == "en"
    pictures = [svg for svg in root.all("svg") if svg.attributes.get("role") == "img"]
    assert len(pictures) == 2 + len(example[0]["ranks"])
    assert all(
        len(picture.children[0].text()) > 20 and picture.children[0].name == "title" for picture in pictures
    )
    for table in root.all("table"):
        assert table.children[0].name == "caption" and table.children[0].text()
        heads = table.one("thead").all("th")
        assert all(head.attributes["scope"] == "col" for head in heads)
        for row in table.one("tbody").children:
            assert len(row.children) == len(heads)
            assert row.children[0].name == "th" and row.children[0].attributes["scope"] == "row"
    assert len(root.all("h1")) == 1


# ---- Size ---------------------------------------------------------------------------------------------------------


def test_of_many_ranks_the_worst_are_shown_and_that_is_said(document):
    text = page([many_ranks(document, 10_000)])
    assert len(text.encode()) < 300_000
    card = read(text).card("run1-ranks")
    rows = card.rows()
    assert len(rows) == 64 and rows[0][:2] == ["9,999", "node1249"]
    goodputs = [float(row[3].split()[0]) for row in rows]
    assert goodputs == sorted(goodputs)
    assert "The 64 ranks with the lowest goodput, of 10,000." in card.text()
    ratios = [r["states"]["productive"] / sum(r["states"].values()) for r in document["ranks"]]
    assert (
        f"lowest {percent(min(ratios))}" in card.text() and f"highest {percent(max(ratios))}" in card.text()
    )
    exactly = read(page([many_ranks(document, 64)])).card("run1-ranks")
    assert len(exactly.rows()) == 64 and "64 ranks, the lowest goodput first." in exactly.text()


def test_one_rank_is_a_page_too(document):
    document["ranks"] = document["ranks"][:1]
    card = read(page([document])).card("run1-ranks")
    assert len(card.rows()) == 1 and "1 rank, the lowest goodput first." in card.text()


def test_of_many_runs_the_largest_are_shown(document):
    runs = [{**document, "run": f"r{n}", "gpu_seconds": 100.0 + n} for n in range(20)]
    root = read(page(runs))
    assert [article.attributes["id"] for article in root.all("article")] == [f"run{n}" for n in range(13, 21)]
    assert [row[0] for row in root.one("main").children[0].rows()] == [f"r{n}" for n in range(20)]
    assert [link.text() for link in root.all("a")] == [f"r{n}" for n in range(12, 20)]


def test_a_rank_that_nobody_saw_comes_first_and_its_goodput_is_unknown(document):
    many_ranks(document, 100)
    unseen = document["ranks"][50]
    unseen["states"] = dict.fromkeys(STATES, 0.0) | {"unobserved": 94.0}
    card = read(page([document])).card("run1-ranks")
    assert [row[0] for row in card.rows()[:2]] == ["50", "99"]
    assert card.rows()[0][3] == "unknown" and "Of 1 it is unknown: nobody reported it." in card.text()
    assert "lowest 0.0 %" not in card.text()


def test_samples_that_nobody_told_are_unknown(document):
    document["samples"] = document["throughput"]["samples"] = 0
    assert read(page([document])).card("run1-throughput").facts()["Kept samples"] == "unknown"
    document["steps"]["kept"] = 0
    assert read(page([document])).card("run1-throughput").facts()["Kept samples"] == "0"


def test_of_many_restarts_the_dearest_are_shown(document):
    first = document["restarts"][0]
    document["restarts"] = [{**first, "attempt": n, "gpu_seconds": float(n)} for n in range(2, 102)]
    card = read(page([document])).card("run1-restarts")
    assert [row[0] for row in card.rows()] == [str(n) for n in range(52, 102)]
    assert "The 50 restarts that cost most, of 100." in card.text()
    total = [cell.text() for cell in card.one("tfoot").children[0].children]
    assert total[0] == "all 100" and total[4] == "400" and total[7] == f"{sum(range(2, 102)):,.2f}"


def test_the_size_is_bounded_whatever_the_documents_hold(document):
    text = "&" * 5000
    worst = hostile(many_ranks(document, 2000), text)
    worst["states"] = dict.fromkeys(STATES, 1e9)
    worst["cost"] = worst["energy"] = {"total": 1e12, "states": dict.fromkeys(STATES, 1e11)}
    worst["causes"] = [{**worst["causes"][0], "state": state, "cost": 1e9} for state in STATES]
    worst["restarts"] = [{**worst["restarts"][0], "attempt": n, "cost": 1e9} for n in range(1000)]
    worst["errors"] = [text] * 100
    shares = [{"rank": n, "host": text + str(n), "stage": n, "share": 0.9} for n in range(16)]
    worst["straggler"] |= {"shares": shares, "hosts": shares, "stages": shares}
    worst["straggler"]["onsets"] = [{"rank": n, "first_step": n, "last_step": n} for n in range(5000)]
    worst["log"] |= {"problems": [{"line": n, "problem": text} for n in range(1000)], "problem_count": 1000}
    worst["log"]["ignored"] = {text + str(n): n for n in range(1000)}
    documents = [{**worst, "run": text + str(n), "log": {**worst["log"], "lines": n}} for n in range(1200)]
    found = page(documents)
    assert len(found.encode()) < SIZE_MAX
    root = read(found)
    assert len(root.all("article")) == 8
    assert "8 of 1,200 runs are shown in full below" in found and "The first 300 runs are listed." in found


def test_of_several_runs_each_is_listed_and_linked_and_the_log_is_shown_once(document):
    other = {**copy.deepcopy(document), "run": "other", "gpu_seconds": 1.0}
    text = page([document, other])
    root = read(text)
    links = root.all("a")
    assert [(link.text(), link.attributes["href"]) for link in links] == [
        ("example", "#run1"),
        ("other", "#run2"),
    ]
    assert [article.attributes["id"] for article in root.all("article")] == ["run1", "run2"]
    assert len(root.all("h1")) == 1 and root.one("h1").text() == "2 runs"
    root.card("log1")
    assert not root.all("section", **{"aria-labelledby": "log2"})
    third = {**other, "log": {**other["log"], "lines": 7}}
    assert read(page([document, other, third])).card("log2").facts()["Lines"] == "7"
    ids = [node.attributes["id"] for node in root.all() if "id" in node.attributes]
    assert len(set(ids)) == len(ids)


# ---- How it looks, and the numbers ---------------------------------------------------------------------------------


def test_colours_are_the_built_in_pages():
    ours = (ROOT / "src/goodput/report_page/page.css").read_text()
    theirs = (ROOT / "src/goodput/aggregator/page/page.css").read_text()

    def colours(sheet):
        return [
            dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+);", part))
            for part in sheet.split("prefers-color-scheme: dark")
        ]

    for mine, built_in in zip(colours(ours), colours(theirs), strict=True):
        shared = {name: value for name, value in mine.items() if name in STATES or name in built_in}
        assert shared == {name: built_in.get(name) for name in shared}
    assert set(STATES) <= set(colours(ours)[0])
    assert all(f".s-{state} {{ fill: " in ours for state in STATES)
    assert "@media print" in ours


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (percent(0.12345), "12.3 %"),
        (percent(0.0), "0.0 %"),
        (percent(None), "unknown"),
        (percent(float("nan")), "unknown"),
        (count(1234567), "1,234,567"),
        (times(1.234), "1.23×"),
        (times(1234.5), "1,234×"),
        (amount(0), "0.00"),
        (amount(0.000857), "0.000857"),
        (amount(1e-30), "0.000000000000"),
        (amount(12345.6), "12,346"),
        (scaled(1.2446e15, "FLOP"), "1.24 PFLOP"),
        (scaled(0.5, "J"), "0.50 J"),
        (scaled(999_400, "J"), "999 kJ"),
        (duration(0), "0 s"),
        (duration(0.0421), "42 ms"),
        (duration(0.00004), "40 µs"),
        (duration(9.5), "9.50 s"),
        (duration(59.96), "1 min"),
        (duration(94), "1 min 34 s"),
        (duration(3599.6), "1 h"),
        (duration(300_000), "3 d 11 h"),
        (duration(-5), "-5.00 s"),
        (dollars(0.0585, 0.188), "$0.0585"),
        (dollars(1234.5), "$1,234.50"),
        (dollars(None), "unknown"),
        (moment(58), "58.0 s"),
        (moment(1.76e9), "2025-10-09 08:53:20 UTC"),
        (moment(1e300), f"{1e300:,.1f} s"),
    ],
)
def test_numbers_read_as_people_write_them(said, text):
    assert said == text


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the page was not looked at")
def test_a_browser_shows_it_without_a_complaint(example, tmp_path):
    (tmp_path / "account.html").write_text(example[1], encoding="utf-8")
    options = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    )
    command = [
        *(CHROMIUM, *options.split(), "--enable-logging=stderr", "--dump-dom"),
        *(f"--user-data-dir={tmp_path}/profile", f"file://{tmp_path}/account.html"),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "CONSOLE" not in shown.stderr
    assert "From the peak to useful work" in shown.stdout


def test_attributes_are_escaped_and_texts_cut():
    node = element("td", "a", None, ["b", 3], title=HOSTILE[1], class_=None, aria_label="x")
    assert read(node).children[0].attributes == {"title": HOSTILE[1], "aria-label": "x"}
    assert read(node).text() == "ab3"
    assert element("rect", x=1) == '<rect x="1"/>' and element("meta", name="a") == '<meta name="a">'
    assert len(read(element("p", "x" * 10_000)).text()) == 2000
    assert short("x" * 64) == "x" * 64 and short("x" * 65) == "x" * 63 + "…"
