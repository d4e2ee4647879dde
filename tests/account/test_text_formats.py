"""Figures as text: in three digits, never as a power of ten."""

import pytest

from goodput.account.text import bytes_text, digits, duration_ns
from goodput.probe.text import unit


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.1234, "0.123"), (45.67, "45.7"), (99.94, "99.9"), (99.96, "100"), (999.6, "1,000"), (12_345.6, "12,346")],
)  # fmt: skip
def test_figures_keep_their_digits_before_the_point(value, words):
    assert digits(value) == words and digits(-value) == f"-{words}"


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (999_400, "999 kB"), (999_600, "1 MB"), (4.19e6, "4.19 MB"),
     (2.5e15, "2.5 PB"), (3e18, "3 EB"), (2e21, "2,000 EB")],
)  # fmt: skip
def test_bytes_have_the_unit_of_their_rounded_number(number, words):
    assert bytes_text(number) == words


def test_rates_have_the_unit_of_their_rounded_number():
    assert [unit(value, "FLOP/s") for value in (999.4e9, 999.6e9, 1.5)] == [
        "999 GFLOP/s",
        "1 TFLOP/s",
        "1.5 FLOP/s",
    ]


@pytest.mark.parametrize(
    ("ns", "words"), [(999.6, "1 µs"), (999_600, "1 ms"), (999_600_000, "1 s"), (45_670_000, "45.7 ms")]
)
def test_lengths_have_the_unit_of_their_rounded_number(ns, words):
    assert duration_ns(ns) == words


def test_long_traces_are_seconds():
    assert duration_ns(1.2345e12) == "1,234 s"
