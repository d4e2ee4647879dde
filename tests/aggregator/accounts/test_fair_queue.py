"""The fair queue of history queries, and single flight of identical ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress

import httpx
import pytest
from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report
from support.seeds import cases

from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.account import Run
from goodput.aggregator.accounts import history as history_module
from goodput.aggregator.accounts.history import (
    ANONYMOUS,
    ANONYMOUS_WAITING_MAX,
    WAITING_MAX,
    History,
)
from goodput.aggregator.accounts.past import Past
from goodput.aggregator.api.app import create_app
from goodput.aggregator.fair_queue import INTERNAL, FairQueue, QueueFull
from goodput.aggregator.http.authentication import RequestAuthenticator


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Jobs:
    """Jobs that hold the slot of a FairQueue until `finish_one`; `started` has their names in order."""

    def __init__(self, waiting_max: int = 8):
        self.queue, self.started, self.tasks = FairQueue(waiting_max, "history queries"), [], []
        self._holding: list[asyncio.Event] = []

    async def submit(self, owner, *names: str, owner_max: int = 2) -> None:
        async def job(name):
            async with self.queue.slot(owner, owner_max):
                self.started.append(name)
                self._holding.append(done := asyncio.Event())
                assert len(self._holding) == 1, "one at a time"
                try:
                    await done.wait()
                finally:
                    self._holding.remove(done)

        for name in names or (owner,):
            self.tasks.append(asyncio.get_running_loop().create_task(job(name)))
            await settle()

    async def finish_one(self) -> None:
        for done in self._holding:
            done.set()
        await settle()

    async def finish_all(self) -> list:
        while self._holding:
            await self.finish_one()
        assert not self.queue._is_busy and not self.queue._queues
        return self.started


def test_slots_are_round_robin_after_internal_jobs():
    async def check():
        jobs = Jobs()
        await jobs.submit("a", "a1", "a2", "a3")
        await jobs.submit("b", "b1"), await jobs.submit("c", "c1"), await jobs.submit("b", "b2")
        await jobs.submit(INTERNAL, "internal 1", "internal 2")
        assert await jobs.finish_all() == ["a1", "internal 1", "internal 2", "a2", "b1", "c1", "a3", "b2"]

    asyncio.run(check())


def test_repeated_requests_queue_behind_other_owners():
    async def check():
        jobs = Jobs()
        await jobs.submit("a", "a1", "a2"), await jobs.submit("b", "b1")
        await jobs.finish_one()
        await jobs.submit("a", "a3", "a4")
        assert (await jobs.finish_all())[:3] == ["a1", "a2", "b1"]

    asyncio.run(check())


def test_pending_jobs_are_bounded_except_internal():
    async def check():
        jobs = Jobs(waiting_max=3)
        await jobs.submit("a")
        # Internal jobs take no place of the others'.
        await jobs.submit(INTERNAL, *["internal"] * 10)
        await jobs.submit("a", "a", "a", "a")
        with pytest.raises(QueueFull, match="too many pending history queries for this token"):
            await asyncio.wait_for(jobs.tasks[-1], 60)
        await jobs.submit("b"), await jobs.submit("c")
        with pytest.raises(QueueFull, match="too many pending history queries;"):
            await asyncio.wait_for(jobs.tasks[-1], 60)
        await jobs.submit(INTERNAL, *["internal"] * 10)
        assert Counter(await jobs.finish_all()) == {"a": 3, "b": 1, "internal": 20}

    asyncio.run(check())


@pytest.mark.parametrize("seed", cases(30))
def test_cancelled_jobs_do_not_leak_the_slot(seed):
    async def check():
        rng, jobs = random.Random(seed), Jobs(waiting_max=99)
        for _ in range(80):
            action = rng.random()
            if action < 0.5:
                await jobs.submit(rng.choice(["a", "b", "c", INTERNAL]), "any", owner_max=99)
            elif action < 0.8:
                if jobs.tasks:
                    rng.choice(jobs.tasks).cancel()
                # Sometimes a job is cancelled in the iteration of the loop that grants it the slot.
                if rng.random() < 0.5:
                    await settle()
            elif jobs._holding:
                jobs._holding[0].set()
                if rng.random() < 0.5:
                    rng.choice(jobs.tasks).cancel()
                await settle()
        for task in jobs.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await settle()
        jobs.started.clear()
        await jobs.submit("z")
        assert await jobs.finish_all() == ["z"], "the slot is free, and no queue is left"

    asyncio.run(check())


def test_slot_granted_to_a_cancelled_job_moves_on():
    async def check():
        queue = FairQueue(8)

        async def job():
            async with queue.slot("b", 2):
                pass

        async with queue.slot("a", 2):
            cancelled, following = (asyncio.get_running_loop().create_task(job()) for _ in range(2))
            await settle()
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(following, 60)
        assert cancelled.cancelled() and not queue._is_busy

    asyncio.run(check())


# ---- For accounts of the past


class Threads:
    """Stands in for the threads of History: answers once `gate` is set, and keeps the jobs' arguments."""

    def __init__(self, monkeypatch):
        self.jobs, self.gate = [], None
        in_thread = history_module.in_thread

        async def instead(function, *arguments):
            if not arguments or not isinstance(
                getattr(arguments[-1], "__self__", None), history_module._Work
            ):
                return await in_thread(function, *arguments)
            self.jobs.append(arguments[1:-1])
            self.gate = self.gate or asyncio.Event()
            await self.gate.wait()
            return [{"n": len(self.jobs)}]

        monkeypatch.setattr(history_module, "in_thread", instead)


