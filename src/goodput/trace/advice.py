"""Names the leading cause: the state with the most time apart from compute, and what to do about it.

`gain` is the largest speed-up that removing the cause can bring, 1 / (1 - share) by Amdahl's law."""

from __future__ import annotations

from statistics import median

from goodput.trace.states import STATES

SHARE_MIN = 0.02
# A last step shorter than this part of the median was cut off, and is left out of the mean step.
CUT_OFF_MAX = 0.01


def leading(total: dict, devices: list[dict], waiting: dict | None) -> dict | None:
    wall = total["wall_ns"]
    state = max(STATES[1:], key=lambda state: total["states_ns"][state])
    share = total["states_ns"][state] / wall if wall else 0.0
    if share < SHARE_MIN:
        return None
    return {
        "state": state,
        "share": share,
        "ns": total["states_ns"][state],
        "gain": 1 / (1 - share) if share < 1 else None,
        "advice": _ADVICE[state](total, devices, waiting),
    }


def _communication(total: dict, devices: list[dict], waiting: dict | None) -> str:
    overlap = f"{total['overlap_percent'] or 0:.0f} % of communication is hidden by computing. "
    exposed = total["states_ns"]["communication"]
    if waiting and waiting["waiting_ns"] > exposed / 2:
        return (
            f"{overlap}{100 * waiting['waiting_ns'] / exposed:.0f} % of what is exposed is waiting for a slower rank: "
            f"look at rank {waiting['waited_least']}, which waits least."
        )
    top = _top(devices, "communication")
    return (
        f"{overlap}{top}Start collectives earlier (DDP buckets, FSDP prefetch), send less (bf16 gradients, fewer and larger "
        "messages), or give each GPU more work per step."
    )


def _copy(total: dict, devices: list[dict], waiting: dict | None) -> str:
    pageable = any("ageable" in row["name"] for one in devices for row in one["top"] if row["kind"] == "copy")
    pin = "Copies use pageable memory: pin it (pin_memory=True), " if pageable else "Pin host memory, "
    return f"{_top(devices, 'copy')}{pin}copy with non_blocking=True on a stream of its own, one step ahead."


def _loader(total: dict, devices: list[dict], waiting: dict | None) -> str:
    waits = [step["states_ns"]["loader"] for one in devices for step in _whole(one["steps"])]
    return (
        f"The loader holds up each step by {duration(sum(waits) / (len(waits) or 1))}: more workers (num_workers, "
        "persistent_workers, prefetch_factor), cheaper decoding, or data on faster storage."
    )


def _whole(steps: list[dict]) -> list[dict]:
    """The steps, without a last one that was cut off."""
    if len(steps) < 2 or steps[-1]["wall_ns"] >= CUT_OFF_MAX * median(step["wall_ns"] for step in steps):
        return steps
    return steps[:-1]


def _host(total: dict, devices: list[dict], waiting: dict | None) -> str:
    if all(one["device"].startswith("CPU") for one in devices):
        return "Time goes to Python between operators: profile it with_stack=True, and move work out of the loop."
    late, spent = (sum(one["gaps"][name] for one in devices) for name in ("late_count", "late_ns"))
    gaps = f"in {late} gaps of {duration(spent / late)} on average" if late else "with nothing queued"
    return (
        f"The device waits for the host {gaps}: launch less often and with less Python (torch.compile, CUDA graphs, "
        "fused optimizers, larger batches)."
    )


def _idle(total: dict, devices: list[dict], waiting: dict | None) -> str:
    queued = sum(one["gaps"]["queued_ns"] for one in devices)
    if queued > total["states_ns"]["idle"] / 2:
        return (
            "The device has queued work that does not start: many small kernels in sequence (fuse them, use CUDA "
            "graphs), or streams that wait for each other."
        )
    return (
        "The host waits for the device, or does something that is not in the trace: remove .item(), .cpu() and synchronize() "
        "from the loop, and trace with_stack=True to see the rest."
    )


_ADVICE = {"communication": _communication, "copy": _copy, "loader": _loader, "host": _host, "idle": _idle}


def _top(devices: list[dict], kind: str) -> str:
    """A sentence that names the longest row of a kind, or \"\"."""
    rows = [row for one in devices for row in one["top"] if row["kind"] == kind]
    if not rows:
        return ""
    most = max(rows, key=lambda row: row["ns"])
    name = most["name"].split("(")[0] if kind == "communication" else most["name"]
    return f"Most is {name[:60]} ({most['count']} times, {duration(most['ns'])}). "


def duration(ns: float) -> str:
    """A duration with three significant digits."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"
