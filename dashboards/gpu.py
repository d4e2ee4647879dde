"""goodput / GPU hardware: limits, wear and links of the GPUs, one by one."""

from __future__ import annotations

from dashboards import board_builder, panels
from dashboards.board_builder import CollapsedRow, build_board
from dashboards.panels import series
from dashboards.promql import GPU_LEGEND, RATE, named_gpus, rate_of, top_over_range

GPUS_SHOWN = 6  # as many as a legend has room for
NODE = 'instance=~"$instance"'
GPU = f'{NODE},gpu=~"$gpu"'
LINK = "instance, gpu, link, kind"
MARGIN = f"max by (instance, gpu) (goodput_gpu_temperature_margin_celsius{{{GPU}}})"
LINK_ERRORS = rate_of("goodput_gpu_nvlink_link_errors_total", LINK, GPU)
LINK_TRAFFIC = (
    f"{rate_of('goodput_gpu_nvlink_link_bytes_total', 'instance, gpu, link', GPU)} "
    f"or sum by (instance, gpu, link) (goodput_gpu_nvlink_link_bytes_per_second{{{GPU}}})"
)
NO_SWITCH = "no driver or dcgm-exporter reports an NVSwitch"

PANELS = [
    # How far from their limits, and what is wearing out.
    panels.lines(
        "Margin of heat: the six GPUs with least",
        "Degrees that the GPUs have left before clocks are throttled; of GPUs that state their limits so, the margin at "
        "which each is reached; on the right the fastest fan. No margin in a busy rack: inlet air or a fan. A fan at "
        "full speed on one GPU: its heat sink.",
        {
            GPU_LEGEND: named_gpus(top_over_range(GPUS_SHOWN, MARGIN, "instance, gpu", "bottomk"), GPU),
            "{{limit}} at margin": f"max by (limit) (goodput_gpu_temperature_limit_margin_celsius{{{GPU}}})",
            "fastest fan": f"max(goodput_gpu_fan_speed_ratio{{{GPU}}})",
        },
        unit="celsius",
        no_value="the driver reports no margin of heat",
        overrides=[series("fastest fan", "percentunit", right="")],
        axis="left to the limit",
    ),
    panels.lines(
        "Temperature against its limits",
        "The hottest GPU by its sensors, and the lowest limit of each kind among the GPUs. At slowdown, clocks are "
        "throttled; at shutdown the GPU switches itself off, and its run fails. Near a limit: the margins beside name "
        "the GPU.",
        {
            "hottest, {{sensor}}": f"max by (sensor) (goodput_gpu_temperature_celsius{{{GPU}}})",
            "{{limit}} limit": f"min by (limit) (goodput_gpu_temperature_limit_celsius{{{GPU}}})",
        },
        unit="celsius",
        no_value="the driver reports no temperature",
    ),
    panels.lines(
        "Settings of power",
        "Lowest power limit of the GPUs as requested, by default, and the least and most that may be requested; "
        "the highest power at one moment. Requested below default: somebody set it (nvidia-smi -pl), and that GPU is "
        "slower than its peers.",
        {
            "{{kind}}": f"min by (kind) (goodput_gpu_power_setting_watts{{{GPU}}})",
            "highest now": f"max(goodput_gpu_power_instant_watts{{{GPU}}})",
        },
        unit="watt",
        no_value="the driver reports no limits of power",
    ),
    panels.lines(
        "Settings of clocks",
        "The lowest limit of each clock among the GPUs, and on the right the slowest P-state. Clocks of one kind below "
        "max on some GPUs: somebody set them (nvidia-smi -ac, -lgc). P-state above 0 under load: the GPU is held down.",
        {
            "{{clock}}, {{kind}}": f"min by (clock, kind) (goodput_gpu_clock_limit_hertz{{{GPU}}})",
            "slowest P-state": f"max(goodput_gpu_performance_state{{{GPU}}})",
        },
        unit="hertz",
        no_value="the driver reports no limits of clocks",
        overrides=[series("slowest P-state", "none", right="P-state")],
    ),
    panels.lines(
        "Memory errors by place, spare rows",
        "ECC errors per hour by place, banks with few or no spare rows, GPUs whose SRAM is past the threshold for "
        "replacement, GPUs without ECC; on the right the fullest BAR1. Device is the DRAM: remapped rows mend it, "
        "until a bank has none left. SRAM (l1, l2, register) is not mended: past the threshold, replace the GPU.",
        {
            "{{location}}, {{kind}}": "topk(6, sum by (location, kind) "
            f'(increase(goodput_gpu_ecc_location_errors_total{{{GPU},scope="volatile"}}[1h])))',
            "banks, {{spare}} spare": f'sum by (spare) (goodput_gpu_row_remap_banks{{{GPU},spare=~"low|none"}})',
            "SRAM past threshold": f"sum(goodput_gpu_ecc_threshold_exceeded{{{GPU}}})",
            "without ECC": f'count(goodput_gpu_ecc_enabled{{{GPU},kind="current"}} == 0) or vector(0)',
            "fullest BAR1": f'max(goodput_gpu_bar1_bytes{{{GPU},kind="used"}} / ignoring (kind) '
            f'goodput_gpu_bar1_bytes{{{GPU},kind="total"}})',
        },
        unit="short",
        axis="errors/h, banks, GPUs",
        no_value="the driver reports no errors by place",
        overrides=[series("fullest BAR1", "percentunit", right="")],
    ),
    panels.lines(
        "NVLinks one by one",
        "Links that are down, and the errors per second of the six worst links; on the right the bytes per second "
        "of the busiest and the idlest link. One link with errors: its connector or the switch port behind it. One "
        "idle link while the others work: it is down, and the ring goes around it.",
        {
            "links down": f"count(goodput_gpu_nvlink_up{{{GPU}}} == 0) or vector(0)",
            GPU_LEGEND + " link {{link}} {{kind}}": named_gpus(
                f"{top_over_range(GPUS_SHOWN, LINK_ERRORS, LINK)} > 0", GPU
            ),
            "busiest link": f"max({LINK_TRAFFIC})",
            "idlest link": f"min({LINK_TRAFFIC})",
        },
        unit="short",
        axis="links, errors/s",
        no_value="the driver reports no NVLinks",
        overrides=[series(f"{which} link", "Bps", right="") for which in ("busiest", "idlest")],
    ),
    panels.lines(
        "PCIe and chip-to-chip errors",
        "Errors per second by kind, and chip-to-chip links that are not active. Correctable errors cost a "
        "retransmission each: many are a riser, a cable or a slot. Fatal or non_fatal ones end in a lost GPU.",
        {
            "PCIe {{kind}}": f"topk(6, sum by (kind) (rate(goodput_gpu_pcie_errors_total{{{GPU}}}[{RATE}])))",
            "C2C {{kind}}": f"sum by (kind) (rate(goodput_gpu_c2c_errors_total{{{GPU}}}[{RATE}]))",
            "C2C links inactive": f'sum(goodput_gpu_c2c_links{{{GPU},kind="present"}} - ignoring (kind) '
            f'goodput_gpu_c2c_links{{{GPU},kind="active"}})',
        },
        unit="cps",
        no_value="the driver reports no errors of PCIe",
        overrides=[series("C2C links inactive", "none", right="links")],
    ),
    panels.lines(
        "NVLink fabric and licences",
        "GPUs by the state that the fabric manager gave them, GPUs with each problem of the fabric, and those that "
        "need a vGPU licence and have none. Anything but completed on a machine with NVSwitches: NCCL falls back "
        "to PCIe or fails (systemctl status nvidia-fabricmanager).",
        {
            "{{state}}": f"sum by (state) (goodput_gpu_fabric_state{{{GPU}}})",
            "{{problem}}": f"sum by (problem) (goodput_gpu_fabric_problem{{{GPU}}}) > 0",
            "without licence": f'count(goodput_gpu_vgpu_license{{{GPU},kind="supported"}} == 1 unless on (instance, gpu) '
            f'goodput_gpu_vgpu_license{{{GPU},kind="licensed"}} == 1) or vector(0)',
        },
        unit="none",
        axis="GPUs",
        no_value="the driver reports no state of a fabric",
    ),
]

