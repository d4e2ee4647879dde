"""The page of `goodput compare --html`: what it says first, names and axes in its charts, an outlier."""

import re

import numpy as np
import pytest
from support.browser import chromium, needs_chromium, open_page
from support.compare.logs import write_log

from goodput.cli import main
from goodput.compare import pictures
from goodput.compare.pictures import Line


@pytest.fixture
def page(tmp_path):
    """The HTML of a comparison of two runs with steps of these lengths in seconds."""

    def written(before: np.ndarray, after: np.ndarray) -> str:
        logs = [
            write_log(tmp_path / f"{name}.jsonl", lengths, 0.1, name=name)
            for name, lengths in (("llama-before", before), ("llama-after", after))
        ]
        assert main(["compare", *logs, "--html", str(tmp_path / "page.html")]) == 0
        return (tmp_path / "page.html").read_text()

    return written


def noisy(seconds: float) -> np.ndarray:
    return seconds * (1 + 0.01 * np.sin(np.arange(200) * 7))


def test_speed_stands_first_and_runs_are_named(page):
    html = page(noisy(1.93), noisy(1.0))
    assert "<h1>llama-after against llama-before</h1>" in html
    assert re.search(r"1\.9[0-9]× faster: a step takes [\d.,]+ s instead of [\d.,]+ s", html)
    assert html.index("faster") < html.index("<svg")
    svg = html[html.index("<svg") :]
    assert ">base: llama-before</text>" in svg and ">new: llama-after</text>" in svg
    assert "1.00× slower" not in html


def test_slower_and_alike_runs_are_said_so(page):
    assert re.search(r"1\.[45]\d× slower: a step takes", page(noisy(1.0), noisy(1.5)))
    assert "No difference beyond chance: a step takes" in page(noisy(1.0), noisy(1.0))


def test_every_chart_has_round_numbers_on_its_axis(page):
    charts = re.findall(r"<svg.*?</svg>", page(noisy(1.9), noisy(1.0)))
    ticks = [re.findall(r'class="[^"]*tick[^"]*">([^<]*)</text>', chart) for chart in charts]
    assert ticks[0][:3] == ["0", "0.5 s", "1 s"] and "0" in ticks[1]
    assert ticks[2][:2] == ["0 s", "0.5 s"]


@pytest.mark.parametrize("top", [0.07, 1.0, 1.9, 4.2, 9.99, 15.0, 990.2, 99_999.0])
def test_ticks_are_few_and_round(top):
    found = pictures.ticks(top)
    assert 2 <= len(found) <= 6 and found[0] == 0 and top / 2 < found[-1] <= top
    assert all(f"{tick:.3e}"[0:4] in ("0.00", "1.00", "1.50", "2.00", "2.50", "3.00", "4.00", "5.00", "6.00", "8.00")
               for tick in found)  # fmt: skip


def test_an_outlier_does_not_flatten_the_lines():
    values = np.full(100, 1.0)
    values[50] = 500.0
    picture = pictures.lines([Line("r", values)], lambda value: f"{value:g} s", "lengths")
    (points,) = re.findall(r'points="([^"]*)"', picture)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert max(heights) - min(heights) > 60 and 176 - heights[0] > 60, "a second is a visible height"
    assert "500 s, beyond this scale" in picture


@needs_chromium
def test_no_text_of_a_chart_is_cut_off_or_covered(page, tmp_path):
    page(noisy(1.9), noisy(0.2))
    with chromium() as browser:
        opened = open_page(browser, f"file://{tmp_path}/page.html", width=1280, height=800)
        outside = opened.evaluate(
            "[...document.querySelectorAll('svg text')].filter((node) => { const a = node.getBoundingClientRect(), "
            "b = node.closest('svg').getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1 || "
            "a.bottom > b.bottom + 1; }).map((node) => node.textContent)"
        )
        assert [text for text in outside if text != "0"] == []
        halves = opened.evaluate(
            "[...document.querySelectorAll('.pair')].map((pair) => [...pair.children].map((card) => {"
            "const last = card.lastElementChild.getBoundingClientRect(), box = card.getBoundingClientRect();"
            "return (last.bottom - box.top) / box.height; }))"
        )
        assert all(filled > 0.6 for pair in halves for filled in pair), "no card is half empty"
