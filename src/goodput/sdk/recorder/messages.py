"""Warnings on standard error: each text once, a bounded number of them, and never an exception."""

from __future__ import annotations

import sys

from goodput.user_exceptions import reraise_from_handler
from goodput.wire.identity import clean_text

MESSAGES_MAX = 20
MESSAGE_CHARACTERS_MAX = 400


class Messages:
    def __init__(self):
        self.written: set[str] = set()

    def write(self, text: str) -> None:
        if text in self.written or len(self.written) >= MESSAGES_MAX:
            return
        self.written.add(text)
        try:
            sys.stderr.write(f"goodput: {text[:MESSAGE_CHARACTERS_MAX]}\n")
        except Exception as error:
            reraise_from_handler(error)  # Else standard error is closed, None or broken.


def four_digits(value: float) -> str:
    """Four digits, or all before the point, never a power of ten."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if not 0 < value < 1e-4 else f"{value:.7f}"


def short_repr(value) -> str:
    """`value` on one line of at most 120 characters, whatever its own methods raise; an exception's text or its type."""
    try:
        if isinstance(value, Exception):
            return clean_text(str(value), 120) or type(value).__name__
        return clean_text(repr(value), 120)
    except Exception as error:
        reraise_from_handler(error)
        return f"a {type(value).__name__}"
