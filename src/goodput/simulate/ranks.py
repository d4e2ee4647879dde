"""What a node agent exposes of the ranks on its node, as (series, labels, value)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from goodput.histograms.histogram import LATENCY_BOUNDS, STEP_BOUNDS
from goodput.simulate import operations
from goodput.simulate.gpus import GPUS_PER_NUMA_NODE
from goodput.simulate.probe import OF_GPU
from goodput.simulate.run import COLUMN, HISTOGRAMS, Attempt, SimulatedRun
from goodput.simulate.scenario import DEVICE, gpu_uuid

Labels = dict[str, str]
Sample = tuple[str, Labels, float]
PAGE_KEPT_SECONDS = 60.0  # for so long the agent exposes the page of a process that has ended
LOADER_REASONS = {"storage": 0.72, "decode": 0.16, "collate": 0.04, "cpus": 0.03, "queue": 0.05}
LOADER_WORKERS = 4
HIDDEN_SHARE = 0.2  # of loading and copies, on the device
# Of a traced step: shares of its length.
TRACED = {
    "compute": 0.81,
    "communication": 0.1,
    "copy": 0.004,
    "loader": 0.012,
    "host": 0.05,
    "idle": 0.024,
    "communication_hidden": 0.16,
    "copy_hidden": 0.01,
    "kernel": 0.83,
}
H2D_SHARE = 0.41  # of what the node reaches, in a traced step
TRACE_EVERY_SECONDS, TRACED_RANKS = 600, 16
# Of a step: calls, bytes and device time of NCCL; bytes that a rank sends, and waits of its transfers by what for.
NCCL = {"all_reduce": (26, 1.4e9, 0.18), "all_gather": (12, 0.3e9, 0.05), "reduce_scatter": (12, 0.3e9, 0.06)}
NCCL_SENT, NCCL_WAITS = (
    0.9e9,
    {
        ("send", "gpu"): 0.2,
        ("send", "peer"): 0.3,
        ("send", "network"): 0.8,
        ("receive", "network"): 0.9,
        ("receive", "gpu"): 0.1,
    },
)


def series(run: SimulatedRun, now: float, node: str, wanted: Container[str]) -> Iterator[Sample]:
    """The series of a run's newest attempt. Expensive ones are left out unless `wanted` has them."""
    attempt = run.attempt
    if attempt is None or (now - attempt.end_ns / 1e9 > PAGE_KEPT_SECONDS and not attempt.alive):
        return
    for rank, (host, index) in enumerate(attempt.plan.places):
        if host != node:
            continue
        who = {"run": run.name, "rank": str(rank)}
        yield from _basic(attempt, rank, now, who)
        if "goodput_step_duration_seconds" in wanted:
            yield from _histograms(attempt, rank, who)
            yield from _device_clock(attempt, rank, who)
            yield from _loader(attempt, rank, who)
        if "goodput_rank_step_seconds" in wanted and attempt.recent:
            yield from _quantiles(attempt, rank, who)
        if "goodput_rank_numa_node" in wanted and attempt.alive:
            yield from _process(attempt, rank, index, who)
            yield from _traced_step(run, attempt, rank, now, who)
            yield from _nccl(run, attempt, who)


