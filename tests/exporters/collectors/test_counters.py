"""ActivityModel and increases that Prometheus finds in counters that reset, saturate, go missing and come back: what happened.

The agent's own expositions over a changing tree, taken at odd intervals, go to Prometheus' engine (`promtool test
rules`) as a server would keep them: a series that a scrape lacks is marked stale. What happened is summed beside it.
The windows begin and end at a scrape, so nothing is extrapolated.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.node import network_tree
from support.node.agents import agent_on
from support.node.network_tree import STANDARD, WIDE, counters, port
from support.node.node_rank import PID, Rank

from goodput_exporters.gpu.sample import Event, Gpu, Sample

SECOND, MS = 10**9, 10**6
END_SECONDS = 300
NARROW_MAX = 0xFFFF_FFFF
RESTART_SECONDS, AGENT_RESTART_SECONDS, SATURATED_SECONDS = 100, 180, (43, 200)
ACTIVE = 0.25
BEFORE_SECONDS = 3  # so that every series is there in the first scrape
LIMIT = "goodput_infiniband_saturated{"
NAMES = (
    *("goodput_infiniband_bytes_total", LIMIT, "goodput_network_bytes_total", "goodput_phase_seconds_total"),
    *("goodput_gpu_phase_seconds_total", "goodput_gpu_activity_seconds_total"),
    *("goodput_gpu_phase_energy_joules_total", "goodput_health_events_total"),
)


class History:
    """Scrapes by second: {series as PromQL writes it: value}."""

    def __init__(self):
        self.scrapes: dict[int, dict[str, float]] = {}

    def take(self, second: int, text: str) -> None:
        found = self.scrapes[second] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value

    def series(self, names: tuple[str, ...]) -> list[dict]:
        """As `promtool test rules` takes them: a value for each second, `_` where nothing was scraped."""
        known = sorted(
            {name for scrape in self.scrapes.values() for name in scrape if name.startswith(names)}
        )
        return [{"series": name, "values": " ".join(self._values(name))} for name in known]

    def _values(self, name: str):
        here = False
        for second in range(END_SECONDS + 1):
            scrape = self.scrapes.get(second)
            if scrape is None:
                yield "_"
            else:
                yield repr(scrape[name]) if name in scrape else "stale" if here else "_"
                here = name in scrape


class Node:
    """A tree whose counters grow by chance, and what truly happened."""

    def __init__(self, tree: Path, clock, seed: int):
        self.tree, self.clock, self.chance = tree, clock, random.Random(seed)
        network_tree.write(tree, {**port("mlx5_0"), **counters("mlx5_0", [*STANDARD, *WIDE], 0)})
        network_tree.write(
            tree, {**port("mthca0"), **counters("mthca0", STANDARD, 0)}
        )  # 32 bits, and they stop
        self.agent = agent_on(tree, clock)
        self.words = self.wide = self.narrow = 0  # words in all, and as devices count them
        self.received = self.eth0 = 0  # bytes of eth0: in all, and as its driver counts
        self.rank = Rank(tree / "pages")
        self.forward_ns = self.xids = 0
        self.covered_seconds, self.sampled = 0.0, False

    def begin(self) -> None:
        """What happened is summed from now on; devices count on, but for the narrow counter."""
        self.words = self.received = self.forward_ns = self.xids = self.narrow = 0
        self.covered_seconds = 0.0

    def grow(self, second: int) -> None:
        """A second of traffic, training and GPU; odd things at their times."""
        if second in (60, 150):
            self.wide = 0  # The driver was loaded anew.
        words = self.chance.randrange(10**9)
        self.words, self.wide = self.words + words, self.wide + words
        self.rdma("mlx5_0", "port_xmit_data", self.wide)
        if second == SATURATED_SECONDS[1]:
            self.narrow = 0  # It was reset.
        self.narrow = min(self.narrow + (10**8 if second < SATURATED_SECONDS[1] else 10**7), NARROW_MAX)
        self.rdma("mthca0", "port_xmit_data", self.narrow)
        if second in (80, 210):
            shutil.move(self.tree / "sys/class/net/eth0", self.tree / "eth0")
        elif second in (95, 211):
            shutil.move(self.tree / "eth0", self.tree / "sys/class/net/eth0")
            self.eth0 = 0
        if (self.tree / "sys/class/net/eth0").exists():
            received = self.chance.randrange(10**7)
            self.received, self.eth0 = self.received + received, self.eth0 + received
            (self.tree / "sys/class/net/eth0/statistics/rx_bytes").write_text(f"{self.eth0}\n")
        self.train(second)
        self.sample(second)

    def rdma(self, device: str, name: str, value: int) -> None:
        (self.tree / network_tree.ROOT / device / "ports/1/counters" / name).write_text(f"{value}\n")

    def train(self, second: int) -> None:
        if second == RESTART_SECONDS:  # Another process, seen with less than its predecessor had.
            (self.tree / f"proc/{PID}/stat").write_text(f"{PID} (train) S " + "0 " * 18 + "778 0\n")
            started = {
                "start_mono_ns": self.clock.monotonic_ns() - SECOND,
                "start_unix_ns": self.clock.unix_ns() - SECOND,
            }
            self.rank = Rank(self.tree / "pages", attempt=2, pid_start_ticks=778, **started)
        self.rank.step({"forward": SECOND})
        self.forward_ns += SECOND

    def sample(self, second: int) -> None:
        self.agent.poll()
        event = [Event("xid", "GPU-1", self.clock.unix_ns(), code=79, severity="critical")]
        events = event if self.chance.random() < 0.05 else []
        self.xids += len(events)
        gpu = Gpu("GPU-1", readings={"activity/sm": ACTIVE, "power": 400.0})
        self.agent._receive(Sample("nvml", self.clock.monotonic_ns(), [gpu], events=events))
        # Of a process that came between two samples it is not known what part of the time was its.
        self.covered_seconds += self.sampled and second != RESTART_SECONDS
        self.sampled = True

    def restart_agent(self) -> None:
        """Its own counters begin anew; it has seen no sample yet."""
        self.agent = agent_on(self.tree, self.clock)
        self.sampled = False


@pytest.fixture(params=range(2))
def lived(request, tree, clock):
    """(node, history) of five minutes, scraped at odd intervals, after odd things always."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is not on PATH (Debian package prometheus)")
    node, history = Node(tree, clock, request.param), History()
    # A counter that fell is seen so only before it has passed its old value: a scrape soon after each reset.
    odd = {0, END_SECONDS, 59, 60, 79, 80, 94, 95, 99, 100, 149, 150, 199, 200, 209, 211, 179, 180}
    due = odd | {second for second in range(END_SECONDS) if node.chance.random() < 0.15}
    for second in range(-BEFORE_SECONDS, END_SECONDS + 1):
        clock.seconds = float(BEFORE_SECONDS + second)
        if second == AGENT_RESTART_SECONDS:
            node.restart_agent()
        else:
            node.grow(second)
        if second == 0:
            node.begin()
        if second in due:
            history.take(second, node.agent.exposition(20.0).decode())
    return node, history


