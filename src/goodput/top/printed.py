"""A frame printed once: as text without a screen, or as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from goodput.top.draw import body, header
from goodput.top.glyphs import Glyphs
from goodput.top.model import Frame
from goodput.top.view import RUN, View


def as_text(frame: Frame, run: str | None, console: Console, glyphs: Glyphs) -> None:
    """Print the list of runs, and the opened one if there is one."""
    lines = [header(frame, frame.source, glyphs)]
    if run is None and (len(frame.runs) != 1 or frame.opened is None):
        lines += body(frame, View(), console.width, glyphs)
    if frame.opened is not None:
        view = View(frame.opened.progress.run)
        assert view.level == RUN
        lines += [Text(""), *body(frame, view, console.width, glyphs)]
    for line in [*lines, *map(Text, frame.notes)]:
        line.rstrip()
        console.print(line, soft_wrap=True, highlight=False)


def as_json(frame: Frame) -> str:
    """One JSON object; what is unknown is null."""
    document = asdict(frame)
    if frame.opened is not None:
        progress = frame.opened.progress
        document["opened"]["progress"] = {**progress._asdict(), "share": progress.share}
        document["opened"]["pace"] = frame.opened.pace._asdict()
    return json.dumps(_finite(document))


def _finite(value: Any) -> Any:
    """Without infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
