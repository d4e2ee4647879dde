"""Names the leading causes: the states with the most time apart from compute, and what to do about each.

A second and third cause are named when they are near the first: at least half its time.

`gain` is the speed-up by the cause's share alone, 1 / (1 - share): Amdahl's law where no rank waits for another."""

from __future__ import annotations

from statistics import median

from goodput.account.text import duration_ns
from goodput.trace import names
from goodput.trace.states import STATES

SHARE_MIN = 0.02
NEAR_MIN, CAUSES_MAX = 0.5, 3
# A last step shorter than this part of the median was cut off, and is left out of the mean step.
CUT_OFF_MAX = 0.01


def leading(total: dict, devices: list[dict], waiting: dict | None) -> list[dict]:
    """The largest cause and those near it, largest first; none below SHARE_MIN."""
    spent = sorted(((total["states_ns"][state], state) for state in STATES[1:]), key=lambda one: -one[0])
    least = max(SHARE_MIN * total["wall_ns"], NEAR_MIN * spent[0][0])
    return [
        _cause(state, ns, total, devices, waiting) for ns, state in spent[:CAUSES_MAX] if ns and ns >= least
    ]


def _cause(state: str, ns: int, total: dict, devices: list[dict], waiting: dict | None) -> dict:
    share = ns / total["wall_ns"]
    return {
        "state": state,
        "share": share,
        "ns": ns,
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
        f"The loader holds up each step by {duration_ns(sum(waits) / (len(waits) or 1))}: more workers (num_workers, "
        "persistent_workers, prefetch_factor), cheaper decoding, or data on faster storage."
    )


def _whole(steps: list[dict]) -> list[dict]:
    """The steps, without a last one that was cut off."""
    if len(steps) < 2 or steps[-1]["wall_ns"] >= CUT_OFF_MAX * median(step["wall_ns"] for step in steps):
        return steps
    return steps[:-1]


def _host(total: dict, devices: list[dict], waiting: dict | None) -> str:
    long = _long(devices, "host")
    if sum(row["ns"] for row in long) > total["states_ns"]["host"] / 2:
        return f"{_listed('The device waits for the host', long)} {_host_remedy(long[0])}"
    if all(one["device"].startswith("CPU") for one in devices):
        return "Time goes to Python between operators: profile it with_stack=True, and move work out of the loop."
    late, spent = (sum(one["gaps"][name] for one in devices) for name in ("late_count", "late_ns"))
    late, spent = late - sum(row["count"] for row in long), spent - sum(row["ns"] for row in long)
    gaps = (
        f"in {late} gaps of {duration_ns(spent / late)} on average"
        if late > 0 and spent > 0
        else "with nothing queued"
    )
    return (
        f"The device waits for the host {gaps}: launch less often and with less Python (torch.compile, CUDA graphs, "
        "fused optimizers, larger batches)."
    )


def _host_remedy(row: dict) -> str:
    if row["during"] is None:
        return (
            "The trace does not show what the host did: trace with_stack=True or put record_function around it, then "
            "move it out of the loop, into the loader's workers or one step ahead."
        )
    if row["before_graph"]:
        return "Prepare the inputs of the next graph before the last one ends, or capture more of the step in a graph."
    if any(word in row["during"] for word in ("Malloc", "Free", "HostAlloc", "MemCreate")):
        return (
            "Memory is allocated in the loop: reuse buffers, and avoid shapes that change and empty_cache()."
        )
    if names.LAUNCHES.search(row["during"]):
        return "The call itself takes that long: the first launch of a kernel loads it, so leave warm-up out of the trace."
    return (
        "Move what runs there on the CPU out of the loop, into the loader's workers, or to the device one step ahead "
        "(with_stack=True shows more)."
    )


def _idle(total: dict, devices: list[dict], waiting: dict | None) -> str:
    idle, long = total["states_ns"]["idle"], _long(devices, "idle")
    if sum(row["ns"] for row in long) > idle / 2:
        return f"{_listed('Nothing runs', long)} {_idle_remedy(long[0])}"
    queued = sum(one["gaps"]["queued_ns"] for one in devices)
    if queued > idle / 2:
        return (
            "The device has queued work that does not start: many small kernels in sequence (fuse them, use CUDA "
            "graphs), or streams that wait for each other."
        )
    return _UNSEEN


_UNSEEN = (
    "The host waits for the device, or does something that is not in the trace: remove .item(), .cpu() and synchronize() "
    "from the loop, and trace with_stack=True to see the rest."
)


def _idle_remedy(row: dict) -> str:
    if row["before_graph"]:
        return (
            "Each is too long for the start of a kernel: look at what the graph waits for (the launch call itself, a copy, "
            "an event of another stream, a host node), launch it earlier, or merge graphs."
        )
    if row["during"] is None or "Synchronize" in row["during"]:
        return _UNSEEN
    return "The work was launched before: look for events of other streams, or copies that it waits for."


def _long(devices: list[dict], state: str) -> list[dict]:
    rows = [row for one in devices for row in one["long_gaps"] if row["state"] == state]
    return sorted(rows, key=lambda row: -row["ns"])


def _listed(what: str, rows: list[dict]) -> str:
    """The sentence that names the largest groups of long gaps."""
    groups = []
    for row in rows[:2]:
        size = f"one gap of {duration_ns(row['ns'])}"
        if row["count"] > 1:
            size = f"{row['count']} gaps of {duration_ns(row['ns'] / row['count'])} on average"
        graph = " before graph launches" if row["before_graph"] else ""
        doing = f", the host in {row['during'][:80]}" if row["during"] else ""
        groups.append(f"{size}{graph}{doing}")
    return f"{what} in {'; and in '.join(groups)}."


_ADVICE = {"communication": _communication, "copy": _copy, "loader": _loader, "host": _host, "idle": _idle}


def _top(devices: list[dict], kind: str) -> str:
    """A sentence that names the longest row of a kind, or \"\"."""
    rows = [row for one in devices for row in one["top"] if row["kind"] == kind]
    if not rows:
        return ""
    most = max(rows, key=lambda row: row["ns"])
    name = most["name"].split("(")[0] if kind == "communication" else most["name"]
    return f"Most is {name[:60]} ({most['count']} times, {duration_ns(most['ns'])}). "
