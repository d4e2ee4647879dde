"""The planted scenario: a morning on which everything breaks, one fault for each alert, and what is expected of it.

Runs of two to eight ranks, each with a fault of its own; hardware breaks on four nodes on which one run without faults
trains; the faults of one device come one after the other. Beside the runs other jobs change on every node every ten
minutes. Towards noon the storage becomes slow for all runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from msgspec.structs import replace

from bench.alert_replay.jobs import changing_jobs
from bench.alert_replay.scrape import ScrapedScenario
from bench.alert_replay.ticks import ticks
from goodput.simulate.scenario import (
    EPOCH_SECONDS,
    AttemptPlan,
    HardwareChange,
    RunFault,
    RunPlan,
    Workload,
    gpu_uuid,
)

MINUTE, HOUR = 60.0, 3600.0
OUTAGE_AT = 5.0 * HOUR
SECONDS = OUTAGE_AT + 2.0 * HOUR
WORKLOAD = Workload(
    step=8, checkpoint_every=900, checkpoint=20, evaluation_every=3 * HOUR, evaluation=60, epoch_every=1e9
)
GPUS = 2


@dataclass(frozen=True)
class PlantedFault:
    """A fault from `start` to `end`, and the alert that must fire at most `within` seconds after its start.

    `within` is the sum of the alert's windows and its `for`, and a minute; `labels` must be among the alert's.
    """

    alert: str
    what: str
    start: float
    end: float
    within: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass
class Plan:
    """Collects the scenario and its faults."""

    scenario: ScrapedScenario
    faults: list[PlantedFault] = field(default_factory=list)

    def fault(self, alert: str, what: str, start: float, end: float, within: float, /, **labels: str) -> None:
        fault = PlantedFault(alert, what, start, end, within + MINUTE, tuple(labels.items()))
        self.faults.append(fault)

    def run(
        self,
        run: str,
        end: float,
        *faults: RunFault,
        ranks: int = 2,
        attempts=None,
        workload=WORKLOAD,
        world_size: int | None = None,
    ) -> None:
        """Add a run on nodes of its own, named after it; `attempts` are (start, end, outcome)."""
        nodes = [f"{run}-{i}" for i in range(-(-ranks // GPUS))]
        self.scenario.nodes |= dict.fromkeys(nodes, GPUS)
        places = [(node, gpu) for node in nodes for gpu in range(GPUS)][:ranks]
        plans = [
            AttemptPlan(
                begin, stop, places, outcome, startup=20, restore=10, compile=15, world_size=world_size
            )
            for begin, stop, outcome in attempts or [(60.0, end, "finished")]
        ]
        self.scenario.runs.append(RunPlan(run, plans, workload, seed=sum(run.encode()), faults=list(faults)))

    def hardware(
        self, node: str, name: str, start: float, end: float, how: str, value: float, /, **labels: str
    ) -> None:
        change = HardwareChange(node, name, tuple(labels.items()), start, end, how, value)
        self.scenario.changes.append(change)


def planted(base: float = 10.0) -> tuple[ScrapedScenario, list[PlantedFault]]:
    """The scenario, scraped every `base` seconds, and the faults in it."""
    plan = Plan(ScrapedScenario(nodes={}, runs=[], ticks=ticks(SECONDS, base, base)))
    _slow_runs(plan)
    _stalled_runs(plan)
    _checkpoints(plan)
    _stack(plan)
    outage = RunFault("loader", OUTAGE_AT, SECONDS - 25 * MINUTE, 6.0)
    plan.run("sound", SECONDS + HOUR, outage, ranks=8)
    for add in (_gpus, _drivers, _gpu_errors, _links, _traffic, _host, _machine):
        add(plan)
    what, end = "the storage serves a seventh", SECONDS - 25 * MINUTE
    plan.fault("GoodputObjectiveBurn#fast", what, OUTAGE_AT, end, 65 * MINUTE, run="sound")
    plan.fault("GoodputObjectiveBurn#cluster", what, OUTAGE_AT, end, 65 * MINUTE)
    plan.scenario.runs += changing_jobs(plan.scenario, SECONDS, outage)
    return plan.scenario, plan.faults


def _slow_runs(plan: Plan) -> None:
    start, end = 40 * MINUTE, 75 * MINUTE
    plan.run("drops", 95 * MINUTE, RunFault("communication", start, end, 1.5))
    plan.fault(
        "GoodputUtilisationDrop", "collectives take most of each step", start, end, 14 * MINUTE, run="drops"
    )
    plan.run("starves", 95 * MINUTE, RunFault("loader", start, end, 0.6))
    plan.fault(
        "GoodputLoaderStarved", "the loader takes 60 % of a step more", start, end, 13 * MINUTE, run="starves"
    )
    plan.run("limps", 95 * MINUTE, RunFault("compute", start, end, 1.5, rank=3), ranks=4)
    where = {"run": "limps", "rank": "3"}
    plan.fault("GoodputStragglerRank", "one rank computes at two thirds", start, end, 16 * MINUTE, **where)
    plan.run("wastes", 110 * MINUTE, RunFault("compute", start, 85 * MINUTE, 1.6))
    plan.fault(
        "GoodputMfuDrop", "kernels take 1.6 times as long", start, 85 * MINUTE, 25 * MINUTE, run="wastes"
    )
    plan.run("watched", 130 * MINUTE, RunFault("sdk", start, 90 * MINUTE, 0.06))
    what = "measuring takes 6 % of the time"
    plan.fault("GoodputOverBudget#sdk", what, start, 90 * MINUTE, 30 * MINUTE, run="watched")
    # From half past one: half of its time is good, for hours.
    start, end = 90 * MINUTE, OUTAGE_AT - 10 * MINUTE
    plan.run(
        "burns",
        SECONDS + HOUR,
        RunFault("communication", start, end, 0.9),
        RunFault("loader", OUTAGE_AT, SECONDS - 25 * MINUTE, 6.0),
    )
    what = "half of its time is lost, for hours"
    plan.fault("GoodputObjectiveBurn#slow", what, start, end, 3.3 * HOUR, run="burns")


def _stalled_runs(plan: Plan) -> None:
    """Runs that make no progress, restart again and again, or lack a rank."""
    start, end = 30 * MINUTE, 50 * MINUTE
    for run, ranks in (("hangs", 8), ("halts", 2)):
        plan.run(run, 70 * MINUTE, RunFault("hang", start, end, rank=1, phase="loader"), ranks=ranks)
        what = f"one of {ranks} ranks hangs in its loader"
        plan.fault("GoodputRunStalled", what, start, end, 6 * MINUTE, run=run)
    ends = [40 * MINUTE + 5 * MINUTE * i for i in range(6)]
    attempts = [(60.0, ends[0], "killed")]
    attempts += [(low + 40, high, "failed") for low, high in itertools.pairwise(ends)]
    plan.run("loops", 0, attempts=[*attempts, (ends[-1] + 40, 110 * MINUTE, "finished")])
    plan.fault("GoodputRestartLoop", "it dies every 5 minutes", ends[0], ends[-1], 14 * MINUTE, run="loops")
    end = 35 * MINUTE
    plan.run("fails", 0, ranks=8, attempts=[(60.0, end, "failed")])
    plan.scenario.declared_ends.append((end + 20, "fails", "failed"))
    what, until = "its scheduler reports it as failed", end + 10 * MINUTE
    plan.fault("GoodputRunFailed", what, end, until, 4 * MINUTE, run="fails")
    until = end + 30 * MINUTE
    plan.run("dies", 0, ranks=8, attempts=[(60.0, end, "killed")])
    plan.scenario.declared_ends.append((until, "dies", "cancelled"))
    plan.fault("GoodputRunFailed", "it is killed", end, until, 4 * MINUTE, run="dies")
    plan.run("falls", 0, ranks=2, attempts=[(60.0, end, "killed")])
    plan.scenario.declared_ends.append((until, "falls", "cancelled"))
    plan.fault("GoodputRunFailed", "it is killed, with 2 ranks", end, until, 21 * MINUTE, run="falls")
    plan.run("vanishes", 0, ranks=8, attempts=[(60.0, end, "killed")])
    plan.scenario.declared_ends.append((until, "vanishes", "cancelled"))
    plan.fault("GoodputRunFailed", "its nodes lose power", end, until, 4 * MINUTE, run="vanishes")
    for number in range(4):
        node, what = f"vanishes-{number}", "its node loses power"
        plan.scenario.agent_outages[node] = [(end, until)]
        plan.fault("GoodputAgentDown", what, end, until, 3 * MINUTE, instance=f"{node}:9470")
    plan.run("misses", 80 * MINUTE, attempts=[(60.0, 40 * MINUTE, "finished")], world_size=3)
    what = "one of three ranks was never seen"
    plan.fault(
        "GoodputTelemetryMissing#ranks", what, 60.0, 40 * MINUTE, 12 * MINUTE, run="misses", missing="ranks"
    )


def _checkpoints(plan: Plan) -> None:
    often = replace(WORKLOAD, checkpoint_every=400.0)
    start, killed = 35 * MINUTE, 95 * MINUTE
    attempts = [(60.0, killed, "killed"), (killed + 60, 170 * MINUTE, "finished")]
    plan.run("forgets", 0, RunFault("unsaved", start, killed), attempts=attempts, workload=often)
    plan.fault(
        "GoodputCheckpointLate#old",
        "it saves no checkpoints any more",
        start,
        killed,
        37 * MINUTE,
        run="forgets",
    )
    what = "it dies an hour after its last checkpoint"
    plan.fault("GoodputLostWork", what, killed, killed + HOUR, 6 * MINUTE, run="forgets")
    start, end = 36 * MINUTE, 66 * MINUTE
    plan.run("crawls", 90 * MINUTE, RunFault("save", start, end, 1500.0), workload=often)
    plan.fault("GoodputCheckpointLate#slow", "a save takes 25 minutes", start, end, 21 * MINUTE, run="crawls")


def _stack(plan: Plan) -> None:
    """Agents and the aggregator itself."""
    start, end = 30 * MINUTE, 45 * MINUTE
    plan.run("mute", 70 * MINUTE, ranks=4)
    plan.scenario.push_outages["mute-1"] = [(start, end)]
    for outcome, rate in (("accepted", -0.2), ("unreachable", 0.2)):
        plan.hardware("mute-1", "goodput_node_pushes_total", start, end, "rate", rate, outcome=outcome)
    what = "an agent does not reach the aggregator"
    plan.fault("GoodputTelemetryMissing#ranks", what, start, end, 4 * MINUTE, run="mute", missing="reports")
    plan.fault("GoodputPushFailing#failing", what, start, end, 11 * MINUTE, instance="mute-1:9470")
    plan.run("alone", 70 * MINUTE)
    plan.scenario.agent_outages["alone-0"] = [(start, end)]
    plan.fault("GoodputAgentDown", "an agent is gone", start, end, 3 * MINUTE, instance="alone-0:9470")
    plan.hardware("alone-0", "goodput_node_rows_thinned_total", 10 * MINUTE, 12 * MINUTE, "rate", 5)
    what = "an agent's backlog is full"
    plan.fault(
        "GoodputPushFailing#dropping", what, 10 * MINUTE, 12 * MINUTE, 2 * MINUTE, instance="alone-0:9470"
    )
    plan.scenario.aggregator_outages = [(4.5 * HOUR, 4.5 * HOUR + 10 * MINUTE)]
    plan.fault("GoodputAggregatorDown", "it is gone", *plan.scenario.aggregator_outages[0], 6 * MINUTE)
    start, end = 60 * MINUTE, 85 * MINUTE
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
        ("GoodputClocksContradict#contradict", "clocks jump", "clamped_total", {"what": "row"}, 0.1, 10),
        ("GoodputAuthFailures", "a token is wrong", "auth_failures_total", {"reason": "unknown"}, 0.2, 18),
    ):
        plan.scenario.aggregator_changes.append(
            (f"goodput_aggregator_{name}", labels, start, end, "grow", rate)
        )
        plan.fault(alert, what, start, end, within * MINUTE)
    skewed = ("goodput_node_clock_offset_seconds", {"node": "n0"}, start, end, "set", 300.0)
    plan.scenario.aggregator_changes.append(skewed)
    plan.fault("GoodputClocksContradict#skew", "a node is 300 s ahead", start, end, 5 * MINUTE)
    failing = ("goodput_aggregator_reload_failing", {"file": "tokens"}, start, end, "set", 1.0)
    plan.scenario.aggregator_changes.append(failing)
    what = "the new token file is no good"
    plan.fault("GoodputCredentials#reload", what, start, end, 6 * MINUTE)
    expiry, name = (
        EPOCH_SECONDS + 3 * 86_400 + 50 * MINUTE,
        "goodput_aggregator_token_expiry_timestamp_seconds",
    )
    plan.scenario.aggregator_changes.append((name, {}, 0.0, 2 * HOUR, "set", expiry))
    plan.fault("GoodputCredentials#token", "a token has three days left", 50 * MINUTE, 2 * HOUR, 16 * MINUTE)
    name = "goodput_aggregator_certificate_expiry_timestamp_seconds"
    expiry = EPOCH_SECONDS + 14 * 86_400 + 50 * MINUTE
    plan.scenario.aggregator_changes.append((name, {}, 0.0, 2 * HOUR, "set", expiry))
    plan.fault("GoodputCredentials#certificate", "it has two weeks left", 50 * MINUTE, 2 * HOUR, 16 * MINUTE)
    start, end = 30 * MINUTE, 45 * MINUTE
    accepted = "goodput_aggregator_reports_total", {"outcome": "accepted"}
    plan.scenario.aggregator_changes.append((*accepted, start, end, "set", 1.0))
    plan.fault("GoodputTelemetryMissing#all", "no push is accepted", start, end, 9 * MINUTE)
    start, end = 95 * MINUTE, 105 * MINUTE
    for problem, what, name, value, within in (
        ("unserved", "two partitions have no aggregator", "partitions_unserved", 2.0, 3),
        ("late", "an aggregator is 90 s behind", "stream_delay_seconds", 90.0, 4),
    ):
        plan.scenario.aggregator_changes.append((f"goodput_aggregator_{name}", {}, start, end, "set", value))
        plan.fault(f"GoodputTelemetryMissing#{problem}", what, start, end, within * MINUTE)


def _gpus(plan: Plan) -> None:
    """One GPU's faults, one after the other."""
    gpu = gpu_uuid("sound-0", 0)
    rank = {"gpu": gpu, "instance": "sound-0:9470"}
    for minute, minutes, alert, what, name, how, value, labels, within in (
        (30, 10, "GoodputGpuLost#lost", "it falls off the bus", "gpu_up", "set", 0, {}, 1),
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
        (
            125,
            20,
            "GoodputCollectorDown#false_zero",
            "its counters read zero",
            "gpu_false_zero",
            "set",
            1,
            {},
            10,
        ),
    ):
        start, end = minute * MINUTE, (minute + minutes) * MINUTE
        plan.hardware("sound-0", f"goodput_{name}", start, end, how, value, gpu=gpu, **labels)
        plan.fault(alert, what, start, end, within * MINUTE, **rank)


