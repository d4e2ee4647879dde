"""What connections received of pushes is taken together, and heads that are known are checked again when they must be."""

from __future__ import annotations

import asyncio

import pytest

from goodput.access import token_file
from goodput.access.authentication import Authenticator
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.http import gathering as gathering_module
from goodput.aggregator.http import push_head as push_head_module
from goodput.aggregator.http.gathering import Gathering
from goodput.aggregator.http.push_head import KnownHeads


async def one_turn() -> None:
    for _ in range(2):
        await asyncio.sleep(0)


def test_pushes_are_taken_together_unless_there_was_a_pause(monkeypatch):
    monkeypatch.setattr(gathering_module, "SECONDS", 1000.0)
    taken: list[int] = []

    async def scenario() -> None:
        gathering = Gathering()
        gathering._last = -1e9
        gathering.add(10, lambda: taken.append(1))
        await one_turn()
        assert taken == [1], "after a pause none waits"
        gathering.add(10, lambda: taken.append(2))
        gathering.add(10, lambda: taken.append(3))
        await one_turn()
        assert taken == [1]
        gathering.add(gathering_module.BYTES_MAX, None)
        await one_turn()
        assert taken == [1, 2, 3], "so many bytes do not wait"
        monkeypatch.setattr(gathering_module, "SECONDS", 0.01)
        gathering.add(10, lambda: taken.append(4))
        gathering.add(10, lambda: taken.append(5))
        async with asyncio.timeout(60):
            while taken != [1, 2, 3, 4, 5]:
                await asyncio.sleep(0.001)

    asyncio.run(scenario())


@pytest.fixture
def tokens(tmp_path):
    """A cache of a token that expires and one that does not, its clock, and a request with each."""
    made = {
        name: make(name, "ingest", expires=expires) for name, expires in (("lasting", None), ("short", 50.0))
    }
    with token_file.changing(tmp_path / "tokens.json") as tokens:
        tokens += [token for _, token in made.values()]
    now = [0.0]
    cache = TokenCache(str(tmp_path / "tokens.json"), lambda: now[0])
    return cache, now, {name: request_with(text) for name, (text, _) in made.items()}


def request_with(text: str, agent: str = "a", length: int = 5) -> bytes:
    head = f"POST /api/v1/ingest HTTP/1.1\r\nUser-Agent: {agent}\r\nContent-Length: {length}\r\nAuthorization: Bearer {text}\r\n\r\n"
    return head.encode() + b"abcde"


def test_expired_token_is_not_known(tokens):
    cache, now, requests = tokens
    heads = KnownHeads(Authenticator(cache))
    for request in requests.values():
        found = [heads.find(request) for _ in range(2)]
        assert found[0] == found[1] and found[0] is not None and found[0][:2] == (len(request) - 5, 5)
    now[0] = 50.0
    assert heads.find(requests["short"]) is None and heads.find(requests["lasting"]) is not None


def test_known_head_is_forgotten_when_tokens_are_read_again(tokens, tmp_path):
    cache, _, requests = tokens
    heads = KnownHeads(Authenticator(cache))
    assert heads.find(requests["lasting"]) is not None
    with token_file.changing(tmp_path / "tokens.json") as left:
        left.clear()
    cache.reload()
    assert heads.find(requests["lasting"]) is None


def test_known_heads_are_bounded(tokens, monkeypatch):
    monkeypatch.setattr(push_head_module, "KNOWN_MAX", 4)
    cache, _, requests = tokens
    heads = KnownHeads(Authenticator(cache))
    text = requests["lasting"].decode().split("Bearer ")[1].split("\r\n")[0]
    for number in range(20):
        found = heads.find(request_with(text, f"agent {number}", number))
        assert found is not None and found[1] == number
        assert len(heads._known) <= 4
    assert heads.find(request_with(text, "a\x01")) is None, "any other header is for the parser"
