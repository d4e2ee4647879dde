"""The steps in which ranks were slow as arrays are those that each Onset has, to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.seeds import cases

from goodput.account.slow_ranks.onset import Onset, chance_beside
from goodput.columns import onsets
from goodput.columns.onsets import OnsetColumns


@pytest.mark.parametrize("at_once_least", [1, 1000])
@pytest.mark.parametrize("seed", cases(3))
def test_arrays_have_what_each_onset_has(seed, at_once_least, monkeypatch):
    """Ranks that are slow at times, groups that grow and shrink, and ranks without steps in a batch."""
    monkeypatch.setattr(onsets, "AT_ONCE_LEAST", at_once_least)
    rng = random.Random(seed)
    places = {(rank, 1): row for row, rank in enumerate(rng.sample(range(12), 12))}
    columns, each = OnsetColumns(places), {}
    sizes = [rng.choice([2, 3, 4, 16, 64]) for _ in range(12)]
    slow, begun = [0.0] * 12, 0
    for batch in range(60):
        many = rng.randrange(1, 12)
        rows, steps, hit, beside, compared, apart = [], [], [], [], [], []
        for rank in sorted(rng.sample(range(12), rng.randrange(1, 12))):
            slow[rank] = rng.choice([0.02, 0.05, 0.9]) if rng.random() < 0.2 else slow[rank]
            if rng.random() < 0.05:
                sizes[rank] = rng.choice([2, 3, 4, 16, 64])
            onset = each.setdefault((rank, 1), Onset())
            for place in range(rng.randrange(1, many + 1)):
                size, step = sizes[rank] if rng.random() < 0.9 else 8, 20 * batch + place
                is_hit, is_beside = rng.random() < slow[rank], rng.random() < slow[rank]
                others = rng.randrange(size // 2 + 1)
                onset.note(step, is_hit, max(1, size // 8) / size, is_beside, chance_beside(size, others))
                for column, value in zip(
                    (rows, steps, hit, beside, compared, apart),
                    (places[rank, 1], step, is_hit, is_beside, size, others),
                    strict=True,
                ):
                    column.append(value)
        columns.note(*map(np.array, (rows, steps, hit, beside, compared, apart)))
        assert dict(columns) == each
        assert sorted(columns.slow_keys()) == sorted(key for key, onset in each.items() if onset.slow)
        begun += any(onset.stretches for onset in each.values())
    assert begun
    copied = columns.copy()
    copied[0, 1] = Onset(slow=True)
    assert dict(columns) == each and copied[0, 1].slow and OnsetColumns(places, columns) == columns
