"""Accounts compared field by field, but for the order in which floats were added up."""

from __future__ import annotations

import math
from collections.abc import Sequence


def near(found, expected) -> bool:
    """Equal, but for the order in which floats were added up."""
    if isinstance(expected, float) and isinstance(found, float):
        return found == expected or math.isclose(found, expected, rel_tol=1e-12)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(near(found[k], expected[k]) for k in expected)
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        return len(found) == len(expected) and all(map(near, found, expected))
    if hasattr(expected, "__dataclass_fields__"):
        return not differing(found, expected)
    return found == expected


def differing(found, expected) -> list[str]:
    """The fields of a dataclass that differ."""
    names = expected.__dataclass_fields__
    return [name for name in names if not near(getattr(found, name), getattr(expected, name))]