def _basic(attempt: Attempt, rank: int, now: float, who: Labels) -> Iterator[Sample]:
    host, index = attempt.plan.places[rank]
    gpu = gpu_uuid(host, index)
    phase, boundary_ns, totals = attempt.live[rank]
    place = {"host": host, "device": DEVICE, "gpu_uuid": gpu, "group": "", "stage": ""}
    yield "goodput_rank_info", {**who, "attempt": str(attempt.number), **place}, 1
    yield "goodput_rank_alive", who, float(attempt.alive)
    if attempt.alive:
        age = now - boundary_ns / 1e9
        yield "goodput_rank_beat_age_seconds", who, age
        yield "goodput_rank_phase_age_seconds", {**who, "phase": phase}, age
        yield "goodput_gpu_rank_info", {"gpu": gpu, **who}, 1
        yield "goodput_rank_process_known", who, 1
    yield "goodput_rank_step", who, attempt.step - 1
    yield "goodput_steps_total", who, attempt.steps_done
    yield "goodput_samples_total", who, attempt.samples
    yield "goodput_sdk_cost_seconds_total", who, attempt.cost_ns / 1e9
    yield "goodput_sdk_budget_ratio", who, 0.01
    yield "goodput_sdk_phases_every", who, 1
    for name, column in COLUMN.items():
        yield "goodput_phase_seconds_total", {**who, "phase": name, "clock": "host"}, totals[column] / 1e9
    for row in operations.rows(int(totals[COLUMN["communication"]]), attempt.steps_done):
        labels = {**who, "group": row.group, "operation": row.operation}
        yield "goodput_collective_calls_total", labels, row.calls
        yield "goodput_collective_bytes_total", labels, row.bytes
        yield "goodput_collective_exposed_seconds_total", labels, row.exposed_ns / 1e9


def _histograms(attempt: Attempt, rank: int, who: Labels) -> Iterator[Sample]:
    in_steps = (attempt.totals[rank] - attempt.outside[rank]) / 1e9
    yield from _histogram(
        "goodput_step_duration_seconds", who, STEP_BOUNDS, attempt.step_counts, in_steps.sum()
    )
    for phase, counts in zip(HISTOGRAMS, attempt.phase_counts[rank], strict=True):
        labels, total = {**who, "phase": phase}, in_steps[COLUMN[phase]]
        yield from _histogram("goodput_phase_duration_seconds", labels, LATENCY_BOUNDS, counts, total)


def _histogram(
    name: str, labels: Labels, bounds: Sequence[float], counts: np.ndarray, total: float
) -> Iterator[Sample]:
    below = np.cumsum(counts).tolist()
    for bound, count in zip((*map(repr, bounds), "+Inf"), below, strict=True):
        yield f"{name}_bucket", {**labels, "le": bound}, count
    yield f"{name}_sum", labels, float(total)
    yield f"{name}_count", labels, below[-1]


def _quantiles(attempt: Attempt, rank: int, who: Labels) -> Iterator[Sample]:
    """Exact, of the newest steps."""
    lengths = [length_ns for length_ns, _ in attempt.recent]
    for q, seconds in _of_quantiles(lengths):
        yield "goodput_rank_step_seconds", {**who, "q": q}, seconds
    for phase in attempt.recent[-1][1]:
        spent = [by_phase[phase][rank] for _, by_phase in attempt.recent]
        for q, seconds in _of_quantiles(spent):
            yield "goodput_rank_phase_seconds", {**who, "phase": phase, "q": q}, seconds


