"""goodput / Node and GPU: what the hardware under a run does, and what is wrong with it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.board_builder import address, build_board, gpu_variable, node_variable, optional_run_variable
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panels,
    bars,
    colour_series,
    lines,
    link_to,
    numbers,
    query,
    series_options,
    top_over_range,
)

PANELS = Panels()

NODE = 'instance=~"$instance"'
GPU = f'{NODE},gpu=~"$gpu"'
NO_GPU = "no driver knows a GPU here"


def _gained(series: str, selector: str, window: str) -> str:
    """How much a counter gained, one that was born meanwhile included: a first XID is born as 1."""
    now = f"{series}{{{selector}}}"
    return f"clamp_min({now} - ({now} offset {window} or {now} * 0), 0)"


# -- What is broken


@PANELS.add
def _gpus():
    panel = numbers(
        "GPUs of the chosen nodes",
        "GPUs that should be there, that a driver sees, that were seen and are lost, or whose driver does not "
        "answer; drivers is on while all of them answer. Lost above 0: the run on it has failed or will; drain the node, reboot it, replace the GPU "
        "if it comes again. Seen below expected: the driver is not loaded or refuses a GPU. Drivers off: one's process "
        "hangs, and what is shown below is as old as the driver's last word.",
        place=(0, 0, 8, 7),
        unit="short",
        no_value=NO_GPU,
        queries=[
            query(f'sum(goodput_gpus{{{NODE},kind="expected"}})', "expected"),
            query(f'sum(goodput_gpus{{{NODE},kind="seen"}})', "seen"),
            query(f'sum(goodput_gpus{{{NODE},kind="lost"}})', "lost"),
            query(f'sum(goodput_gpus{{{NODE},kind="unknown"}})', "unknown"),
            query(f"min(goodput_driver_up{{{NODE}}})", "drivers"),
        ],
        trend=False,
    )
    series_options(panel, "lost", unit="short", steps=[(None, GREEN), (1, RED)])
    return series_options(panel, "drivers", unit="bool_on_off", steps=[(None, RED), (1, GREEN)])


@PANELS.add
def _events():
    gained = _gained("goodput_health_events_total", f'{NODE},severity=~"warning|critical"', "1h")
    return bars(
        "Health events of the last hour",
        "What happened to GPUs and links, by kind, the eight most frequent. Critical ones (a GPU lost, an "
        "uncorrectable error, an RDMA link down) need someone now. Many of one kind on one node: drain it. When, "
        "to what, and whom each hit: /api/v1/health of the aggregator.",
        place=(8, 0, 8, 7),
        unit="short",
        no_value="nothing has happened since the agents started",
        queries=[
            query(f"topk(8, sum by (kind, severity) ({gained}))", "{{kind}} ({{severity}})", instant=True)
        ],
        steps=[(None, GREEN), (1, YELLOW), (10, RED)],
    )


@PANELS.add
def _damage():
    ecc = f"goodput_gpu_ecc_errors_total{{{GPU},"
    rows = f"goodput_gpu_rows_remapped{{{GPU},"
    pages = f"goodput_gpu_pages_retired{{{GPU},"
    lanes, generation = f"goodput_gpu_pcie_lanes{{{GPU},", f"goodput_gpu_pcie_generation{{{GPU},"
    slow = 'count(max by (instance, gpu) ({0}kind="current"}}) < max by (instance, gpu) ({0}kind="max"}})) or vector(0)'
    waiting = f'sum(max by (instance, gpu) ({rows}kind=~"pending|failure"}} or {pages}kind="pending"}})) or vector(0)'
    panel = bars(
        "GPU errors: memory, XIDs, PCIe",
        "Errors in the hour before, and GPUs in a state that lasts. Any uncorrectable error: its data is lost, "
        "reset the GPU. Rows waiting or failed: reset it when the run allows; failed means replace. XIDs: the alert "
        "says which and what to do. Fewer lanes or, under load, a lower generation than the link could have: reseat the card. "
        "Correctable errors alone ask for nothing.",
        place=(16, 0, 8, 7),
        unit="short",
        no_value=NO_GPU,
        queries=[
            query(f'sum(increase({ecc}kind="uncorrectable"}}[1h]))', "uncorrectable errors", instant=True),
            query(f'sum(increase({ecc}kind="correctable"}}[1h]))', "correctable errors", instant=True),
            query(waiting, "GPUs with rows waiting or failed", instant=True),
            query(
                f"sum({_gained('goodput_gpu_xid_errors_total', GPU, '1h')}) or vector(0)",
                "XIDs",
                instant=True,
            ),
            query(slow.format(lanes), "PCIe links with lanes missing", instant=True),
            query(slow.format(generation), "PCIe links at a low generation", instant=True),
            query(
                f'count(max by (instance, gpu) (goodput_gpu_recovery_action{{{GPU},action!="none"}}) == 1) or vector(0)',
                "GPUs that ask for a reset or reboot",
                instant=True,
            ),
            query(
                f"sum(increase(goodput_gpu_pcie_replays_total{{{GPU}}}[1h]))", "PCIe replays", instant=True
            ),
        ],
        steps=[(None, GREEN), (1, YELLOW), (10, RED)],
    )
    # Neither asks for anything by itself.
    for name in ("correctable errors", "PCIe replays"):
        series_options(panel, name, unit="short", steps=[(None, GREEN)])
    return panel


RATE = "$__rate_interval"
NO_AGENT = "no node agent is scraped"


def _by_phase(series: str, selector: str) -> str:
    """Of a counter by phase, what it gained in each second of the phase."""
    gained = f"sum by (phase) (rate({series}{{{selector}}}[{RATE}]))"
    return f"{gained} / (sum by (phase) (rate(goodput_gpu_phase_seconds_total{{{GPU}}}[{RATE}])) > 0)"


# -- How hard the GPUs work, and in which phase


@PANELS.add
def _activity():
    panel = lines(
        "Activity of the GPUs",
        "Share of the time in which each unit was active, mean over the GPUs. Utilization says only that something "
        "ran. SM low while it is high: kernels are small or wait. DRAM high, tensor low: bound by memory (fuse, "
        "larger batches). Tensor near zero in training: wrong precision. A unit missing: see false zero among the alerts, "
        "or a GPU without such counters.",
        place=(0, 7, 8, 8),
        unit="percentunit",
        no_value=NO_GPU,
        queries=[
            query(f"avg by (unit) (goodput_gpu_activity_ratio{{{GPU}}})", "{{unit}}"),
            query(f"sum(goodput_gpu_false_zero{{{GPU}}})", "GPUs with false zeros"),
        ],
    )
    return series_options(panel, "GPUs with false zeros", unit="none", axis_hidden=True)


@PANELS.add
def _least_active():
    active = (
        f'(max by (instance, gpu) (goodput_gpu_activity_ratio{{{GPU},unit="sm"}}) '
        f'or max by (instance, gpu) (goodput_gpu_activity_ratio{{{GPU},unit="utilization"}}))'
    )
    # With the rank that used the GPU last; nobody, whose run is empty, may have.
    few = f"({top_over_range(10, active, 'instance, gpu', 'bottomk')})"
    idlest = f'{few} * on (instance, gpu) group_left (run, rank) gpu:owner:info{{{NODE},run=~"$run|"}}'
    panel = lines(
        "The ten least active GPUs",
        "SM activity (utilization where there is none) of the GPUs that do least. One far below the others while a "
        "run uses it: its rank waits for data or has died, or is the one the others do not wait for. One above all: "
        "it is what the others wait for. All low together: see the phases beside.",
        place=(8, 7, 8, 8),
        unit="percentunit",
        no_value=NO_GPU,
        queries=[query(idlest, "rank {{rank}}: {{gpu}} on {{instance}}")],
    )
    return link_to(
        panel, "/.*/", "Open the rank", address("goodput-rank", {"run": "label:run", "rank": "label:rank"})
    )


@PANELS.add
def _activity_by_phase():
    series = "goodput_gpu_activity_seconds_total"
    estimated = (
        f"sum(rate(goodput_gpu_phase_mixed_seconds_total{{{GPU}}}[{RATE}])) "
        f"/ (sum(rate(goodput_gpu_phase_seconds_total{{{GPU}}}[{RATE}])) > 0)"
    )
    return lines(
        "Activity by phase",
        "What the GPU did in each second that its rank spent in a phase: SM (engine where there is none) and "
        "tensor. Forward and backward low: launch-bound or bound by memory. Loader or checkpoint at zero is waiting "
        "that could be overlapped. Where one sample met several phases, as in steps much shorter than a second, their shares are estimated.",
        place=(16, 7, 8, 8),
        unit="percentunit",
        no_value="no rank has used these GPUs, or they have no such counters",
        queries=[
            query(
                " or ".join(_by_phase(series, f'{GPU},unit="{unit}"') for unit in ("sm", "engine")),
                "{{phase}}: SM",
            ),
            query(_by_phase(series, f'{GPU},unit="tensor"'), "{{phase}}: tensor"),
            query(estimated, "estimated part"),
        ],
    )


# -- What they draw, and what holds them back


@PANELS.add
def _watts_by_phase():
    return lines(
        "Power by phase",
        "Mean power of a GPU while its rank is in each phase. A compute phase far below the power limit: the GPU is "
        "not fed. Waiting phases (loader, communication) near the compute phases' level: spinning kernels burn "
        "power for nothing. Multiply by the phase's hours for what waiting costs in energy.",
        place=(0, 15, 8, 8),
        unit="watt",
        no_value="no rank has used these GPUs, or the driver gives no power",
        queries=[query(_by_phase("goodput_gpu_phase_energy_joules_total", GPU), "{{phase}}")],
    )


@PANELS.add
def _power():
    energy = f"sum(rate(goodput_gpu_energy_joules_total{{{GPU}}}[{RATE}]))"
    panel = lines(
        "Power and energy",
        "Power of the ten GPUs that draw most, the lowest limit in force, and all of them together by their energy "
        "counters (right). One GPU with less power than its peers in one run: it waits, or is throttled. A limit "
        "below the others': someone or the rack set it; that GPU will be the straggler.",
        place=(8, 15, 8, 8),
        unit="watt",
        no_value=NO_GPU,
        queries=[
            query(
                top_over_range(
                    10, f"max by (instance, gpu) (goodput_gpu_power_watts{{{GPU}}})", "instance, gpu"
                ),
                "{{gpu}} on {{instance}}",
            ),
            query(f"min(goodput_gpu_power_limit_watts{{{GPU}}})", "lowest limit"),
            query(energy, "all together"),
        ],
    )
    return colour_series(
        series_options(panel, "all together", unit="watt", axis_right=True), {"lowest limit": RED}
    )


@PANELS.add
def _clocks():
    held = f'avg_over_time(goodput_gpu_throttled{{{GPU},reason!="idle"}}[{RATE}])'
    panel = lines(
        "Clock throttling by reason",
        "Share of GPUs and time for which clocks were held down, by reason, the six leading ones; SM clock on the "
        "right, mean and slowest GPU. Power alone is normal at full load. Thermal, hw_thermal or hw_slowdown: fans, "
        "dust, a hot neighbour; hw_power_brake: the rack's supply. The slowest far below the mean: all ranks wait "
        "for that GPU.",
        place=(16, 15, 8, 8),
        unit="percentunit",
        no_value="the driver gives no reasons",
        queries=[
            query(f"topk(6, avg by (reason) ({held}))", "{{reason}}"),
            query(f"max(gpu:throttled:ratio_5m{{{GPU}}})", "heat or hardware, worst GPU"),
            query(f'avg(goodput_gpu_clock_hertz{{{GPU},clock="sm"}})', "mean clock"),
            query(f'min(goodput_gpu_clock_hertz{{{GPU},clock="sm"}})', "slowest clock"),
        ],
    )
    series_options(panel, "mean clock", unit="hertz", axis_right=True)
    return series_options(panel, "slowest clock", unit="hertz", axis_right=True)


# -- Heat, memory, links


@PANELS.add
def _temperature():
    return lines(
        "Temperature: the ten hottest",
        "Hottest sensor of each GPU: core, memory or junction. Most GPUs slow down between 83 and 95 degrees, "
        "memory some ten later; the clocks beside show whether it has begun. One GPU far above its neighbours: its fan, "
        "its heat sink or its place in the air flow.",
        place=(0, 23, 8, 8),
        unit="celsius",
        no_value=NO_GPU,
        queries=[
            query(
                top_over_range(
                    10,
                    f"max by (instance, gpu, sensor) (goodput_gpu_temperature_celsius{{{GPU}}})",
                    "instance, gpu, sensor",
                ),
                "{{gpu}} {{sensor}} on {{instance}}",
            )
        ],
        steps=[(None, GREEN), (80, YELLOW), (90, RED)],
    )


@PANELS.add
def _memory():
    used = f'max by (instance, gpu) (goodput_gpu_memory_bytes{{{GPU},kind="used"}})'
    total = f'max by (instance, gpu) (goodput_gpu_memory_bytes{{{GPU},kind="total"}})'
    return lines(
        "GPU memory: the ten fullest",
        "Share of each GPU's memory that is taken, caches of the framework included. Near 100 %: the next larger "
        "batch or a fragmented cache ends in out-of-memory. Low: room for a larger batch. One GPU unlike its peers: "
        "a process that was left behind (goodput_gpu_process_info names it) or an uneven split of the model.",
        place=(8, 23, 8, 8),
        unit="percentunit",
        no_value=NO_GPU,
        queries=[query(top_over_range(10, f"{used} / {total}", "instance, gpu"), "{{gpu}} on {{instance}}")],
        steps=[(None, GREEN), (0.95, YELLOW)],
    )


@PANELS.add
def _links():
    counted = f"sum by (link, direction) (rate(goodput_gpu_link_bytes_total{{{GPU}}}[{RATE}]))"
    told = f"sum by (link, direction) (goodput_gpu_link_bytes_per_second{{{GPU}}})"
    panel = lines(
        "NVLink and PCIe",
        "Bytes over the GPUs' links, all GPUs together; errors of NVLinks in a second on the right. NVLink silent "
        "in a run of several GPUs: the collectives go over PCIe or the network (NCCL_DEBUG=INFO says which way). "
        "PCIe high: offloading, or batches that are copied more than once. Errors that grow: a link about to fail.",
        place=(16, 23, 8, 8),
        unit="Bps",
        no_value="no driver gives the traffic of links",
        queries=[
            query(f"{counted} or {told}", "{{link}} {{direction}}"),
            query(f"sum(rate(goodput_gpu_nvlink_errors_total{{{GPU}}}[{RATE}]))", "NVLink errors"),
        ],
    )
    return series_options(panel, "NVLink errors", unit="cps", axis_right=True)


# -- What the GPUs wait for


@PANELS.add
def _network():
    speed = f"max by (instance, device) (goodput_network_speed_bytes_per_second{{{NODE}}} > 0)"
    interface = (
        f"max by (instance, device, direction) (rate(goodput_network_bytes_total{{{NODE}}}[{RATE}])) "
        f"/ on (instance, device) group_left () {speed}"
    )
    line = f"max by (instance, device, port) (goodput_infiniband_rate_bytes_per_second{{{NODE}}} > 0)"
    port = (
        f"max by (instance, device, port, direction) (rate(goodput_infiniband_bytes_total{{{NODE}}}[{RATE}])) "
        f"/ on (instance, device, port) group_left () {line}"
    )
    down = f"count(goodput_infiniband_up{{{NODE}}} == 0 and on (instance, device, port) infiniband_port:up:timestamp)"
    off = f"count(goodput_network_up{{{NODE}}} == 0 and on (instance, device) network_device:up:timestamp)"
    panel = lines(
        "Network utilisation: the busiest links",
        "Traffic over the line rate of the eight fullest interfaces and RDMA ports. Near 100 % for long: steps are "
        "bound by the network (overlap, compress, fewer bytes), or a data set is being copied over the same link. One rail "
        "idle while the others work: it is down or left out. Links down: ports and interfaces that were up within a day.",
        place=(0, 31, 8, 8),
        unit="percentunit",
        no_value=NO_AGENT,
        queries=[
            query(
                top_over_range(8, interface, "instance, device, direction"),
                "{{device}} {{direction}} on {{instance}}",
            ),
            query(
                top_over_range(8, port, "instance, device, port, direction"),
                "{{device}}/{{port}} {{direction}} on {{instance}}",
            ),
            query(f"({down} or vector(0)) + ({off} or vector(0))", "links down"),
        ],
        steps=[(None, GREEN), (0.9, YELLOW)],
    )
    return series_options(panel, "links down", unit="none", axis_hidden=True)


@PANELS.add
def _network_errors():
    def summed(series: str) -> str:
        return f"sum(rate({series}{{{NODE}}}[{RATE}]))"

    panel = lines(
        "Network errors per second",
        "Errors, packets sent again, signs of congestion and TCP retransmits of all links; on the right the share of "
        "time that peers had a link pause. Zero is normal. Errors: cable or transceiver (one device: swap it). Sent again "
        "with congestion: too many senders for one switch; without: loss on the way. Pauses: a slow receiver spreads.",
        place=(8, 31, 8, 8),
        unit="short",
        no_value=NO_AGENT,
        queries=[
            query(summed("goodput_infiniband_errors_total"), "RDMA errors"),
            query(summed("goodput_infiniband_retransmits_total"), "RDMA sent again"),
            query(summed("goodput_infiniband_congestion_total"), "RDMA congestion"),
            query(summed("goodput_infiniband_xmit_wait_ticks_total"), "RDMA ticks without credit"),
            query(summed("goodput_host_tcp_retransmits_total"), "TCP sent again"),
            query(summed("goodput_network_errors_total"), "interface errors"),
            query(summed("goodput_network_drops_total"), "interface drops"),
            query(
                f'max(rate(goodput_network_pause_seconds_total{{{NODE},direction="receive"}}[{RATE}])) or vector(0)',
                "paused, worst link",
            ),
        ],
    )
    series_options(panel, "RDMA ticks without credit", unit="suffix: ticks", axis_hidden=True)
    return series_options(panel, "paused, worst link", unit="percentunit", axis_right=True)


@PANELS.add
def _host():
    pressure = f"topk(6, max by (resource, kind) (node_resource:pressure:ratio_5m{{{NODE}}}))"
    busy = top_over_range(
        3,
        f"max by (instance, device) (rate(goodput_host_disk_busy_seconds_total{{{NODE}}}[{RATE}]))",
        "instance, device",
    )
    full = top_over_range(
        3,
        f"1 - max by (instance, mount) (goodput_filesystem_available_bytes{{{NODE}}}) "
        f"/ max by (instance, mount) (goodput_filesystem_size_bytes{{{NODE}}})",
        "instance, mount",
    )
    panel = lines(
        "Pressure, disks, file systems",
        "Share of time in which tasks waited for cpu, memory or io (worst node; full: nothing ran), how busy the three "
        "busiest disks were, how full the three fullest file systems are, and how long the slowest took to answer "
        "(right). io or a disk high: loaders read too much or too small. memory: the page cache has no room. A file "
        "system down: whatever touches it hangs.",
        place=(16, 31, 8, 8),
        unit="percentunit",
        no_value=NO_AGENT,
        queries=[
            query(pressure, "waiting for {{resource}} ({{kind}})"),
            query(busy, "{{device}} busy on {{instance}}"),
            query(full, "{{mount}} full on {{instance}}"),
            query(f"count(goodput_filesystem_up{{{NODE}}} == 0) or vector(0)", "file systems down"),
            query(f"max(goodput_filesystem_response_seconds{{{NODE}}})", "slowest answer"),
        ],
    )
    series_options(panel, "file systems down", unit="none", axis_hidden=True)
    return series_options(panel, "slowest answer", unit="s", axis_right=True)


def board() -> builders.Dashboard:
    return build_board(
        "goodput-node",
        "What do the GPUs, links, disks and the host under a run do, and what is wrong with them?",
        variables=[optional_run_variable(), node_variable(), gpu_variable()],
        panels=PANELS,
    )
