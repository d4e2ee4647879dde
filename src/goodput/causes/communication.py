"""Time in collectives, and in sends and receives, that even the last rank to arrive waited for."""

from __future__ import annotations

from goodput.account.account import Account
from goodput.account.collectives.operation_sums import (
    NOT_RECORDED,
    OTHER,
    Key,
    OperationTime,
    bus_rate_max,
    bus_rate_min,
)
from goodput.account.collectives.slow_link import slow_link_document
from goodput.account.document import slow_issue
from goodput.account.figures import bus_ceilings, pipeline
from goodput.account.text import (
    COMPARED_SHARE_MIN,
    between,
    bytes_text,
    percent,
    slow_issue_text,
    slow_link_text,
)

STATE = "communication"
ADVICE = (
    "Overlap gradient reduction with the backward pass (larger or earlier buckets), reduce in bf16, or give "
    "each rank more work per step."
)
_OVERLAPPED = "Reduce in bf16, shard over fewer ranks, or give each rank more work per step: more overlap brings little."
_PIPELINE = "Overlap the sends and receives between stages, and gradient reduction, with compute."
# Below this a call takes about as long as an empty one (nccl-tests: the bus bandwidth still grows with the size).
SMALL_BYTES = 1 << 20
# Links that carry less than this part of what they did in the probe are slow.
SLOW_MAX = 0.5
# Of the time in which calls were under way: below the first share training waits for all of it, above the second hardly any.
HIDDEN_MIN, HIDDEN_WELL = 0.1, 0.5
LATE_MIN = 0.5  # of the waiting in all operations
UNMEASURED_MIN = 0.5  # of it in no operation, where calls wait on the device

_BETWEEN_STAGES = ("send", "recv")
_UNMEASURED = (
    f"{ADVICE} In which operations the time passes is not known, since the device waits and not the host: start training with "
    "goodput run, which loads NCCL's profiler plugin."
)
_SLOW_ISSUE = (
    "check whether that rank's threads get a core, its network interface, and what its communication hook or library does "
    "in the call."
)
_SLOW_LINK = (
    "look at that node's network interface, cable and switch port (errors, negotiated speed, duplex), at its interface "
    "for collectives (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), and at others' traffic on the way."
)


def advise(account: Account) -> str:
    slow, link, text = slow_issue(account), account.slow_link, _general(account)
    if link is not None:
        whose = slow_link_text(slow_link_document(link))
        text = f"{whose[0].upper()}{whose[1:]}: {_SLOW_LINK} {text}"
    text = _uncompared(account) + text
    return text if slow is None else f"All ranks wait while {slow_issue_text(slow)}: {_SLOW_ISSUE} {text}"


def _uncompared(account: Account) -> str:
    """A warning where few of the steps, or not all ranks, could be compared with each other, "" elsewhere."""
    if account.ranks_elsewhere:
        return (
            "Not all ranks are in this account, so a part of this may be waiting for a slower one: goodput report compares "
            "those of a node, and the aggregator all. "
        )
    share = account.straggler.compared_share()
    if share is None or share >= COMPARED_SHARE_MIN:
        return ""
    return (
        f"Only {percent(share)} of the time in steps could be compared between ranks, so a part of this may be waiting for "
        "a slower rank. "
    )


def _general(account: Account) -> str:
    found = pipeline(account)
    if found is None:
        return _by_operation(account) or ADVICE
    first = _by_operation(account) if _largest(account)[1] not in _BETWEEN_STAGES else ""
    if found["microbatches"] is None:
        more = (
            "A part of it is the pipeline's bubble: pass microbatches= to goodput.start to have it separated."
        )
    else:
        more = "It is more than this schedule's bubble: microbatches of uneven work wait here too."
    return f"{first or _PIPELINE} {more}"


def _largest(account: Account) -> Key:
    """The operation with most time, NOT_RECORDED without one that has a name."""
    named = [(row.gpu_ns, key) for key, row in account.operations.items() if key not in (OTHER, NOT_RECORDED)]
    return max(named, default=(0, NOT_RECORDED))[1]