def test_prometheus_increases_match_true_totals(lived, tmp_path):
    node, history = lived
    begun = min(second for second in history.scrapes if second >= SATURATED_SECONDS[1])
    wide, narrow = (
        f'goodput_infiniband_bytes_total{{device="{name}",direction="transmit"}}'
        for name in ("mlx5_0", "mthca0")
    )
    saturated = 'goodput_infiniband_saturated{device="mthca0",kind="port_xmit_data"}'
    received = 'goodput_network_bytes_total{device="eth0",direction="receive"}'
    forward = 'goodput_phase_seconds_total{phase="forward"}'
    xids = 'goodput_health_events_total{kind="xid"}'
    of_gpu = 'sum(increase(goodput_gpu_%s{gpu="GPU-1"}[300s]))'
    # 2^32 words at 10^8 a second are there after 43 s.
    at_limit = [second for second in history.scrapes if SATURATED_SECONDS[0] <= second < SATURATED_SECONDS[1]]
    expected = {
        f"sum(increase({wide}[300s]))": 4 * node.words,
        f"sum(rate({wide}[300s])) * 300": 4 * node.words,
        f"sum(resets({wide}[300s]))": 2,
        # At its maximum it is reported as saturated; after a reset it counts again.
        f"sum(count_over_time({saturated}[300s]))": len(at_limit),
        f"sum(increase({narrow}[{END_SECONDS - begun}s]))": 4 * 10**7 * (END_SECONDS - begun),
        f"sum(increase({received}[300s]))": node.received,
        f"sum(increase({forward}[300s]))": node.forward_ns / SECOND,
        of_gpu % "phase_seconds_total": node.covered_seconds,
        of_gpu % "activity_seconds_total": ACTIVE * node.covered_seconds,
        of_gpu % "phase_energy_joules_total": 400 * node.covered_seconds,
        f"sum(increase({xids}[300s]))": node.xids,
    }
    assert begun == SATURATED_SECONDS[1] and node.xids > 5 and len(history.scrapes) > 40
    ask(tmp_path, history.series(NAMES), expected)


def ask(folder: Path, series: list[dict], expected: dict[str, float]) -> None:
    """Fail unless Prometheus' engine finds these values at the end."""
    tests = [
        {
            "expr": f"round({expr}, 0.001)",
            "eval_time": f"{END_SECONDS}s",
            "exp_samples": [{"labels": "{}", "value": round(value, 3)}],
        }
        for expr, value in expected.items()
    ]
    whole = {
        "evaluation_interval": "1s",
        "tests": [{"interval": "1s", "input_series": series, "promql_expr_test": tests}],
    }
    path = folder / "counters.yml"
    path.write_text(yaml.safe_dump(whole, width=1_000_000))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
