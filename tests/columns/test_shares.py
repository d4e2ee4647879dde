"""Shares of many rows at once are those of account.states.share for each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from goodput.account.states import share
from goodput.columns.shares import VALUES_MAX, scaled, shares

_TIMES = st.one_of(st.integers(0, 20), st.integers(0, VALUES_MAX // 4))


@st.composite
def _rows(draw):
    """(states, part) of some rows: four states each, and a part of their sum."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        states = draw(st.lists(_TIMES, min_size=4, max_size=4))
        whole = sum(states)
        part = draw(st.one_of(st.integers(0, whole), st.integers(max(whole - 2, 0), whole)))
        found.append((states, part))
    return found


@given(_rows())
def test_rows_together_equal_each_alone(rows):
    states = np.array([own for own, _ in rows], np.int64)
    part = np.array([one for _, one in rows], np.int64)
    whole = states.sum(axis=1)
    found = shares(states, part, whole).tolist()
    assert found == [share(own, one, sum(own)) for own, one in rows]


@given(_rows())
def test_quotients_are_exact(rows):
    for states, part in rows:
        whole = sum(states)
        value, divisor = np.array([states[0]]), np.array([whole])
        expected = states[0] * part // whole if whole else 0
        assert scaled(value, np.array([part]), divisor).tolist() == [expected]


def test_largest_values_are_exact():
    value, part, whole = VALUES_MAX - 1, VALUES_MAX - 3, VALUES_MAX
    found = scaled(np.array([value]), np.array([part]), np.array([whole]))
    assert found.tolist() == [value * part // whole]
