"""The collectives of a rank as text: what each operation of each process group has cost."""

from __future__ import annotations

from goodput.rank_page.collective_records import Collectives

LINES_MAX = 6


def lines(found: Collectives, communication_ns: int) -> list[str]:
    """The operations with most exposed time, and the rest: they sum to the phase `communication`, by the host's clock."""
    if not found.sums:
        return []
    largest = sorted(found.sums, key=lambda one: (-one.exposed_ns, one.group, one.operation))[:LINES_MAX]
    text = ["  communication by process group and operation, by the host's clock:"]
    for one in largest:
        group = found.groups[one.group]
        name = group.description if group.description not in ("", "undefined") else group.name
        text.append(
            f"    {name[:16]:16} {one.operation:14} {one.calls:9} calls {one.bytes / 1e6:12.3f} MB "
            f"{one.exposed_ns / 1e9:10.4f} s"
        )
    rest = max(communication_ns - sum(one.exposed_ns for one in largest), 0)
    return [*text, f"    {'other':63} {rest / 1e9:10.4f} s"]
