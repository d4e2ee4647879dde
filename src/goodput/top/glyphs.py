"""Bars and sparklines as text: blocks and colours where the terminal has both, else letters.

Glyphs(is_unicode=True, has_colour=True).bar({"productive": 8.0, "loader": 2.0}, width=20)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

from goodput.account.states import STATES
from goodput.account.text.state_colours import DARK

# The letters of states where there are no colours.
LETTERS = {
    "productive": "=",
    "loader": "L",
    "h2d": "H",
    "communication": "C",
    "straggler": "S",
    "bubble": "B",
    "launch": "U",
    "checkpoint": "K",
    "evaluation": "E",
    "rollout": "R",
    "compile": "M",
    "startup": "I",
    "restore": "O",
    "stall": "!",
    "lost": "X",
    "down": "D",
    "queue": "Q",
    "unattributed": "?",
    "unobserved": ".",
}
# Of each state: its colour, which is brought down to what the terminal has, and its letter.
LOOKS = {state: (DARK[state], letter) for state, letter in LETTERS.items()}
_SPARKS, _ASCII_SPARKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
# Step times that differ by less than this share are drawn in the lower half.
JITTER = 0.5


class Glyphs(NamedTuple):
    """What the terminal can show."""

    is_unicode: bool
    has_colour: bool

    def mark(self, state: str) -> Text:
        """The sign of a state in a bar and its legend."""
        colour, letter = LOOKS[state]
        return Text("█" if self.is_unicode and self.has_colour else letter, style=colour)

    def bar(self, states: Mapping[str, float], width: int) -> Text:
        """Shares of the states as `width` cells, rounded so that each boundary is right within half a cell."""
        total, at, done = sum(states.values()), 0.0, 0
        found = Text()
        for state in STATES:
            at += states.get(state, 0.0)
            cells = round(width * at / total) - done if total else 0
            if cells:
                mark = self.mark(state)
                found.append(mark.plain * cells, style=mark.style)
                done += cells
        return found.append(" " * (width - done))

    def sparkline(self, values: Sequence[float | None], width: int) -> str:
        """Values as at most `width` signs, of several in one sign the greatest; None is a gap."""
        signs = _SPARKS if self.is_unicode else _ASCII_SPARKS
        cells = _greatest(values, width)
        known = [value for value in cells if value is not None]
        if not known:
            return ""
        low = min(known)
        span = max(max(known) - low, 2 * JITTER * low) or 1.0
        top = len(signs) - 1
        return "".join(
            " " if one is None else signs[min(int((one - low) / span * top + 0.5), top)] for one in cells
        )

    @property
    def ellipsis(self) -> str:
        return "…" if self.is_unicode else "~"

    @property
    def cursor(self) -> str:
        return "▶" if self.is_unicode else ">"

    @property
    def separator(self) -> str:
        return " · " if self.is_unicode else " - "


def _greatest(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values: the greatest of each of so many equal parts."""
    if len(values) <= width or width <= 0:
        return list(values)[: max(width, 0)]
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    parts = ([one for one in values[low:high] if one is not None] for low, high in pairwise(edges))
    return [max(part, default=None) for part in parts]


def is_utf8(encoding: str, environ: Mapping[str, str]) -> bool:
    """Whether the terminal shows UTF-8, by the encoding of the stream and the locale's variables."""
    locale = next(filter(None, (environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    names = (encoding.lower().replace("-", ""), locale.lower().replace("-", ""))
    return names[0] == "utf8" and "utf8" in names[1]
