"""What the page of a file tells of a run: the costliest events, and what is known of each."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.browser import Dom, dom_of, needs_chromium, text_of
from support.stories import event, with_story

pytest.importorskip("msgspec")

from goodput.account.text import percent
from goodput.cli import main
from goodput.web import single_file

EXAMPLE = str(Path(__file__).parents[2] / "docs" / "example-run.jsonl")


def printed(*words: str) -> dict:
    with redirect_stdout(io.StringIO()) as text:
        assert main(["replay", EXAMPLE, "--json", *words]) == 0
    return json.loads(text.getvalue())


@pytest.fixture
def document() -> dict:
    return printed()


@pytest.fixture
def written(tmp_path, document):
    """The address of the page with the run and these stories."""

    def address(stories: dict | None = None) -> str:
        path = tmp_path / "page.html"
        path.write_text(single_file.render([document], command="x", stories=stories), encoding="utf-8")
        return f"file://{path}"

    return address


@needs_chromium
def test_story_is_that_of_the_command(browser, tmp_path):
    out, story = tmp_path / "page.html", printed("--story")
    printed("--html", str(out))
    dom: Dom = dom_of(browser, f"file://{out}")
    (restart,) = story["events"]
    shown = dom.text("story-events")
    assert f"{restart['time']:.1f} s restart 1 {restart['gpu_seconds']:.1f} GPU-s, $" in shown
    assert all(f"{claim['basis']} {claim['text']}" in shown for claim in restart["claims"])
    cost = f"cost {percent(story['told_gpu_seconds'] / story['gpu_seconds'])} of the GPU time"
    assert dom.text("story-sum").startswith(f"1 event that {cost}. Changes of pace are unknown")
    assert not dom.is_shown("story-more")


@needs_chromium
def test_costliest_events_are_shown_in_order_of_time(tab, written, document):
    events = [event(number) for number in (3, 9, 1, 8, 7, 2, 6)]
    page = tab(written(with_story(document, events, left_out=2)), width=390, height=844)
    titles = "[...document.querySelectorAll('#story-events strong')].map((one) => one.textContent)"
    page.wait_for_selector("#story-events li")
    assert page.evaluate(titles) == [f"restart {number}" for number in (3, 9, 8, 7, 6)]
    cost = "9 events that cost 19.1 % of the GPU time."
    assert text_of(page, "#story-sum") == f"{cost} The 5 costliest are shown."
    assert text_of(page, "#story-more") == "Show all 7 events"
    page.click("#story-more")
    assert page.evaluate(titles) == [one["title"] for one in events]
    assert text_of(page, "#story-sum") == f"{cost} The 7 costliest are shown.", "two are not in the file"
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    page.click("#story-more")
    assert len(page.evaluate(titles)) == 5


@needs_chromium
def test_story_without_events_or_cost(browser, written, document):
    dom = dom_of(browser, written(with_story(document, [])))
    nothing = "Nothing: no restart, stall, slow rank, change of pace or hardware event."
    assert dom.text("story-sum") == nothing
    one = event(3, kind="slower", title="slower", end=13.0, gpu_seconds=None, cost=None, cost_basis=None)
    dom = dom_of(browser, written(with_story(document, [one], pace="unknown: too few steps were recorded")))
    assert "3.0 s slower, for 10.0 s measured claim 3" in " ".join(dom.text("story-events").split())
    assert dom.text("story-sum") == "1 event. Changes of pace are unknown: too few steps were recorded."


@needs_chromium
def test_file_without_a_story_has_no_section(browser, written):
    dom = dom_of(browser, written())
    assert dom.is_shown("run") and not dom.is_shown("story")
