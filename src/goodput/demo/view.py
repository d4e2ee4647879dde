"""The live view of the demo: the run's document, read from the aggregator twice a second.

It is a table on a terminal, and a line every two seconds elsewhere. A request that fails is repeated at the next
refresh.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.parse

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from goodput.account.text import percent
from goodput.top.glyphs import Glyphs, is_utf8

REFRESH_SECONDS = 0.5
LINE_SECONDS = 2.0
BAR_CELLS = 72
LEGEND_SHARE_MIN = 0.5 / BAR_CELLS


class View:
    """A context manager; `refresh()` may be called often, it requests and draws at its own pace."""

    def __init__(self, address: str, run: str):
        self._url = f"{address}/api/v1/runs/{urllib.parse.quote(run, safe='')}"
        self._client = httpx.Client(timeout=2.0, trust_env=False)
        self._console = Console(file=sys.stderr)
        is_unicode = is_utf8(self._console.encoding, os.environ)
        self._glyphs = Glyphs(is_unicode, self._console.color_system is not None)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._next = self._next_line = 0.0
        self._note = "starting"

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_) -> None:
        if self._console.is_terminal:
            self._live.stop()
        self._client.close()

    def note(self, note: str) -> None:
        """Show what the demo is doing now."""
        self._note = note
        if not self._console.is_terminal:
            self._console.print(f"  {note}", highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + REFRESH_SECONDS
        document = self.fetch()
        if document is None:
            return
        if self._console.is_terminal:
            self._live.update(self._panel(document), refresh=True)
        elif now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            self._console.print(f"  {_line(document)}", highlight=False, soft_wrap=True)

    def fetch(self) -> dict | None:
        """The run's document, None if there is none yet."""
        try:
            response = self._client.get(self._url)
            return response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def finished(self, seconds: float) -> dict | None:
        """The run's document when the run has finished, or the current one after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            document = self.fetch()
            if time.monotonic() > deadline or (document is not None and document["status"] == "finished"):
                return document
            time.sleep(0.05)

    def _panel(self, document: dict) -> Group:
        table = Table(box=None, pad_edge=False)
        for column in ("rank", "step", "step time", "phase", "productive", "loader", "waiting", "lost"):
            table.add_column(column, justify="left" if column == "phase" else "right")
        by_rank = {live["rank"]: live for live in document["live"]}
        for rank in document["ranks"]:
            states, live = rank["states"], by_rank.get(rank["rank"], {})
            seconds = live.get("step_seconds")
            table.add_row(
                str(rank["rank"]),
                str(live.get("step", "")),
                "" if seconds is None else f"{1e3 * seconds:.1f} ms",
                live.get("ended") or live.get("phase", ""),
                f"{states['productive']:.1f} s",
                f"{states['loader']:.1f} s",
                f"{states['communication'] + states['straggler']:.1f} s",
                f"{states['lost']:.1f} s",
            )
        return Group(Text(f"\n{self._note}"), Text(_line(document)), _bar(document, self._glyphs), table)


def _line(document: dict) -> str:
    """Fits 80 columns after the two of its margin."""
    lives = [live for live in document["live"] if live["step"] is not None]
    step = max((live["step"] for live in lives), default=0)
    seconds = sorted(live["step_seconds"] for live in lives)
    length = f"{1e3 * seconds[len(seconds) // 2]:.1f} ms" if seconds else "-"
    first = next(iter(document["advice_order"]), None)
    cause = next((one for one in document["causes"] if one["state"] == first), None)
    leading = f"{cause['state']} {percent(cause['share'])}" if cause else "none"
    goodput = percent(document["factors"]["goodput"])
    return f"{document['status']:<8} step {step:>5}, {length:>8}  goodput {goodput:>7}  most lost: {leading}"


def _bar(document: dict, glyphs: Glyphs) -> Text:
    """The account as one line of blocks, and a legend of the states' colours."""
    states = document["states"]
    total = sum(states.values()) or 1.0
    found = glyphs.bar(states, BAR_CELLS).append("\n")
    for state, seconds in states.items():
        if seconds / total >= LEGEND_SHARE_MIN:
            found.append_text(glyphs.mark(state)).append(f" {state}  ")
    return found
