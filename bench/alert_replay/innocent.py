"""Ten days on which nothing is wrong that anyone has to be called for.

Six nodes. A large run on four of them, then the next, with restarts of every innocent kind: a node that dies and is
exchanged, preemption, a failure of the program; a node drained for maintenance, its agent gone; beside it an elastic
run whose world changes, a run of one rank, fine-tunings that finish or are cancelled, a sweep of short runs. The
aggregator, the agents and Prometheus itself are restarted now and then. Checkpoints take 20 s to 10 min, every 20 to
60 min. And the hardware has the small troubles that sound hardware has.
"""

from __future__ import annotations

import numpy as np

from bench.alert_replay.hardware import Change
from bench.alert_replay.reports import gpu_of
from bench.alert_replay.ticks import ticks
from bench.alert_replay.trainer import Habits, Job, Place, Start
from bench.alert_replay.world import World

DAY, HOUR = 86_400.0, 3600.0
DAYS = 10
NEAR_SECONDS = 900.0  # so long after an event, and a quarter of it before, it is looked at more often


def places(nodes: str, gpus: int) -> list[Place]:
    """All GPUs of nodes such as "n0 n1", ranks in order."""
    return [(node, gpu) for node in nodes.split() for gpu in range(gpus)]


def restarted(at: float, until: float, where, breaks, how: str = "finished", **given) -> list[Start]:
    """Starts from `at` to `until`; each of `breaks` is (moment, seconds down, how it ended, nodes that died).

    `where(moment)` gives the places of the start that begins then.
    """
    starts, begin = [], at
    for moment, down, ended, lost in sorted(breaks):
        starts.append(Start(begin, moment, where(begin), ended, lost=lost, **given))
        begin = moment + down
    starts.append(Start(begin, until, where(begin), how, **given))
    return starts


def innocent(
    gpus: int = 8,
    large: int | None = None,
    *,
    days: float = DAYS,
    base: float = 60.0,
    fine: float = 15.0,
    near: float = NEAR_SECONDS,
    seed: int = 7,
) -> World:
    """The world, with so many GPUs on each node, `large` of which the large run uses, else all.

    Scraped every `base` seconds, and every `fine` ones for `near` seconds after an event.
    """
    rng = np.random.default_rng(seed)
    jobs = [*_large(large or gpus, rng), *_elastic(gpus), *_small(gpus)]
    nodes = {f"n{i}": gpus for i in range(6)}
    agent_away = {node: _restarts(rng, days, every_days=2.0, seconds=(10, 100)) for node in nodes}
    # The node that died with its rank, and the one in maintenance.
    agent_away["n2"].append((2.2 * DAY, 2.2 * DAY + 400))
    agent_away["n3"].append((1.55 * DAY, 1.8 * DAY))
    aggregator_away = _restarts(rng, days, every_days=1.0, seconds=(30, 200))
    prometheus_away = [(2.7 * DAY, 2.7 * DAY + 300), (5.4 * DAY, 5.4 * DAY + 2400)]
    events = [(at, at) for job in jobs for start in job.starts for at in (start.at, start.until)]
    events += [*aggregator_away, *prometheus_away, *(span for spans in agent_away.values() for span in spans)]
    windows = [(low - near / 4, min(high, low + 2 * near) + near) for low, high in events if low < days * DAY]
    return World(
        ticks=ticks(days * DAY, base, fine, windows),
        nodes=nodes,
        jobs=[job for job in jobs if job.starts[0].at < days * DAY],
        changes=_troubles(),
        agent_away=agent_away,
        aggregator_away=aggregator_away,
        prometheus_away=prometheus_away,
    )


def _restarts(rng, days: float, every_days: float, seconds: tuple[float, float]) -> list[tuple[float, float]]:
    count = max(int(days / every_days), 1)
    at = np.sort(rng.uniform(0.2 * DAY, days * DAY, count))
    return [(float(one), float(one + rng.uniform(*seconds))) for one in at]


def _large(gpus: int, rng) -> list[Job]:
    """Four runs in a row. From day 1.5 to 3 the fifth node stands in for the fourth."""
    habits = Habits(step=24, checkpoint_every=1800, checkpoint=60, evaluation_every=4 * HOUR, evaluation=300)
    slow = {"startup": 120.0, "restore": 150.0, "compile": 240.0}

    def where(at: float) -> list[Place]:
        return places("n0 n1 n2 n4" if 1.5 * DAY <= at < 3.15 * DAY else "n0 n1 n2 n3", gpus)

    jobs = []
    spans = [(0.02, 2.4), (2.5, 4.9), (5.0, 7.4), (7.5, 20.0)]
    planned = [
        [(1.5 * DAY, 420, "killed", ()), (2.2 * DAY, 600, "killed", ("n2",))],
        [(4.1 * DAY, 1500, "failed", ())],
        [(5.41 * DAY, 300, "killed", ())],
        [(8.3 * DAY, 240, "failed", ())],
    ]
    for number, ((begin, end), breaks) in enumerate(zip(spans, planned, strict=True)):
        breaks = list(breaks)
        at = begin * DAY
        while (at := at + rng.uniform(5, 11) * HOUR) < min(end, DAYS) * DAY - 2 * HOUR:
            if all(abs(at - one[0]) > 1.5 * HOUR for one in breaks):
                how_ended = "failed" if rng.random() < 0.3 else "killed"
                breaks.append((at, rng.uniform(60, 420), how_ended, ()))
        starts = restarted(begin * DAY, end * DAY, where, breaks, **slow)
        jobs.append(Job(f"pretrain-{number}", starts, habits, seed=10 + number, flops_per_step=9e15))
    return jobs


