"""The innocent scenario: ten days on which nothing happens that should page anyone.

Six nodes. A large run on four of them, then the next, with ordinary restarts: a node dies and is replaced, preemption,
a program that fails; a node is drained for maintenance, its agent gone. What dies is started again within four
minutes. Beside it an elastic run whose world size changes, a run of one rank, fine-tunings that finish or are
cancelled, a sweep of short runs, and on every node a job that changes every ten minutes. The aggregator, the agents
and Prometheus itself are restarted now and then. Checkpoints take 20 s to 10 min, every 20 to 60 min. The hardware has
the small faults that sound hardware has.
"""

from __future__ import annotations

import numpy as np

from bench.alert_replay.jobs import changing_jobs
from bench.alert_replay.scrape import ScrapedScenario
from bench.alert_replay.ticks import ticks
from goodput.simulate.scenario import AttemptPlan, HardwareChange, Place, RunPlan, Workload, gpu_uuid

DAY, HOUR = 86_400.0, 3600.0
DAYS = 10
NEAR_SECONDS = 900.0  # scrapes are more frequent for so long after an event, and a quarter of it before


def places(nodes: str, gpus: int) -> list[Place]:
    """All GPUs of nodes such as "n0 n1", ranks in order."""
    return [(node, gpu) for node in nodes.split() for gpu in range(gpus)]


def restarted(start: float, end: float, placement, restarts, **timings) -> list[AttemptPlan]:
    """Attempts from `start` to `end`; each of `restarts` is (moment, seconds down, outcome, nodes that died).

    `placement(moment)` gives the places of the attempt that begins then.
    """
    attempts, begin = [], start
    for moment, down, outcome, lost in sorted(restarts):
        attempts.append(AttemptPlan(begin, moment, placement(begin), outcome, lost_nodes=lost, **timings))
        begin = moment + down
    attempts.append(AttemptPlan(begin, end, placement(begin), "finished", **timings))
    return attempts


def innocent(
    gpus: int = 8,
    large: int | None = None,
    *,
    days: float = DAYS,
    base: float = 60.0,
    fine: float = 15.0,
    near: float = NEAR_SECONDS,
    seed: int = 7,
) -> ScrapedScenario:
    """The scenario with so many GPUs on each node, of which the large run uses `large`, all if None.

    It is scraped every `base` seconds, and every `fine` seconds for `near` seconds after an event.
    """
    rng = np.random.default_rng(seed)
    runs = [*_large(large or gpus, rng), *_elastic(gpus), *_small(gpus)]
    nodes = {f"n{i}": gpus for i in range(6)}
    agent_outages = {node: _outages(rng, days, every_days=2.0, seconds=(10, 100)) for node in nodes}
    # The node that died with its rank, and the one in maintenance.
    agent_outages["n2"].append((2.2 * DAY, 2.2 * DAY + 400))
    agent_outages["n3"].append((1.55 * DAY, 1.8 * DAY))
    aggregator_outages = _outages(rng, days, every_days=1.0, seconds=(30, 200))
    prometheus_outages = [(2.7 * DAY, 2.7 * DAY + 300), (5.4 * DAY, 5.4 * DAY + 2400)]
    attempts = [attempt for run in runs for attempt in run.attempts]
    events = [(at, at) for attempt in attempts for at in (attempt.start, attempt.end)]
    events += [
        *aggregator_outages,
        *prometheus_outages,
        *(span for spans in agent_outages.values() for span in spans),
    ]
    windows = [(low - near / 4, min(high, low + 2 * near) + near) for low, high in events if low < days * DAY]
    scenario = ScrapedScenario(
        ticks=ticks(days * DAY, base, fine, windows),
        nodes=nodes,
        runs=[run for run in runs if run.attempts[0].start < days * DAY],
        changes=_hardware_changes(),
        agent_outages=agent_outages,
        aggregator_outages=aggregator_outages,
        prometheus_outages=prometheus_outages,
    )
    scenario.runs += changing_jobs(scenario, days * DAY)
    return scenario


def _outages(rng, days: float, every_days: float, seconds: tuple[float, float]) -> list[tuple[float, float]]:
    count = max(int(days / every_days), 1)
    at = np.sort(rng.uniform(0.2 * DAY, days * DAY, count))
    return [(float(one), float(one + rng.uniform(*seconds))) for one in at]


def _large(gpus: int, rng) -> list[RunPlan]:
    """Four runs in a row. From day 1.5 to 3 the fifth node replaces the fourth."""
    workload = Workload(
        step=24, checkpoint_every=1800, checkpoint=60, evaluation_every=4 * HOUR, evaluation=300
    )
    slow = {"startup": 120.0, "restore": 150.0, "compile": 240.0}

    def placement(at: float) -> list[Place]:
        return places("n0 n1 n2 n4" if 1.5 * DAY <= at < 3.15 * DAY else "n0 n1 n2 n3", gpus)

    runs = []
    spans = [(0.02, 2.4), (2.5, 4.9), (5.0, 7.4), (7.5, 20.0)]
    planned = [
        [(1.5 * DAY, 200, "killed", ()), (2.2 * DAY, 210, "killed", ("n2",))],
        [(4.1 * DAY, 200, "failed", ())],
        [(5.41 * DAY, 200, "killed", ())],
        [(8.3 * DAY, 200, "failed", ())],
    ]
    for number, ((begin, end), restarts) in enumerate(zip(spans, planned, strict=True)):
        restarts = list(restarts)
        at = begin * DAY
        while (at := at + rng.uniform(5, 11) * HOUR) < min(end, DAYS) * DAY - 2 * HOUR:
            if all(abs(at - one[0]) > 1.5 * HOUR for one in restarts):
                outcome = "failed" if rng.random() < 0.3 else "killed"
                restarts.append((at, rng.uniform(60, 210), outcome, ()))
        attempts = restarted(begin * DAY, end * DAY, placement, restarts, **slow)
        runs.append(RunPlan(f"pretrain-{number}", attempts, workload, seed=10 + number, flops_per_step=9e15))
    return runs