def _of_quantiles(lengths_ns: list[int]) -> Iterator[tuple[str, float]]:
    ordered = sorted(lengths_ns)
    for percent in (50, 95, 99):
        yield f"p{percent}", float(ordered[-(-percent * len(ordered) // 100) - 1]) / 1e9


def _device_clock(attempt: Attempt, rank: int, who: Labels) -> Iterator[Sample]:
    _, _, totals = attempt.live[rank]
    # The device's queue hides a part of loading and copies: it still computes meanwhile.
    hidden = {phase: HIDDEN_SHARE * totals[COLUMN[phase]] for phase in ("loader", "h2d")}
    for phase, column in COLUMN.items():
        own = totals[column] - hidden.get(phase, 0.0) + (phase == "backward") * sum(hidden.values())
        yield "goodput_phase_seconds_total", {**who, "phase": phase, "clock": "device"}, own / 1e9
    yield "goodput_sdk_unmeasured_steps_total", who, 0


def _loader(attempt: Attempt, rank: int, who: Labels) -> Iterator[Sample]:
    _, _, totals = attempt.live[rank]
    starved = int(attempt.starved_batches[rank])
    waited, wall = totals[COLUMN["loader"]] / 1e9, sum(totals) / 1e9
    yield "goodput_loader_batches_total", who, attempt.steps_done
    yield "goodput_loader_starved_batches_total", who, starved
    yield "goodput_loader_ready_batches_total", who, 3 * (attempt.steps_done - starved)
    yield "goodput_loader_workers", who, LOADER_WORKERS
    for reason, share in LOADER_REASONS.items():
        yield "goodput_loader_wait_seconds_total", {**who, "reason": reason}, share * waited
    storage = 0.25 * wall + LOADER_REASONS["storage"] * waited
    parts = {"storage": storage, "decode": 0.2 * wall, "collate": 0.03 * wall, "cpus": 0.01 * wall}
    parts["idle"] = max(0.0, wall - sum(parts.values()))
    for worker in range(LOADER_WORKERS):
        labels = {**who, "loader": "0", "worker": str(worker)}
        for part, seconds in parts.items():
            yield "goodput_loader_worker_seconds_total", {**labels, "part": part}, seconds
        yield "goodput_loader_worker_batches_total", labels, attempt.steps_done / LOADER_WORKERS
        waited_for = LOADER_REASONS["storage"] * waited / LOADER_WORKERS
        yield "goodput_loader_worker_waited_seconds_total", labels, waited_for


def _process(attempt: Attempt, rank: int, index: int, who: Labels) -> Iterator[Sample]:
    host, _ = attempt.plan.places[rank]
    near = str(index // GPUS_PER_NUMA_NODE)
    yield "goodput_rank_numa_node", who, int(near)
    for node in ("0", "1"):
        yield "goodput_rank_cpus", {**who, "node": node}, 16 if node == near else 0
    unknown = dict.fromkeys(("container", "container_id", "pod", "namespace", "pod_uid"), "")
    pid = str(1000 * attempt.number + rank)
    process = {
        "pid": pid,
        "user": "train",
        "comm": "python",
        **unknown,
        "slurm_job": "81207",
        "slurm_step": "0",
    }
    gpu = gpu_uuid(host, index)
    yield "goodput_gpu_process_info", {"gpu": gpu, **process}, 1
    yield "goodput_gpu_processes", {"gpu": gpu}, 1
    yield "goodput_rank_process_info", {**who, "host": host, "cgroup": "", **process}, 1


def _traced_step(run: SimulatedRun, attempt: Attempt, rank: int, now: float, who: Labels) -> Iterator[Sample]:
    if rank >= TRACED_RANKS or not attempt.steps_done:
        return
    for kind, share in TRACED.items():
        yield "goodput_deep_look_seconds", {**who, "kind": kind}, share * run.plan.workload.step
    traced, age = divmod(now - attempt.plan.start, TRACE_EVERY_SECONDS)
    yield "goodput_deep_look_age_seconds", who, age
    for outcome in ("done", "skipped", "failed"):
        yield "goodput_deep_looks_total", {**who, "outcome": outcome}, traced * (outcome == "done")
    yield "goodput_deep_look_cost_seconds_total", who, 0.2 * traced
    yield "goodput_deep_look_h2d_bytes_per_second", who, H2D_SHARE * OF_GPU["h2d_pinned"]
    yield "goodput_deep_look_h2d_reached_ratio", who, H2D_SHARE


def _nccl(run: SimulatedRun, attempt: Attempt, who: Labels) -> Iterator[Sample]:
    """What the profiler plugin counts, in proportion to the steps done."""
    steps = attempt.steps_done
    seconds = steps * run.plan.workload.step
    for operation, (calls, size, share) in NCCL.items():
        labels = {**who, "operation": operation}
        yield "goodput_nccl_calls_total", labels, calls * steps
        yield "goodput_nccl_bytes_total", labels, size * steps
        yield "goodput_nccl_device_seconds_total", labels, share * seconds
    for direction in ("send", "receive"):
        yield "goodput_nccl_network_bytes_total", {**who, "direction": direction}, NCCL_SENT * steps
    for (direction, reason), share in NCCL_WAITS.items():
        labels = {**who, "direction": direction, "reason": reason}
        yield "goodput_nccl_network_wait_seconds_total", labels, share * seconds
    for what in ("call", "event"):
        yield "goodput_nccl_dropped_total", {**who, "what": what}, 0
