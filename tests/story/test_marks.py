"""The events of a story as marks of a board; by hand."""

from typing import cast

import pytest

from goodput.story import text
from goodput.story.document_types import Story, StoryEvent
from goodput.story.marks import CLAIMS_CHARACTERS_MAX, MARKS_MAX, TITLE_CHARACTERS_MAX, marks_of


def event(kind: str, time: float, gpu_seconds: float | None = None, **more) -> StoryEvent:
    made = {
        "kind": kind, "time": time, "end": time + 120, "title": f"{kind} at {time:g}", "ranks": [], "hosts": [],
        "step": None, "gpu_seconds": gpu_seconds, "cost": None, "cost_basis": gpu_seconds and "measured", "claims": [],
    }  # fmt: skip
    return cast("StoryEvent", made | more)


def story(*events: StoryEvent) -> Story:
    return cast("Story", {"run": "r1", "events": list(events)})


def test_mark_has_cost_and_claims_with_their_basis():
    claims = [
        {"basis": "measured", "text": "the others waited for it in steps 282 to 461"},
        {"basis": "coincident", "text": "throttle on GPU-5d0a of n1"},
    ]
    slow = event(
        "slow rank",
        1000.0,
        1836.0,
        title="rank 3 on n1 was slow",
        claims=claims,
        cost=1.273,
        cost_basis="estimated",
    )
    (mark,) = marks_of(story(slow), is_final=False)
    assert mark == (
        "slow rank",
        1000.0,
        "rank 3 on n1 was slow, for 2.0 min",
        "0.51 GPU-hours, $1.3 (estimated)",
        "measured: the others waited for it in steps 282 to 461; coincident: throttle on GPU-5d0a of n1",
    )


def test_events_that_still_cost_are_marked_once_they_are_over():
    """Each change of a mark's text is another series."""
    going_on = event("stall", 50.0, 400.0, end=None)
    at_once = event("hardware", 60.0, None, end=None)
    assert [mark.kind for mark in marks_of(story(going_on, at_once), is_final=False)] == ["hardware"]
    over = marks_of(story(going_on, at_once), is_final=True)
    assert [(mark.kind, mark.cost) for mark in over] == [
        ("stall", "0.11 GPU-hours (measured)"),
        ("hardware", ""),
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.31, "0.31 GPU-seconds"), (59.0, "59 GPU-seconds"), (66.0, "0.018 GPU-hours")]
)
def test_small_costs_are_in_seconds(seconds, words):
    one = event("slower", 1.0, seconds)
    assert marks_of(story(one), is_final=True)[0].cost == f"{words} (measured)"
    assert text._work_time(seconds, "GPU") == words


def test_the_costliest_are_kept_in_order_of_time():
    events = [event("slower", float(n), 3600.0 * (n % 40)) for n in range(100)]
    found = marks_of(story(*events), is_final=True)
    assert len(found) == MARKS_MAX and [mark.time for mark in found] == sorted(mark.time for mark in found)
    assert min(float(mark.cost.split()[0]) for mark in found) == 32


def test_texts_are_bounded_printable_and_distinct():
    claims = [{"basis": "measured", "text": "x" * 1000}]
    long = event("slow rank", 1.0, 3.6e7, title="a\nb" * 500, claims=claims)
    (mark,) = marks_of(story(long, {**long, "time": 2.0}), is_final=True)
    assert (len(mark.title), len(mark.claims)) == (TITLE_CHARACTERS_MAX, CLAIMS_CHARACTERS_MAX)
    assert mark.title.isprintable() and mark.cost == "10,000 GPU-hours (measured)" and mark.time == 1
