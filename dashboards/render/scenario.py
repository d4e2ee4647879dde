"""The simulated cluster of the documentation's pictures: five runs in their last hours, and their faults.

    llama-70b    24 ranks on gpu-01 to gpu-03: checkpoints, evaluations, a lost GPU with a restart, a throttled GPU
    vit-22b      8 ranks on gpu-04: its data loader falls behind
    whisper-ft   8 ranks on gpu-05: short, and finished before the end
    mixtral-pre  8 ranks on gpu-06: hangs, since one rank does not leave its loader
    qwen-sft     8 ranks on gpu-07: down, since one of its GPUs is lost

gpu-08 is idle.
"""

from __future__ import annotations

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
from goodput.wire import schema

SCRAPE_SECONDS = 10.0
GPUS_PER_NODE = 8
PEAK_FLOPS_PER_SECOND = 989e12
THROTTLED_RANK, HUNG_RANK = 13, 5
LOST_GPU, THROTTLED_GPU, STILL_LOST_GPU = gpu_uuid("gpu-02", 3), gpu_uuid("gpu-02", 5), gpu_uuid("gpu-07", 2)


class _Moments:
    """When what happens, as if the cluster had been watched for two and a half hours."""

    def __init__(self, start: float, seconds: float):
        def before_end(usual_seconds: float) -> float:
            return self.end - usual_seconds * self.share

        self.start, self.end, self.share = start, start + seconds, min(1.0, seconds / 9000)
        self.lost = before_end(2580)
        self.slow = before_end(1500), before_end(720)
        self.congested = before_end(1500), before_end(1100)
        self.starved = before_end(1900)
        self.finished = before_end(660)
        self.hung = before_end(540)
        self.down = before_end(1260)

    def workload(self, step: float, checkpoint_every: float, evaluation_every: float, **lengths) -> Workload:
        every = {"checkpoint_every": checkpoint_every, "evaluation_every": evaluation_every}
        return Workload(step, **{name: self.share * seconds for name, seconds in every.items()}, **lengths)


def cluster(start: float, seconds: float) -> ScrapedScenario:
    """The scenario from `start` to `start + seconds`; its faults are in the last hour, or sooner in a shorter one."""
    at = _Moments(start, seconds)
    return ScrapedScenario(
        nodes={f"gpu-0{number}": GPUS_PER_NODE for number in range(1, 9)},
        runs=[_llama(at), _vit(at), _whisper(at), _mixtral(at), _qwen(at)],
        changes=[*_damage(at), *_slow_storage(at)],
        ticks=ticks(at.end, SCRAPE_SECONDS, SCRAPE_SECONDS),
        health_events=_health_events(at),
        aggregator_changes=_refusals(at),
        push_outages={"gpu-04": [(at.down, at.down + 400)]},
    )


def _places(*nodes: str) -> list[tuple[str, int]]:
    return [(node, gpu) for node in nodes for gpu in range(GPUS_PER_NODE)]


def _llama(at: _Moments) -> RunPlan:
    places = _places("gpu-01", "gpu-02", "gpu-03")
    attempts = [
        AttemptPlan(at.start + 40, at.lost, places, startup=28, compile=22),
        AttemptPlan(at.lost + 95, at.end + 1e6, places, startup=28, restore=38, compile=22),
    ]
    workload = at.workload(5.8, checkpoint_every=1200, checkpoint=14, evaluation_every=3000, evaluation=70)
    faults = [RunFault("compute", *at.slow, 1.14, rank=THROTTLED_RANK)]
    return _plan("llama-70b", attempts, workload, 0.52, faults)


def _vit(at: _Moments) -> RunPlan:
    attempts = [AttemptPlan(at.start + 100, at.end + 1e6, _places("gpu-04"), startup=28, compile=22)]
    workload = at.workload(2.1, checkpoint_every=900, checkpoint=6, evaluation_every=2400, evaluation=35)
    return _plan("vit-22b", attempts, workload, 0.44, [RunFault("loader", at.starved, at.end + 1e6, 0.4)])


