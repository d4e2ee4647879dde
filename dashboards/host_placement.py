"""The panels of the board of hosts (host.py) that say what runs where: NUMA nodes, ranks and processes.

In: series of goodput.metrics that node agents serve. Out: `numa`, `placement`, `processes`; at most forty rows each.
"""

from __future__ import annotations

from dashboards.frame import address
from dashboards.panels import (
    change_matching,
    column,
    lead,
    lines,
    query,
    rows,
    widths,
)

NODE = 'instance=~"$instance"'
RATE = "$__rate_interval"
# Pages that were got elsewhere than wanted, and all that were asked for.
MISS, ASKED = '"miss"', '"hit|miss"'


def rate_of(series: str, by: str = "", more: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{{{NODE}{more}}}[{RATE}]))"


# -- NUMA, and who is on the node


def numa():
    panel = lines(
        "NUMA: free memory, misplaced pages",
        "Free memory of each NUMA node, the least of the chosen hosts, and on the right the share of pages that were not got where they were wanted. "
        "One node full while another is free: loaders and ranks sit on one socket. Many misplaced pages: bind each rank to the node of its GPU "
        "(numactl, or the launcher's option).",
        place=(0, 24, 6, 8),
        unit="bytes",
        no_value="one memory node, or no agent",
        queries=[
            query(
                f'min by (node) (goodput_numa_memory_bytes{{{NODE},kind="free"}})', "free on node {{node}}"
            ),
            query(
                f"{rate_of('goodput_numa_pages_total', 'node', ',kind=' + MISS)} / "
                f"({rate_of('goodput_numa_pages_total', 'node', ',kind=~' + ASKED)} > 0)",
                "misplaced on node {{node}}",
            ),
        ],
    )
    return change_matching(panel, "/^misplaced/", unit="percentunit")


def placement():
    """Ranks by where they run and where their GPU is; a row whose two nodes differ is a rank to be bound."""
    chosen = f'topk(40, max by (instance, run, rank) (goodput_rank_numa_node{{{NODE},run=~"$run"}}) + 1) - 1'
    # A GPU's node is known by its PCI address, its rank by its uuid.
    near = 'max by (instance, pci) (label_replace(goodput_numa_device_node{kind="gpu"}, "pci", "$1", "device", "(.*)"))'
    of_gpu = (
        f"max by (instance, gpu) (group by (instance, gpu, pci) (goodput_gpu_info{{{NODE}}}) "
        f"* on (instance, pci) group_left () {near})"
    )
    allowed = f"sum by (instance, run, rank) (goodput_rank_cpus{{{NODE}}})"
    panel = rows(
        "Ranks and their processors",
        "Forty ranks of the chosen nodes: the NUMA node they run on, that of their GPU, and how many processors they may use. Two different nodes: every "
        "copy to the GPU crosses the sockets; bind the rank. Few CPUs of the host's and a loader with many workers: the workers take turns.",
        place=(6, 24, 8, 8),
        unit="none",
        no_value="no rank lives here",
        first=["run", "rank", "instance"],
        sort="-rank",
        columns=[
            column(chosen, "node"),
            column(
                "max by (instance, run, rank) (group by (instance, run, rank, gpu) "
                f'(goodput_gpu_rank_info{{{NODE},run=~"$run"}}) * on (instance, gpu) group_left () {of_gpu}) '
                f"and on (instance, run, rank) ({chosen})",
                "GPU's",
            ),
            column(f"{allowed} and on (instance, run, rank) ({chosen})", "CPUs"),
            column(
                f"{allowed} * 0 + on (instance) group_left () sum by (instance) (goodput_numa_cpus{{{NODE}}}) "
                f"and on (instance, run, rank) ({chosen})",
                "of",
            ),
        ],
    )
    widths(panel, instance=110, rank=55, node=60, CPUs=60, of=55)
    to_rank = address("goodput-rank", {"run": "field:run", "rank": "field:rank"})
    return lead(panel, "rank", "Open the rank", to_rank)


def processes():
    by = "instance, pid, user, comm, pod, slurm_job"
    panel = rows(
        "Who is on the GPUs",
        "Processes on the GPUs of the chosen nodes, at most forty, with whose they are; and how many each GPU has. A process that belongs to no rank: left "
        "behind by a run that has ended, or someone else's; it takes memory and time from the rank. Find it by its pid on the node.",
        place=(14, 24, 10, 8),
        unit="none",
        no_value="no process uses a GPU, or the driver does not tell",
        first=["instance", "gpu", "pid", "user", "comm", "pod", "slurm_job"],
        sort="instance",
        columns=[
            column(f"topk(40, group by (gpu, {by}) (goodput_gpu_process_info{{{NODE}}}))", "process"),
            column(f"topk(40, max by (instance, gpu) (goodput_gpu_processes{{{NODE}}}) > 0)", "on this GPU"),
        ],
        hide=("process", "Value #A"),
    )
    widths(panel, instance=110, pid=70)
    return lead(panel, "instance", "Open the node", address("goodput-node", {"instance": "field:instance"}))
