"""The fair queue of history queries, and single flight of identical ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress

import httpx
import msgspec
import pytest
from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.account import Run
from goodput.aggregator.accounts import history as history_module
from goodput.aggregator.accounts.fair_queue import INTERNAL, FairQueue, QueueFull
from goodput.aggregator.accounts.history import ANONYMOUS_WAITING_MAX, WAITING_MAX, History, HistoryError
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http.authentication import RequestAuthenticator


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Asking:
    """FairQueue that are held until they are told to go on; `began` says who had one, in order."""

    def __init__(self, waiting_max: int = 8):
        self.turns, self.began, self.tasks = FairQueue(waiting_max), [], []
        self._gates: list[asyncio.Event] = []

    async def ask(self, owner, name: str = "", most: int = 2) -> asyncio.Task:
        async def one():
            async with self.turns.slot(owner, most):
                self.began.append(name or owner)
                self._gates.append(gate := asyncio.Event())
                assert len(self._gates) == 1, "one at a time"
                try:
                    await gate.wait()
                finally:
                    self._gates.remove(gate)

        self.tasks.append(asyncio.get_running_loop().create_task(one()))
        await settle()
        return self.tasks[-1]

    async def go_on(self) -> None:
        self._gates[0].set()
        await settle()

    async def all(self) -> list:
        while self._gates:
            await self.go_on()
        assert not self.turns._is_busy and not self.turns.waiting() and not self.turns._queues
        return self.began


def test_slots_are_round_robin_after_internal_jobs():
    async def check():
        asking = Asking()
        for name in ("a1", "a2", "a3"):
            await asking.ask("a", name)
        await asking.ask("b", "b1"), await asking.ask("c", "c1"), await asking.ask("b", "b2")
        await asking.ask(INTERNAL, "own1"), await asking.ask(INTERNAL, "own2")
        assert await asking.all() == ["a1", "own1", "own2", "a2", "b1", "c1", "a3", "b2"]

    asyncio.run(check())


def test_repeated_requests_queue_behind_other_owners():
    async def check():
        asking = Asking()
        await asking.ask("a", "a1"), await asking.ask("a", "a2"), await asking.ask("b", "b1")
        await asking.go_on()
        await asking.ask("a", "a3"), await asking.ask("a", "a4")
        assert (await asking.all())[:3] == ["a1", "a2", "b1"]

    asyncio.run(check())


def test_pending_jobs_are_bounded_except_internal():
    async def check():
        asking = Asking(waiting_max=3)
        await asking.ask("a")
        # What it needs itself takes nobody's place.
        for _ in range(10):
            await asking.ask(INTERNAL, "own")
        await asking.ask("a"), await asking.ask("a")
        with pytest.raises(QueueFull, match="too many pending history queries for this token"):
            await asyncio.wait_for(await asking.ask("a"), 5)
        await asking.ask("b")
        with pytest.raises(QueueFull, match="too many pending history queries;"):
            await asyncio.wait_for(await asking.ask("c"), 5)
        for _ in range(10):
            await asking.ask(INTERNAL, "own")
        assert Counter(await asking.all()) == {"a": 3, "b": 1, "own": 20}

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(30))
def test_cancelled_jobs_do_not_leak_the_slot(seed):
    async def check():
        rng, asking = random.Random(seed), Asking(waiting_max=99)
        for _ in range(80):
            what = rng.random()
            if what < 0.5:
                await asking.ask(rng.choice(["a", "b", "c", INTERNAL]), "any", most=99)
            elif what < 0.8:
                if asking.tasks:
                    rng.choice(asking.tasks).cancel()
                # Not always at rest: it may be cancelled in the moment in which its turn comes.
                if rng.random() < 0.5:
                    await settle()
            elif asking._gates:
                asking._gates[0].set()
                if rng.random() < 0.5:
                    rng.choice(asking.tasks).cancel()
                await settle()
        for task in asking.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await settle()
        asking.began.clear()
        await asking.ask("z")
        assert await asking.all() == ["z"], "the turn is free, and no queue is left"

    asyncio.run(check())


def test_slot_granted_to_a_cancelled_job_moves_on():
    async def check():
        turns = FairQueue(8)

        async def one():
            async with turns.slot("b", 2):
                pass

        async with turns.slot("a", 2):
            gone, next_one = (asyncio.get_running_loop().create_task(one()) for _ in range(2))
            await settle()
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        await asyncio.wait_for(next_one, 5)
        assert gone.cancelled() and not turns._is_busy

    asyncio.run(check())


# ---- For accounts of the past

DECLARED = {"now_ns": 1, "threshold_ns": 1, "stale_seconds": 1.0}


class Child:
    """In the place of history._child: answers when `gate` is open, and keeps the jobs."""

    def __init__(self, monkeypatch):
        self.jobs, self.gate = [], None
        monkeypatch.setattr(history_module, "_child", self)

    async def __call__(self, body: bytes) -> bytes:
        self.jobs.append(history_module.pickle.loads(body))
        self.gate = self.gate or asyncio.Event()
        await self.gate.wait()
        if self.jobs[-1].facts is not None:
            return history_module.pickle.dumps("folded")
        return msgspec.json.encode([{"n": len(self.jobs)}])


def test_identical_concurrent_queries_share_one_child(monkeypatch):
    child = Child(monkeypatch)

    async def check():
        history, run = History("sqlite://"), Run("r1")
        more = [history.documents(run, [(0, 5)], owner=owner, **{**DECLARED, "now_ns": at})
                for at, owner in enumerate("abcdefgh" * 20)]  # fmt: skip
        asked = [asyncio.ensure_future(one) for one in more]
        other = asyncio.ensure_future(history.documents(run, [(0, 6)], owner="a", **DECLARED))
        another = asyncio.ensure_future(history.documents(Run("r2"), [(0, 5)], owner="a", **DECLARED))
        await settle()
        asked[0].cancel(), asked[3].cancel()
        await settle()
        child.gate.set()
        found = await asyncio.gather(*asked, other, another, return_exceptions=True)
        assert len(child.jobs) == 3 and {(job.run.name, job.windows[0][1]) for job in child.jobs} == {
            ("r1", 5), ("r1", 6), ("r2", 5)}  # fmt: skip
        assert [isinstance(one, asyncio.CancelledError) for one in found].count(True) == 2
        assert found[1][0] == found[-3][0] == [{"n": 1}] and not history._flights.tasks
        await history.documents(run, [(0, 5)], **DECLARED)
        assert len(child.jobs) == 4

    asyncio.run(check())


def test_internal_jobs_are_never_refused(monkeypatch):
    child = Child(monkeypatch)

    async def check():
        history = History("sqlite://")
        for number in range(WAITING_MAX + 50):
            task = asyncio.ensure_future(
                history.documents(Run(f"r{number}"), [(0, 5)], owner=f"{number}", **DECLARED)
            )
            task.add_done_callback(lambda done: done.exception())
        await settle()
        assert history._queue.waiting() == WAITING_MAX
        own = asyncio.ensure_future(history.folded(Run("own"), "facts", 60.0))
        await settle()
        assert not own.done() and history._queue.waiting() == WAITING_MAX + 1
        child.gate.set()
        assert await own == "folded"
        assert [job.run.name for job in child.jobs][:2] == ["r0", "own"], "it came before all who waited"
        await asyncio.gather(*history._flights.tasks.values(), return_exceptions=True)

    asyncio.run(check())


def test_anonymous_clients_share_a_larger_bound(monkeypatch):
    child = Child(monkeypatch)

    async def check():
        history = History("sqlite://")
        asked = [
            asyncio.ensure_future(history.documents(Run("r"), [(0, n)], **DECLARED))
            for n in range(ANONYMOUS_WAITING_MAX + 3)
        ]
        await settle()
        child.gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found].count(HistoryError) == 2

    asyncio.run(check())


@pytest.mark.parametrize("path", ["account?start={n}", "timeline?start={n}"])
def test_one_token_cannot_starve_others(tmp_path, monkeypatch, path):
    made = {name: make(name, scope) for name, scope in (("i", "ingest"), ("hog", "read"), ("other", "read"))}
    with token_file.changing(tmp_path / "tokens.json") as tokens:
        tokens += [token for _, token in made.values()]
    child = Child(monkeypatch)
    authenticator = RequestAuthenticator(TokenCache(tmp_path / "tokens.json"))
    app = create_app(f"sqlite:///{tmp_path}/ledger.db", authenticator=authenticator)

    async def check():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://head") as client:

            def bearer(name):
                return {"Authorization": f"Bearer {made[name][0]}"}

            report = body_of(rank_report(Process().steps(3, forward=1)))
            await client.post("/api/v1/ingest", content=report, headers=bearer("i"))

            def asks(name, n):
                url = "/api/v1/runs/r1/" + path.format(n=n)
                return asyncio.ensure_future(client.get(url, headers=bearer(name)))

            hog = [asks("hog", n) for n in range(30)]
            until = time.monotonic() + 20
            while sum(one.done() for one in hog) < 27 and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert sum(one.done() for one in hog) == 27, "one is answered and two wait"
            other = [asks("other", 100 + n) for n in range(2)]
            rolling = asyncio.ensure_future(client.get("/api/v1/runs/r1/rolling", headers=bearer("other")))
            await asyncio.sleep(0.1)
            assert rolling.done() and rolling.result().status_code == 503, "two of its own wait already"
            assert not any(one.done() for one in other)
            child.gate.set()
            statuses = Counter(answer.status_code for answer in await asyncio.gather(*hog))
            assert statuses[503] == 27
            assert [job.windows[0][0] // 10**9 >= 100 for job in child.jobs][:3].count(True) >= 1
            await asyncio.gather(*other, return_exceptions=True)

    asyncio.run(check())
