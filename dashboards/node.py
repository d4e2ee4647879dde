"""goodput / Node and GPU: what the hardware under a run does, and what is wrong with it."""

from __future__ import annotations

from dashboards import board_builder, panels
from dashboards.board_builder import CollapsedRow, build_board
from dashboards.panels import COLOUR_TEXT, GREEN, RED, YELLOW, series
from dashboards.promql import GPU_LEGEND, RATE, gpu_names, named_gpus, on_node, rate_of, top_over_range
from dashboards.states import ONE_IS_BAD, ONE_IS_GOOD, PHASE_COLOURS

GPUS_SHOWN = 6  # as many as a legend has room for
NODE = 'instance=~"$instance"'
GPU = f'{NODE},gpu=~"$gpu"'
NO_GPU = "no driver reports a GPU here"
NO_AGENT = "no node agent is scraped"
ERRORS_STEPS = [(None, GREEN), (1, YELLOW), (10, RED)]
# A bar of errors is full where it is red, one of what is normal at a hundred times as many.
ERRORS_FULL, NORMAL_FULL = 10, 1000
TEMPERATURE_STEPS = [(None, GREEN), (80, YELLOW), (90, RED)]


def _gain(series: str, selector: str) -> str:
    """How much a counter gained in an hour, one that was created meanwhile included: a first XID is created as 1."""
    now = f"{series}{{{selector}}}"
    return f"clamp_min({now} - ({now} offset 1h or {now} * 0), 0)"


def _increase(series: str, more: str = "") -> str:
    return f"sum(increase(goodput_gpu_{series}{{{GPU}{more}}}[1h]))"


def _below_maximum(series: str) -> str:
    """How many PCIe links have less than they could have."""
    current, maximum = (
        f'max by (instance, gpu) (goodput_gpu_pcie_{series}{{{GPU},kind="{kind}"}})'
        for kind in ("current", "max")
    )
    return (
        f"count({current} < {maximum} and on (instance, gpu) {_activity('utilization')} > 0.2) or vector(0)"
    )


def _events(severity: str) -> str:
    gained = _gain("goodput_health_events_total", f'{NODE},severity="{severity}"')
    return f"topk(6, sum by (kind) ({gained}) > 0)"


ROWS_BAD = (
    f'sum(max by (instance, gpu) (goodput_gpu_rows_remapped{{{GPU},kind=~"pending|failure"}} or '
    f'goodput_gpu_pages_retired{{{GPU},kind="pending"}})) or vector(0)'
)
RECOVERY = f'max by (instance, gpu) (goodput_gpu_recovery_action{{{GPU},action!="none"}})'


def _colour(colour: str) -> dict:
    return {"color": {"mode": "fixed", "fixedColor": colour}}


# -- By phase: what a counter gained in each second that the rank of the GPU spent in the phase


def _by_phase(series: str, more: str = "") -> str:
    gained = rate_of(series, "phase", GPU + more)
    return f"{gained} / ({rate_of('goodput_gpu_phase_seconds_total', 'phase', GPU)} > 0)"


def _activity_by_phase(unit: str) -> str:
    return _by_phase("goodput_gpu_activity_seconds_total", f',unit="{unit}"')


COMPUTE = "forward|backward"
MIXED = (
    f"{rate_of('goodput_gpu_phase_mixed_seconds_total', '', GPU)} "
    f"/ ({rate_of('goodput_gpu_phase_seconds_total', '', GPU)} > 0)"
)


# -- Activity, power, memory


def _activity(unit: str) -> str:
    return f'max by (instance, gpu) (goodput_gpu_activity_ratio{{{GPU},unit="{unit}"}})'


def _memory(kind: str) -> str:
    return f'max by (instance, gpu) (goodput_gpu_memory_bytes{{{GPU},kind="{kind}"}})'