def _drivers(plan: Plan) -> None:
    """GPUs that no driver shows, and drivers that do not answer, one after the other."""
    node = {"instance": "sound-1:9470"}
    plan.hardware("sound-1", "goodput_gpus", 30 * MINUTE, 45 * MINUTE, "set", 3, kind="expected")
    plan.fault(
        "GoodputGpuLost#not_seen", "a third GPU never shows", 30 * MINUTE, 45 * MINUTE, 5 * MINUTE, **node
    )
    plan.hardware("sound-1", "goodput_driver_up", 60 * MINUTE, 70 * MINUTE, "set", 0, driver="nvml")
    plan.fault(
        "GoodputGpuDriverDown#down", "it does not answer", 60 * MINUTE, 70 * MINUTE, 2 * MINUTE, **node
    )
    name = "goodput_driver_processes_unkillable"
    plan.hardware("sound-1", name, 85 * MINUTE, 95 * MINUTE, "set", 1, driver="nvml")
    plan.fault(
        "GoodputGpuDriverDown#hung", "a call never returns", 85 * MINUTE, 95 * MINUTE, 2 * MINUTE, **node
    )
    for minute in (110, 116, 122):
        name = "goodput_driver_restarts_total"
        plan.hardware("sound-1", name, minute * MINUTE, 0, "jump", 1, driver="nvml", reason="stuck")
    what = "its process is stuck three times"
    plan.fault("GoodputGpuDriverDown#restarting", what, 110 * MINUTE, 122 * MINUTE, 8 * MINUTE, **node)


