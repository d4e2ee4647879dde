"""How long it takes until Prometheus could show why a run became slow, beside 10 000 ranks that push.

    python -m bench.aggregator.visible [--ranks N] [--faults N] [--json]

The server and the load of bench.aggregator.serve. One run of 1 000 of the ranks is reported by this process, its nodes
each 5 s as agents do by default, each at a moment of its own. From time to time its ranks wait 0.3 s of each second for
data, for 20 s. /metrics is scraped each 5 s. What is measured is the time from the begin of the first such wait until a
scrape is answered in which the loader has SHOWN of the run's GPU time since the scrape before: what a rate over two
scrapes shows. The bar of 15 s is the design's. The moments of the faults are spread over the scrape interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path

import httpx
from msgspec.structs import replace

from bench.aggregator.load import RANKS_PER_RUN, ROUND_SECONDS, Maker, Plan
from bench.aggregator.serve import RANKS, RANKS_OF_NODE, loading, quantile, serving
from bench.processes import say

BAR_SECONDS = 15.0
PUSH_SECONDS, SCRAPE_SECONDS = 5.0, 5.0
# Until the first steps of all runs are in the account; of a fault; and from one to the next, which is no whole number of scrapes.
WARM_SECONDS, FAULT_SECONDS, EVERY_SECONDS = 90, 20, 47
STEP_NS, WAIT_NS = 10**9, 300_000_000
LOADER, BACKWARD = 1, 4
# Of the run's GPU time between two scrapes; without a fault it is 3 %, with one 33 %.
SHOWN = 0.1
RUN = "waits"
_SERIES = re.compile(rf'^goodput_gpu_seconds{{run="{RUN}",state="(\w+)"}} (\S+)$', re.M)


class WaitingRun(Maker):
    """A run whose ranks make a step a second and, in the `faults` (first and last step of each), wait for data."""

    def __init__(self, plan: Plan, start_ns: int, faults: list[range]):
        super().__init__(plan, start_ns)
        self._faults, self._done = faults, [0] * plan.reporters

    def _identity_of(self, rank: int):
        return replace(super()._identity_of(rank), run=RUN, host=f"w{rank // RANKS_OF_NODE}")

    def _row(self, number: int, kind: int):
        row, waited = super()._row(number, kind), WAIT_NS * self._faulty(number)
        totals = list(row.totals)
        totals[LOADER] += waited
        totals[BACKWARD] -= waited
        return replace(row, totals=tuple(totals))

    def _faulty(self, number: int) -> int:
        """How many of the first `number` steps wait."""
        return sum(max(0, min(number, steps.stop) - steps.start) for steps in self._faults)

    def next_report(self, reporter: int, now_ns: int) -> bytes:
        """What its ranks have done since the last one."""
        before = self._done[reporter]
        self._done[reporter] = done = max((now_ns - self._start_ns) // STEP_NS, before)
        return self.report(reporter, before, done, now_ns)


class Visible:
    """The run that waits, and the scrapes. `scrapes` are (time, GPU-seconds by state)."""

    def __init__(self, url: str, tokens: dict[str, str], faults: int):
        self._url, self._tokens = url, tokens
        self._start_ns = time.time_ns()
        first = WARM_SECONDS
        self.faults = [
            range(first + n * EVERY_SECONDS, first + n * EVERY_SECONDS + FAULT_SECONDS) for n in range(faults)
        ]
        plan = Plan(f"{url}/api/v1/ingest", tokens["ingest"], RANKS_PER_RUN // RANKS_OF_NODE, RANKS_OF_NODE)
        self._run = WaitingRun(plan, self._start_ns, self.faults)
        self.scrapes: list[tuple[float, dict[str, float]]] = []

    async def watch(self) -> None:
        """Push and scrape until the last fault is over."""
        reporters = [self._push(number, at) for number, at in enumerate(self._run.offsets)]
        await asyncio.gather(self._scrape(), *reporters)

    def _now(self) -> float:
        return time.time() - self._start_ns / 1e9

    def _is_over(self) -> bool:
        return self._now() > self.faults[-1].stop + EVERY_SECONDS - FAULT_SECONDS

    async def _push(self, reporter: int, offset: float) -> None:
        await asyncio.sleep(offset * PUSH_SECONDS / ROUND_SECONDS)
        reader, writer = await asyncio.open_connection(*self._address())
        due = self._now()
        while not self._is_over():
            due += PUSH_SECONDS
            await asyncio.sleep(max(0.0, due - self._now()))
            writer.write(self._run.next_report(reporter, time.time_ns()))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if not head.startswith(b"HTTP/1.1 200") or length is None:
                raise RuntimeError(f"a push was answered with {head[:80]!r}")
            await reader.readexactly(int(length[1]))
        writer.close()

    def _address(self) -> tuple[str, int]:
        url = httpx.URL(self._url)
        return url.host, url.port or 80

    async def _scrape(self) -> None:
        headers = {"Authorization": f"Bearer {self._tokens['read']}"}
        due = self._now()
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=60) as client:
            while not self._is_over():
                due += SCRAPE_SECONDS
                await asyncio.sleep(max(0.0, due - self._now()))
                answer = await client.get(f"{self._url}/metrics")
                found = {state: float(value) for state, value in _SERIES.findall(answer.text)}
                self.scrapes.append((self._now(), found))

    def delays(self) -> list[float | None]:
        """Seconds from the begin of each fault until it could be seen, None if it never was."""
        shown = [
            later
            for (_, before), (later, after) in zip(self.scrapes, self.scrapes[1:], strict=False)
            if before and _share(before, after) > SHOWN
        ]
        ends = [*(steps.start for steps in self.faults[1:]), float("inf")]
        found = []
        for steps, end in zip(self.faults, ends, strict=True):
            # A step's number is one more than the seconds until its begin.
            seen = [at - steps.start for at in shown if steps.start < at < end]
            found.append(seen[0] if seen else None)
        return found


def _share(before: dict[str, float], after: dict[str, float]) -> float:
    """The loader's part of the GPU time between two scrapes; 0 where the account is the same."""
    total = sum(after.values()) - sum(before.values())
    return (after.get("loader", 0.0) - before.get("loader", 0.0)) / total if total > 0 else 0.0