# What is beside the GPUs.
BESIDE = [
    panels.lines(
        "NVSwitches",
        "Hottest NVSwitch, the lowest limits of heat, switches that have to be reset; on the right the power of "
        "all by rail. A switch near its limit slows all GPUs behind it. One that has to be reset has failed: drain "
        "the machine.",
        {
            "hottest": f"max(goodput_nvswitch_temperature_celsius{{{NODE}}})",
            "{{limit}} limit": f"min by (limit) (goodput_nvswitch_temperature_limit_celsius{{{NODE}}})",
            "to be reset": f"sum(goodput_nvswitch_reset_required{{{NODE}}})",
            "power {{rail}}": f"sum by (rail) (goodput_nvswitch_power_watts{{{NODE}}})",
        },
        unit="celsius",
        no_value=NO_SWITCH,
        overrides=[series("to be reset", "none", right="switches"), series("/power .*/", "watt", right="")],
    ),
    panels.lines(
        "Links of NVSwitches",
        "Links of switches that are down, errors per second by kind, and the last SXid by class. Fatal ones end "
        "the jobs on the GPUs behind the link; NVIDIA's fabric manager guide has what each SXid means.",
        {
            "links down": f"count(goodput_nvswitch_link_up{{{NODE}}} == 0) or vector(0)",
            "{{kind}}": rate_of("goodput_nvswitch_link_errors_total", "kind", NODE),
            "last SXid, {{class}}": f"max by (class) (goodput_nvswitch_last_sxid{{{NODE}}})",
        },
        unit="short",
        axis="links, errors/s",
        no_value=NO_SWITCH,
        overrides=[series("/last SXid, .*/", "none", right="SXid")],
    ),
    panels.lines(
        "NVIDIA's CPUs",
        "Power of the Grace CPUs by part and their lowest limit; on the right their hottest temperature, the lowest "
        "limits of heat, and the share of time in which the cores were busy. CPU and GPU share the power of a "
        "module: a busy CPU takes from its GPU.",
        {
            "{{part}}": f"sum by (part) (goodput_cpu_power_watts{{{NODE}}})",
            "lowest limit": f"min(goodput_cpu_power_limit_watts{{{NODE}}})",
            "hottest": f"max(goodput_cpu_temperature_celsius{{{NODE}}})",
            "{{limit}} at": f"min by (limit) (goodput_cpu_temperature_limit_celsius{{{NODE}}})",
            "busy, {{mode}}": f"avg by (mode) (goodput_cpu_activity_ratio{{{NODE}}})",
        },
        unit="watt",
        no_value="neither DCGM nor a dcgm-exporter reports a Grace CPU",
        overrides=[
            series("hottest", "celsius", right=""),
            series("/.* at/", "celsius", right=""),
            series("/busy, .*/", "percentunit", right=""),
        ],
    ),
    panels.lines(
        "Further fields of DCGM",
        "The highest value of each field that goodput node --dcgm-fields names and that has no series of its own, "
        "in DCGM's unit. NVIDIA's reference of field identifiers has what each means.",
        {"{{field}}": f"topk(12, max by (field) (goodput_gpu_dcgm_field{{{GPU}}}))"},
        unit="short",
        axis="in DCGM's unit",
        no_value="goodput node --dcgm-fields names none",
    ),
]

BOARD = build_board(
    "goodput-gpu",
    "How far are the GPUs from their limits, what of them wears out, and which of their links or switches fails?",
    PANELS,
    [(9, 8, 8, 8), (9, 8, 8, 8), (9, 12, 12)],
    rows=[
        CollapsedRow(
            "NVSwitches, NVIDIA's CPUs and further fields of DCGM, where they are reported",
            BESIDE,
            [(9, 12, 12), (9, 12, 12)],
        )
    ],
    variables=[board_builder.OPTIONAL_RUN, board_builder.HOST, board_builder.NODE, board_builder.GPU],
)