def _gpu_errors(plan: Plan) -> None:
    gpu = gpu_uuid("sound-2", 1)
    rank = {"gpu": gpu, "instance": "sound-2:9470"}
    for minute, alert, xid, kind in (
        (30, "GoodputGpuXid#critical", "79", "bus"),
        (60, "GoodputGpuXid#other", "94", "memory"),
        (90, "GoodputGpuXid#application", "31", "application"),
    ):
        labels = {"gpu": gpu, "xid": xid, "class": kind}
        plan.hardware("sound-2", "goodput_gpu_xid_errors_total", minute * MINUTE, 0, "born", 1, **labels)
        plan.fault(alert, f"XID {xid}", minute * MINUTE, minute * MINUTE, 0, **rank, xid=xid)
    labels = {"gpu": gpu, "kind": "uncorrectable", "scope": "volatile"}
    plan.hardware("sound-2", "goodput_gpu_ecc_errors_total", 120 * MINUTE, 0, "jump", 1, **labels)
    plan.fault("GoodputGpuMemory#uncorrectable", "one error", 120 * MINUTE, 120 * MINUTE, 0, **rank)
    for minute, alert, kind, within in (
        (145, "GoodputGpuMemory#no_spare_rows", "failure", 1),
        (165, "GoodputGpuMemory#reset_pending", "pending", 5),
    ):
        start, end = minute * MINUTE, (minute + 10) * MINUTE
        plan.hardware("sound-2", "goodput_gpu_rows_remapped", start, end, "set", 1, gpu=gpu, kind=kind)
        plan.fault(alert, f"the remap's {kind}", start, end, within * MINUTE, **rank)


