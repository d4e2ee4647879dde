"""One headless Chromium that tests drive as a person would: keys, pointer, a phone's width, a dark theme.

In: addresses, and what a person does. Out: what scripts in the page answer, and pictures. It speaks the DevTools
protocol (chromedevtools.github.io/devtools-protocol) through a pipe, so that no port is opened and no package is
needed. Real keys go through the browser's own input, so what is not reachable by keyboard is not reached here.

    with Browser(tmp_path) as browser:
        page = browser.open(f"{url}/#runs", width=360, dark=True)
        page.until("document.querySelectorAll('#runs-rows tr').length > 0")
        page.key("Tab")
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from support.aggregator.page_browser import CHROMIUM

ANSWER_SECONDS_MAX = 20.0
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--remote-debugging-pipe", "--disable-renderer-backgrounding", "--disable-background-timer-throttling"),
)
# Names of keys as a page sees them, with the codes that the browser wants.
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "Space": 32,
    "Home": 36,
    "End": 35,
    "PageUp": 33,
    "PageDown": 34,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
SHIFT = 8


class Browser:
    """The process and its pipe; for `with`."""

    def __init__(self, folder: Path):
        self._folder, self._number, self._buffer, self.events = folder, 0, b"", []

    def __enter__(self) -> Browser:
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        # Chromium reads its commands from descriptor 3 and answers on 4.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        profile = f"--user-data-dir={self._folder}/chromium-{time.monotonic_ns()}"
        self._process = subprocess.Popen(
            ["bash", "-c", shell, CHROMIUM, *OPTIONS, profile, "about:blank"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        self._write, self._read = to_write, from_read
        return self

    def __exit__(self, *_) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(10)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, session: str | None = None, **given) -> dict:
        """One command and its answer; what happens meanwhile is put into `events`."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": given}
        if session:
            asked["sessionId"] = session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        end = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            said = self._next(end, method)
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self.events.append(said)

    def _next(self, end: float, method: str) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{method}: the browser gave no answer within {ANSWER_SECONDS_MAX:g} s"
            part = os.read(self._read, 1 << 20)
            assert part, f"{method}: the browser is gone"
            self._buffer += part
        said, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(said)

    def open(
        self, address: str, *, width: int = 1400, height: int = 1000, dark: bool = False, script: str = ""
    ) -> Page:
        """A new tab of this size; `script` runs in it before the page's own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        page.call("Page.enable")
        page.call("Runtime.enable")
        phone = width < 600
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        if phone:
            page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        if script:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        page.call("Page.navigate", url=address)
        page.until("document.readyState === 'complete' && location.protocol !== 'about:'")
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str):
        self.browser, self._session, self._target = browser, session, target

    def call(self, method: str, **given) -> dict:
        return self.browser.call(method, self._session, **given)

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self._target)

    def run(self, script: str):
        """What an expression gives, a promise awaited."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, script: str, seconds: float = 10.0):
        """The first true value of an expression."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"waited {seconds:g} s in vain for {script}"
            time.sleep(0.03)
        return found

    def key(self, name: str, times: int = 1, shift: bool = False) -> None:
        """Press a key of KEYS, or one that writes itself."""
        what = {"key": " " if name == "Space" else name, "modifiers": SHIFT if shift else 0}
        if name in KEYS:
            what |= {"windowsVirtualKeyCode": KEYS[name], "code": name}
        if name in ("Enter", "Space") or name not in KEYS:
            what["text"] = {"Enter": "\r", "Space": " "}.get(name, name)
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **what)
            self.call("Input.dispatchKeyEvent", type="keyUp", **{**what, "text": ""})

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at a place, move to another, let go."""
        for kind, (x, y), buttons in [
            ("mousePressed", begin, 1),
            ("mouseMoved", ((begin[0] + end[0]) / 2, end[1]), 1),
            ("mouseMoved", end, 1),
            ("mouseReleased", end, 0),
        ]:
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                buttons=buttons,
                clickCount=1,
            )

    def click(self, selector: str) -> None:
        x, y = self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); "
            "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.drag((x, y), (x, y))

    def text(self, selector: str) -> str:
        """What is shown of a node, with single spaces; "" where it is hidden or not there."""
        return self.run(
            f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').replace(/\\s+/g, ' ').trim()"
        )

    def picture(self, path: Path | str, whole: bool = True) -> None:
        """A PNG of what is seen, or of the `whole` page."""
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            box = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
            clip = {"clip": box, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))
