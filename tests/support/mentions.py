"""Whether a text names goodput, other than by the folder into which it was cloned, which is often called so."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def mentions_goodput(text: str) -> bool:
    """Paths below the checkout and the environment count from there: `src/goodput/…` is a mention."""
    for folder in (sys.prefix, str(ROOT)):
        text = text.replace(folder, "")
    return "goodput" in text
