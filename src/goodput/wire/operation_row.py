"""What one operation of the process groups of one name has cost a process so far, as pages, reports and accounts have it."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN = -1
PROFILED = "nccl-profiler"  # the backend of groups, and the role of ranks, that NCCL's profiler plugin alone has recorded


class OperationRow(NamedTuple):
    """`bytes` are this rank's part, `before_ns` is the part of `exposed_ns` before the first step.

    `issue_ns` is no sum: the time per step that its newest calls took to return, 0 if that is not known.
    `size` is how many ranks the group has, 0 if that is not known or its groups differ. `hidden_ns` and `hidden_max_ns`
    are the bounds of the time in which its calls were under way and training did not wait, UNKNOWN if that is not known.
    `local` is how many of the group's ranks are on this rank's node, and `link_rate` the bytes a second that the node's links
    carry at most to the others; each is 0 if it is not known.
    `queued` is 1 where calls return when they are queued on a device, so that `exposed_ns`, by the host's clock, lacks what
    the device waits. `device_ns` is their time on the device from the first step on, by NCCL's profiler plugin, and
    `device_bytes` the bytes of the calls of which it is known; UNKNOWN without the plugin. With `group` "" the group is
    not known.
    """

    group: str
    operation: str
    calls: int
    bytes: int
    exposed_ns: int
    before_ns: int
    issue_ns: int = 0
    size: int = 0
    hidden_ns: int = UNKNOWN
    hidden_max_ns: int = UNKNOWN
    local: int = 0
    link_rate: int = 0
    queued: int = 0
    device_ns: int = UNKNOWN
    device_bytes: int = 0
