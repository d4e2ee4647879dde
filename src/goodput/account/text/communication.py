"""The communication of an account's document as text: operations, slow calls and slow links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goodput.account.text.formats import between, bytes_text, duration, on, percent, unit_of

COLLECTIVES_SHOWN = 6
DEVICE_SHOWN_MIN = 0.005  # GPU-s
_UNMEASURED = (
    "    not known: the device waits for these calls, not the host. NCCL's profiler plugin measures how long, where steps are "
    "on the device's clock: NCCL 2.27 or later, loaded by `goodput run` unless GOODPUT_NCCL=0 (docs/nccl.md)"
)


def collective_lines(document: Mapping[str, Any]) -> list[str]:
    """The operations of process groups with most exposed time; with the last lines they sum to the states."""
    rows = document.get("collectives") or []
    if not rows:
        return []
    named = [row for row in rows if row["operation"] not in ("", "other") or row["group"]]
    about = (
        "an estimate" if document["basis"]["collectives"] == "estimated" else f"{unit_of(document)}-seconds"
    )
    if any(row.get("device_gpu_seconds") for row in rows):
        about += "; times on the device by NCCL's profiler plugin"
    lines = [f"  communication by process group and operation ({about}):"]
    for row in named[:COLLECTIVES_SHOWN]:
        calls = "" if row["calls"] is None else f"{row['calls']:,} calls"
        size = "" if row["bytes"] is None else bytes_text(row["bytes"])
        group = row["group"][:16] or "several groups"
        lines.append(
            f"    {group:16} {row['operation']:14} {_seconds(row):>12} {calls:>20} {size:>9}".rstrip()
        )
        lines += [f"      {line}" for line in _row_details(row, not document.get("ranks_elsewhere"))]
    left = sum(
        row["gpu_seconds"] or 0 for row in rows if row["operation"] and row not in named[:COLLECTIVES_SHOWN]
    )
    unknown = sum(row["gpu_seconds"] for row in rows if not row["operation"])
    lines += [f"    {'other':31} {left:12.2f}"] if left else []
    lines += [f"    {'not recorded':31} {unknown:12.2f}"] if unknown else []
    return lines + ([_UNMEASURED] if any(row["gpu_seconds"] is None for row in rows) else [])


def _seconds(row: Mapping[str, Any]) -> str:
    return "not known" if row["gpu_seconds"] is None else f"{row['gpu_seconds']:.2f}"


def _row_details(row: Mapping[str, Any], has_all_ranks: bool) -> list[str]:
    """The bus rate, what an operation's waiting was for, and what was hidden, as far as they are known.

    Without all ranks it is not known which one came last.
    """
    parts, whole = _bus(row), row["gpu_seconds"]
    least, transfer = row.get("skew_gpu_seconds") or 0, row.get("transfer_gpu_seconds") or 0
    if has_all_ranks and whole and least + transfer:
        share = between(percent(least / whole), percent(1 - transfer / whole))
        rest = "transfer and the schedule" if row["operation"] in ("send", "recv") else "transfer"
        parts.append(f"{share} of it waiting for the last rank, the rest {rest}")
    low, high = row.get("hidden_gpu_seconds"), row.get("hidden_gpu_seconds_max")
    if low is not None and high is not None:
        parts.append(f"hidden: {between(f'{low:.2f}', f'{high:.2f}')} GPU-s")
    if (on_device := row.get("device_gpu_seconds") or 0) >= DEVICE_SHOWN_MIN:
        parts.append(f"{on_device:.2f} GPU-s on the device")
    return ["; ".join(parts)] if parts else []


def _bus(row: Mapping[str, Any]) -> list[str]:
    """What the links carried at most, or at least, and of what; a document of an earlier version has none of them."""
    bound, sign = ("max", "≤") if row.get("bus_bytes_per_second_max") else ("min", "≥")
    if bound == "min" and (row.get("device_gpu_seconds") or 0) < DEVICE_SHOWN_MIN:
        return []  # Of a few small calls it says nothing.
    rate, most = row.get(f"bus_bytes_per_second_{bound}"), row.get("bus_ceiling_bytes_per_second")
    if rate is None:
        return []
    whose = "goodput probe reached" if row.get("bus_ceiling_source") == "probe" else "its links can"
    of = f", {percent(rate / most)} of the {bytes_text(most)}/s that {whose}" if most else ""
    algorithm = row.get(f"algorithm_bytes_per_second_{bound}")
    both = f"algorithm {sign} {bytes_text(algorithm)}/s, " if algorithm else ""
    return [f"{both}bus {sign} {bytes_text(rate)}/s{of}"]


def slow_issue_lines(straggler: Mapping[str, Any]) -> list[str]:
    """A document's `slow_issue`, where there is one."""
    found = straggler.get("slow_issue")
    return [] if found is None else [f"  slow collective: {slow_issue_text(found)}"]


def slow_issue_text(found: Mapping[str, Any]) -> str:
    """One sentence about a document's `slow_issue`: whose calls of which collective take how long."""
    return (
        f"rank {found['rank']}{on(found['host'])} takes {duration(found['seconds'])} a step to start"
        f" {found['operation']} in {found['group']}, others {duration(found['usual_seconds'])}"
    )


def slow_link_lines(straggler: Mapping[str, Any]) -> list[str]:
    """A document's `slow_link`, where there is one."""
    found = straggler.get("slow_link")  # A document of an earlier version has none.
    return [] if found is None else [f"  slow link: {slow_link_text(found)}"]


def slow_link_text(found: Mapping[str, Any]) -> str:
    """Of a document's `slow_link`: whose link it is, and what its slowest flow shows."""
    receiver = found["receiver"]
    to = "a rank" if receiver is None else f"rank {receiver}"
    to += f"{on(found['receiver_host'])} ({found['receiver_address']})"
    whose = f"rank {found['rank']}{on(found['host'])} ({found['address']})"
    is_sender = found["rank"] == found["sender"]
    sender = "it" if is_sender else f"rank {found['sender']}{on(found['sender_host'])}"
    to = to if is_sender else "it"
    again = f"{percent(found['retransmitted_share'])} of the segments were sent again"
    if found["usual_bytes_per_second"] is None:
        return (
            f"nothing comes through the link of {whose}: what {sender} sent {to} was not acknowledged for "
            f"{duration(found['silent_seconds'])}, after {found['retransmits']} retransmissions"
        )
    rates = [f"{bytes_text(found[name])}/s" for name in ("bytes_per_second", "usual_bytes_per_second")]
    return (
        f"{whose} has a slow link: {sender} sends {to} {rates[0]} while it has data to send, {percent(found['busy_share'])} "
        f"of the time; other links carry {rates[1]}; {again}, the round trip takes {duration(found['rtt_seconds'])}"
    )
