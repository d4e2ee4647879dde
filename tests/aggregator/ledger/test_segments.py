"""Which segments are kept as a run goes on."""

from __future__ import annotations

from itertools import pairwise

from goodput.aggregator.ledger import segments


def stored(many: int, size: int) -> dict[int, int]:
    """What is left when states of `size` bytes come every 1000 rows."""
    sizes: dict[int, int] = {}
    for at in range(1, many + 1):
        sizes[1000 * at] = size
        sizes = {rows: sizes[rows] for rows in segments.kept(sizes)}
    return sizes


def test_segments_are_spaced_evenly(monkeypatch):
    monkeypatch.setattr(segments, "COUNT_MAX", 16)
    found = sorted(stored(200, 10))
    assert len(found) == 16 and found[0] == 1000 and found[-2:] == [199_000, 200_000]
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert max(gaps) <= 4 * 200_000 / 16


def test_segments_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(segments, "BYTES_MAX", 100)
    assert sum(stored(50, 30).values()) <= 100
    assert sorted(stored(5, 60)) == [5000] and sorted(stored(5, 1000)) == [5000]
