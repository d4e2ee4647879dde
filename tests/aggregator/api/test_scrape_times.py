"""When series are rendered in the background: shortly before the next scrape."""

from __future__ import annotations

import pytest

from goodput.aggregator.api.scrape_times import GONE_SECONDS, SCRAPERS_MAX, ScrapeTimes


def scraped(*times: float, by: str = "prometheus") -> ScrapeTimes:
    found = ScrapeTimes()
    for now in times:
        found.add(by, now)
    return found


@pytest.mark.parametrize(
    ("times", "due", "begun"),
    [
        ((), 105.0, None),
        ((90.0, 95.0), 105.0, 105.0),  # not known yet how often
        ((90.0, 95.0, 100.0), 104.9, 104.0),  # somewhat sooner, for the scrape at 105
        ((90.0, 95.0, 100.0), 105.3, 109.0),  # that would be too soon
        ((70.0, 85.0, 100.0), 105.0, 114.0),
        ((40.0, 70.0, 100.0), 105.0, 129.0),
        ((98.0, 99.0, 100.0), 105.0, 105.0),  # more often than it is rendered
        ((100.0, 100.0, 100.0), 105.0, 105.0),
        ((85.0, 96.0, 100.0), 105.0, 107.0),  # two scrapers of 15 s
        ((10.0, 25.0, 99.0 - GONE_SECONDS), 105.0, None),  # gone
        ((-100.0, -50.0, 99.0 - GONE_SECONDS), 105.0, 138.0),  # not gone: it comes each 50 s
    ],
)
def test_series_are_due_before_a_scrape(times, due, begun):
    assert scraped(*times).next_due(100.0, due, 1.25, 1.0) == begun


def test_first_of_several_scrapers_counts():
    found = scraped(70.0, 85.0, 100.0)
    for now in (72.0, 82.0, 92.0):
        found.add("another", now)
    assert found.next_due(100.0, 100.0, 1.25, 1.0) == 101.0


def test_scrapers_that_are_known_are_bounded():
    found = ScrapeTimes()
    for at in range(3 * SCRAPERS_MAX):
        found.add(at, float(at))
    assert len(found._times) == SCRAPERS_MAX and min(found._times) == 2 * SCRAPERS_MAX
