"""The number of sessions per token."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from goodput.access import token_file
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http import sessions as module
from goodput.aggregator.http.authentication import RequestAuthenticator


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_PER_TOKEN_MAX", 3)
    return tmp_path / "tokens.json"


def tokens_of(path, *names: str) -> dict[str, str]:
    made = {name: make(name, "read") for name in names}
    with token_file.changing(path) as tokens:
        tokens += [token for _, token in made.values()]
    return {name: text for name, (text, _) in made.items()}


def test_session_limit_does_not_end_others_sessions(path):
    texts = tokens_of(path, "team", "other")
    cache, now = TokenCache(path), [0.0]
    sessions = module.Sessions(cache, clock=lambda: now[0])
    team, other = (cache.lookup(texts[name].encode()) for name in ("team", "other"))
    cookies = [sessions.begin(team, address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")]
    with pytest.raises(module.TooManySessions, match="token team has 3 sessions"):
        sessions.begin(team, "10.0.0.3")
    assert all(sessions.access(cookie.encode()).name == "team" for cookie in cookies)
    assert sessions.begin(other, "10.0.0.3"), "another token has its own"
    again = sessions.begin(team, "10.0.0.1")
    with pytest.raises(Refusal):
        sessions.access(cookies[0].encode())
    for cookie in (*cookies[1:], again):
        assert sessions.access(cookie.encode())
    sessions.end(cookies[1].encode())
    assert sessions.begin(team, "10.0.0.3")
    now[0] = module.SESSION_SECONDS
    assert sessions.begin(team, "10.0.0.4"), "expired sessions do not count"


def test_too_many_sessions_give_429(path):
    texts = tokens_of(path, "team")
    authenticator = RequestAuthenticator(TokenCache(path))
    app = create_app(f"sqlite:///{path.parent}/ledger.db", authenticator=authenticator)

    async def sign_in(address: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://head") as client:
            return await client.post("/login", data={"token": texts["team"]})

    async def check():
        for number in range(3):
            assert (await sign_in(f"10.0.0.{number}")).status_code == 303
        answer = await sign_in("10.0.0.9")
        assert answer.status_code == 429 and "set-cookie" not in answer.headers
        assert "Too many browsers are signed in with this token" in answer.text
        assert authenticator.metrics.refused["sessions"] == 1 and len(authenticator.sessions) == 3
        assert (await sign_in("10.0.0.1")).status_code == 303

    asyncio.run(check())
