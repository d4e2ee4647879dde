"""account.peak_throughput for many attempts at once."""

from __future__ import annotations

import numpy as np

from goodput.account.peak_throughput import STRETCH_STEPS
from goodput.columns.fold_table import UNKNOWN, FoldTable

_PRODUCT_MAX = 1 << 62


def add_steps(table: FoldTable, at: np.ndarray, samples: np.ndarray, ns: np.ndarray) -> np.ndarray:
    """Add single steps in order, (attempts, steps), as PeakThroughput.add_steps; returns for which attempts.

    Not for those whose steps lack samples or length, nor where a product would leave int64.
    """
    added: np.ndarray = np.asarray(np.logical_and(samples > 0, ns > 0).all(axis=1))
    if table.odd_peaks:
        added &= ~np.isin(at, list(table.odd_peaks))
    peaks, bests = table.peak[at], table.peak_best[at]
    # The sums of a stretch with these steps, as (samples, ns), and the best ones.
    sums = [
        int(peaks[:, 1 + i].max(initial=0)) + STRETCH_STEPS * int(own.max(initial=0))
        for i, own in enumerate((samples, ns))
    ]
    most = [max(own, int(bests[:, i].max(initial=0))) for i, own in enumerate(sums)]
    if most[0] * most[1] >= _PRODUCT_MAX:
        return np.zeros(len(at), bool)
    open_steps = peaks[:, 0].copy()
    for steps in np.unique(open_steps[added]).tolist():
        some = np.flatnonzero(added & (open_steps == steps))
        peaks[some], bests[some] = _added(peaks[some], bests[some], samples[some], ns[some], steps)
    table.peak[at[added]], table.peak_best[at[added]] = peaks[added], bests[added]
    return added


def _added(
    peaks: np.ndarray, bests: np.ndarray, samples: np.ndarray, ns: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The peaks and the best stretches with these steps, of attempts whose open stretch has `steps` steps."""
    at, count = 0, samples.shape[1]
    while at < count:
        end = min(at + max(STRETCH_STEPS - steps, 1), count)
        peaks[:, 1] += samples[:, at:end].sum(axis=1)
        peaks[:, 2] += ns[:, at:end].sum(axis=1)
        steps, at = steps + end - at, end
        if steps >= STRETCH_STEPS:
            peaks[:, 3:5], stretch = peaks[:, 1:3], peaks[:, 1:3].copy()
            is_better = (bests[:, 1] == UNKNOWN) | (stretch[:, 0] * bests[:, 1] > bests[:, 0] * stretch[:, 1])
            bests[is_better] = stretch[is_better]
            peaks[:, 1:3], steps = 0, 0
    peaks[:, 0] = steps
    return peaks, bests


def rates(table: FoldTable, at: np.ndarray) -> np.ndarray:
    """PeakThroughput.rate of these rows, nan for None."""
    steps, samples, ns, last_samples, last_ns = table.peak[at].T
    best_samples, best_ns = table.peak_best[at].T
    # The newest steps form a stretch with as many before them as they lack.
    before = np.maximum(STRETCH_STEPS - steps, 0) / STRETCH_STEPS
    has_best = best_ns != UNKNOWN
    samples = np.where(has_best, samples + last_samples * before, samples)
    ns = np.where(has_best, ns + last_ns * before, ns)
    is_faster = ~has_best | ((ns != 0) & (samples * best_ns > best_samples * ns))
    samples, ns = np.where(is_faster, samples, best_samples), np.where(is_faster, ns, best_ns)
    found = np.full(len(at), np.nan)
    np.divide(samples * 1e9, ns, out=found, where=ns != 0)
    for place in np.flatnonzero(np.isin(at, list(table.odd_peaks))).tolist() if table.odd_peaks else ():
        rate = table.odd_peaks[int(at[place])].rate()
        found[place] = np.nan if rate is None else rate
    return found