ACTIVE = f"({_activity('sm')} or {_activity('utilization')})"
LEAST_ACTIVE = top_over_range(GPUS_SHOWN, ACTIVE, "instance, gpu", "bottomk")
# The rank that used the GPU last; of a GPU that none has used, the run is empty.
OWNER = f'gpu:owner:info{{{NODE},run=~"$run|"}}'


def _named(expr: str) -> str:
    return named_gpus(expr, GPU)


ROWS = f"bottomk(40, max by (instance, gpu) (goodput_gpu_up{{{GPU}}}))"


def _row(expr: str) -> str:
    return f"{expr} and on (instance, gpu) {ROWS}"


THROTTLED = f'avg_over_time(goodput_gpu_throttled{{{GPU},reason!="idle"}}[{RATE}])'
CLOCK = f'goodput_gpu_clock_hertz{{{GPU},clock="sm"}}'
POWER = f"max by (instance, gpu) (goodput_gpu_power_watts{{{GPU}}})"
TEMPERATURE = f"max by (instance, gpu, sensor) (goodput_gpu_temperature_celsius{{{GPU}}})"
HOTTEST = f"max by (instance, gpu) (goodput_gpu_temperature_celsius{{{GPU}}})"
MEMORY_USED = f"{_memory('used')} / {_memory('total')}"
LINK_BYTES = f"sum by (link, direction) (goodput_gpu_link_bytes_per_second{{{GPU}}})"


# -- Network and host


def _utilisation(kind: str, by: str, speed: str) -> str:
    """Traffic of each interface or port over its line rate."""
    line_rate = f"max by ({by}) (goodput_{kind}_{speed}_bytes_per_second{{{NODE}}} > 0)"
    traffic = f"max by ({by}, direction) (rate(goodput_{kind}_bytes_total{{{NODE}}}[{RATE}]))"
    return on_node(top_over_range(3, f"{traffic} / on ({by}) group_left () {line_rate}", f"{by}, direction"))


PORT, INTERFACE = "instance, device, port", "instance, device"
LINKS_DOWN = (
    f"(count(goodput_infiniband_up{{{NODE}}} == 0 and on ({PORT}) infiniband_port:up:timestamp) or vector(0)) + "
    f"(count(goodput_network_up{{{NODE}}} == 0 and on ({INTERFACE}) network_device:up:timestamp) or vector(0))"
)
PAUSED = f'rate(goodput_network_pause_seconds_total{{{NODE},direction="receive"}}[{RATE}])'
DISK_BUSY = f"max by (instance, device) (rate(goodput_host_disk_busy_seconds_total{{{NODE}}}[{RATE}]))"
FULL = (
    f"1 - max by (instance, mount) (goodput_filesystem_available_bytes{{{NODE}}}) "
    f"/ max by (instance, mount) (goodput_filesystem_size_bytes{{{NODE}}})"
)


def _probed(unit: str) -> str:
    """The figures of the probe in one unit, at most a hundred."""
    return f"topk(100, max by (instance, figure, index, device) (goodput_probe_{unit}_per_second{{{NODE}}}))"