def _links(plan: Plan) -> None:
    port = {"device": "mlx5_0", "port": "1"}
    where = {"instance": "sound-3:9470", "device": "mlx5_0"}
    plan.hardware("sound-3", "goodput_infiniband_up", 30 * MINUTE, 40 * MINUTE, "set", 0, **port)
    plan.fault("GoodputLinkDown#infiniband", "a cable is out", 30 * MINUTE, 40 * MINUTE, MINUTE, **where)
    plan.hardware("sound-3", "goodput_network_up", 55 * MINUTE, 65 * MINUTE, "set", 0, device="eth0")
    ethernet = {**where, "device": "eth0"}
    plan.fault("GoodputLinkDown#network", "a cable is out", 55 * MINUTE, 65 * MINUTE, MINUTE, **ethernet)
    for minute in (80, 84, 88):
        name = "goodput_infiniband_errors_total"
        plan.hardware("sound-3", name, minute * MINUTE, 0, "jump", 1, **port, kind="link_downed")
    what = "it goes down three times"
    plan.fault("GoodputLinkDegraded#flapping", what, 80 * MINUTE, 88 * MINUTE, 6 * MINUTE, **where)
    name = "goodput_infiniband_rate_bytes_per_second"
    plan.hardware("sound-3", name, 125 * MINUTE, 140 * MINUTE, "set", 25e9, **port)
    plan.fault(
        "GoodputLinkDegraded#rate_or_errors", "half its rate", 125 * MINUTE, 140 * MINUTE, 5 * MINUTE, **where
    )