def _elastic(gpus: int) -> list[RunPlan]:
    """Its world size halves and grows again; its checkpoints and evaluations are long."""
    workload = Workload(
        step=20, checkpoint_every=3600, checkpoint=480, evaluation_every=6 * HOUR, evaluation=1200, noise=0.02
    )

    def placement(at: float) -> list[Place]:
        return places("n5", gpus // 2 if 1.0 * DAY <= at < 2.0 * DAY else gpus)

    restarts = [
        *((at * DAY, 90, "killed", ()) for at in (1.0, 2.0)),
        *((at * DAY, 200, "failed", ()) for at in (0.45, 2.62, 3.3)),
    ]
    return [
        RunPlan(
            "elastic", restarted(0.1 * DAY, 4.0 * DAY, placement, restarts), workload, 30, flops_per_step=7e15
        )
    ]


def _small(gpus: int) -> list[RunPlan]:
    quick = Workload(step=8, checkpoint_every=1200, checkpoint=20, evaluation_every=2 * HOUR, evaluation=120)
    bare = Workload(step=6, checkpoint_every=1e9, evaluation_every=1e9, epoch_every=600, epoch_pause=6)
    uneven = Workload(step=9, checkpoint_every=2400, checkpoint=150, noise=0.06, hiccup_every=60)
    tune = places("n5", gpus)
    runs = [
        RunPlan("single", [AttemptPlan(0.4 * DAY, 1.45 * DAY, places("n4", 1), "finished")], quick, 41),
        RunPlan(
            "tune-1",
            restarted(4.2 * DAY, 6.0 * DAY, lambda _: tune, [(5.0 * DAY, 200, "failed", ())]),
            uneven,
            42,
        ),
        # Cancelled: nothing reports that it will not come back.
        RunPlan("tune-2", [AttemptPlan(6.2 * DAY, 7.1 * DAY, tune[: min(4, gpus)], "killed")], quick, 43),
        RunPlan("single-2", [AttemptPlan(7.3 * DAY, 30 * DAY, tune[:1], "finished")], uneven, 44),
    ]
    for number in range(12):
        begin = 3.3 * DAY + number * 0.25 * DAY
        runs.append(
            RunPlan(
                f"sweep-{number}",
                [AttemptPlan(begin, begin + 2400, places("n4", 1), "finished")],
                bare,
                50 + number,
            )
        )
    return runs


def _hardware_changes() -> list[HardwareChange]:
    """Small faults, each of which sound hardware has."""

    def change(
        node: str, name: str, start: float, seconds: float, how: str, value: float, **labels: str
    ) -> HardwareChange:
        return HardwareChange(node, name, tuple(labels.items()), start, start + seconds, how, value)

    port, link = {"device": "mlx5_0", "port": "1"}, {"device": "eth0"}
    xid = {"gpu": gpu_uuid("n1", 0), "xid": "31", "class": "application"}
    incoming = {**link, "direction": "receive"}
    hot = {"gpu": gpu_uuid("n0", 1), "reason": "thermal"}
    return [
        # A cable that was touched: down once, some retransmits, up again in half a minute.
        change("n2", "goodput_infiniband_up", 0.8 * DAY, 30, "set", 0, **port),
        change("n2", "goodput_infiniband_errors_total", 0.8 * DAY, 0, "jump", 1, **port, kind="link_downed"),
        change("n2", "goodput_infiniband_retransmits_total", 0.8 * DAY, 0, "jump", 3000, **port),
        # A switch was updated.
        change("n0", "goodput_network_carrier_changes_total", 4.6 * DAY, 0, "jump", 2, **link),
        change("n0", "goodput_network_up", 4.6 * DAY, 45, "set", 0, **link),
        # The driver was updated during the maintenance of n3, and its GPUs reset.
        change("n3", "goodput_driver_restarts_total", 1.9 * DAY, 0, "jump", 1, driver="nvml", reason="died"),
        change("n3", "goodput_gpu_up", 1.9 * DAY, 30, "set", 0, gpu=gpu_uuid("n3", 1)),
        # The program's own fault, after which it was started again.
        change("n1", "goodput_gpu_xid_errors_total", 4.1 * DAY - 5, 0, "born", 1, **xid),
        # The file server failed over.
        *(
            change(f"n{i}", "goodput_filesystem_up", 3.9 * DAY, 60, "set", 0, mount="/shared")
            for i in range(6)
        ),
        # A data set was copied for ten minutes.
        change("n4", "goodput_network_bytes_total", 6.65 * DAY, 600, "rate", 11.8e9, **incoming),
        # A module with correctable errors, a disk that was reset, cores at a peak, a clock that a daemon sets after boot.
        change("n1", "goodput_host_memory_errors_total", 2.3 * DAY, 0, "jump", 300, kind="correctable"),
        change("n2", "goodput_host_nvme_up", 5.2 * DAY, 60, "set", 0, device="nvme0"),
        change("n4", "goodput_host_cpu_throttles_total", 7.6 * DAY, 1200, "rate", 3, kind="core"),
        change("n5", "goodput_host_clock_synchronised", 0.5 * DAY, 600, "set", 0),
        change("n5", "goodput_host_clock_error_seconds", 0.5 * DAY, 600, "set", 16, kind="maximum"),
        # Throttled for some minutes, on a hot afternoon.
        change("n0", "goodput_gpu_throttled", 7.6 * DAY, 240, "set", 1, **hot),
    ]
