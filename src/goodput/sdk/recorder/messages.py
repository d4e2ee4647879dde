"""Values of the user's in warnings."""

from __future__ import annotations

from goodput.wire.identity import clean_text


def short_repr(value) -> str:
    """`value` on one line of at most 120 characters, whatever its own methods raise."""
    try:
        return clean_text(repr(value) if not isinstance(value, Exception) else str(value), 120)
    except Exception:
        return f"a {type(value).__name__}"
