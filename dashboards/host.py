"""goodput / Host and storage: processors, memory, disks, file systems and links of a node, in depth."""

from __future__ import annotations

from dashboards import board_builder, panels, promql
from dashboards.board_builder import CollapsedRow, build_board
from dashboards.panels import GREEN, RED, YELLOW, series
from dashboards.promql import gpu_names, on_node, top_over_range
from dashboards.states import ONE_IS_BAD, ONE_IS_GOOD

NODE = 'instance=~"$instance"'
NO_AGENT = "no node agent is scraped"
TO_NODE = panels.link("instance", "Open the node", "goodput-node", instance="field:instance")
DEVICE, DEVICE_PORT, MOUNT = "instance, device", "instance, device, port", "instance, mount"
CALL, OPERATION = "mount, operation", "filesystem, operation"


def _rate(series: str, by: str = "", more: str = "") -> str:
    return promql.rate_of(series, by, NODE + more)


def _worst(series: str, by: str) -> str:
    return f"{top_over_range(4, _rate(series, by), by)} > 0"


# Ranks by where they run and where their GPU is: a row whose two nodes differ is a rank to be bound. A GPU's NUMA node
# is known by its PCI address, its rank by its uuid.
RANKS = f'topk(40, max by (instance, run, rank) (goodput_rank_numa_node{{{NODE},run=~"$run"}}) + 1) - 1'
OF_RANKS = f"and on (instance, run, rank) ({RANKS})"
GPU_NUMA = (
    f"max by (instance, gpu) (group by (instance, gpu, pci) (goodput_gpu_info{{{NODE}}}) * on (instance, pci) "
    'group_left () max by (instance, pci) (label_replace(goodput_numa_device_node{kind="gpu"}, '
    '"pci", "$1", "device", "(.*)")))'
)
RANK_GPUS = f'group by (instance, run, rank, gpu) (goodput_gpu_rank_info{{{NODE},run=~"$run"}})'
CPUS_ALLOWED = f"sum by (instance, run, rank) (goodput_rank_cpus{{{NODE}}})"


def _mount(series: str, more: str = "") -> str:
    return f"max by ({MOUNT}) (goodput_filesystem_{series}{{{NODE}{more}}})"


FULL = f"topk(20, 1 - {_mount('available_bytes')} / {_mount('size_bytes')})"
INODES_FREE, INODES = (_mount("inodes", f',kind="{kind}"') for kind in ("free", "total"))
FILESYSTEM_INFO = f"group by ({MOUNT}, fstype, source) (goodput_filesystem_info{{{NODE}}})"

DISK_LATENCY = (
    f"{_rate('goodput_host_disk_operation_seconds_total', DEVICE)} / "
    f"({_rate('goodput_host_disk_operations_total', DEVICE)} > 0)"
)
NFS_CALLS = _rate("goodput_nfs_operations_total")
LUSTRE_OPERATIONS = _rate("goodput_lustre_operations_total", OPERATION)
LUSTRE_LATENCY = f"{_rate('goodput_lustre_operation_seconds_total', OPERATION)} / ({LUSTRE_OPERATIONS} > 0)"


def _nfs_latency(part: str) -> str:
    seconds = _rate("goodput_nfs_operation_seconds_total", CALL, f',part="{part}"')
    return top_over_range(4, f"{seconds} / ({_rate('goodput_nfs_operations_total', CALL)} > 0)", CALL)


# Pages that were allocated on another NUMA node than requested, and all requested pages.
MISSES = _rate("goodput_numa_pages_total", "node", ',kind="miss"')
PAGES = _rate("goodput_numa_pages_total", "node", ',kind=~"hit|miss"')
NOT_STACKED = {
    "custom.stacking": {"mode": "none", "group": "A"},
    "custom.fillOpacity": 0,
    "custom.lineWidth": 2,
}
# Of the modes of /proc/stat.
MODE_COLOURS = {
    "user": "#1261b0",
    "nice": "#7cc4f0",
    "system": "#a572c9",
    "iowait": "#e28c03",
    "irq": "#f9b8b8",
    "softirq": "#db7094",
    "steal": "#af2d11",
    "online": "text",
    "load": "#97a9b8",
    "blocked": "#c6585c",
}
MEMORY_COLOURS = {
    "total": "text",
    "available": "#5794f2",
    "available, lowest node": "#1261b0",
    "cached": "#a572c9",
    "dirty": "#e28c03",
    "shared": "#d977b3",
}
# With the two sizes of x86 in words; others by their bytes.
HUGE_PAGES_FREE = f'sum by (page_bytes) (goodput_host_huge_pages{{{NODE},kind="free"}})'
for _pattern, _size in (("(.*)", "$1 bytes"), ("2097152", "2 MiB"), ("1073741824", "1 GiB")):
    HUGE_PAGES_FREE = f'label_replace({HUGE_PAGES_FREE}, "size", "{_size}", "page_bytes", "{_pattern}")'
