"""The simulated cluster of the documentation's pictures: three runs in their last hours, and their faults.

    llama-70b    24 ranks on gpu-01 to gpu-03: checkpoints, evaluations, a lost GPU with a restart, a throttled GPU
    vit-22b      8 ranks on gpu-04: its data loader falls behind
    whisper-ft   8 ranks on gpu-05: short, and finished before the end

gpu-06 is idle, and one of its GPUs is lost.
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
THROTTLED_RANK = 13
LOST_GPU, THROTTLED_GPU, IDLE_LOST_GPU = gpu_uuid("gpu-02", 3), gpu_uuid("gpu-02", 5), gpu_uuid("gpu-06", 5)


def cluster(start: float, seconds: float) -> ScrapedScenario:
    """The scenario from `start` to `start + seconds`; its faults are in the last hour."""
    end = start + seconds
    lost_at, slow = max(end - 2580, start + 1500), (end - 1500, end - 720)
    return ScrapedScenario(
        nodes={f"gpu-0{number}": GPUS_PER_NODE for number in range(1, 7)},
        runs=[_llama(start, end, lost_at, slow), _vit(start, end), _whisper(start, end)],
        changes=[*_damage(start, end, lost_at, slow), *_slow_storage(end)],
        ticks=ticks(end, SCRAPE_SECONDS, SCRAPE_SECONDS),
        health_events=_health_events(lost_at, slow[0]),
    )


def _places(*nodes: str) -> list[tuple[str, int]]:
    return [(node, gpu) for node in nodes for gpu in range(GPUS_PER_NODE)]


def _llama(start: float, end: float, lost_at: float, slow: tuple[float, float]) -> RunPlan:
    places = _places("gpu-01", "gpu-02", "gpu-03")
    attempts = [
        AttemptPlan(start + 40, lost_at, places, startup=28, compile=22),
        AttemptPlan(lost_at + 95, end + 1e6, places, startup=28, restore=38, compile=22),
    ]
    workload = Workload(5.8, checkpoint_every=1200, checkpoint=14, evaluation_every=3000, evaluation=70)
    faults = [RunFault("compute", *slow, 1.14, rank=THROTTLED_RANK)]
    return _plan("llama-70b", attempts, workload, 0.52, faults)


def _vit(start: float, end: float) -> RunPlan:
    attempts = [AttemptPlan(start + 100, end + 1e6, _places("gpu-04"), startup=28, compile=22)]
    workload = Workload(2.1, checkpoint_every=900, checkpoint=6, evaluation_every=2400, evaluation=35)
    return _plan("vit-22b", attempts, workload, 0.44, [RunFault("loader", end - 1900, end + 1e6, 0.4)])


def _whisper(start: float, end: float) -> RunPlan:
    begin = max(start + 60, end - 3000)
    attempts = [AttemptPlan(begin, max(end - 660, begin + 60), _places("gpu-05"), "finished", startup=28)]
    workload = Workload(0.9, checkpoint_every=600, checkpoint=3, evaluation_every=1000, evaluation=20)
    return _plan("whisper-ft", attempts, workload, 0.31, [])


def _plan(run: str, attempts: list, workload: Workload, mfu: float, faults: list[RunFault]) -> RunPlan:
    """A plan whose steps, without loader and communication, have this MFU."""
    flops = mfu * PEAK_FLOPS_PER_SECOND * 0.88 * workload.step
    return RunPlan(run, attempts, workload, sum(run.encode()), faults, flops, PEAK_FLOPS_PER_SECOND)


def _damage(start: float, end: float, lost_at: float, slow: tuple[float, float]) -> list[HardwareChange]:
    """Lost GPUs, a throttled GPU, and a congested network."""
    lost, hot, port = {"gpu": LOST_GPU}, {"gpu": THROTTLED_GPU}, {"device": "mlx5_0", "port": "1"}
    xid = {"xid": "79", "class": "bus"}
    back, congested = lost_at + 60, (end - 1500, end - 1100)
    return [
        _change("gpu-06", start, end + 1, "set", "goodput_gpu_up", 0, gpu=IDLE_LOST_GPU),
        _change("gpu-06", start, end + 1, "set", "goodput_gpus", 1, kind="lost"),
        _change("gpu-02", lost_at, back, "set", "goodput_gpu_up", 0, **lost),
        _change("gpu-02", lost_at, back, "set", "goodput_gpus", 1, kind="lost"),
        _change("gpu-02", lost_at, 0, "born", "goodput_gpu_xid_errors_total", 1, **lost, **xid),
        *(
            _change("gpu-02", at, 0, "born", "goodput_health_events_total", 1, **event)
            for at, event in (
                (lost_at, {"kind": "xid", "severity": "critical", "device": LOST_GPU}),
                (lost_at, {"kind": "lost", "severity": "critical", "device": LOST_GPU}),
                (slow[0], {"kind": "throttle", "severity": "warning", "device": THROTTLED_GPU}),
            )
        ),
        _change("gpu-02", *slow, "set", "goodput_gpu_throttled", 1, **hot, reason="thermal"),
        _change("gpu-02", *slow, "rate", "goodput_gpu_throttle_seconds_total", 1, **hot, reason="thermal"),
        _change("gpu-02", *slow, "set", "goodput_gpu_temperature_celsius", 86, **hot, sensor="core"),
        _change("gpu-02", *slow, "set", "goodput_gpu_clock_hertz", 1.38e9, **hot, clock="sm"),
        _change("gpu-02", *slow, "set", "goodput_gpu_power_watts", 540, **hot),
        _change("gpu-02", *congested, "rate", "goodput_infiniband_xmit_wait_ticks_total", 4e6, **port),
        _change("gpu-02", *congested, "rate", "goodput_infiniband_retransmits_total", 2.5, **port),
    ]


def _slow_storage(end: float) -> list[HardwareChange]:
    """The host series of the run with the slow loader."""
    when, disk, lustre = (end - 1900, end + 1), {"device": "nvme0n1"}, {"filesystem": "data"}
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
    ]


def _change(node: str, start: float, end: float, how: str, series: str, value: float, **labels: str):
    return HardwareChange(node, series, tuple(labels.items()), start, end, how, value)


def _health_events(lost_at: float, slow_at: float) -> list[tuple[float, str, schema.Health]]:
    def event(at: float, number: int, kind: str, **given) -> tuple[float, str, schema.Health]:
        time_ns = round((at + EPOCH_SECONDS) * 1e9)
        return at, "gpu-02", schema.Health(number=number, kind=kind, time_ns=time_ns, **given)

    lost = {"device": LOST_GPU, "severity": "critical", "hits": [("llama-70b", 11)]}
    throttled = {"device": THROTTLED_GPU, "severity": "warning", "hits": [("llama-70b", THROTTLED_RANK)]}
    return [
        event(lost_at - 1, 1, "xid", code=79, name="bus", **lost),
        event(lost_at - 1, 2, "lost", **lost),
        event(slow_at, 3, "throttle", name="thermal", **throttled),
    ]
