"""`goodput.report()` and `goodput.window()` in a notebook: HTML that is well-formed, escaped, and read in both themes."""

import re
from html.parser import HTMLParser

import pytest
from support.account.account_history import Process, account_of
from support.browser import chromium, needs_chromium
from support.paths import ROOT

from goodput.account import document
from goodput.account.states import PHASE_STATES, STATES
from goodput.causes import explain
from goodput.sdk.reports import notebook_html
from goodput.sdk.reports.report import Report
from goodput.sdk.reports.window import Window
from goodput.sdk.reports.window_rows import Record

HOSTILE = '<script>alert("1")</script>'
# JupyterLab's rules for HTML output: background, text, and its striped tables with cells to the right.
JUPYTER = (
    "body {{ background: {}; color: {}; font: 13px sans-serif }} td, th {{ text-align: right; padding: .5em }}"
    "tbody tr:nth-child(odd) {{ background: {} }}"
)
THEMES = {"light": ("#fff", "#212121", "#f5f5f5"), "dark": ("#111", "#e0e0e0", "#212121")}


class Strict(HTMLParser):
    """Collects the text; every element has to be closed, in order."""

    def __init__(self, markup: str):
        super().__init__()
        self.open, self.tags, self.text = [], set(), ""
        self.feed(markup)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def report() -> Report:
    one = Process().between(none=2, restore=1)
    for _ in range(10):
        one.step(loader=0.25, forward=0.5, backward=0.5, communication=0.25)
    account = account_of(one.finished(), now=20)
    account.run = HOSTILE
    return Report(document(account, explain(account)), ["  goodput itself cost 0.1 s", ""])


def window() -> Window:
    """Two seconds in which a phase of the user's took half, by hand; without quantiles."""
    first = Record(0, 0, 0, 0, 0, (0, 0, 0), None)
    last = Record(
        10, 2_000_000_000, 320, 1_900_000_000, 1_900_000_000, (100_000_000, 900_000_000, 1_000_000_000), None
    )
    return Window(60.0, 0, last, first, ("none", "forward", HOSTILE))


def test_report_has_the_account():
    html = report()._repr_html_()
    found = Strict(html)
    account = report().account
    assert not found.tags & {"script", "style", "link", "img"} and HOSTILE in found.text
    for state, seconds in account["states"].items():
        assert (f'title="{state}: ' in html) == (seconds > 0)
    assert f"{100 * account['factors']['goodput']:.1f} %" in found.text
    first = account["causes"][[one["state"] for one in account["causes"]].index(account["advice_order"][0])]
    assert first["advice"] in found.text and "goodput itself cost 0.1 s" in found.text


def test_report_begins_with_the_answer():
    found, account = Strict(report()._repr_html_()), report().account
    text = " ".join(found.text.split())
    at = [text.index(" ".join(line.split())) for line in account["answer"]["lines"]]
    assert at == sorted(at) and at[-1] < text.index("steps kept") and "`" not in text


def test_unknown_mfu_is_no_headline():
    text = Strict(report()._repr_html_()).text
    assert report().account["mfu_unknown"] and "MFU" not in text.partition("what it is")[0]


def test_shares_of_bars_sum_to_one():
    for html in (report()._repr_html_(), window()._repr_html_()):
        widths = [float(width) for width in re.findall(r"width:([\d.]+)%", html)]
        assert len(widths) >= 3 and sum(widths) == pytest.approx(100, abs=0.01)


def test_window_has_its_phases():
    found = Strict(window()._repr_html_())
    assert HOSTILE in found.text and "script" not in found.tags
    assert (
        "95.0 % goodput" in found.text
        and "45.0 %" in found.text
        and "50.0 %" in found.text
        and "unknown" in found.text
    )
    assert "160 samples/s" in found.text


def test_without_measurement():
    assert "nothing is measured" in Strict(Report({}, ["why"])._repr_html_()).text
    assert "no step ended in the last 60 s" in Strict(Window(60.0)._repr_html_()).text


def test_failure_falls_back_to_text(monkeypatch):
    """A notebook shows the text where there is no HTML."""
    monkeypatch.setattr(notebook_html, "_whole", None)
    assert report()._repr_html_() is None and window()._repr_html_() is None


def test_colours_are_those_of_the_page():
    style = (ROOT / "src/goodput/web/page.css").read_text()
    page = {state: re.search(rf"--{state}: (?:light-dark\(#\w+, )?(#\w+)\)?;", style)[1] for state in STATES}
    assert page == notebook_html.COLOURS
    assert set(PHASE_STATES) <= set(notebook_html.PHASE_COLOURS)


@needs_chromium
def test_text_takes_the_notebooks_colours():
    """In both themes, and on a phone: nothing wider than the page, tables scroll by themselves."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        for back, ink, stripe in THEMES.values():
            style = JUPYTER.format(back, ink, stripe)
            page.set_content(f"<style>{style}</style>{report()._repr_html_()}{window()._repr_html_()}")
            cells = "[...document.querySelectorAll('td, th, li, div')]"
            colours = page.evaluate(f"{cells}.map(one => getComputedStyle(one).color)")
            assert len(set(colours)) == 1 and set(colours) == {
                page.evaluate("getComputedStyle(document.body).color")
            }
            stripes = page.evaluate(
                "[...document.querySelectorAll('tr')].map(one => getComputedStyle(one).backgroundColor)"
            )
            assert set(stripes) == {"rgba(0, 0, 0, 0)"}
            assert page.evaluate("getComputedStyle(document.querySelector('td')).textAlign") == "left"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
