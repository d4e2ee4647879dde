"""goodput / Host and storage: processors, memory, disks, file systems and links of a node, in depth."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.board_builder import address, build_board, node_variable, optional_run_variable
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panels,
    column,
    lines,
    link_to,
    matching_series_options,
    override,
    query,
    rows,
    series_options,
    stack,
    top_over_range,
    widths,
)

PANELS = Panels()

NODE = 'instance=~"$instance"'
RATE = "$__rate_interval"
# Pages that were got elsewhere than wanted, and all that were asked for.
MISS, ASKED = '"miss"', '"hit|miss"'


def rate_of(series: str, by: str = "", more: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{{{NODE}{more}}}[{RATE}]))"


# -- NUMA, and who is on the node


@PANELS.add
def _numa():
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
    return matching_series_options(panel, "/^misplaced/", unit="percentunit")


@PANELS.add
def _placement():
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
    return link_to(panel, "rank", "Open the rank", to_rank)


@PANELS.add
def _processes():
    by = "instance, pid, user, comm, pod, slurm_job"
    panel = rows(
        "Processes on the GPUs",
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
    return link_to(
        panel, "instance", "Open the node", address("goodput-node", {"instance": "field:instance"})
    )


NO_AGENT = "no node agent is scraped"
NO_RDMA = "no RDMA device here"

# -- Processors and memory


@PANELS.add
def _cpu():
    panel = stack(
        "Processors",
        "Processors of the chosen nodes by what they do, in cores; on the right the load of the busiest node per processor, and tasks "
        "that are blocked. iowait or many blocked tasks: storage. system high: copies, interrupts of the network. Load above 1: fewer "
        "loader workers or threads, or more cores for each rank. steal: a neighbour on the same machine.",
        place=(0, 0, 8, 8),
        unit="suffix: cores",
        no_value=NO_AGENT,
        queries=[
            query(rate_of("goodput_host_cpu_seconds_total", "mode"), "{{mode}}"),
            query(f"sum(goodput_host_cpus{{{NODE}}})", "on line"),
            query(f"max(goodput_host_load1_ratio{{{NODE}}})", "load"),
            query(f"max(goodput_host_processes_blocked{{{NODE}}})", "blocked"),
        ],
    )
    over = {"custom.stacking": {"mode": "none", "group": "A"}, "custom.fillOpacity": 0, "custom.lineWidth": 2}
    right = {"custom.axisPlacement": "right", "unit": "short"}
    for name in ("on line", "load", "blocked"):
        override(panel, name, over | ({} if name == "on line" else right))
    return panel


@PANELS.add
def _memory():
    return lines(
        "Memory",
        "Memory of the nodes by kind, the least available of them, and swap in use. Available near zero: the kernel drops the page cache, "
        "loaders read everything again, then processes are killed. shared that grows: batches in /dev/shm that nobody takes. Dirty high: "
        "checkpoints are written faster than the storage takes them.",
        place=(8, 0, 8, 8),
        unit="bytes",
        no_value=NO_AGENT,
        queries=[
            query(f'sum by (kind) (goodput_host_memory_bytes{{{NODE},kind!~"swap_.*"}})', "{{kind}}"),
            query(f'min(goodput_host_memory_bytes{{{NODE},kind="available"}})', "available, least node"),
        ],
    )


@PANELS.add
def _swap():
    panel = lines(
        "Swap, faults, kills",
        "Bytes swapped in a second, page faults that read from storage, and processes killed for want of memory in the last hour. Any kill: a rank or "
        "a worker died of it; give the job more memory or run fewer workers. Swapping: the same, soon. Faults high after a start are "
        "programs being loaded; for long, the page cache has no room.",
        place=(16, 0, 8, 8),
        unit="short",
        no_value=NO_AGENT,
        queries=[
            query(rate_of("goodput_host_swap_bytes_total", "direction"), "swapped {{direction}}"),
            query(rate_of("goodput_host_major_faults_total"), "faults that read"),
            query(f"sum(increase(goodput_host_oom_kills_total{{{NODE}}}[1h]))", "killed in an hour"),
        ],
    )
    return series_options(
        panel, "killed in an hour", unit="none", steps=[(None, GREEN), (1, RED)], axis_right=True
    )


# -- Disks and file systems


@PANELS.add
def _disks():
    by = "instance, device"
    panel = lines(
        "Disks",
        "Bytes of all disks, and of the three slowest the mean time of a request and the requests in flight (right). Latency far above its usual "
        "with many requests: the disk is full of work; larger reads, fewer workers, or cache the data. Low rate and low latency "
        "while loaders wait: it is not the disk.",
        place=(0, 8, 8, 8),
        unit="Bps",
        no_value=NO_AGENT,
        queries=[
            query(rate_of("goodput_host_disk_bytes_total", "direction"), "{{direction}}"),
            query(
                top_over_range(
                    3,
                    f"{rate_of('goodput_host_disk_operation_seconds_total', by)} / "
                    f"({rate_of('goodput_host_disk_operations_total', by)} > 0)",
                    by,
                ),
                "latency of {{device}} on {{instance}}",
            ),
            query(
                top_over_range(3, f"max by ({by}) (goodput_host_disk_in_flight{{{NODE}}})", by),
                "in flight {{device}} on {{instance}}",
            ),
        ],
    )
    for start, unit in (("latency", "s"), ("in flight", "short")):
        matching_series_options(panel, f"/^{start}/", unit=unit)
    return panel


@PANELS.add
def _filesystems():
    by = "instance, mount"

    def most(series: str, more: str = "") -> str:
        return f"max by ({by}) ({series}{{{NODE}{more}}})"

    def inodes(kind: str) -> str:
        return most("goodput_filesystem_inodes", f',kind="{kind}"')

    full = f"topk(20, 1 - {most('goodput_filesystem_available_bytes')} / {most('goodput_filesystem_size_bytes')})"
    panel = rows(
        "File systems",
        "The twenty fullest file systems that are watched, what they are, whether they answer and how long that takes. Full: the next checkpoint "
        "fails. Out of inodes: many small files; the same. Not answering: whatever touches it hangs, its server or the network first.",
        place=(8, 8, 16, 8),
        unit="percentunit",
        no_value=NO_AGENT,
        first=["mount", "instance", "fstype", "source"],
        sort="full",
        columns=[
            column(full, "full"),
            column(f"1 - {inodes('free')} / {inodes('total')} and on ({by}) {full}", "inodes used"),
            column(f"{most('goodput_filesystem_available_bytes')} and on ({by}) {full}", "free"),
            column(f"{most('goodput_filesystem_response_seconds')} and on ({by}) {full}", "answers in"),
            column(f"{most('goodput_filesystem_up')} and on ({by}) {full}", "up"),
            column(
                f"group by ({by}, fstype, source) (goodput_filesystem_info{{{NODE}}}) and on ({by}) {full}",
                "info",
            ),
        ],
        hide=("info", "Value #F"),
        steps=[(None, GREEN), (0.8, YELLOW), (0.95, RED)],
    )
    series_options(panel, "free", unit="bytes", steps=[(None, "text")])
    series_options(panel, "answers in", unit="s", steps=[(None, GREEN), (1, RED)])
    series_options(panel, "up", unit="bool_yes_no", steps=[(None, RED), (1, GREEN)])
    return link_to(
        panel, "instance", "Open the node", address("goodput-node", {"instance": "field:instance"})
    )


# -- Storage over the network


@PANELS.add
def _nfs():
    return lines(
        "NFS: bytes",
        "Bytes of the three busiest mounts: what programs read and wrote (application), and what crossed the network for it (server). Server far above "
        "application: small reads of large pieces, or several programs that read the same. Application above server: the page cache works.",
        place=(0, 16, 8, 8),
        unit="Bps",
        no_value="no NFS here",
        queries=[
            query(
                top_over_range(
                    6,
                    rate_of("goodput_nfs_bytes_total", "mount, direction, side"),
                    "mount, direction, side",
                ),
                "{{mount}} {{direction}} ({{side}})",
            )
        ],
    )


def _part(part: str) -> str:
    return f',part="{part}"'


@PANELS.add
def _nfs_calls():
    by = "mount, operation"
    answered = f"({rate_of('goodput_nfs_operations_total', by)} > 0)"
    seconds = "goodput_nfs_operation_seconds_total"
    panel = lines(
        "NFS: calls",
        "Mean time of the four slowest kinds of call, in all and waiting to be sent; on the right, in a second, calls, calls sent again, timeouts and errors. "
        "Waiting to be sent: too few slots or connections (nconnect). Answers slow: the server. Sent again or timeouts: the network, or a server "
        "that does not answer.",
        place=(8, 16, 8, 8),
        unit="s",
        no_value="no NFS here",
        queries=[
            *(
                query(
                    top_over_range(4, f"{rate_of(seconds, by, _part(part))} / {answered}", by),
                    f"{{{{operation}}}} {{{{mount}}}}: {part}",
                )
                for part in ("total", "queue")
            ),
            query(rate_of("goodput_nfs_operations_total"), "calls"),
            query(
                f"{rate_of('goodput_nfs_transmissions_total')} - {rate_of('goodput_nfs_operations_total')}",
                "sent again",
            ),
            query(rate_of("goodput_nfs_timeouts_total"), "timeouts"),
            query(rate_of("goodput_nfs_errors_total"), "errors"),
        ],
    )
    for name in ("calls", "sent again", "timeouts", "errors"):
        series_options(panel, name, unit="cps", axis_right=True)
    return panel


@PANELS.add
def _lustre():
    by = "filesystem, operation"
    operations = rate_of("goodput_lustre_operations_total", by)
    panel = lines(
        "Lustre",
        "Bytes that programs read from and wrote to each file system; on the right the mean time of its four slowest operations, and operations in a second. "
        "open or stat slow and many: small files; pack them. read slow: a busy storage target; stripe large files over more of them.",
        place=(16, 16, 8, 8),
        unit="Bps",
        no_value="no Lustre here",
        queries=[
            query(
                rate_of("goodput_lustre_bytes_total", "filesystem, direction"), "{{filesystem}} {{direction}}"
            ),
            query(
                top_over_range(
                    4, f"{rate_of('goodput_lustre_operation_seconds_total', by)} / ({operations} > 0)", by
                ),
                "time of {{operation}} {{filesystem}}",
            ),
            query(top_over_range(4, operations, by), "number of {{operation}} {{filesystem}}"),
        ],
    )
    matching_series_options(panel, "/^time of/", unit="s")
    return matching_series_options(panel, "/^number of/", unit="cps")


# -- Links


@PANELS.add
def _ethernet():
    def each(series: str, by: str) -> str:
        return f"{top_over_range(4, rate_of(series, by), by)} > 0"

    return lines(
        "Network errors per second",
        "Of the worst devices: packets dropped and errors by the hardware, marks of congestion, pause frames, packets beyond a limit of the cloud, links that went down or up, TCP "
        "timers that ran out; devices beyond the agent's bound. Zero is normal. Drops out_of_buffer: the host is too slow for its NIC. "
        "Limits exceeded: a larger instance. Carrier changes: cable or switch.",
        place=(0, 32, 8, 8),
        unit="cps",
        no_value="nothing has gone wrong",
        queries=[
            query(
                each("goodput_network_hardware_drops_total", "device, kind"), "dropped {{device}}: {{kind}}"
            ),
            query(
                each("goodput_network_hardware_errors_total", "device, kind"), "errors {{device}}: {{kind}}"
            ),
            query(each("goodput_network_ecn_marked_packets_total", "device"), "congestion marks {{device}}"),
            query(
                each("goodput_network_pause_frames_total", "device, direction, priority"),
                "pause frames {{device}} {{direction}} {{priority}}",
            ),
            query(
                each("goodput_network_allowance_exceeded_total", "device, kind"),
                "beyond {{device}}: {{kind}}",
            ),
            query(each("goodput_network_carrier_changes_total", "device"), "carrier {{device}}"),
            query(rate_of("goodput_network_tcp_timeouts_total"), "TCP timeouts"),
            query(
                f"sum(goodput_network_devices_left_out{{{NODE}}}) + sum(goodput_infiniband_devices_left_out{{{NODE}}})",
                "devices not read",
            ),
        ],
    )


@PANELS.add
def _rdma():
    by = "instance, device, port"
    panel = lines(
        "RDMA traffic",
        "Bytes by operation, and bytes sent again, of all ports; packets in a second (right). write and send are what collectives use; read is storage. Sent "
        "again above a thousandth: loss on the way; see which port in the table. Small packets at a high rate: small messages, which "
        "larger buckets would join.",
        place=(8, 32, 8, 8),
        unit="Bps",
        no_value=NO_RDMA,
        queries=[
            query(rate_of("goodput_infiniband_operation_bytes_total", "operation"), "{{operation}}"),
            query(rate_of("goodput_infiniband_retransmit_bytes_total"), "sent again"),
            query(rate_of("goodput_infiniband_packets_total", "direction"), "packets {{direction}}"),
            query(
                top_over_range(3, rate_of("goodput_infiniband_bytes_total", by), by),
                "{{device}}/{{port}} on {{instance}}",
            ),
        ],
    )
    return matching_series_options(panel, "/^packets/", unit="cps")


@PANELS.add
def _ports():
    by = "instance, device, port"
    bad = f'goodput_infiniband_state{{{NODE},kind="logical",state!="active"}} == 1'
    panel = rows(
        "Unhealthy RDMA ports",
        "Ports that are not active, with the state they are in, and ports whose narrow counters stand at their end, which say no more until they are cleared "
        "(perfquery -R). A port that was active and is not: cable, transceiver, switch or subnet manager. "
        "",
        place=(16, 32, 8, 8),
        unit="none",
        no_value="every port is well",
        first=["device", "port", "instance", "state", "kind"],
        sort="-device",
        columns=[
            column(f"topk(20, max by ({by}, state) ({bad}))", "not active"),
            column(
                f"topk(20, max by ({by}) (goodput_infiniband_saturated_counters{{{NODE}}}) > 0)",
                "full counters",
            ),
            column(f"topk(20, max by ({by}, kind) (goodput_infiniband_saturated{{{NODE}}}))", "full"),
        ],
        hide=("not active", "Value #A", "full", "Value #C"),
    )
    return link_to(
        panel, "instance", "Open the node", address("goodput-node", {"instance": "field:instance"})
    )


def board() -> builders.Dashboard:
    return build_board(
        "goodput-host",
        "What do loaders, checkpoints and collectives wait for on a node: cores, memory, disks, file systems, links?",
        variables=[optional_run_variable(), node_variable()],
        panels=PANELS,
    )
