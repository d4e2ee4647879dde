"""Run logs whose times are negative: the account does not depend on where a log's clock has its zero."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from support.account.runlog_history import earlier

from goodput.account import document
from goodput.runlog import replay
from goodput.story.build import build_story
from goodput.story.recording import Recordings

ENDED = (
    '{"kind":"attempt","time":0,"rank":0,"attempt":1,"world_size":1}',
    *(f'{{"kind":"step","time":{n},"rank":0,"attempt":1,"step":{n},"seconds":1}}' for n in range(2, 9)),
    '{"kind":"checkpoint","time":4,"rank":0,"attempt":1,"step":4}',
    '{"kind":"checkpoint","time":8,"rank":0,"attempt":1,"step":8}',
    '{"kind":"end","time":10,"rank":0,"attempt":1,"reason":"failed"}',
    '{"kind":"attempt","time":12,"rank":0,"attempt":2,"resume_step":8}',
    *(f'{{"kind":"step","time":{n + 5},"rank":0,"attempt":2,"step":{n},"seconds":1}}' for n in range(9, 12)),
)
LAST = {
    "finished": '{"kind":"end","time":20,"rank":0,"attempt":2,"reason":"finished"}',
    "failed": '{"kind":"end","time":20,"rank":0,"attempt":2,"reason":"failed"}',
    "killed": '{"kind":"end","time":20,"rank":0,"attempt":2,"reason":"killed"}',
    "cancelled": '{"kind":"beat","time":20,"rank":0,"attempt":2,"over":"cancelled","over_at":20}',
    "run_end": '{"kind":"run_end","time":20}',
    "overlapping": '{"kind":"beat","time":14,"rank":0,"attempt":1}',
    "an earlier attempt over": (
        '{"kind":"beat","time":10.5,"rank":0,"attempt":1,"over":"cancelled","over_at":11}'
    ),
    "look": '{"kind":"look","time":20}',
    "end before its last step": '{"kind":"end","time":15.5,"rank":0,"attempt":2,"reason":"finished"}',
}


MOMENT = re.compile(r"(?<![\d.])-?(?:1000|999)\d{3}(?:\.\d+)?")


def all_of(path, lines: list[str], window=None) -> str:
    """The account's document, its hang and its story, without the moments in them."""
    path.write_text("\n".join(lines) + "\n")
    recordings = Recordings()
    (found,) = replay(str(path), stall_seconds=3, window=window, take_steps=recordings)
    whole = {**document(found.account), "hang": found.hang and found.hang.document()}
    story = build_story(whole, recordings.of("run")) if window is None else None
    return json.dumps({**whole, "story": story, "problems": found.problems.document()}, default=str)


def since_zero(text: str, shift: int) -> str:
    """The text with all moments near `shift` as seconds since then."""
    return MOMENT.sub(lambda at: f"{Decimal(at[0]) - shift:.6f}", text)


@pytest.mark.parametrize("name", LAST)
@pytest.mark.parametrize("window", [None, (3, 18)], ids=["whole", "window"])
def test_document_and_story_do_not_depend_on_zero(tmp_path, name, window):
    """Moments are moved back before the documents are compared."""
    lines = [*ENDED, LAST[name]]
    expected, found = (
        all_of(
            tmp_path / "log",
            earlier(lines, -shift * 10**9),
            window and tuple((at + shift) * 10**9 for at in window),
        )
        for shift in (10**6, -(10**6))
    )
    aligned = [since_zero(text, shift) for shift, text in ((10**6, expected), (-(10**6), found))]
    assert aligned[1] == aligned[0]