def _by_operation(account: Account) -> str:
    """What to do about the operation with most time, "" where it is not known enough."""
    times, key = account.operations, _largest(account)
    total = sum(row.gpu_ns for row in times.values())
    unmeasured = any(not row.is_known for row in times.values())
    if unmeasured and NOT_RECORDED in times and times[NOT_RECORDED].gpu_ns >= UNMEASURED_MIN * total > 0:
        return _UNMEASURED
    if key == NOT_RECORDED or not total:
        return ""
    row, (group, operation) = times[key], key
    if not row.calls or not row.bytes:
        return ""
    mean = row.bytes / row.calls
    what = f"{percent(row.gpu_ns / total)} of the waiting is in {operation} of group {group}, {bytes_text(mean)} a call. "
    late = sum(row.skew_ns for row in times.values()) / total
    if late >= LATE_MIN:
        what = f"At least {percent(late)} of all waiting is for late ranks, so begin with the cause straggler. {what}"
    if mean < SMALL_BYTES:
        return (
            f"{what}Such messages are too small for the links: send fewer and larger ones (larger DDP buckets, FSDP units "
            "of more layers, coalesced calls)."
        )
    return what + _of_large(account, operation, row)


def _of_large(account: Account, operation: str, row: OperationTime) -> str:
    """What to do about large messages: by what the links carry, of what they can, and by what is hidden."""
    most, least, ceiling = (
        bus_rate_max(operation, row),
        bus_rate_min(operation, row),
        bus_ceilings(account)(row),
    )
    overlap, rate = _overlap(row, account), most or least
    if rate is None or ceiling is None:
        return overlap or ADVICE
    reach, source = ceiling
    whose = "that goodput probe reached" if source == "probe" else "of the nodes' interfaces"
    carried = f"{bytes_text(rate)}/s of the {bytes_text(reach)}/s {whose}"
    first = "" if source == "probe" else "see with goodput probe what this backend reaches there; "
    if most is None:
        return _of_device_time(carried, rate < SLOW_MAX * reach, first, overlap)
    if rate < SLOW_MAX * reach:
        return (
            f"The links carry at most {carried}: {first}look for a slow link or NIC (errors, width, a wrong interface), or "
            "others' traffic, before changing the training."
        )
    if overlap:
        return overlap if rate > reach else f"The links are well used (at most {carried}). {overlap}"
    if rate > reach:
        return f"A part of it is hidden already ({bytes_text(rate)}/s of exposed time are more than links reach). {ADVICE}"
    return f"The links are well used (at most {carried}), and nothing hides it. {ADVICE}"


def _of_device_time(carried: str, is_slow: bool, first: str, overlap: str) -> str:
    """What to do by the rate of the time on the device, in which ranks wait for each other too: links carried at least it."""
    if not is_slow:
        return f"The links are well used (at least {carried}). {overlap or ADVICE}"
    return (
        f"While its calls were on the device, which includes waiting for late ranks, the links carried {carried}: {first}look "
        "for a slow link or NIC (errors, width, a wrong interface), or others' traffic, before changing the training."
    )


def _overlap(row: OperationTime, account: Account) -> str:
    """What to do by how much of the operation is hidden behind other work, "" where that is not known.

    Of its time on the device what is not exposed is hidden.
    """
    hidden = row.hidden_ns, row.hidden_max_ns
    if row.hidden_ns < 0 and row.device_ns >= row.gpu_ns and not account.is_part:
        hidden = (row.device_ns - row.gpu_ns,) * 2
    if min(hidden) < 0 or not row.gpu_ns:
        return ""
    least, most = (ns / (ns + row.gpu_ns) for ns in hidden)
    share = between(percent(least), percent(most))
    if most < HIDDEN_MIN:
        return f"Nothing overlaps it ({share} of it is hidden behind other work). {ADVICE}"
    if least >= HIDDEN_WELL:
        return f"{share} of it is hidden behind other work already. {_OVERLAPPED}"
    return f"{share} of it is hidden behind other work. {ADVICE}"