def measured(ranks: int, faults: int) -> dict:
    seconds = WARM_SECONDS + faults * EVERY_SECONDS
    reporters = (ranks - RANKS_PER_RUN) // RANKS_OF_NODE
    plan = Plan("", "", reporters, RANKS_OF_NODE, rounds=int(seconds / ROUND_SECONDS) + 1)
    with tempfile.TemporaryDirectory() as at, serving(Path(at)) as (_, url, tokens):
        plan.url, plan.token = f"{url}/api/v1/ingest", tokens["ingest"]
        with loading(plan) as load:
            load.begin()
            run = Visible(url, tokens, faults)
            say(f"{len(run.faults)} faults in {seconds} s ...")
            asyncio.run(run.watch())
            others = load.result()
    delays = run.delays()
    seen = [seconds for seconds in delays if seconds is not None]
    return {
        "ranks": ranks,
        "faults": len(delays),
        "not_seen": len(delays) - len(seen),
        "median_seconds": round(quantile(seen, 0.5), 1) if seen else None,
        "most_seconds": round(max(seen), 1) if seen else None,
        "delays": [None if one is None else round(one, 1) for one in delays],
        "pushes_failed": others["failed"] + others["unanswered"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: python -m bench.aggregator.visible --ranks 10000 --faults 12",
    )
    parser.add_argument(
        "--ranks", type=int, default=RANKS, help="with those of the run that waits (%(default)s)"
    )
    parser.add_argument("--faults", type=int, default=12, help="%(default)s")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    if arguments.ranks < 2 * RANKS_PER_RUN or arguments.faults < 1:
        parser.error(f"want {2 * RANKS_PER_RUN} ranks and one fault at least")
    found = measured(arguments.ranks, arguments.faults)
    is_met = not found["not_seen"] and found["most_seconds"] <= BAR_SECONDS
    if arguments.json:
        print(json.dumps(found | {"bar_met": is_met}, indent=2))
    else:
        print(
            f"{found['ranks']} ranks: of {found['faults']} faults {found['faults'] - found['not_seen']} seen, after "
            f"{found['median_seconds']} s in the median, {found['most_seconds']} s at most; the bar of "
            f"{BAR_SECONDS:.0f} s is {'met' if is_met else 'MISSED'}"
        )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
