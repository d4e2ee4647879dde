"""Parts of times, rounded exactly as account.states.share does, of many rows at once."""

from __future__ import annotations

import numpy as np

# Up to here a quotient in floating point is wrong by one at most.
VALUES_MAX = 1 << 50


def scaled(values: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`values` * `part` // `whole`, 0 where `whole` is: integers from 0 to VALUES_MAX that broadcast, with `part` and
    `values` at most `whole`."""
    divisor = np.maximum(whole, 1)
    found = np.floor(values.astype(float) * part / divisor).astype(np.int64)
    # The product may leave int64, but not its difference to what is near it.
    left = values * part - found * divisor
    found += (left >= divisor).astype(np.int64) - (left < 0)
    return np.where(whole > 0, found, 0)


def shares(states: np.ndarray, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """(rows, states) scaled from the sums `whole` to the sums `part`; see `scaled`."""
    found = scaled(states, part[:, None], whole[:, None])
    largest = states.argmax(axis=1)
    found[np.arange(len(states)), largest] += np.where(whole > 0, part, 0) - found.sum(axis=1)
    return found
