"""A morning on which everything breaks: one fault for each alert, and what must be said of it.

In: nothing. Out: a World and its faults. Each fault has the alert that must fire, the labels that it must carry, and
the seconds within which: what the alert's windows and its `for` amount to, and a minute. Runs of two to eight ranks,
each with a trouble of its own; hardware breaks on four nodes on which one sound run trains, so that the right run, rank
and node can be named; the faults of one device come one after the other. Towards noon the storage fails for all runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from bench.alert_replay.hardware import Change
from bench.alert_replay.reports import gpu_of
from bench.alert_replay.ticks import ticks
from bench.alert_replay.trainer import EPOCH_SECONDS, Habits, Job, Start, Trouble
from bench.alert_replay.world import World

MINUTE, HOUR = 60.0, 3600.0
OUTAGE_AT = 5.0 * HOUR
SECONDS = OUTAGE_AT + 2.0 * HOUR
RUN = Habits(
    step=8, checkpoint_every=900, checkpoint=20, evaluation_every=3 * HOUR, evaluation=60, epoch_every=1e9
)
GPUS = 2


@dataclass(frozen=True)
class Fault:
    """`at` and `until` say when it was there. `within` bounds the seconds from `at` to the alert."""

    alert: str
    what: str
    at: float
    until: float
    within: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass
class Plan:
    """The world as it is put together."""

    jobs: list[Job] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    aggregators: list[tuple] = field(default_factory=list)
    agent_away: dict[str, list] = field(default_factory=dict)
    push_fails: dict[str, list] = field(default_factory=dict)
    aggregator_away: list = field(default_factory=list)

    def fault(self, alert: str, what: str, at: float, until: float, within: float, /, **labels: str) -> None:
        self.faults.append(Fault(alert, what, at, until, within + MINUTE, tuple(labels.items())))

    def run(
        self, run: str, until: float, *troubles: Trouble, ranks: int = 2, starts=None, habits=RUN, **given
    ) -> None:
        """A run on nodes of its own, named after it."""
        nodes = [f"{run}-{i}" for i in range(-(-ranks // GPUS))]
        self.nodes |= dict.fromkeys(nodes, GPUS)
        places = [(node, gpu) for node in nodes for gpu in range(GPUS)][:ranks]
        starts = starts or [(60.0, until, "finished")]
        lives = [
            Start(at, end, places, how, startup=20, restore=10, compile=15, **given)
            for at, end, how in starts
        ]
        self.jobs.append(Job(run, lives, habits, seed=sum(run.encode()), troubles=list(troubles)))

    def hardware(
        self, node: str, name: str, at: float, until: float, how: str, value: float, /, **labels: str
    ) -> None:
        self.changes.append(Change(node, name, tuple(labels.items()), at, until, how, value))


def planted(base: float = 10.0) -> tuple[World, list[Fault]]:
    """The world, scraped every `base` seconds, and what is wrong in it."""
    plan = Plan()
    _speed(plan)
    _standing(plan)
    _saving(plan)
    _stack(plan)
    plan.run("sound", SECONDS + HOUR, Trouble("loader", OUTAGE_AT, SECONDS - 25 * MINUTE, 6.0), ranks=8)
    for part in (_gpus, _gpu_errors, _links, _traffic, _host):
        part(plan)
    _outage(plan)
    world = World(
        ticks=ticks(SECONDS, base, base),
        nodes=plan.nodes,
        jobs=plan.jobs,
        changes=plan.changes,
        agent_away=plan.agent_away,
        push_fails=plan.push_fails,
        aggregator_away=plan.aggregator_away,
        overlays=plan.aggregators,
    )
    return world, plan.faults


def _speed(plan: Plan) -> None:
    """Runs that are slower than they were."""
    at, until = 40 * MINUTE, 75 * MINUTE
    plan.run("drops", 95 * MINUTE, Trouble("communication", at, until, 1.5))
    plan.fault(
        "GoodputUtilisationDrop", "collectives take most of each step", at, until, 14 * MINUTE, run="drops"
    )
    plan.run("starves", 95 * MINUTE, Trouble("loader", at, until, 0.6))
    plan.fault(
        "GoodputLoaderStarved", "the loader takes 60 % of a step more", at, until, 13 * MINUTE, run="starves"
    )
    plan.run("limps", 95 * MINUTE, Trouble("compute", at, until, 1.5, rank=3), ranks=4)
    where = {"run": "limps", "rank": "3"}
    plan.fault("GoodputStragglerRank", "one rank computes at two thirds", at, until, 16 * MINUTE, **where)
    plan.run("wastes", 110 * MINUTE, Trouble("compute", at, 85 * MINUTE, 1.6))
    plan.fault("GoodputMfuDrop", "kernels take 1.6 times as long", at, 85 * MINUTE, 25 * MINUTE, run="wastes")
    plan.run("watched", 130 * MINUTE, Trouble("sdk", at, 90 * MINUTE, 0.06))
    what = "measuring takes 6 % of the time"
    plan.fault("GoodputSdkOverBudget", what, at, 90 * MINUTE, 30 * MINUTE, run="watched")
    # From half past one: half of its time is good, for hours.
    at, until = 90 * MINUTE, OUTAGE_AT - 10 * MINUTE
    plan.run(
        "burns",
        SECONDS + HOUR,
        Trouble("communication", at, until, 0.9),
        Trouble("loader", OUTAGE_AT, SECONDS - 25 * MINUTE, 6.0),
    )
    what = "half of its time is lost, for hours"
    plan.fault("GoodputObjectiveBurnSlow", what, at, until, 3.3 * HOUR, run="burns")


def _standing(plan: Plan) -> None:
    """Runs that stand still, or again and again."""
    at, until = 30 * MINUTE, 50 * MINUTE
    plan.run("hangs", 70 * MINUTE, Trouble("hang", at, until, rank=1, phase="loader"))
    plan.fault("GoodputRunStalled", "one rank hangs in its loader", at, until, 6 * MINUTE, run="hangs")
    ends = [40 * MINUTE + 5 * MINUTE * i for i in range(6)]
    starts = [(60.0, ends[0], "killed")]
    starts += [(low + 40, high, "failed") for low, high in itertools.pairwise(ends)]
    plan.run("loops", 0, starts=[*starts, (ends[-1] + 40, 110 * MINUTE, "finished")])
    plan.fault("GoodputRestartLoop", "it dies every 5 minutes", ends[0], ends[-1], 14 * MINUTE, run="loops")
    plan.run("misses", 80 * MINUTE, starts=[(60.0, 40 * MINUTE, "finished")], world=3)
    what = "one of three ranks was never seen"
    plan.fault("GoodputTelemetryMissing", what, 60.0, 40 * MINUTE, 6 * MINUTE, run="misses", missing="ranks")


def _saving(plan: Plan) -> None:
    """Runs that do not save, or save slowly."""
    often = Habits(**{**vars(RUN), "checkpoint_every": 400.0})
    at, killed = 35 * MINUTE, 95 * MINUTE
    starts = [(60.0, killed, "killed"), (killed + 60, 170 * MINUTE, "finished")]
    plan.run("forgets", 0, Trouble("unsaved", at, killed), starts=starts, habits=often)
    plan.fault("GoodputCheckpointOld", "it saves no more", at, killed, 37 * MINUTE, run="forgets")
    what = "it dies an hour after its last checkpoint"
    plan.fault("GoodputLostWork", what, killed, killed + HOUR, 6 * MINUTE, run="forgets")
    at, until = 36 * MINUTE, 66 * MINUTE
    plan.run("crawls", 90 * MINUTE, Trouble("save", at, until, 1500.0), habits=often)
    plan.fault("GoodputCheckpointSlow", "a save takes 25 minutes", at, until, 21 * MINUTE, run="crawls")


def _stack(plan: Plan) -> None:
    """Agents and the aggregator itself."""
    at, until = 30 * MINUTE, 45 * MINUTE
    plan.run("mute", 70 * MINUTE, ranks=4)
    plan.push_fails["mute-1"] = [(at, until)]
    for outcome, rate in (("accepted", -0.2), ("unreachable", 0.2)):
        plan.hardware("mute-1", "goodput_node_pushes_total", at, until, "rate", rate, outcome=outcome)
    what = "an agent does not reach the aggregator"
    plan.fault("GoodputTelemetryMissing", what, at, until, 4 * MINUTE, run="mute", missing="reports")
    plan.fault("GoodputPushFailing", what, at, until, 11 * MINUTE, instance="mute-1:9470")
    plan.run("alone", 70 * MINUTE)
    plan.agent_away["alone-0"] = [(at, until)]
    plan.fault("GoodputAgentDown", "an agent is gone", at, until, 3 * MINUTE, instance="alone-0:9470")
    plan.hardware("alone-0", "goodput_node_rows_thinned_total", 10 * MINUTE, 12 * MINUTE, "rate", 5)
    what = "an agent's backlog is full"
    plan.fault("GoodputBacklogDropping", what, 10 * MINUTE, 12 * MINUTE, 2 * MINUTE, instance="alone-0:9470")
    plan.aggregator_away = [(4.5 * HOUR, 4.5 * HOUR + 10 * MINUTE)]
    plan.fault("GoodputAggregatorDown", "it is gone", *plan.aggregator_away[0], 6 * MINUTE)
    at, until = 60 * MINUTE, 85 * MINUTE
    for alert, what, name, labels, rate, within in (
        ("GoodputLedgerFailing", "writes fail", "ledger_errors_total", {}, 0.1, 6),
        (
            "GoodputReportsRefused",
            "two jobs claim a rank",
            "rank_rejections_total",
            {"reason": "claim"},
            0.1,
            11,
        ),
        ("GoodputClocksContradict", "clocks jump", "clamped_total", {"what": "row"}, 0.1, 10),
        ("GoodputAuthFailures", "a token is wrong", "auth_failures_total", {"reason": "unknown"}, 0.2, 18),
    ):
        plan.aggregators.append((f"goodput_aggregator_{name}", labels, at, until, "grow", rate))
        plan.fault(alert, what, at, until, within * MINUTE)
    failing = ("goodput_aggregator_reload_failing", {"file": "tokens"}, at, until, "set", 1.0)
    plan.aggregators.append(failing)
    what = "the new token file is no good"
    plan.fault("GoodputTokenReloadFailing", what, at, until, 6 * MINUTE)
    expiry, name = (
        EPOCH_SECONDS + 3 * 86_400 + 50 * MINUTE,
        "goodput_aggregator_token_expiry_timestamp_seconds",
    )
    plan.aggregators.append((name, {}, 0.0, 2 * HOUR, "set", expiry))
    plan.fault("GoodputTokenExpiring", "a token has three days left", 50 * MINUTE, 2 * HOUR, 16 * MINUTE)


def _gpus(plan: Plan) -> None:
    """GPUs and their drivers; each node has one after the other."""
    gpu = gpu_of("sound-0", 0)
    rank = {"run": "sound", "rank": "0", "gpu": gpu, "instance": "sound-0:9470"}
    for at, minutes, alert, what, name, how, value, labels, within in (
        (30, 10, "GoodputGpuLost", "it falls off the bus", "gpu_up", "set", 0, {}, 1),
        (
            50,
            10,
            "GoodputGpuNeedsRecovery",
            "its driver asks for a reset",
            "gpu_recovery_action",
            "set",
            1,
            {"action": "gpu_reset"},
            1,
        ),
        (
            70,
            20,
            "GoodputGpuThrottled",
            "it is too hot",
            "gpu_throttled",
            "set",
            1,
            {"reason": "hw_thermal"},
            7,
        ),
        (
            100,
            15,
            "GoodputGpuPcieDegraded",
            "half of its lanes are gone",
            "gpu_pcie_lanes",
            "set",
            8,
            {"kind": "current"},
            5,
        ),
        (125, 20, "GoodputTelemetryFalseZero", "its counters read zero", "gpu_false_zero", "set", 1, {}, 10),
    ):
        begin, end = at * MINUTE, (at + minutes) * MINUTE
        plan.hardware("sound-0", f"goodput_{name}", begin, end, how, value, gpu=gpu, **labels)
        plan.fault(alert, what, begin, end, within * MINUTE, **rank)
    node = {"run": "sound", "instance": "sound-1:9470"}
    plan.hardware("sound-1", "goodput_gpus", 30 * MINUTE, 45 * MINUTE, "set", 3, kind="expected")
    plan.fault("GoodputGpuNotSeen", "a third GPU never shows", 30 * MINUTE, 45 * MINUTE, 5 * MINUTE, **node)
    plan.hardware("sound-1", "goodput_driver_up", 60 * MINUTE, 70 * MINUTE, "set", 0, driver="nvml")
    plan.fault("GoodputGpuDriverDown", "it does not answer", 60 * MINUTE, 70 * MINUTE, 2 * MINUTE, **node)
    name = "goodput_driver_processes_unkillable"
    plan.hardware("sound-1", name, 85 * MINUTE, 95 * MINUTE, "set", 1, driver="nvml")
    plan.fault("GoodputGpuDriverHung", "a call never returns", 85 * MINUTE, 95 * MINUTE, 2 * MINUTE, **node)
    for minute in (110, 116, 122):
        name = "goodput_driver_restarts_total"
        plan.hardware("sound-1", name, minute * MINUTE, 0, "jump", 1, driver="nvml", reason="stuck")
    what = "its process is stuck three times"
    plan.fault("GoodputGpuDriverRestarting", what, 110 * MINUTE, 122 * MINUTE, 8 * MINUTE, **node)


def _gpu_errors(plan: Plan) -> None:
    gpu = gpu_of("sound-2", 1)
    rank = {"run": "sound", "rank": "5", "gpu": gpu, "instance": "sound-2:9470"}
    for at, alert, xid, kind in (
        (30, "GoodputGpuXidCritical", "79", "bus"),
        (60, "GoodputGpuXid", "94", "memory"),
        (90, "GoodputGpuXidApplication", "31", "application"),
    ):
        labels = {"gpu": gpu, "xid": xid, "class": kind}
        plan.hardware("sound-2", "goodput_gpu_xid_errors_total", at * MINUTE, 0, "born", 1, **labels)
        plan.fault(alert, f"XID {xid}", at * MINUTE, at * MINUTE, 0, **rank, xid=xid)
    labels = {"gpu": gpu, "kind": "uncorrectable", "scope": "volatile"}
    plan.hardware("sound-2", "goodput_gpu_ecc_errors_total", 120 * MINUTE, 0, "jump", 1, **labels)
    plan.fault("GoodputGpuUncorrectableEcc", "one error", 120 * MINUTE, 120 * MINUTE, 0, **rank)
    for at, alert, kind, within in (
        (145, "GoodputGpuRowRemapFailure", "failure", 1),
        (165, "GoodputGpuRowRemapPending", "pending", 5),
    ):
        begin, end = at * MINUTE, (at + 10) * MINUTE
        plan.hardware("sound-2", "goodput_gpu_rows_remapped", begin, end, "set", 1, gpu=gpu, kind=kind)
        plan.fault(alert, f"the remap's {kind}", begin, end, within * MINUTE, **rank)


def _links(plan: Plan) -> None:
    port = {"device": "mlx5_0", "port": "1"}
    where = {"run": "sound", "instance": "sound-3:9470", "device": "mlx5_0"}
    plan.hardware("sound-3", "goodput_infiniband_up", 30 * MINUTE, 40 * MINUTE, "set", 0, **port)
    plan.fault("GoodputInfinibandLinkDown", "a cable is out", 30 * MINUTE, 40 * MINUTE, MINUTE, **where)
    plan.hardware("sound-3", "goodput_network_up", 55 * MINUTE, 65 * MINUTE, "set", 0, device="eth0")
    ethernet = {**where, "device": "eth0"}
    plan.fault("GoodputNetworkLinkDown", "a cable is out", 55 * MINUTE, 65 * MINUTE, MINUTE, **ethernet)
    for minute in (80, 84, 88):
        name = "goodput_infiniband_errors_total"
        plan.hardware("sound-3", name, minute * MINUTE, 0, "jump", 1, **port, kind="link_downed")
    what = "it goes down three times"
    plan.fault("GoodputLinkFlapping", what, 80 * MINUTE, 88 * MINUTE, 6 * MINUTE, **where)
    name = "goodput_infiniband_rate_bytes_per_second"
    plan.hardware("sound-3", name, 125 * MINUTE, 140 * MINUTE, "set", 25e9, **port)
    plan.fault("GoodputLinkDegraded", "half its rate", 125 * MINUTE, 140 * MINUTE, 5 * MINUTE, **where)


def _traffic(plan: Plan) -> None:
    port = {"device": "mlx5_0", "port": "1"}
    where = {"run": "sound", "instance": "sound-3:9470", "device": "mlx5_0"}
    at, until, name = 155 * MINUTE, 170 * MINUTE, "goodput_infiniband_retransmits_total"
    plan.hardware("sound-3", name, at, until, "rate", 400, **port)
    plan.fault("GoodputRetransmits", "400 packets a second again", at, until, 8 * MINUTE, **where)
    at, until, ethernet = 185 * MINUTE, 210 * MINUTE, {**where, "device": "eth0"}
    plan.hardware("sound-3", "goodput_network_pause_seconds_total", at, until, "rate", 0.4, device="eth0")
    plan.fault("GoodputNetworkCongestion", "paused for two fifths", at, until, 13 * MINUTE, **ethernet)
    at, until, way = 225 * MINUTE, 255 * MINUTE, {"device": "eth0", "direction": "transmit"}
    plan.hardware("sound-3", "goodput_network_bytes_total", at, until, "rate", 11.5e9, **way)
    what = "97 % of the line rate"
    plan.fault("GoodputNicSaturated", what, at, until, 20 * MINUTE, **ethernet, direction="transmit")


def _host(plan: Plan) -> None:
    node, where = "sound-1", {"run": "sound", "instance": "sound-1:9470"}
    full = {"resource": "io", "kind": "full"}
    at, until = 160 * MINUTE, 180 * MINUTE
    plan.hardware(node, "goodput_host_pressure_seconds_total", at, until, "rate", 0.5, **full)
    plan.fault(
        "GoodputHostPressure", "half of the time all wait", at, until, 13 * MINUTE, **where, resource="io"
    )
    plan.hardware(node, "goodput_host_disk_busy_seconds_total", at, until, "rate", 0.93, device="nvme0n1")
    plan.hardware(node, "goodput_host_disk_operation_seconds_total", at, until, "rate", 30, device="nvme0n1")
    what = "a request takes 0.2 s"
    plan.fault("GoodputDiskSaturated", what, at, until, 15 * MINUTE, **where, device="nvme0n1")
    plan.hardware(node, "goodput_filesystem_up", 30 * MINUTE, 40 * MINUTE, "set", 0, mount="/shared")
    what = "the file server is gone"
    plan.fault("GoodputFilesystemNotAnswering", what, 30 * MINUTE, 40 * MINUTE, 2 * MINUTE, **where)
    at, until, name = 55 * MINUTE, 85 * MINUTE, "goodput_filesystem_available_bytes"
    plan.hardware(node, name, at, until, "set", 7e10, mount="/scratch")
    where_space = {**where, "mount": "/scratch", "what": "space"}
    plan.fault("GoodputFilesystemNearlyFull", "1 % is free", at, until, 15 * MINUTE, **where_space)
    node, where = "sound-2", {"run": "sound", "instance": "sound-2:9470"}
    at, until = 30 * MINUTE, 60 * MINUTE
    plan.hardware(node, "goodput_node_cpu_seconds_total", at, until, "rate", 0.1)
    plan.fault("GoodputAgentOverhead", "a tenth of a core", at, until, 19 * MINUTE, **where, what="cpu")
    plan.hardware(node, "goodput_node_collector_up", at, until, "set", 0, collector="infiniband")
    what = "one of its collectors fails"
    plan.fault("GoodputCollectorDown", what, at, until, 10 * MINUTE, **where, collector="infiniband")


def _outage(plan: Plan) -> None:
    """The storage serves nobody any more."""
    until, what = SECONDS - 25 * MINUTE, "the storage serves a seventh"
    plan.fault("GoodputObjectiveBurnFast", what, OUTAGE_AT, until, 65 * MINUTE, run="sound")
    plan.fault("GoodputClusterObjectiveBurn", what, OUTAGE_AT, until, 65 * MINUTE)