def past(run: str = "r1", now_ns: int = 1) -> Past:
    return Past(Run(run), now_ns, 1, 1.0)


def query(history: History, window, owner="a", **run) -> asyncio.Future:
    return asyncio.ensure_future(history.documents(past(**run), [window], owner))


def test_identical_concurrent_queries_share_one_thread(monkeypatch):
    threads = Threads(monkeypatch)

    async def check():
        history = History(None)
        same = [query(history, (0, 5), owner, now_ns=at) for at, owner in enumerate("abcdefgh" * 20)]
        other_window, other_run = query(history, (0, 6)), query(history, (0, 5), run="r2")
        await settle()
        same[0].cancel(), same[3].cancel()
        await settle()
        threads.gate.set()
        found = await asyncio.gather(*same, other_window, other_run, return_exceptions=True)
        assert len(threads.jobs) == 3
        assert {(of.run.name, window[1]) for of, (window,) in threads.jobs} == {
            ("r1", 5),
            ("r1", 6),
            ("r2", 5),
        }
        assert [isinstance(one, asyncio.CancelledError) for one in found].count(True) == 2
        assert found[1][0] == found[-3][0] == [{"n": 1}] and not history._flights.tasks
        await query(history, (0, 5))
        assert len(threads.jobs) == 4

    asyncio.run(check())


def test_internal_jobs_are_never_refused(monkeypatch):
    threads = Threads(monkeypatch)

    async def check():
        history = History(None)
        for number in range(WAITING_MAX + 50):
            task = query(history, (0, 5), f"{number}", run=f"r{number}")
            task.add_done_callback(lambda done: done.exception())
        await settle()
        assert history._queue.waiting() == WAITING_MAX
        internal = asyncio.ensure_future(history.run(INTERNAL, len, past("internal")))
        await settle()
        assert not internal.done() and history._queue.waiting() == WAITING_MAX + 1
        threads.gate.set()
        assert (await internal)[0] == [{"n": 2}], "it ran before all that waited"
        assert [of.run.name for of, *_ in threads.jobs][:2] == ["r0", "internal"]
        await asyncio.gather(*history._flights.tasks.values(), return_exceptions=True)

    asyncio.run(check())


def test_anonymous_clients_share_a_larger_bound(monkeypatch):
    threads = Threads(monkeypatch)

    async def check():
        history = History(None)
        queries = [query(history, (0, n), ANONYMOUS) for n in range(ANONYMOUS_WAITING_MAX + 3)]
        await settle()
        threads.gate.set()
        found = await asyncio.gather(*queries, return_exceptions=True)
        assert [type(one) for one in found].count(QueueFull) == 2

    asyncio.run(check())


@pytest.mark.parametrize("path", ["account?start=1700001{n:03}", "timeline?start={n}"])
def test_one_token_cannot_starve_others(tmp_path, monkeypatch, path):
    made = {name: make(name, scope) for name, scope in (("i", "ingest"), ("hog", "read"), ("other", "read"))}
    with token_file.changing(tmp_path / "tokens.json") as tokens:
        tokens += [token for _, token in made.values()]
    threads = Threads(monkeypatch)
    authenticator = RequestAuthenticator(TokenCache(tmp_path / "tokens.json"))
    app = create_app(f"sqlite:///{tmp_path}/ledger.db", authenticator=authenticator)

    async def check():
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://head")
        async with app.router.lifespan_context(app), client:

            def bearer(name):
                return {"Authorization": f"Bearer {made[name][0]}"}

            report = body_of(rank_report(Process().steps(3, forward=100)))
            await client.post("/api/v1/ingest", content=report, headers=bearer("i"))

            def get(name, n):
                url = "/api/v1/runs/r1/" + path.format(n=n)
                return asyncio.ensure_future(client.get(url, headers=bearer(name)))

            hog = [get("hog", n) for n in range(1, 31)]
            until = time.monotonic() + 20
            while sum(one.done() for one in hog) < 27 and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert sum(one.done() for one in hog) == 27, "one is answered and two wait"
            other = [get("other", 100 + n) for n in range(2)]
            rolling = asyncio.ensure_future(client.get("/api/v1/runs/r1/rolling", headers=bearer("other")))
            refused = await asyncio.wait_for(rolling, 20)
            assert refused.status_code == 503, "two of its own wait already"
            assert not any(one.done() for one in other)
            threads.gate.set()
            statuses = Counter(answer.status_code for answer in await asyncio.gather(*hog))
            assert statuses[503] == 27
            windows = [of[0] if isinstance(of, list) else of for _, of, *_ in threads.jobs]
            assert any(start_ns // 10**9 % 1000 >= 100 for start_ns, _ in windows[:3])
            await asyncio.gather(*other, return_exceptions=True)

    asyncio.run(check())