PANELS = [
    # What is broken.
    panels.stats(
        "GPUs of the chosen nodes",
        "GPUs that are expected, that a driver sees, that were seen and are lost, or whose driver does not answer; "
        "drivers is on while all of them answer. Lost above 0: the run on it has failed or will; drain the node, "
        "reboot it, replace the GPU if it happens again. Seen below expected: the driver is not loaded or refuses "
        "a GPU. Drivers off: a driver process hangs, and the values below are its last ones.",
        {
            **{
                kind: f'sum(goodput_gpus{{{NODE},kind="{kind}"}})'
                for kind in ("expected", "seen", "lost", "unknown")
            },
            "drivers": f"min(goodput_driver_up{{{NODE}}})",
        },
        unit="short",
        no_value=NO_GPU,
        overrides=[series("lost", "short", ONE_IS_BAD), series("drivers", "bool_on_off", ONE_IS_GOOD)],
    ),
    panels.bars(
        "Health events of the last hour",
        "The eight most frequent events of GPUs and links, by kind. Critical ones (a lost GPU, an uncorrectable "
        "error, an RDMA link down) need action now. Many of one kind on one node: drain it. /api/v1/health of the "
        "aggregator lists time, device and affected ranks of each event.",
        {f"{{{{kind}}}} ({severity})": _events(severity) for severity in ("critical", "warning")},
        unit="short",
        no_value="no event in the last hour",
        overrides=[("/.*critical.*/", _colour(RED)), ("/.*warning.*/", _colour(YELLOW))],
    ).max(ERRORS_FULL),
    panels.bars(
        "GPU errors: memory, XIDs, PCIe",
        "Errors in the last hour, and GPUs in a bad state. Any uncorrectable error: data was lost, reset the GPU. "
        "Rows waiting or failed: reset it when the run allows; failed means replace it. XIDs: the alert explains "
        "which and what to do. Fewer lanes or, under load, a lower generation than the link supports: reseat the "
        "card. Correctable errors alone need no action.",
        {
            "uncorrectable errors": _increase("ecc_errors_total", ',kind="uncorrectable"'),
            "correctable errors": _increase("ecc_errors_total", ',kind="correctable"'),
            "GPUs with rows waiting or failed": ROWS_BAD,
            "XIDs": f"sum({_gain('goodput_gpu_xid_errors_total', GPU)}) or vector(0)",
            "PCIe links with lanes missing": _below_maximum("lanes"),
            "PCIe links at a low generation": _below_maximum("generation"),
            "GPUs that need recovery": f"count({RECOVERY} == 1) or vector(0)",
            "PCIe replays": _increase("pcie_replays_total"),
            "XGMI links down": f'sum(goodput_gpu_xgmi_links{{{GPU},state="down"}})',
        },
        unit="short",
        no_value=NO_GPU,
        steps=ERRORS_STEPS,
        # Neither needs action by itself.
        overrides=[
            (name, {**dict([series(name, "short", [(None, GREEN)])])[name], "max": NORMAL_FULL})
            for name in ("correctable errors", "PCIe replays")
        ],
    ).max(ERRORS_FULL),
    panels.table(
        "The GPUs, lost ones first",
        "At most forty GPUs of the chosen nodes: index, slot on the PCI bus and the beginning of the uuid, by which you "
        "find them in nvidia-smi and in the machine; the rank on each, and what it does now. Unlike its peers: cooler "
        "and idle, it waits; hotter or throttled, the others wait for it. Not up, or with an XID: drain the node.",
        {
            "info": _row(on_node(gpu_names(GPU))),
            "owner": _row(f"group by (instance, gpu, run, rank) ({OWNER})"),
            "up": ROWS,
            "active": _row(ACTIVE),
            "throttled": _row(f"max by (instance, gpu) (gpu:throttled:ratio_5m{{{GPU}}})"),
            "hottest": _row(HOTTEST),
            "power": _row(POWER),
            "SM clock": _row(f"max by (instance, gpu) ({CLOCK})"),
            "memory": _row(MEMORY_USED),
            "XIDs, 1 h": _row(f"sum by (instance, gpu) ({_gain('goodput_gpu_xid_errors_total', GPU)})"),
        },
        unit="percentunit",
        no_value=NO_GPU,
        first=["node", "index", "pci", "uuid", "run", "rank"],
        sort=("-up", "-node", "-index"),
        hide=("info", "owner", "instance", "gpu", "host"),
        overrides=[
            series("up", "bool_yes_no", ONE_IS_GOOD),
            series("throttled", "percentunit", [(None, "text"), (0.05, YELLOW), (0.5, RED)]),
            series("hottest", "celsius", TEMPERATURE_STEPS),
            series("power", "watt"),
            series("SM clock", "hertz"),
            series("XIDs, 1 h", "none", [(None, "text"), (1, RED)]),
            *((name, COLOUR_TEXT) for name in ("up", "throttled", "hottest", "XIDs, 1 h")),
            ("power", {"decimals": 0}),
            *panels.widths(index=60, pci=120, uuid=90, rank=60, up=60),
            panels.link("rank", "Open the rank", "goodput-rank", run="field:run", rank="field:rank"),
            panels.link("run", "Open the run", "goodput-run", run="field:run"),
        ],
    ),
    # How hard the GPUs work, and in which phase.
    panels.lines(
        "Activity of the GPUs",
        "Share of the time in which each unit was active, mean over the GPUs. Utilization means only that some "
        "kernel ran. Low SM with high utilization: kernels are small or wait. High DRAM, low tensor: bound by "
        "memory (fuse, larger batches). Tensor near zero in training: wrong precision. A unit is missing: a false "
        "zero (see the alerts), or a GPU without such counters.",
        {
            "{{unit}}": f"avg by (unit) (goodput_gpu_activity_ratio{{{GPU}}})",
            "GPUs with false zeros": f"sum(goodput_gpu_false_zero{{{GPU}}})",
        },
        unit="percentunit",
        no_value=NO_GPU,
        overrides=[series("GPUs with false zeros", "none", right="GPUs")],
    ),
    panels.lines(
        "The six least active GPUs",
        "SM activity (utilization where there is none) of the least active GPUs. One far below the others in a "
        "run: its rank waits for data, has died, or the others do not wait for it. One far above: the others wait "
        "for it. All low: see the phases beside.",
        {GPU_LEGEND: _named(f"({LEAST_ACTIVE}) * on (instance, gpu) group_left (run, rank) {OWNER}")},
        unit="percentunit",
        no_value=NO_GPU,
        overrides=[panels.link("/.*/", "Open the rank", "goodput-rank", run="label:run", rank="label:rank")],
    ),
    panels.lines(
        "Activity by phase",
        "Activity of the GPU per second that its rank spent in a phase: SM (engine where there is none), and the "
        "tensor cores in forward and backward. Low forward and backward: launch-bound or bound by memory. Loader or checkpoint at zero: waiting "
        "that could be overlapped. Where one sample spans several phases, as in steps much shorter than a second, "
        "their shares are estimated.",
        {
            "{{phase}}": f"{_activity_by_phase('sm')} or {_activity_by_phase('engine')}",
            "{{phase}}, tensor": _by_phase(
                "goodput_gpu_activity_seconds_total", f',unit="tensor",phase=~"{COMPUTE}"'
            ),
            "estimated part": MIXED,
        },
        unit="percentunit",
        no_value="no rank has used these GPUs, or they have no such counters",
        overrides=panels.colours(
            PHASE_COLOURS
            | {"forward, tensor": "#5794f2", "backward, tensor": "#b8f9f9", "estimated part": "text"}
        ),
    ),
    # Power, and what limits it.
    panels.lines(
        "Power by phase",
        "Mean power of a GPU while its rank is in each phase. A compute phase far below the power limit: the GPU "
        "is starved. Waiting phases (loader, communication) near the level of compute: spinning kernels waste "
        "power. Multiply by the hours of the phase for the energy that waiting costs.",
        {"{{phase}}": _by_phase("goodput_gpu_phase_energy_joules_total")},
        unit="watt",
        no_value="no rank has used these GPUs, or the driver reports no power",
        overrides=panels.colours(PHASE_COLOURS),
    ),
    panels.lines(
        "Power and energy",
        "Power of the six GPUs that draw most, the lowest limit in force, and the sum of all by their energy "
        "counters (right). One GPU with less power than its peers in a run: it waits, or is throttled. A limit "
        "below the others: an operator or the rack set it; that GPU will be the straggler.",
        {
            GPU_LEGEND: _named(top_over_range(GPUS_SHOWN, POWER, "instance, gpu")),
            "lowest limit": f"min(goodput_gpu_power_limit_watts{{{GPU}}})",
            "total": rate_of("goodput_gpu_energy_joules_total", "", GPU),
        },
        unit="watt",
        no_value=NO_GPU,
        overrides=[series("total", "watt", right="all GPUs"), *panels.colours({"lowest limit": "text"})],
    ),
    panels.lines(
        "Clock throttling by reason",
        "Share of GPUs and time with throttled clocks, the six leading reasons; SM clock on the right, mean and "
        "slowest GPU. Power alone is normal at full load. Thermal, hw_thermal or hw_slowdown: fans, dust, a hot "
        "neighbour; hw_power_brake: the power supply of the rack. The slowest far below the mean: all ranks wait "
        "for that GPU.",
        {
            "{{reason}}": f"topk(6, avg by (reason) ({THROTTLED}))",
            "heat or hardware, worst GPU": f"max(gpu:throttled:ratio_5m{{{GPU}}})",
            "mean clock": f"avg({CLOCK})",
            "slowest clock": f"min({CLOCK})",
        },
        unit="percentunit",
        no_value="the driver reports no reasons",
        overrides=[series(name, "hertz", right="") for name in ("mean clock", "slowest clock")],
    ),
    # Heat, memory, links.
    panels.lines(
        "Temperature: the six hottest",
        "Hottest sensor of each GPU: core, memory or junction. Most GPUs throttle between 83 and 95 degrees, "
        "memory some ten later; the clocks beside show whether they do. One GPU far above its neighbours: its "
        "fan, its heat sink or its position in the air flow.",
        {
            GPU_LEGEND + " {{sensor}}": _named(
                top_over_range(GPUS_SHOWN, TEMPERATURE, "instance, gpu, sensor")
            )
        },
        unit="celsius",
        no_value=NO_GPU,
        steps=TEMPERATURE_STEPS,
    ),
    panels.lines(
        "GPU memory: the six fullest",
        "Share of each GPU's memory in use, caches of the framework included. Near 100 %: a larger batch or "
        "fragmentation ends in out-of-memory. Low: room for a larger batch. One GPU unlike its peers: a leftover "
        "process (goodput_gpu_process_info names it) or an uneven split of the model.",
        {GPU_LEGEND: _named(top_over_range(GPUS_SHOWN, MEMORY_USED, "instance, gpu"))},
        unit="percentunit",
        no_value=NO_GPU,
        steps=[(None, GREEN), (0.95, YELLOW)],
    ),
    panels.lines(
        "NVLink and PCIe",
        "Bytes per second over the links of all GPUs; NVLink errors per second on the right. No NVLink traffic in "
        "a run of several GPUs: the collectives use PCIe or the network (NCCL_DEBUG=INFO shows which). High PCIe: "
        "offloading, or batches that are copied more than once. Errors that grow: a link about to fail.",
        {
            "{{link}} {{direction}}": f"{rate_of('goodput_gpu_link_bytes_total', 'link, direction', GPU)} "
            f"or {LINK_BYTES}",
            "NVLink errors": rate_of("goodput_gpu_nvlink_errors_total", "", GPU),
            "NVLink bit error ratio": f"max(goodput_gpu_nvlink_bit_error_ratio{{{GPU}}})",
        },
        unit="Bps",
        no_value="no driver reports the traffic of links",
        overrides=[
            series("NVLink errors", "cps", right=""),
            series("NVLink bit error ratio", "sci", right="bit error ratio"),
        ],
    ),
    # What the GPUs wait for.
    panels.lines(
        "Network utilisation: the busiest links",
        "Traffic over the line rate of the three busiest interfaces and RDMA ports. Near 100 % for long: steps are "
        "bound by the network (overlap, compress, fewer bytes), or the link also carries a data set. One idle rail "
        "while the others work: it is down or not configured. Links down: ports and interfaces that were up within "
        "a day.",
        {
            "{{node}} {{device}} {{direction}}": _utilisation("network", INTERFACE, "speed"),
            "{{node}} {{device}}/{{port}} {{direction}}": _utilisation("infiniband", PORT, "rate"),
            "links down": LINKS_DOWN,
        },
        unit="percentunit",
        no_value=NO_AGENT,
        steps=[(None, GREEN), (0.9, YELLOW)],
        overrides=[series("links down", "none", right="links down")],
    ),
    panels.lines(
        "Network errors per second",
        "Errors, retransmitted packets, congestion and TCP retransmits of all links; on the right the share of "
        "time for which peers paused a link. Zero is normal. Errors: cable or transceiver (one device: swap it). "
        "Retransmits with congestion: too many senders for one switch; without: packet loss. Pauses: a slow "
        "receiver.",
        {
            "RDMA errors": rate_of("goodput_infiniband_errors_total", "", NODE),
            "RDMA retransmits": rate_of("goodput_infiniband_retransmits_total", "", NODE),
            "RDMA congestion": rate_of("goodput_infiniband_congestion_total", "", NODE),
            "RDMA ticks without credit": rate_of("goodput_infiniband_xmit_wait_ticks_total", "", NODE),
            "TCP retransmits": rate_of("goodput_host_tcp_retransmits_total", "", NODE),
            "interface errors": rate_of("goodput_network_errors_total", "", NODE),
            "interface drops": rate_of("goodput_network_drops_total", "", NODE),
            "paused, worst link": f"max({PAUSED}) or vector(0)",
        },
        unit="cps",
        no_value=NO_AGENT,
        overrides=[
            series("RDMA ticks without credit", "short", right="ticks/s"),
            series("paused, worst link", "percentunit", right=""),
        ],
    ),
    panels.lines(
        "Pressure, disks, file systems",
        "Share of time in which tasks waited for cpu, memory or io (worst node; full: nothing ran), busy time of "
        "the two busiest disks, the two fullest file systems, and the slowest response of one (right). High io "
        "or disk: loaders read too much or too small. memory: no room for the page cache. A file system down: any "
        "access to it hangs.",
        {
            "{{resource}} ({{kind}})": "topk(4, max by (resource, kind) "
            f"(node_resource:pressure:ratio_5m{{{NODE}}}))",
            "{{node}} {{device}} busy": on_node(top_over_range(2, DISK_BUSY, "instance, device")),
            "{{node}} {{mount}} full": on_node(top_over_range(2, FULL, "instance, mount")),
            "file systems down": f"count(goodput_filesystem_up{{{NODE}}} == 0) or vector(0)",
            "slowest response": f"max(goodput_filesystem_response_seconds{{{NODE}}})",
        },
        unit="percentunit",
        no_value=NO_AGENT,
        overrides=[
            series("file systems down", "none", right="file systems"),
            series("slowest response", "s", right=""),
        ],
    ),
]