SENSOR = "instance, device, sensor"
# Of a memory module its slot and the kind of its errors, of an NVMe controller its model and state.
PART = "instance, part, name, kind"
PORT_DOWN = f'goodput_infiniband_state{{{NODE},kind="logical",state!="active"}} == 1'


def _nvme(pick: str, series: str) -> str:
    """A series of 20 NVMe controllers with their models and states, the largest by topk, the smallest by bottomk."""
    found = f"goodput_host_nvme_info{{{NODE}}} * on (instance, device) group_left () {series}{{{NODE}}}"
    return (
        f'{pick}(20, max by ({PART}) (label_join(label_replace(label_replace({found}, "part", "$1", '
        '"device", "(.+)"), "kind", "$1", "state", "(.+)"), "name", " ", "model", "firmware")))'
    )


PANELS = [
    # Processors and memory.
    panels.areas(
        "Processors",
        "Time that the processors of the chosen nodes work or wait, by mode, in cores, below the line of all that are "
        "online; on the right the load per processor of the busiest node, and blocked tasks. High iowait or many blocked tasks: storage. High system: copies or "
        "network interrupts. Load above 1: fewer loader workers or threads, or more cores for each rank. steal: "
        "another virtual machine on the same hardware.",
        {
            "{{mode}}": _rate("goodput_host_cpu_seconds_total", "mode", ',mode!="idle"'),
            "online": f"sum(goodput_host_cpus{{{NODE}}})",
            "load": f"max(goodput_host_load1_ratio{{{NODE}}})",
            "blocked": f"max(goodput_host_processes_blocked{{{NODE}}})",
        },
        unit="suffix: cores",
        no_value=NO_AGENT,
        overrides=[
            *panels.colours(MODE_COLOURS),
            ("online", NOT_STACKED),
            *(
                (name, NOT_STACKED | dict([series(name, "short", right="load, blocked tasks")])[name])
                for name in ("load", "blocked")
            ),
        ],
    ),
    panels.lines(
        "Memory",
        "Memory of the nodes by kind, the smallest available memory of a node, and swap in use. Available near "
        "zero: the kernel drops the page cache, loaders read everything again, then processes are killed. shared "
        "that grows: batches in /dev/shm that nobody takes. High dirty: checkpoints are written faster than the "
        "storage takes them.",
        {
            "{{kind}}": f'sum by (kind) (goodput_host_memory_bytes{{{NODE},kind!~"swap_.*"}})',
            "available, lowest node": f'min(goodput_host_memory_bytes{{{NODE},kind="available"}})',
        },
        unit="bytes",
        no_value=NO_AGENT,
        overrides=panels.colours(MEMORY_COLOURS),
    ),
    panels.lines(
        "Swap, faults, kills",
        "Bytes swapped and page major faults from storage, per second; processes killed for lack of memory in "
        "the last hour. Any kill: a rank or a worker was killed; give the job more memory or run fewer workers. "
        "Swapping: that comes next. Faults after a start are programs being loaded; lasting faults mean that the "
        "page cache has no room. Huge pages are set aside by the administrator; none is free for who needs one.",
        {
            "swapped {{direction}}": _rate("goodput_host_swap_bytes_total", "direction"),
            "major faults": _rate("goodput_host_major_faults_total"),
            "free huge pages of {{size}}": HUGE_PAGES_FREE,
            "killed in the last hour": f"sum(increase(goodput_host_oom_kills_total{{{NODE}}}[1h]))",
        },
        unit="cps",
        no_value=NO_AGENT,
        overrides=[
            series("/^swapped/", "Bps", right=""),
            series("/^free huge pages/", "none", right="pages, processes"),
            series("killed in the last hour", "none", ONE_IS_BAD, right="pages, processes"),
        ],
    ),
    # Disks and file systems.
    panels.lines(
        "Disks",
        "Bytes of all disks, and of the three slowest the mean time of a request and the requests in flight "
        "(right). High latency with many requests: the disk is saturated; larger reads, fewer workers, or cache "
        "the data. Low rate and low latency while loaders wait: the disk is not the cause.",
        {
            "{{direction}}": _rate("goodput_host_disk_bytes_total", "direction"),
            "latency {{node}} {{device}}": on_node(top_over_range(3, DISK_LATENCY, DEVICE)),
            "in flight {{node}} {{device}}": on_node(
                top_over_range(3, f"max by ({DEVICE}) (goodput_host_disk_in_flight{{{NODE}}})", DEVICE)
            ),
        },
        unit="Bps",
        no_value=NO_AGENT,
        overrides=[
            series("/^latency/", "s", right=""),
            series("/^in flight/", "short", right="requests in flight"),
        ],
    ),
    panels.table(
        "File systems",
        "The twenty fullest file systems that are watched: type, source, whether they answer and how fast. Full, "
        "or out of inodes (many small files): the next checkpoint fails. Not up: any access to it hangs; check "
        "its server first, or the network. A local one that became read-only: its disk fails.",
        {
            "full": FULL,
            "inodes used": f"1 - {INODES_FREE} / {INODES} and on ({MOUNT}) {FULL}",
            "free": f"{_mount('available_bytes')} and on ({MOUNT}) {FULL}",
            "response time": f"{_mount('response_seconds')} and on ({MOUNT}) {FULL}",
            "up": f"{_mount('up')} and on ({MOUNT}) {FULL}",
            "read-only": f"{_mount('readonly')} and on ({MOUNT}) {FULL}",
            "info": f"{FILESYSTEM_INFO} and on ({MOUNT}) {FULL}",
        },
        unit="percentunit",
        no_value=NO_AGENT,
        first=["mount", "instance", "fstype", "source"],
        sort="full",
        hide=("info",),
        steps=[(None, GREEN), (0.8, YELLOW), (0.95, RED)],
        overrides=[
            series("free", "bytes", [(None, "text")]),
            series("response time", "s", ONE_IS_BAD),
            series("up", "bool_yes_no", ONE_IS_GOOD),
            series("read-only", "bool_yes_no", [(None, "text")]),
            *panels.widths(mount=90, instance=115, fstype=75, source=170, inodes_used=110, response_time=125),
            TO_NODE,
        ],
    ),
    # NUMA, and what runs on the node.
    panels.lines(
        "NUMA: free memory, misplaced pages",
        "Smallest free memory of each NUMA node among the chosen hosts, and on the right the share of pages that "
        "were allocated on another node than requested. One node full while another is free: loaders and ranks "
        "run on one socket. Many misplaced pages: bind each rank to the node of its GPU (numactl, or the option "
        "of the launcher).",
        {
            "free on node {{node}}": f'min by (node) (goodput_numa_memory_bytes{{{NODE},kind="free"}})',
            "misplaced on node {{node}}": f"{MISSES} / ({PAGES} > 0)",
        },
        unit="bytes",
        no_value="one memory node, or no agent",
        overrides=[series("/^misplaced/", "percentunit", right="")],
    ),
    panels.table(
        "Ranks and their processors",
        "Forty ranks of the chosen nodes: the NUMA node they run on, that of their GPU, and how many processors "
        "they may use. Two different nodes: every copy to the GPU crosses the sockets; bind the rank. Few CPUs and "
        "a loader with many workers: the workers share too few cores.",
        {
            "node": RANKS,
            "GPU's": f"max by (instance, run, rank) ({RANK_GPUS} * on (instance, gpu) group_left () {GPU_NUMA}) "
            f"{OF_RANKS}",
            "CPUs": f"{CPUS_ALLOWED} {OF_RANKS}",
            "of": f"{CPUS_ALLOWED} * 0 + on (instance) group_left () "
            f"sum by (instance) (goodput_numa_cpus{{{NODE}}}) {OF_RANKS}",
        },
        unit="none",
        no_value="no rank is alive here",
        first=["run", "rank", "instance"],
        sort="-rank",
        overrides=[
            *panels.widths(instance=110, rank=55, node=60, CPUs=60, of=55),
            panels.link("rank", "Open the rank", "goodput-rank", run="field:run", rank="field:rank"),
        ],
    ),
    panels.table(
        "Processes on the GPUs",
        "At most forty processes on the GPUs of the chosen nodes, with their owners, or the pods that a dcgm-exporter "
        "names where the processes are unknown, and how many each GPU has in all. A "
        "process that belongs to no rank was left by a run that has ended, or is someone else's; it takes memory "
        "and time from the rank. Find it by its pid on the node.",
        {
            "process": "topk(40, group by (gpu, instance, pid, user, comm, pod, slurm_job) "
            f"(goodput_gpu_process_info{{{NODE}}} or goodput_gpu_pod_info{{{NODE}}} "
            f"unless on (instance, gpu) goodput_gpu_process_info{{{NODE}}})) * on (instance, gpu) group_left (index, uuid) {gpu_names(NODE)}",
            "in all": f"topk(40, max by (instance, gpu) (goodput_gpu_processes{{{NODE}}}) > 0)",
        },
        unit="none",
        no_value="no process uses a GPU, or the driver does not report it",
        first=["instance", "index", "uuid", "pid", "user", "comm", "pod", "slurm_job"],
        sort=("-instance", "-index"),
        hide=("process", "gpu"),
        overrides=[
            *panels.widths(instance=110, index=60, uuid=80, pid=60, user=65, comm=75, in_all=60),
            TO_NODE,
        ],
    ),
    # Links.
    panels.lines(
        "Network errors per second",
        "Of the worst devices: drops and errors of the hardware, congestion marks, pause frames, packets beyond a "
        "limit of the cloud provider, carrier changes; TCP timeouts, and devices beyond the bound of the agent. "
        "Zero is normal. Drops out_of_buffer: the host is too slow for its NIC. Limits exceeded: a larger "
        "instance. Carrier changes: cable or switch.",
        {
            "dropped {{device}}: {{kind}}": _worst("goodput_network_hardware_drops_total", "device, kind"),
            "errors {{device}}: {{kind}}": _worst("goodput_network_hardware_errors_total", "device, kind"),
            "congestion marks {{device}}": _worst("goodput_network_ecn_marked_packets_total", "device"),
            "pause frames {{device}} {{direction}} {{priority}}": _worst(
                "goodput_network_pause_frames_total", "device, direction, priority"
            ),
            "beyond {{device}}: {{kind}}": _worst("goodput_network_allowance_exceeded_total", "device, kind"),
            "carrier {{device}}": _worst("goodput_network_carrier_changes_total", "device"),
            "TCP timeouts": _rate("goodput_network_tcp_timeouts_total"),
            "devices left out": f"sum(goodput_network_devices_left_out{{{NODE}}}) + "
            f"sum(goodput_infiniband_devices_left_out{{{NODE}}})",
            "devices of other kinds": f"sum(goodput_network_devices_filtered{{{NODE}}})",
        },
        unit="cps",
        no_value="no errors in this time",
    ),
    panels.lines(
        "RDMA traffic",
        "Bytes by operation and retransmitted bytes of all ports; packets per second (right). Collectives use "
        "write and send, storage uses read. Retransmitted above a thousandth: packet loss; see which port in the "
        "table. Small packets at a high rate: small messages; use larger buckets.",
        {
            "{{operation}}": _rate("goodput_infiniband_operation_bytes_total", "operation"),
            "retransmitted": _rate("goodput_infiniband_retransmit_bytes_total"),
            "packets {{direction}}": _rate("goodput_infiniband_packets_total", "direction"),
            "packets {{cast}} {{direction}}": _rate(
                "goodput_infiniband_cast_packets_total", "cast, direction"
            ),
            "age of drivers' counters": f"max(goodput_infiniband_lifespan_seconds{{{NODE}}})",
            "{{node}} {{device}}/{{port}}": on_node(
                top_over_range(3, _rate("goodput_infiniband_bytes_total", DEVICE_PORT), DEVICE_PORT)
            ),
        },
        unit="Bps",
        no_value="no RDMA device here",
        overrides=[
            series("/^packets/", "cps", right=""),
            series("age of drivers' counters", "s", right=""),
        ],
    ),
    panels.lines(
        "Temperatures",
        "Of the four hottest sensors, and on the right how far the one closest to its critical limit is from it. Few degrees left, or "
        "an alarm: processors and NVMe slow down, NICs and their transceivers fail. Fans, filters, inlet air; other "
        "nodes of the rack?",
        {
            "{{node}} {{device}} {{sensor}}": on_node(
                top_over_range(4, f"max by ({SENSOR}) (goodput_host_temperature_celsius{{{NODE}}})", SENSOR)
            ),
            "left to a limit": "min((goodput_host_temperature_limit_celsius"
            f'{{{NODE},kind="crit"}} > 0) - ignoring (kind) goodput_host_temperature_celsius{{{NODE}}})',
            "alarms": f"sum(goodput_host_temperature_alarm{{{NODE}}})",
        },
        unit="celsius",
        no_value="no sensor, as in most virtual machines",
        overrides=[
            series("left to a limit", "celsius", right="left to the limit"),
            series("alarms", "none", ONE_IS_BAD, right="alarms"),
        ],
    ),
    panels.lines(
        "Memory errors, throttling, packets",
        "Errors of the host's memory, and how often heat throttled processors, in the last hour; packets dropped "
        "because a processor's backlog was full or left for later, per second, and all packets (right). Any "
        "uncorrectable error: replace the module, see the table. Correctable ones by the thousand: soon. Dropped packets: one "
        "processor takes the interrupts of too many queues.",
        {
            "memory: {{kind}}": f"sum by (kind) (increase(goodput_host_memory_errors_total{{{NODE}}}[1h]))",
            "throttled: {{kind}}": f"sum by (kind) (increase(goodput_host_cpu_throttles_total{{{NODE}}}[1h]))",
            "packets dropped": _rate("goodput_host_softnet_dropped_total"),
            "packets left for later": _rate("goodput_host_softnet_squeezed_total"),
            "packets": _rate("goodput_host_softnet_packets_total"),
        },
        unit="short",
        axis="errors/h, packets/s",
        no_value=NO_AGENT,
        overrides=[series("packets", "cps", right="")],
    ),
    panels.table(
        "Memory modules with errors, NVMe",
        "Memory modules that had errors since the node was booted, with their slots where they are known, and the NVMe controllers "
        "with their state, how much of their life by writes is used, the spare blocks left, and errors of their media. A controller "
        "that is not live serves no more requests: reset it, or replace it. Few spare blocks, or media errors that grow: replace it.",
        {
            "errors": f"topk(20, max by ({PART}) (label_replace(label_replace("
            f'goodput_host_memory_module_errors_total{{{NODE}}} > 0, "part", "$1", "module", "(.+)"), '
            '"name", "$1", "slot", "(.+)")))',
            "works": _nvme("topk", "goodput_host_nvme_up"),
            "worn": _nvme("topk", "goodput_host_nvme_wear_ratio"),
            "spare": _nvme("bottomk", "goodput_host_nvme_spare_ratio"),
            "media errors": _nvme("topk", "goodput_host_nvme_media_errors_total"),
        },
        unit="short",
        no_value="neither",
        first=["instance", "part", "name", "kind"],
        sort="instance",
        overrides=[
            series("works", "bool_yes_no", ONE_IS_GOOD),
            *(series(name, "percentunit") for name in ("worn", "spare")),
            *panels.widths(
                instance=110, part=80, kind=100, errors=60, works=60, worn=60, spare=60, media_errors=90
            ),
            TO_NODE,
        ],
    ),
    panels.lines(
        "Clock, busiest processor",
        "The largest errors of the nodes' clocks by their time daemons, what is left to correct, and how many are not "
        "synchronised; on the right how busy the busiest processor is, in all and with interrupts; the time since the last "
        "boot has no axis. Not synchronised: chrony or systemd-timesyncd does not run, or reaches no server; logs of several "
        "nodes cannot be put in order. A processor full of interrupts: spread the NIC's queues (irqbalance). One that a "
        "single thread fills: a loader without workers.",
        {
            "error, {{kind}}": f"max by (kind) (goodput_host_clock_error_seconds{{{NODE}}})",
            "to correct": f"max(abs(goodput_host_clock_correction_seconds{{{NODE}}}))",
            "not synchronised": f"count(goodput_host_clock_synchronised{{{NODE}}} == 0) or vector(0)",
            "processor, {{kind}}": "max by (kind) "
            f"(rate(goodput_host_processor_seconds_total{{{NODE}}}[{promql.RATE}]))",
            "days since boot": f"(time() - max(goodput_host_boot_timestamp_seconds{{{NODE}}})) / 86400",
        },
        unit="s",
        no_value=NO_AGENT,
        overrides=[
            series("not synchronised", "none", ONE_IS_BAD, right="nodes"),
            series("/^processor/", "percentunit", right=""),
            series("days since boot", "suffix: d", right=""),
        ],
    ),
]