def _whisper(at: _Moments) -> RunPlan:
    begin = max(at.start + 60, at.end - 3000)
    attempts = [AttemptPlan(begin, at.finished, _places("gpu-05"), "finished", startup=28)]
    workload = at.workload(0.9, checkpoint_every=600, checkpoint=3, evaluation_every=1000, evaluation=20)
    return _plan("whisper-ft", attempts, workload, 0.31, [])


def _mixtral(at: _Moments) -> RunPlan:
    attempts = [AttemptPlan(at.start + 30, at.end + 1e6, _places("gpu-06"), startup=28, compile=22)]
    workload = at.workload(3.4, checkpoint_every=1100, checkpoint=8, evaluation_every=2900, evaluation=40)
    faults = [RunFault("hang", at.hung, at.end + 1e6, rank=HUNG_RANK, phase="loader")]
    return _plan("mixtral-pre", attempts, workload, 0.38, faults)


def _qwen(at: _Moments) -> RunPlan:
    attempts = [AttemptPlan(at.start + 70, at.down, _places("gpu-07"), startup=28, compile=22)]
    workload = at.workload(1.7, checkpoint_every=700, checkpoint=5, evaluation_every=2000, evaluation=25)
    return _plan("qwen-sft", attempts, workload, 0.42, [])


def _plan(run: str, attempts: list, workload: Workload, mfu: float, faults: list[RunFault]) -> RunPlan:
    """A plan whose steps, without loader and communication, have this MFU."""
    flops = mfu * PEAK_FLOPS_PER_SECOND * 0.88 * workload.step
    return RunPlan(run, attempts, workload, sum(run.encode()), faults, flops, PEAK_FLOPS_PER_SECOND)


def _damage(at: _Moments) -> list[HardwareChange]:
    """Lost GPUs, a throttled GPU, and a congested network."""
    hot, port = {"gpu": THROTTLED_GPU}, {"device": "mlx5_0", "port": "1"}
    return [
        *_lost_gpu("gpu-02", LOST_GPU, at.lost, at.lost + 60),
        *_lost_gpu("gpu-07", STILL_LOST_GPU, at.down, at.end + 1),
        _event("gpu-02", at.slow[0], "throttle", "warning", THROTTLED_GPU),
        _change("gpu-02", *at.slow, "set", "goodput_gpu_throttled", 1, **hot, reason="thermal"),
        _change("gpu-02", *at.slow, "rate", "goodput_gpu_throttle_seconds_total", 1, **hot, reason="thermal"),
        _change("gpu-02", *at.slow, "set", "goodput_gpu_temperature_celsius", 86, **hot, sensor="core"),
        _change("gpu-02", *at.slow, "set", "goodput_gpu_clock_hertz", 1.38e9, **hot, clock="sm"),
        _change("gpu-02", *at.slow, "set", "goodput_gpu_power_watts", 540, **hot),
        _change("gpu-02", at.slow[0], 0, "jump", "goodput_gpu_pcie_replays_total", 1, **hot),
        _change("gpu-02", *at.congested, "rate", "goodput_infiniband_xmit_wait_ticks_total", 4e6, **port),
        _change("gpu-02", *at.congested, "rate", "goodput_infiniband_retransmits_total", 2.5, **port),
        *_port_down("gpu-07", at),
        *_unreachable("gpu-04", at),
    ]


def _lost_gpu(node: str, gpu: str, lost: float, back: float) -> list[HardwareChange]:
    return [
        _change(node, lost, back, "set", "goodput_gpu_up", 0, gpu=gpu),
        _change(node, lost, back, "set", "goodput_gpus", 1, kind="lost"),
        _change(
            node, lost, 0, "born", "goodput_gpu_xid_errors_total", 1, gpu=gpu, xid="79", **{"class": "bus"}
        ),
        _event(node, lost, "xid", "critical", gpu),
        _event(node, lost, "lost", "critical", gpu),
    ]


def _port_down(node: str, at: _Moments) -> list[HardwareChange]:
    """The second port of a node, which its run hardly uses."""
    port = {"device": "mlx5_9", "port": "1"}
    state = {**port, "kind": "logical", "state": "down"}
    return [
        _change(node, at.down, at.end + 1, "set", "goodput_infiniband_up", 0, **port),
        _change(node, at.down, at.end + 1, "set", "goodput_infiniband_state", 1, **state),
    ]


