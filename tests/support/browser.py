"""Debian's chromium, driven by playwright, for the tests of the built-in page.

with chromium() as browser:
    page = open_page(browser, f"{url}/#runs", width=360, color_scheme="dark")
    until(page, "document.querySelectorAll('#runs-rows tr').length > 0")
"""

from __future__ import annotations

import datetime
import shutil
import time
from contextlib import contextmanager
from html.parser import HTMLParser

import pytest
from playwright import sync_api as playwright

# The shell has no user interface, and takes half of the time of a whole browser.
CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, CHROMIUMS)), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the page was not tested")
TIMEOUT_SECONDS = 60.0  # also where other processes keep every core busy
NEXT_TASK = """() => new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(0);
})"""
STEP_MS = 1250  # of the page's clock, between two pauses for its requests


@contextmanager
def chromium():
    """A headless browser; nothing is downloaded, the executable is the system's."""
    with playwright.sync_playwright() as driver:
        # The sandbox does not work for root.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def open_page(browser, address: str, *, width=1400, height=1000, seconds=0.0, **context):
    """A loaded page in a context of its own. `page.errors` collects uncaught exceptions.

    With `seconds` the page's clock has advanced by as much, and stands still; requests are answered meanwhile.
    """
    phone = {"has_touch": True, "is_mobile": True} if width < 600 else {}
    page = _new_page(browser, viewport={"width": width, "height": height}, **phone, **context)
    if seconds:
        now = datetime.datetime.now(datetime.timezone.utc)
        page.clock.install(time=now - datetime.timedelta(minutes=1))
        page.clock.pause_at(now)
    page.goto(address)
    for _ in range(round(1000 * seconds / STEP_MS)):
        page.clock.run_for(STEP_MS)
        wait_for_answers(page, checks=1)
    return page


def _new_page(browser, **context):
    opened = browser.new_context(**context)
    opened.set_default_timeout(1000 * TIMEOUT_SECONDS)
    page = opened.new_page()
    page.errors, page.pending = [], set()
    page.on("request", lambda request: page.pending.add(request))
    page.on("requestfinished", lambda request: page.pending.discard(request))
    page.on("requestfailed", lambda request: page.pending.discard(request))
    # The page does not read the bodies of errors, so their requests never finish.
    page.on("response", lambda response: response.ok or page.pending.discard(response.request))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    return page


def wait_for_answers(page, checks: int = 3) -> None:
    """Until the page has no request pending in so many checks in a row."""
    quiet, end = 0, time.monotonic() + TIMEOUT_SECONDS
    while quiet < checks:
        assert time.monotonic() < end, f"no answer to {[request.url for request in page.pending]}"
        page.wait_for_timeout(30)
        # Scripts of the page that an answer set off have run, and what they requested is known, also where they had
        # no core for longer than that.
        for _ in range(3):
            page.evaluate(NEXT_TASK)
        quiet = 0 if page.pending else quiet + 1


def until(page, expression: str, seconds: float = TIMEOUT_SECONDS):
    """The first true value of an expression. Playwright's wait_for_function needs unsafe-eval, which the page forbids."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = page.evaluate(expression)
        except playwright.Error as error:
            if "context was destroyed" not in str(error):  # by a navigation
                raise
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {expression}"
        page.wait_for_timeout(30)


def text_of(page, selector: str) -> str:
    """The visible text of a node with single spaces, "" where it is hidden or absent."""
    return page.evaluate(
        "(selector) => (document.querySelector(selector)?.innerText ?? '').replace(/\\s+/g, ' ').trim()",
        selector,
    )


def press(page, key: str, times: int = 1) -> None:
    for _ in range(times):
        page.keyboard.press(key)


def drag(page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=2)
    page.mouse.up()


def dom_of(browser, address: str, **options) -> Dom:
    """The DOM of the page after its first requests; options as for open_page."""
    page = open_page(browser, address, **options) if options else _reused_page(browser, address)
    until(page, "document.querySelector('#loading')?.hidden ?? true")
    wait_for_answers(page)
    found = Dom(page.content())
    assert page.errors == []
    if options:
        page.context.close()
    else:
        page.evaluate("localStorage.clear(), sessionStorage.clear()")
        page.goto("about:blank")  # It asks the server nothing more.
    return found


def _reused_page(browser, address: str):
    """The one page of this browser for `dom_of`: each new page costs a second of processes starting."""
    if not hasattr(browser, "reused"):
        browser.reused = _new_page(browser, viewport={"width": 1400, "height": 1000})
    page = browser.reused
    page.goto("about:blank")  # After a test that failed.
    page.errors.clear()
    page.pending.clear()
    page.goto(address)
    return page


class Dom(HTMLParser):
    """A DOM as text: all tags, and the texts that are not hidden by id (or h1, main, title) and by table."""

    VOID = ("meta", "link", "input", "br", "img", "hr")

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self._texts: dict[str, str] = {}
        self._rows: dict[str, list[list[str]]] = {}
        self._open: list[tuple[str, dict]] = []
        self.feed(html)

    def text(self, name: str) -> str:
        return " ".join(self._texts.get(name, "").split())

    def table(self, name: str) -> list[list[str]]:
        """Rows of cells of the tbody with this id."""
        return [[" ".join(cell.split()) for cell in row] for row in self._rows.get(name, [])]

    def is_shown(self, name: str) -> bool:
        (attributes,) = [found for _, found in self.tags if found.get("id") == name]
        return "hidden" not in attributes

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append((tag, found))
        if tag not in self.VOID:
            self._open.append((tag, found))
        rows = self._rows.setdefault(self._body(), [])
        if tag == "tr":
            rows.append([])
        if tag in ("td", "th") and rows:
            self.handle_data(" ")
            rows[-1].append("")

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            while self._open and self._open.pop()[0] != tag:
                pass

    def handle_data(self, data):
        if any(tag in ("template", "noscript") or "hidden" in found for tag, found in self._open):
            return
        in_svg = any(tag == "svg" for tag, _ in self._open)  # A title in an SVG is not the document's.
        for tag, found in self._open:
            for name in {found.get("id"), tag if tag in ("title", "h1", "main") else None}:
                if name and not (in_svg and tag == "title"):
                    self._texts[name] = self._texts.get(name, "") + data
        rows = self._rows.get(self._body())
        if rows and rows[-1]:
            rows[-1][-1] += data

    def _body(self) -> str:
        return next((found["id"] for tag, found in self._open if tag == "tbody" and "id" in found), "")