NETWORK_STORAGE = [
    panels.lines(
        "NFS: bytes",
        "Bytes of the three busiest mounts: what programs read and wrote (application), and what the network "
        "carried for it (server). Server far above application: small reads of large blocks, or several programs "
        "that read the same data. Application above server: the page cache works.",
        {
            "{{mount}} {{direction}} ({{side}})": top_over_range(
                6, _rate("goodput_nfs_bytes_total", "mount, direction, side"), "mount, direction, side"
            )
        },
        unit="Bps",
        no_value="no NFS here",
    ),
    panels.lines(
        "NFS: calls",
        "Mean time of the four slowest kinds of call, in total and queued before sending; on the right calls, "
        "retransmissions, timeouts and errors per second. Long queue time: too few slots or connections "
        "(nconnect). Long total time: the server. Retransmissions or timeouts: the network, or a server that does "
        "not answer.",
        {
            **{f"{{{{operation}}}} {{{{mount}}}}: {part}": _nfs_latency(part) for part in ("total", "queue")},
            "calls": NFS_CALLS,
            "retransmitted": f"{_rate('goodput_nfs_transmissions_total')} - {NFS_CALLS}",
            "timeouts": _rate("goodput_nfs_timeouts_total"),
            "errors": _rate("goodput_nfs_errors_total"),
        },
        unit="s",
        no_value="no NFS here",
        overrides=[
            series(name, "cps", right="") for name in ("calls", "retransmitted", "timeouts", "errors")
        ],
    ),
    panels.lines(
        "Lustre",
        "Bytes that programs read from and wrote to each file system; on the right the mean time of the three "
        "slowest operations; the operations per second stand there too. Many slow open or stat: small files; pack them. Slow "
        "read: a busy storage target; stripe large files over more targets.",
        {
            "{{filesystem}} {{direction}}": _rate("goodput_lustre_bytes_total", "filesystem, direction"),
            "time of {{operation}} {{filesystem}}": top_over_range(3, LUSTRE_LATENCY, OPERATION),
            "operations": f"sum({LUSTRE_OPERATIONS})",
        },
        unit="Bps",
        no_value="no Lustre here",
        overrides=[series("/^time of/", "s", right=""), series("operations", "cps", right="")],
    ),
]

