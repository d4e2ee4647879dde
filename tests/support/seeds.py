"""Numbers of random cases, of which the ordinary suite runs some and `make fuzz` the others too."""

from __future__ import annotations

import pytest


def cases(count: int) -> list:
    """The numbers 0 to `count` - 1 as parameters; those beyond a third of them are marked `more_seeds`."""
    ordinary = -(-count // 3)
    return [
        *range(ordinary),
        *(pytest.param(n, marks=pytest.mark.more_seeds) for n in range(ordinary, count)),
    ]
