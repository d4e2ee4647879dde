"""Lengths of the last steps, from the rank page's ring of step records."""

from __future__ import annotations

from goodput.rank_page import page


def last_lengths_ns(recorder, count: int) -> list[int]:
    """Lengths of up to `count` of the last steps in ns, the newest first; [0] before the first step."""
    words, found = recorder.words, []
    for number in range(recorder.steps, max(recorder.steps - min(count, page.STEP_RING), 0), -1):
        at = page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS
        found.append(words[at + page.R_END] - words[at + page.R_START])
    return found or [0]