def _unreachable(node: str, at: _Moments) -> list[HardwareChange]:
    """An agent whose token has expired, for some minutes: its pushes are refused, and its rows wait."""
    during = at.down, at.down + 400
    return [
        _change(node, at.down, 0, "born", "goodput_node_push_failures_total", 1, reason="unauthorized"),
        _change(node, *during, "rate", "goodput_node_push_failures_total", 0.2, reason="unauthorized"),
        _change(node, *during, "rate", "goodput_node_pushes_total", 0.2, outcome="rejected"),
        _change(node, *during, "rate", "goodput_node_pushes_total", -0.2, outcome="accepted"),
        _change(node, *during, "set", "goodput_node_backlog_rows", 900),
    ]


def _slow_storage(at: _Moments) -> list[HardwareChange]:
    """The host series of the run with the slow loader."""
    when, disk, lustre = (at.starved, at.end + 1), {"device": "nvme0n1"}, {"filesystem": "data"}
    return [
        _change("gpu-04", *when, "rate", "goodput_host_pressure_seconds_total", 0.35, resource="io"),
        _change("gpu-04", *when, "rate", "goodput_host_cpu_seconds_total", 25, mode="iowait"),
        _change("gpu-04", *when, "rate", "goodput_host_cpu_seconds_total", -25, mode="idle"),
        _change("gpu-04", *when, "rate", "goodput_host_disk_busy_seconds_total", 0.85, **disk),
        _change("gpu-04", *when, "rate", "goodput_host_disk_bytes_total", 1.8e9, **disk, direction="read"),
        _change("gpu-04", *when, "rate", "goodput_host_disk_operation_seconds_total", 30, **disk),
        _change("gpu-04", *when, "set", "goodput_host_disk_in_flight", 60, **disk),
        _change("gpu-04", *when, "set", "goodput_host_processes_blocked", 14),
        _change("gpu-04", *when, "set", "goodput_filesystem_response_seconds", 0.08, mount="/shared"),
        _change("gpu-04", *when, "rate", "goodput_lustre_operation_seconds_total", 26, **lustre),
        _change("gpu-04", *when, "rate", "goodput_host_major_faults_total", 40),
    ]


def _refusals(at: _Moments) -> list[tuple[str, dict[str, str], float, float, str, float]]:
    """The other side of it."""
    reason = {"reason": "expired"}
    return [
        ("goodput_aggregator_auth_failures_total", reason, at.down, at.down + 400, "grow", 0.1),
        ("goodput_aggregator_requests_total", {"route": "ingest", "code": "401"}, at.down, at.down + 400, "grow", 0.1),
    ]  # fmt: skip


def _change(node: str, start: float, end: float, how: str, series: str, value: float, **labels: str):
    return HardwareChange(node, series, tuple(labels.items()), start, end, how, value)


def _event(node: str, at: float, kind: str, severity: str, device: str) -> HardwareChange:
    labels = {"kind": kind, "severity": severity, "device": device}
    return _change(node, at, 0, "born", "goodput_health_events_total", 1, **labels)


def _health_events(at: _Moments) -> list[tuple[float, str, schema.Health]]:
    def event(seconds: float, node: str, number: int, kind: str, **given) -> tuple[float, str, schema.Health]:
        time_ns = round((seconds + EPOCH_SECONDS) * 1e9)
        return seconds, node, schema.Health(number=number, kind=kind, time_ns=time_ns, **given)

    lost = {"device": LOST_GPU, "severity": "critical", "hits": [("llama-70b", 11)]}
    gone = {"device": STILL_LOST_GPU, "severity": "critical", "hits": [("qwen-sft", 2)]}
    throttled = {"device": THROTTLED_GPU, "severity": "warning", "hits": [("llama-70b", THROTTLED_RANK)]}
    return [
        event(at.lost - 1, "gpu-02", 1, "xid", code=79, name="bus", **lost),
        event(at.lost - 1, "gpu-02", 2, "lost", **lost),
        event(at.slow[0], "gpu-02", 3, "throttle", name="thermal", **throttled),
        event(at.down - 1, "gpu-07", 1, "xid", code=79, name="bus", **gone),
        event(at.down - 1, "gpu-07", 2, "lost", **gone),
    ]
