"""Logs of runs whose old steps were thinned to minutes: what is left out of a comparison."""

import json
from pathlib import Path

import pytest

from goodput.compare.selection import parse_run
from goodput.compare.steps import read
from goodput.runlog import LogError


def log(folder: Path, *attempts: tuple[int, int, int]) -> tuple[str, list[int]]:
    """A log of one rank with steps of a second, and when each attempt ended. Of an attempt: its first and last step, and up to
    which steps stand together, ten in a line."""
    lines, now, ends = [], 0, []
    for number, (first, last, thinned) in enumerate(attempts, 1):
        own = {"rank": 0, "attempt": number}
        lines.append({"kind": "attempt", "time": now, **own})
        at = first
        while at <= last:
            count = 10 if at + 9 <= thinned else 1
            at, now = at + count, now + count
            lines.append(
                {"kind": "step", "time": now, **own, "step": at - 1, "count": count, "seconds": count}
            )
        ends.append(now * 10**9)
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps({**line, "run": "r"}) + "\n" for line in lines))
    return str(path), ends


@pytest.mark.parametrize(
    ("window", "name", "steps", "whole_from"),
    [
        ("", "r @100..", range(100, 500), 100),
        ("@..300", "r @..300", range(100, 300), 100),
        ("@200..300", "r @200..300", range(200, 300), None),
        ("@50s..300s", "r @50s..300s", range(100, 299), 100),
    ],
)
def test_thinned_steps_are_left_out(tmp_path, window, name, steps, whole_from):
    path, _ = log(tmp_path, (0, 499, 100))
    found = read(path, "r", parse_run(f"r{window}")[1], thinned_until_ns={0: 250 * 10**9})
    assert (found.name, found.numbers.tolist()) == (name, list(steps))
    assert (found.whole_from, found.has_start, found.whole) == (whole_from, False, None)


def test_steps_that_an_agent_merged_are_not_thinned(tmp_path):
    path, _ = log(tmp_path, (0, 499, 100))
    assert len(read(path, "r", None, thinned_until_ns={0: 1})) == len(read(path, "r")) > 490


def test_steps_that_a_later_attempt_did_again_are_whole(tmp_path):
    """The lines of attempt 1 count from step 0 to 99 alone, though its minutes go on to step 299."""
    path, ends = log(tmp_path, (0, 299, 299), (100, 499, 0))
    found = read(path, "r", None, thinned_until_ns={0: ends[0]})
    # Step 100 is the first one of its attempt, which is left out.
    assert (found.numbers.tolist(), found.whole_from) == (list(range(101, 500)), 100)


def test_too_few_steps_are_refused_with_the_reason(tmp_path):
    path, ends = log(tmp_path, (0, 299, 289))
    with pytest.raises(
        LogError, match=r"run 'r': 10 steps .* at least 20 are needed; steps before 290 were thinned"
    ):
        read(path, "r", None, thinned_until_ns={0: ends[0]})
