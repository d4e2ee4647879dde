"""What a scrape costs where runs are many and small: each is an account, and some 140 series, of its own.

    python -m bench.aggregator.many_runs [--runs N] [--seconds S]

A real `goodput serve`; runs of one rank on one GPU are pushed in one report each 10 s, with ten steps more of each. /metrics is
scraped each 5 s, as Prometheus does by default, for so long. What is printed of the scrapes is their time and how old
the figures of the runs are in them, by goodput_run_series_timestamp_seconds.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path

import httpx

from bench.aggregator.serve import cpu_seconds, serving
from bench.processes import say
from goodput.wire import schema

PUSH_SECONDS, SCRAPE_SECONDS, TIMEOUT_SECONDS = 10, 5, 60
STEP_NS = 10**9
PHASES = ("none", "loader", "forward", "backward", "optimizer", "communication")
PARTS_NS = (0, STEP_NS // 10, 3 * STEP_NS // 10, 5 * STEP_NS // 10, STEP_NS // 10, 0)
_RENDERED = re.compile(r'^goodput_run_series_timestamp_seconds\{run="[^"]+"\} (\S+)$', re.M)


def report(run: int, start_ns: int, first: int, last: int) -> schema.RankReport:
    """The steps `first` to `last` of a run of one rank."""
    rows = [
        schema.StepRow(
            number + 1,
            number,
            start_ns + number * STEP_NS,
            start_ns + (number + 1) * STEP_NS,
            32 * (number + 1),
            tuple((number + 1) * part for part in PARTS_NS),
            (0,) * len(PHASES),
        )
        for number in range(first, last)
    ]
    end_ns = start_ns + last * STEP_NS
    totals = tuple(last * part for part in PARTS_NS)
    identity = schema.Identity(f"run-{run}", 0, 1, 1, f"n{run}", 1, start_ns, device="NVIDIA H100 80GB HBM3")
    live = schema.Live(end_ns, end_ns, "forward", last, last, 32 * last, True, "", 0, totals)
    return schema.in_blocks(schema.RankReport(identity, end_ns, PHASES, live, steps=rows))


def push(client: httpx.Client, token: str, runs: int, start_ns: int, first: int, last: int) -> float:
    """Push the steps of all runs; returns how long it took."""
    ranks = [report(run, start_ns, first, last) for run in range(runs)]
    body = schema.encode(schema.NodeReport("n", time.time_ns(), ranks))
    began = time.monotonic()
    answer = client.post("/api/v1/ingest", content=body, headers={"Authorization": f"Bearer {token}"})
    if answer.status_code != 200 or schema.decode_ack(answer.content).rejected:
        raise RuntimeError(f"a push was refused: {answer.status_code}")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=800)
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args()
    scrapes, ages, pushes, shown = [], [], [], 0
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (pid, url, tokens):
        client = httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False)
        reading = {"Authorization": f"Bearer {tokens['read']}"}
        start_ns, done = time.time_ns() - 60 * STEP_NS, 60
        push(client, tokens["ingest"], options.runs, start_ns, 0, done)
        began, cpu = time.monotonic(), cpu_seconds(pid)
        while time.monotonic() - began < options.seconds:
            due = time.monotonic() + SCRAPE_SECONDS
            steps = (time.time_ns() - start_ns) // STEP_NS
            if steps >= done + PUSH_SECONDS:
                pushes.append(push(client, tokens["ingest"], options.runs, start_ns, done, steps))
                done = steps
            asked = time.monotonic()
            text = client.get("/metrics", headers=reading).text
            scrapes.append(time.monotonic() - asked)
            found = [time.time() - float(at) for at in _RENDERED.findall(text)]
            shown = len(found)
            ages.append(max(found, default=0.0))
            time.sleep(max(due - time.monotonic(), 0))
        share = (cpu_seconds(pid) - cpu) / (time.monotonic() - began)
    say(f"{options.runs} runs of one rank, {shown} of them in the last scrape of {len(text) >> 10} KiB")
    say(f"scrapes: first {scrapes[0]:.2f} s, most {max(scrapes):.2f} s; oldest figure {max(ages):.1f} s")
    say(f"pushes: most {max(pushes, default=0):.2f} s; {100 * share:.0f} % of a core in all")


if __name__ == "__main__":
    main()
