"""The panels of the board of nodes (node.py) that say what is broken: GPUs, events, damage.

In: series of goodput.metrics that the node agents serve. Out: `gpus`, `events`, `damage`.
"""

from __future__ import annotations

from dashboards.panels import GREEN, RED, YELLOW, bars, change, numbers, query

NODE = 'instance=~"$instance"'
GPU = f'{NODE},gpu=~"$gpu"'
NO_GPU = "no driver knows a GPU here"


def _gained(series: str, selector: str, window: str) -> str:
    """How much a counter gained, one that was born meanwhile included: a first XID is born as 1."""
    now = f"{series}{{{selector}}}"
    return f"clamp_min({now} - ({now} offset {window} or {now} * 0), 0)"


# -- What is broken


def gpus():
    panel = numbers(
        "GPUs of these nodes",
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
    change(panel, "lost", unit="short", steps=[(None, GREEN), (1, RED)])
    return change(panel, "drivers", unit="bool_on_off", steps=[(None, RED), (1, GREEN)])


def events():
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


def damage():
    ecc = f"goodput_gpu_ecc_errors_total{{{GPU},"
    rows = f"goodput_gpu_rows_remapped{{{GPU},"
    pages = f"goodput_gpu_pages_retired{{{GPU},"
    lanes, generation = f"goodput_gpu_pcie_lanes{{{GPU},", f"goodput_gpu_pcie_generation{{{GPU},"
    slow = 'count(max by (instance, gpu) ({0}kind="current"}}) < max by (instance, gpu) ({0}kind="max"}})) or vector(0)'
    waiting = f'sum(max by (instance, gpu) ({rows}kind=~"pending|failure"}} or {pages}kind="pending"}})) or vector(0)'
    panel = bars(
        "Damage: memory, XIDs, PCIe",
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
        change(panel, name, unit="short", steps=[(None, GREEN)])
    return panel