def _traffic(plan: Plan) -> None:
    port = {"device": "mlx5_0", "port": "1"}
    where = {"instance": "sound-3:9470", "device": "mlx5_0"}
    start, end, name = 155 * MINUTE, 170 * MINUTE, "goodput_infiniband_retransmits_total"
    plan.hardware("sound-3", name, start, end, "rate", 400, **port)
    plan.fault(
        "GoodputNetworkCongestion#retransmits", "400 packets a second again", start, end, 8 * MINUTE, **where
    )
    start, end, ethernet = 185 * MINUTE, 210 * MINUTE, {**where, "device": "eth0"}
    plan.hardware("sound-3", "goodput_network_pause_seconds_total", start, end, "rate", 0.4, device="eth0")
    plan.fault(
        "GoodputNetworkCongestion#congestion", "paused for two fifths", start, end, 13 * MINUTE, **ethernet
    )
    start, end, way = 225 * MINUTE, 255 * MINUTE, {"device": "eth0", "direction": "transmit"}
    plan.hardware("sound-3", "goodput_network_bytes_total", start, end, "rate", 11.5e9, **way)
    what = "97 % of the line rate"
    plan.fault(
        "GoodputNetworkCongestion#saturated", what, start, end, 20 * MINUTE, **ethernet, direction="transmit"
    )


