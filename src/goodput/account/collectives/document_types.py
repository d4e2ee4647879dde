"""What the account document has of collectives, for account/document_types.py."""

from __future__ import annotations

from typing import TypedDict


class SlowLink(TypedDict):
    """The rank whose link is slow, or with a hang carries nothing, by its TCP connections with other ranks.

    `sender` to `receiver` is its slowest flow, one of `flows`; `receiver` is null where several ranks have its address.
    `bytes_per_second` is while the flow has data to send, `usual_bytes_per_second` what flows with as much data reach (null
    in a hang), `busy_share` the share of the time in which it has, over 10 to 60 s. `silent_seconds` is the time without an
    acknowledgement, `retransmits` how often the oldest segment was sent again.
    """

    rank: int
    host: str
    address: str
    sender: int
    sender_host: str
    receiver: int | None
    receiver_host: str
    receiver_address: str
    flows: int
    bytes_per_second: float
    usual_bytes_per_second: float | None
    busy_share: float
    retransmitted_share: float
    rtt_seconds: float
    retransmits: int
    silent_seconds: float


class CollectiveCall(TypedDict):
    """A rank's call of a process group."""

    rank: int
    operation: str
    dtype: str
    bytes: int


class CollectiveLink(TypedDict):
    """A rank that waits in a call of a group for another rank."""

    rank: int
    group: str
    operation: str
    sequence: int
    waits_for: int


class NetworkFault(TypedDict):
    """A link of a rank's node that its agent reported as down, flapping or retransmitting since shortly before a hang."""

    host: str
    device: str
    kind: str
    text: str
    time: float


class CollectiveVerdict(TypedDict):
    """What is wrong with a collective; `kind` is one of collective_verdict.KINDS, which says what each means.

    `ranks` is text such as "0-7", "" where they are not known; `calls` are those under the number `sequence`; `links`,
    of the kind "network", have the worst first; `slow_link` is the link over which nothing comes through.
    """

    kind: str
    group: str
    description: str
    ranks: str
    size: int
    sequence: int
    operation: str
    culprits: list[int]
    entered: int
    seconds: float
    reason: str
    calls: list[CollectiveCall]
    cycle: list[CollectiveLink]
    links: list[NetworkFault]
    slow_link: SlowLink | None


class RasRank(TypedDict):
    """A rank as NCCL names it: `number` in the communicator; `rank` of the run is null where that is not known."""

    rank: int | None
    number: int
    host: str
    pid: int | None
    problem: str


class RasFinding(TypedDict):
    """What NCCL's RAS says of the worst communicator; `kind` is missing, failed or behind, `count` the ranks that are.

    `suspicious` of the job's `communicators` have something wrong.
    """

    time: float
    hash: str
    size: int
    kind: str
    count: int
    ranks: list[RasRank]
    suspicious: int
    communicators: int


class BusBandwidth(TypedDict):
    """What a rank's operations, and its links in them, carried: algorithm and bus bandwidth, and the latter's ceiling.

    `_max` is by the exposed time, `_min` by the time on the device, which includes waiting for others.
    `bus_ceiling_source` is "probe" where `goodput probe` reached the ceiling, "link" where it is the nominal rate of the
    links. Null where not known.
    """

    algorithm_bytes_per_second_max: float | None
    algorithm_bytes_per_second_min: float | None
    bus_bytes_per_second_max: float | None
    bus_bytes_per_second_min: float | None
    bus_ceiling_bytes_per_second: float | None
    bus_ceiling_source: str | None


class CollectiveTime(BusBandwidth):
    """Exposed time of one operation of one process group, over all ranks; `ranks` have called it.

    `operation` is "" for what no record explains, and with `group` "" it is "other" for all beyond the largest ones, or of
    several groups that cannot be told apart. `gpu_seconds` and its parts are null where calls are waited for by a device
    and nobody has measured for how long; `device_gpu_seconds` is how long they took there from the first step on, of whole
    processes, null if not known.
    `calls` and `bytes` (each rank's own part) are those of whole processes, null in a part of the run's time.
    `group_size` is null where it is not known or the groups of this name differ, and the bus bandwidth likewise.
    Of `gpu_seconds`, `skew_gpu_seconds` was waiting for the last rank to arrive and `transfer_gpu_seconds` what all ranks
    paid; which of the two the rest was is not known. `hidden_gpu_seconds` and its `_max` are bounds of the time in which
    calls were under way and training did not wait, of whole processes; null if not known.
    """

    group: str
    operation: str
    ranks: int
    group_size: int | None
    calls: int | None
    bytes: int | None
    gpu_seconds: float | None
    skew_gpu_seconds: float | None
    transfer_gpu_seconds: float | None
    device_gpu_seconds: float | None
    hidden_gpu_seconds: float | None
    hidden_gpu_seconds_max: float | None


class OperationTime(TypedDict):
    """As CollectiveTime, of one rank and in ns of its wall time."""

    group: str
    operation: str
    calls: int | None
    bytes: int | None
    ns: int | None
    skew_ns: int | None
    transfer_ns: int | None
    device_ns: int | None
    hidden_ns: int | None
    hidden_max_ns: int | None


class RankOperations(TypedDict):
    """The `operations` of a rank sum to `communication_ns` + `straggler_ns` + `bubble_ns`, unless none is recorded."""

    rank: int
    host: str
    communication_ns: int
    straggler_ns: int
    bubble_ns: int
    operations: list[OperationTime]


class RankCollectives(TypedDict):
    """Some of a run's ranks, `total` in all. `basis` is that of the division: measured, estimated or unknown."""

    run: str
    basis: str
    total: int
    ranks: list[RankOperations]