PORTS = [
    panels.table(
        "Unhealthy RDMA ports",
        "Ports that are not active, with their state, and ports with saturated counters, which no longer count "
        "until they are cleared (perfquery -R). A port that was active and is not: cable, transceiver, switch or "
        "subnet manager.",
        {
            "not active": f"topk(20, max by ({DEVICE_PORT}, state) ({PORT_DOWN}))",
            "full counters": f"topk(20, max by ({DEVICE_PORT}) "
            f"(goodput_infiniband_saturated_counters{{{NODE}}}) > 0)",
            "full": f"topk(20, max by ({DEVICE_PORT}, kind) (goodput_infiniband_saturated{{{NODE}}}))",
        },
        unit="none",
        no_value="every port is healthy",
        first=["device", "port", "instance", "state", "kind"],
        sort="-device",
        hide=("not active", "full"),
        overrides=[TO_NODE],
    ),
]

BOARD = build_board(
    "goodput-host",
    "What do loaders, checkpoints and collectives wait for on a node: cores, memory, disks, file systems, links?",
    PANELS,
    [(8, 8, 8, 8), (8, 8, 16), (9, 6, 8, 10), (8, 12, 12), (9, 12, 12), (9, 14, 10)],
    rows=[
        CollapsedRow("NFS and Lustre, where they are mounted", NETWORK_STORAGE, [(9, 8, 8, 8)]),
        CollapsedRow("RDMA ports that are not healthy", PORTS, [(8, 24)]),
    ],
    variables=[board_builder.OPTIONAL_RUN, board_builder.HOST, board_builder.NODE],
)