def _machine(plan: Plan) -> None:
    node, where = "sound-3", {"instance": "sound-3:9470"}
    alert, labels = "GoodputHostDegraded#memory", {"controller": "0", "kind": "uncorrectable"}
    plan.hardware(node, "goodput_host_memory_errors_total", 20 * MINUTE, 0, "jump", 1, **labels)
    plan.fault(
        alert,
        "a module loses data",
        20 * MINUTE,
        20 * MINUTE,
        MINUTE,
        **where,
        controller=labels["controller"],
    )
    alert, start, end = "GoodputHostDegraded#storage", 45 * MINUTE, 55 * MINUTE
    plan.hardware(node, "goodput_host_nvme_up", start, end, "set", 0, device="nvme0")
    plan.fault(alert, "an NVMe controller is gone", start, end, 2 * MINUTE, **where, device="nvme0")
    start, end, name = 65 * MINUTE, 75 * MINUTE, "goodput_filesystem_readonly"
    plan.hardware(node, name, start, end, "set", 1, mount="/scratch")
    plan.fault(alert, "a file system is read-only", start, end, 2 * MINUTE, **where, mount="/scratch")
    start, end, package = 90 * MINUTE, 120 * MINUTE, {"package": "1"}
    plan.hardware(
        node, "goodput_host_cpu_throttles_total", start, end, "rate", 0.5, **package, kind="package"
    )
    plan.fault("GoodputHostDegraded#heat", "30 times a minute", start, end, 15 * MINUTE, **where, **package)
    start, end, name = 130 * MINUTE, 160 * MINUTE, "goodput_host_clock_error_seconds"
    plan.hardware(node, "goodput_host_clock_synchronised", start, end, "set", 0)
    plan.hardware(node, name, start, end, "set", 16, kind="maximum")
    what = "no time daemon"
    plan.fault("GoodputClocksContradict#unsynchronised", what, start, end, 15 * MINUTE, **where)
    start, end = 170 * MINUTE, 200 * MINUTE
    plan.hardware(node, "goodput_host_softnet_dropped_total", start, end, "rate", 40)
    what = "40 packets a second"
    plan.fault("GoodputNetworkCongestion#backlog", what, start, end, 15 * MINUTE, **where)


def _host(plan: Plan) -> None:
    node, where = "sound-1", {"instance": "sound-1:9470"}
    full = {"resource": "io", "kind": "full"}
    start, end = 160 * MINUTE, 180 * MINUTE
    plan.hardware(node, "goodput_host_pressure_seconds_total", start, end, "rate", 0.5, **full)
    plan.fault(
        "GoodputHostDegraded#pressure",
        "half of the time all wait",
        start,
        end,
        13 * MINUTE,
        **where,
        resource="io",
    )
    plan.hardware(node, "goodput_host_disk_busy_seconds_total", start, end, "rate", 0.93, device="nvme0n1")
    plan.hardware(node, "goodput_host_disk_operation_seconds_total", start, end, "rate", 30, device="nvme0n1")
    what = "a request takes 0.2 s"
    plan.fault("GoodputHostDegraded#disk", what, start, end, 15 * MINUTE, **where, device="nvme0n1")
    plan.hardware(node, "goodput_filesystem_up", 30 * MINUTE, 40 * MINUTE, "set", 0, mount="/shared")
    what = "the file server is gone"
    plan.fault("GoodputFilesystemNotAnswering", what, 30 * MINUTE, 40 * MINUTE, 2 * MINUTE, **where)
    start, end, name = 55 * MINUTE, 85 * MINUTE, "goodput_filesystem_available_bytes"
    plan.hardware(node, name, start, end, "set", 7e10, mount="/scratch")
    where_space = {**where, "mount": "/scratch", "what": "space"}
    plan.fault("GoodputFilesystemNearlyFull", "1 % is free", start, end, 15 * MINUTE, **where_space)
    node, where = "sound-2", {"instance": "sound-2:9470"}
    start, end = 30 * MINUTE, 60 * MINUTE
    plan.hardware(node, "goodput_node_cpu_seconds_total", start, end, "rate", 0.1)
    plan.fault("GoodputOverBudget#agent", "a tenth of a core", start, end, 19 * MINUTE, **where, what="cpu")
    plan.hardware(node, "goodput_node_collector_up", start, end, "set", 0, collector="infiniband")
    what = "one of its collectors fails"
    plan.fault("GoodputCollectorDown#failing", what, start, end, 10 * MINUTE, **where, collector="infiniband")
