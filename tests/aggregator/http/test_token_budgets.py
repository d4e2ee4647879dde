"""One token that pushes as much as it can: it is bounded, and others are answered meanwhile."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.reports import body_of, node_report, rank_report
from support.aggregator.serve_command import ServeCommand

from goodput.access import token_file
from goodput.access.responses import Refusal
from goodput.access.tokens import Access, make
from goodput.aggregator.http import token_budgets
from goodput.aggregator.http.token_budgets import TokenBudgets, TokenLimits
from goodput.wire import schema

WHALE_ROWS = 47_500  # of each of two ranks in each of three pushes: 15 MiB, 45 MiB in all


@pytest.fixture
def bearers(tmp_path):
    """Headers of a token for team-a, for team-b, and to read, of a token file in the folder."""
    found, tokens = {}, []
    for name, scope, runs in (("a", "ingest", "team-a*"), ("b", "ingest", "team-b*"), ("r", "read", "*")):
        text, token = make(name, scope, runs=(runs,))
        tokens.append(token)
        found[name] = {"Authorization": f"Bearer {text}"}
    with token_file.changing(str(tmp_path / "tokens.json")) as stored:
        stored += tokens
    return found


def whale(number: int) -> bytes:
    """A report in version 1, whose rows cost most."""
    now = time.time()
    one = rank_report(Process(0, 1, now - 400, world_size=3).steps(1, forward=0.1), f"team-a/{number}")
    begun_ns = one.steps[0].start_ns
    totals, outside = (1 << 40,) * len(one.phases), (1 << 40,) * 3 + (0,) * (len(one.phases) - 3)
    rows = [
        schema.StepRow(at + 1, at, begun_ns + at, begun_ns + at, one.steps[0].samples, totals, outside)
        for at in range(2 * WHALE_ROWS // 3)
    ]
    identities = [replace(one.identity, rank=rank, pid=rank + 1) for rank in range(3)]
    ranks = [replace(one, identity=identity, steps=rows, events=[]) for identity in identities]
    return schema.encode(replace(node_report(*ranks), version=1))


def small(number: int) -> bytes:
    one = Process(0, 1, time.time() - 60, world_size=8).steps(20 + number, forward=0.1)
    return body_of(rank_report(one, "team-b/run"))


def samples(url: str, bearer: dict, name: str) -> list[str]:
    text = httpx.get(f"{url}/metrics", headers=bearer, timeout=60, trust_env=False).text
    return [line for line in text.splitlines() if line.startswith(name + "{")]


@pytest.mark.faults
def test_large_pushes_of_one_token_delay_no_other(tmp_path, bearers):
    bodies, order, lock = [whale(number) for number in range(3)], [], threading.Lock()
    assert sum(map(len, bodies)) > 45 << 20 and max(map(len, bodies)) < schema.BODY_BYTES_MAX
    options = ("--tokens", str(tmp_path / "tokens.json"), "--token-bytes", "2MiB")
    with ServeCommand(tmp_path, f"sqlite:///{tmp_path}/ledger.db", *options) as serve:

        def push(body: bytes) -> None:
            answer = httpx.post(
                f"{serve.url}/api/v1/ingest", content=body, headers=bearers["a"], timeout=600, trust_env=False
            )
            with lock:
                order.append((answer.status_code, answer.headers.get("retry-after")))

        threads = [threading.Thread(target=push, args=(body,)) for body in bodies]
        with httpx.Client(base_url=serve.url, timeout=600, trust_env=False) as other:
            for thread in threads:
                thread.start()
            number = 0
            while any(thread.is_alive() for thread in threads):
                number += 1
                answer = other.post("/api/v1/ingest", content=small(number), headers=bearers["b"])
                assert (answer.status_code, other.get("/healthz").status_code) == (200, 200)
                with lock:
                    order.append("b")
        refused = samples(serve.url, bearers["r"], "goodput_aggregator_token_refusals_total")
    accepted = order.index((200, None))
    # 75 and more; 4 where the large ones hold the event loop.
    assert order[:accepted].count("b") >= 20, "answered before the first large push was"
    statuses = [one for one in order if one != "b"]
    assert {status for status, _ in statuses} == {200, 429}
    assert all(int(after) >= 1 for status, after in statuses if status == 429)
    assert refused == ['goodput_aggregator_token_refusals_total{bound="bytes",token="a"} 1.0']


NOW = [0.0]
SCOPED, EVERYONE = (
    Access("a", ("ingest",), ("team-a*",), "1f"),
    Access("nodes", ("ingest",), ("*",), "2f"),
)


@pytest.fixture
def budgets():
    NOW[0] = 1000.0
    return TokenBudgets(TokenLimits(100, 0.25), lambda: NOW[0])


def push(budgets: TokenBudgets, length: int, access: Access = SCOPED, seconds: float = 0.0) -> None:
    with budgets.push(access, length) as one:
        one.read(length)
        one.spend(seconds)


def test_bytes_above_the_rate_wait(budgets):
    """1000 bytes at once are admitted, whole bodies beyond that one as long as something is left."""
    push(budgets, 900)
    push(budgets, 600)
    with pytest.raises(Refusal) as refused:
        push(budgets, 1)
    assert (refused.value.status, refused.value.retry_after) == (429, 5)
    push(budgets, 10_000, EVERYONE)
    NOW[0] += 5.01
    push(budgets, 1)
    assert budgets.refusals == {("a", "bytes"): 1}


def test_body_without_length_is_charged_as_it_comes(budgets):
    with budgets.push(SCOPED, 0) as one:
        for _ in range(10):
            one.read(100)
        with pytest.raises(Refusal):
            one.read(100)


def test_cpu_time_above_the_share_waits(budgets):
    push(budgets, 1, seconds=4.5)
    with pytest.raises(Refusal) as refused:
        push(budgets, 1)
    assert refused.value.retry_after == 8, "2 s too many, at a quarter of a core"
    assert budgets.used_shares()["token_push_seconds"] == pytest.approx(1.8)
    NOW[0] += 8.1
    push(budgets, 1)
    assert budgets.refusals == {("a", "time"): 1}


def test_held_bytes_of_one_token_are_bounded(monkeypatch):
    """However slowly its bodies come: others find room."""
    monkeypatch.setattr(token_budgets, "BODIES_BYTES_MAX", 400)
    budgets = TokenBudgets(TokenLimits(0, 0))
    with budgets.push(SCOPED, 90) as first:
        first.read(90)
        with budgets.push(SCOPED, 90) as second, pytest.raises(Refusal) as refused:
            second.read(11)
        with budgets.push(EVERYONE, 90) as other:
            other.read(400)
    assert refused.value.reason == "quota" and budgets.refusals == {("a", "held"): 1}
    push(budgets, 100)


def test_names_of_refused_tokens_are_bounded(budgets, monkeypatch):
    monkeypatch.setattr(token_budgets, "NAMES_MAX", 2)
    for name in "abcd":
        one = Access(name, ("ingest",), (f"{name}*",), name)
        push(budgets, 1001, one)
        with pytest.raises(Refusal):
            push(budgets, 1, one)
    assert budgets.refusals == {("a", "bytes"): 1, ("b", "bytes"): 1, ("other", "bytes"): 2}


def test_agent_of_eight_ranks_never_meets_a_budget():
    """Pushes of 8 ranks every 5 s, a step a second each, and a backlog of an hour once."""
    NOW[0], budgets = 0.0, TokenBudgets(clock=lambda: NOW[0])
    ranks = [
        rank_report(Process(rank, 1, time.time() - 9e3, world_size=8).steps(3600, forward=1), "team-a/x")
        for rank in range(8)
    ]
    push(budgets, len(body_of(*ranks)), seconds=1.0)
    size = len(body_of(*[replace(rank, steps=rank.steps[:5]) for rank in ranks]))
    for _ in range(100):
        push(budgets, size, seconds=0.01)
        NOW[0] += 5
    assert not budgets.refusals and max(budgets.used_shares().values()) < 0.01
