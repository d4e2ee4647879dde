"""What the story's nodes say of where things are: NUMA nodes, processes on GPUs, shared file systems, traced steps.

In: a node of hardware.py, the ranks on it. Out: (series, labels, value) under the catalogue's names, for the boards'
panels on placement and storage. Simulated, as everything of the agents here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dashboards.render.cluster import Job, Rank

Labels = dict[str, str]
Sample = tuple[str, Labels, float]
Count = Callable[[str, Labels, float], Sample]
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


def series(
    here: list[tuple[Job, Rank]], loading: bool, passed: float, now: float, count: Count
) -> Iterator[Sample]:
    """`here` are the ranks that live on the node; `loading` says that its data loader lags."""
    yield from _memory(passed, count)
    yield from _lustre(loading, passed, count)
    for job, rank in here:
        yield from _process(job, rank)
        yield from _traced(job, rank, now)


def _memory(passed: float, count: Count) -> Iterator[Sample]:
    for node in ("0", "1"):
        for kind, value in (("total", 1 << 40), ("free", 0.58 * (1 << 40)), ("file", 0.22 * (1 << 40))):
            yield "goodput_numa_memory_bytes", {"node": node, "kind": kind}, value
        yield "goodput_numa_cpus", {"node": node}, 64
        for kind, rate in (("hit", 9e4), ("miss", 120), ("foreign", 120), ("local", 8.9e4), ("other", 900)):
            yield count("goodput_numa_pages_total", {"node": node, "kind": kind}, rate * passed)


def _lustre(loading: bool, passed: float, count: Count) -> Iterator[Sample]:
    of = {"filesystem": "data"}
    for direction, rate in (("read", 1.9e9 if loading else 4e8), ("write", 7e7)):
        yield count("goodput_lustre_bytes_total", {**of, "direction": direction}, rate * passed)
    for operation, rate, seconds in (
        ("read", 450.0, 0.06 if loading else 0.002),
        ("write", 70.0, 0.003),
        ("open", 12.0, 0.001),
    ):
        yield count("goodput_lustre_operations_total", {**of, "operation": operation}, rate * passed)
        spent = rate * seconds * passed
        yield count("goodput_lustre_operation_seconds_total", {**of, "operation": operation}, spent)


def _process(job: Job, rank: Rank) -> Iterator[Sample]:
    who = {"run": job.plan.run, "rank": str(rank.number)}
    index = int(rank.gpu[6])
    home = str(index // 4)
    # One rank was pinned to the far processors.
    seat = "1" if (job.plan.run, rank.number) == ("vit-22b", 2) else home
    yield "goodput_rank_numa_node", who, int(seat)
    for node in ("0", "1"):
        yield "goodput_rank_cpus", {**who, "node": node}, 16 if node == seat else 0
    yield "goodput_numa_device_node", {"device": f"0000:{16 + index:02x}:00.0", "kind": "gpu"}, int(home)
    pid = str(4000 + 100 * job.attempt + rank.number)
    nothing = dict.fromkeys(("container", "container_id", "pod", "namespace", "pod_uid"), "")
    place = {
        "pid": pid,
        "user": "train",
        "comm": "python",
        **nothing,
        "slurm_job": "81207",
        "slurm_step": "0",
    }
    yield "goodput_gpu_process_info", {"gpu": rank.gpu, **place}, 1
    yield "goodput_gpu_processes", {"gpu": rank.gpu}, 1
    yield "goodput_rank_process_info", {**who, "host": rank.node, "cgroup": "", **place}, 1


def _traced(job: Job, rank: Rank, now: float) -> Iterator[Sample]:
    """The first eight ranks of each run trace a step every ten minutes."""
    if (rank.number > 7 and rank.number != 13) or not rank.recent:
        return
    who = {"run": job.plan.run, "rank": str(rank.number)}
    for kind, share in TRACED.items():
        yield "goodput_deep_look_seconds", {**who, "kind": kind}, share * job.plan.compute * 1.15
    since = (now - job.begin) % 600
    yield "goodput_deep_look_age_seconds", who, since
    for outcome in ("done", "skipped", "failed"):
        yield (
            "goodput_deep_looks_total",
            {**who, "outcome": outcome},
            (now - job.begin) // 600 * (outcome == "done"),
        )
    yield "goodput_deep_look_cost_seconds_total", who, (now - job.begin) // 600 * 0.2