def _elastic(gpus: int) -> list[Job]:
    """Its world halves and grows again; its checkpoints are long, and so are its evaluations."""
    habits = Habits(
        step=20, checkpoint_every=3600, checkpoint=480, evaluation_every=6 * HOUR, evaluation=1200, noise=0.02
    )

    def where(at: float) -> list[Place]:
        return places("n5", gpus // 2 if 1.0 * DAY <= at < 2.0 * DAY else gpus)

    breaks = [
        *((at * DAY, 90, "killed", ()) for at in (1.0, 2.0)),
        *((at * DAY, 240, "failed", ()) for at in (0.45, 2.62, 3.3)),
    ]
    return [Job("elastic", restarted(0.1 * DAY, 4.0 * DAY, where, breaks), habits, 30, flops_per_step=7e15)]


def _small(gpus: int) -> list[Job]:
    quick = Habits(step=8, checkpoint_every=1200, checkpoint=20, evaluation_every=2 * HOUR, evaluation=120)
    bare = Habits(step=6, checkpoint_every=1e9, evaluation_every=1e9, epoch_every=600, epoch_pause=6)
    uneven = Habits(step=9, checkpoint_every=2400, checkpoint=150, noise=0.06, hiccup_every=60)
    tune = places("n5", gpus)
    jobs = [
        Job("single", [Start(0.4 * DAY, 1.45 * DAY, places("n4", 1), "finished")], quick, 41),
        Job(
            "tune-1",
            restarted(4.2 * DAY, 6.0 * DAY, lambda _: tune, [(5.0 * DAY, 200, "failed", ())]),
            uneven,
            42,
        ),
        # Nobody tells the aggregator that it will not come back.
        Job("tune-2", [Start(6.2 * DAY, 7.1 * DAY, tune[: min(4, gpus)], "killed")], quick, 43),
        Job("single-2", [Start(7.3 * DAY, 30 * DAY, tune[:1], "finished")], uneven, 44),
    ]
    for number in range(12):
        begin = 3.3 * DAY + number * 0.25 * DAY
        jobs.append(
            Job(
                f"sweep-{number}",
                [Start(begin, begin + 2400, places("n4", 1), "finished")],
                bare,
                50 + number,
            )
        )
    return jobs


def _troubles() -> list[Change]:
    """Small ones, each of which sound hardware has."""

    def change(
        node: str, name: str, at: float, seconds: float, how: str, value: float, **labels: str
    ) -> Change:
        return Change(node, name, tuple(labels.items()), at, at + seconds, how, value)

    port, link = {"device": "mlx5_0", "port": "1"}, {"device": "eth0"}
    gpu = gpu_of("n1", 0)
    return [
        # A cable that was touched: once down, some retransmits, up again in half a minute.
        change("n2", "goodput_infiniband_up", 0.8 * DAY, 30, "set", 0, **port),
        change("n2", "goodput_infiniband_errors_total", 0.8 * DAY, 0, "jump", 1, **port, kind="link_downed"),
        change("n2", "goodput_infiniband_retransmits_total", 0.8 * DAY, 0, "jump", 3000, **port),
        # A switch was updated.
        change("n0", "goodput_network_carrier_changes_total", 4.6 * DAY, 0, "jump", 2, **link),
        change("n0", "goodput_network_up", 4.6 * DAY, 45, "set", 0, **link),
        # The driver was updated in the maintenance of n3, and its GPUs reset.
        change("n3", "goodput_driver_restarts_total", 1.9 * DAY, 0, "jump", 1, driver="nvml", reason="died"),
        change("n3", "goodput_gpu_up", 1.9 * DAY, 30, "set", 0, gpu=gpu_of("n3", 1)),
        # The program's own fault, for which it was started again.
        change(
            "n1",
            "goodput_gpu_xid_errors_total",
            4.1 * DAY - 5,
            0,
            "born",
            1,
            gpu=gpu,
            xid="31",
            **{"class": "application"},
        ),
        # The file server failed over.
        *(
            change(f"n{i}", "goodput_filesystem_up", 3.9 * DAY, 60, "set", 0, mount="/shared")
            for i in range(6)
        ),
        # A data set was copied for a quarter of an hour.
        change(
            "n4", "goodput_network_bytes_total", 6.65 * DAY, 600, "rate", 11.8e9, **link, direction="receive"
        ),
        # Heat for some minutes, on a hot afternoon.
        change(
            "n0", "goodput_gpu_throttled", 7.6 * DAY, 240, "set", 1, gpu=gpu_of("n0", 1), reason="thermal"
        ),
    ]
