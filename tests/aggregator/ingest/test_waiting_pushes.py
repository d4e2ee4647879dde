"""Turns between tokens among pushes that wait to be merged, and of the event loop for their answers."""

import asyncio
from functools import partial

from support.account.account_history import Process
from support.aggregator.reports import rank_report

from goodput.aggregator.ingest import waiting_pushes
from goodput.aggregator.ingest.waiting_pushes import RANK_ROWS, Part, Push, WaitingPushes, call_in_turns

REPORT = rank_report(Process(0).steps(1, forward=1))


def push(token: str, ranks: int) -> Push:
    return Push([Part(REPORT)] * ranks, "", [], owner=token)


def tokens(waiting: WaitingPushes, ranks: int) -> str:
    return "".join(push.owner for push, _ in waiting.take(ranks * RANK_ROWS))


def test_large_push_of_one_token_leaves_room_for_others():
    waiting = WaitingPushes()
    for one in (push("a", 100), push("a", 2), push("b", 1), push("c", 1)):
        waiting.add(one)
    assert tokens(waiting, 9) == "aaabcaaaa"
    assert tokens(waiting, 9) == "a" * 9 and waiting


def test_every_token_gets_at_least_one_part():
    waiting = WaitingPushes()
    for name in "abcdef":
        waiting.add(push(name, 2))
    assert tokens(waiting, 3) == "abc"
    assert tokens(waiting, 3) == "def"
    assert tokens(waiting, 12) == "abcdef"
    assert not waiting


def test_discarded_push_is_forgotten():
    waiting, one, other = WaitingPushes(), push("a", 3), push("a", 1)
    waiting.add(one)
    waiting.add(other)
    waiting.discard(one)
    assert tokens(waiting, 5) == "a" and not waiting and not one.parts


def test_thousands_of_pushes_are_answered_in_turns(caplog, monkeypatch):
    """All at once would hold the event loop for as long as they take together."""
    monkeypatch.setattr(waiting_pushes, "ANSWERED_AT_ONCE", 10)
    answered: list[int] = []
    turns: list[int] = []

    def answer(number: int) -> None:
        answered.append(number)
        if number == 17:
            raise RuntimeError("unforeseen")

    async def scenario():
        call_in_turns([partial(answer, number) for number in range(95)])
        while not turns or turns[-1] < 95:
            turns.append(len(answered))
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert answered == list(range(95)) and turns == [*range(10, 95, 10), 95]
    assert caplog.text.count("RuntimeError: unforeseen") == 1