# The ceilings of measured figures.
CEILINGS = [
    panels.table(
        "What the nodes can do",
        "What `goodput probe` last measured on the chosen nodes, and how long ago: matrix products by dtype, copies, "
        "memory, storage, all-reduce by size. A figure far below the same one of a peer: name the node with goodput "
        "probe --against, before a run begins on it.",
        {
            "products": _probed("flops"),
            "bytes": _probed("bytes"),
            "files": _probed("files"),
            "age": f"topk(100, max by (instance) (goodput_probe_age_seconds{{{NODE}}}))",
        },
        unit="none",
        no_value="no node was probed (goodput probe)",
        first=["instance", "figure", "index", "device"],
        sort="products",
        overrides=[
            series("products", "flops"),
            series("bytes", "Bps"),
            series("files", "cps"),
            series("age", "s"),
        ],
    ),
]

BOARD = build_board(
    "goodput-node",
    "What do the GPUs, links, disks and the host under a run do, and what is wrong with them?",
    PANELS,
    [(7, 8, 8, 8), (11, 24), (9, 7, 7, 10), (9, 8, 8, 8), (9, 8, 8, 8), (11, 8, 8, 8)],
    rows=[CollapsedRow("What the nodes can do, where goodput probe has measured it", CEILINGS, [(9, 24)])],
    variables=[board_builder.OPTIONAL_RUN, board_builder.HOST, board_builder.NODE, board_builder.GPU],
)
