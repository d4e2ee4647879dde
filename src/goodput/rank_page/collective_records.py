"""Collectives in a rank page: groups, sums by group and operation, a ring of records. Format, and checks of a reader.

A record is written when a collective or point-to-point call is entered; the times of its return and of its exit are
stored into it later, each as one word. So after SIGKILL the page still has what was entered and not left. Written by
sdk/recorder/_collectives.c, under the interpreter's lock, or by NCCL's profiler plugin (nccl/) in a
file of its own; read with Reader.collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from statistics import median_low
from typing import NamedTuple

from goodput.rank_page import page
from goodput.rank_page.records import ring_runs
from goodput.wire.identity import clean_text
from goodput.wire.operation_row import PROFILED, UNKNOWN, OperationRow

OPERATIONS = (
    *("", "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter"),
    *("all_to_all", "barrier", "send", "recv"),
)
OPERATION_SLOTS = 16
POINT_TO_POINT = frozenset(("send", "recv"))
DTYPES = (
    *("", "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("uint16", "uint32", "uint64", "float8_e8m0fnu", "complex32"),
)
# Bits of a record's flags: issued by the reducer of DistributedDataParallel, by a functional collective, between
# _start_coalescing and _end_coalescing or by one coalesced call, by another thread than the one of the steps; the call raised;
# its Work's future was taken, and nothing has waited for it yet where that is seen: without an exit it may be complete.
FLAGS = ("reducer", "functional", "coalesced", "other_thread", "raised", "future")
FLAG = {name: 1 << i for i, name in enumerate(FLAGS)}

# Words from page.W_COLLECTIVES on: records written, groups, calls that were not recorded; of the profiler plugin, events
# of calls and transfers that were not followed any more.
WRITTEN, GROUPS, DROPPED, LOST = 0, 1, 2, 3
# Hidden time by group and operation, an entry for each in order of first use: group * OPERATION_SLOTS + operation + 1, calls
# that were waited for, and ns of these at least and at most. Those beyond HIDDEN_MAX have none. See Hidden. The profiler
# plugin, which knows nothing of waiting, has in an entry what is in OfSteps.
AT_HIDDEN, HIDDEN_WORDS, HIDDEN_MAX = 4, 4, 31
WAITED_NS = 100_000  # A wait of this length was for a call that was not complete yet.
# What the transfers of a group have cost, by the profiler plugin: bytes sent, ns that sends waited for the GPU, for the
# peer's buffer and for the network; bytes received, ns that receives waited for the network and for the GPU.
AT_NETWORK, NETWORK_WORDS = 128, 7
GROUPS_MAX, GROUP_WORDS = 128, 64
AT_GROUPS = 1024
# A group: slot + 1, size, this rank in it, calls of collectives, point-to-point calls, the last record's number, runs of
# its ranks; then name, description, backend, and the runs as (first, step, count). 0 runs: the ranks are not known.
G_SEAL, G_SIZE, G_RANK, G_CALLS, G_P2P, G_LAST, G_RUNS = range(7)
G_NAME, G_DESCRIPTION, G_BACKEND, G_RANKS = 8, 16, 24, 28
TEXT_BYTES, BACKEND_BYTES = 64, 32
RUNS_MAX = (GROUP_WORDS - G_RANKS) // 3
# Sums by group and operation: calls, bytes, exposed ns, and of these what came before the first step; the profiler
# plugin, which has no exposed time, has ns on the device in that place.
AT_SUMS = AT_GROUPS + GROUPS_MAX * GROUP_WORDS
SUM_WORDS = 4
# Records: number, kind (operation | dtype << 8 | flags << 16 | group << 32), sequence in the group, peer or root + 1,
# bytes, ns of enter, return and exit (0: not yet), exposed ns, index of the step + STEP_BIAS, phase; by the profiler
# plugin ns on the device, bytes on the network and ns that transfers waited for it; ns of the phase `communication` when
# it was entered; seal.
AT_RING = AT_SUMS + GROUPS_MAX * OPERATION_SLOTS * SUM_WORDS
RING, RECORD_WORDS = 512, 16
(R_NUMBER, R_KIND, R_SEQUENCE, R_PEER, R_BYTES, R_ENTER, R_RETURN, R_EXIT, R_EXPOSED, R_STEP, R_PHASE) = (
    range(11)
)
R_DEVICE, R_NETWORK_BYTES, R_NETWORK_NS, R_WAITED = 11, 12, 13, 14
R_SEAL = RECORD_WORDS - 1
WORDS = AT_RING + RING * RECORD_WORDS
assert WORDS <= page.COLLECTIVES_WORDS and AT_HIDDEN + HIDDEN_MAX * HIDDEN_WORDS <= AT_NETWORK
# Constants that _collectives.c takes by name.
CONSTANTS = {
    "base": page.W_COLLECTIVES,
    "words": WORDS,
    "groups": AT_GROUPS,
    "sums": AT_SUMS,
    "ring": AT_RING,
    "totals": page.W_TOTALS,
    "communication": page.W_TOTALS + page.PHASES.index("communication"),
}

NS_MAX = page.NS_MAX
OPERATION_ROWS_MAX = 24
# Backends whose waits end when a call is complete; with those of devices it may still be queued then.
HOST_BACKENDS = ("gloo", "mpi")
# Of the calls of an operation those that were waited for, or its hidden time is unknown.
HIDDEN_SHARE_MIN = 0.9
ISSUE_STEPS_MIN = 8
_SEND, _RAISED = OPERATIONS.index("send"), FLAG["raised"]
_RANK_MAX = 1 << 32


class Group(NamedTuple):
    """A process group as one rank sees it. `ranks` are runs (first, step, count), () if they are not known.

    `calls` and `point_to_point` count its calls so far, `last` is the number of its last record, 0 for none.
    """

    name: str
    description: str
    backend: str
    size: int
    rank: int
    ranks: tuple[tuple[int, int, int], ...]
    calls: int
    point_to_point: int
    last: int


Links = Callable[[Group], tuple[int, int]]  # from a group to `local` and `link_rate` of OperationRow


def no_links(group: Group) -> tuple[int, int]:
    """Nothing is known of a group's links."""
    return 0, 0


class Record(NamedTuple):
    """One call. Times are the rank's monotonic ns; `return_ns` and `exit_ns` are 0 until they are known.

    `sequence` counts from 1, separately for collectives and for point-to-point calls of a group. `peer` is the root or
    the other rank as a rank of the group, None if there is none. `bytes` are this rank's part: what it puts in, or of
    a scatter, a receive and a reduce-scatter what it gets. `exit_ns` is when the host has waited for it: with NCCL the
    device may still be at work. `exposed_ns` is time of the step thread in the phase `communication`.

    The profiler plugin knows when the device has ended, so its `exit_ns` is that, and how long the device was at work;
    `network_ns` is what its transfers waited for the peer and the network, summed over all, which run side by side.
    """

    number: int
    group: int
    operation: str
    dtype: str
    flags: frozenset[str]
    sequence: int
    peer: int | None
    bytes: int
    enter_ns: int
    return_ns: int
    exit_ns: int
    exposed_ns: int
    step: int
    phase: int
    device_ns: int = 0
    network_bytes: int = 0
    network_ns: int = 0


class Sums(NamedTuple):
    """What one operation of one group has cost so far.

    `before_ns` is the part of `exposed_ns` before the first step. `device_ns` is known by the profiler plugin alone.
    """

    group: int
    operation: str
    calls: int
    bytes: int
    exposed_ns: int
    device_ns: int = 0
    before_ns: int = 0


class Hidden(NamedTuple):
    """Time from the entry of an operation's calls until they were complete in which the step thread did not wait, in ns.

    Summed over the waits for them. Calls that are waited for together, as by DistributedDataParallel, are one, those of
    the last one's operation. A call was complete when its wait ended, if that has taken time: it counts in both bounds.
    If not, it was complete before, at an unknown time: it counts in `most_ns`. Of several waited for together that is
    known of the last one; the whole of them is in `most_ns`.
    """

    left: int  # calls that were waited for
    least_ns: int
    most_ns: int


class OfSteps(NamedTuple):
    """Calls that began after the SDK's first step had, and whose time on the device is known, by the profiler plugin.

    Of calls of a communicator that run at the same time, as the sends and receives of a group, each moment counts once.
    """

    calls: int
    bytes: int
    device_ns: int


class Network(NamedTuple):
    """The transfers of a group's proxies so far: bytes, and ns that each waited, summed over all of them."""

    send_bytes: int
    send_gpu_ns: int
    send_peer_ns: int
    send_network_ns: int
    receive_bytes: int
    receive_network_ns: int
    receive_gpu_ns: int


def group_label(name: str, description: str) -> str:
    """What a process group is called: its description, unless it has none of its own."""
    return description if description not in ("", "undefined") else name


class Collectives(NamedTuple):
    """The collectives of a page. `records` are in order, those that the ring still holds of the wanted ones.

    `network` has an entry for each group, all zero but for the profiler plugin's file, as is `lost`. `of_steps` is by group
    and operation, {} but for that file, and there too where the SDK is not in the process.
    """

    written: int
    dropped: int
    groups: tuple[Group, ...]
    sums: tuple[Sums, ...]
    records: tuple[Record, ...]
    lost: int = 0
    network: tuple[Network, ...] = ()
    issue_ns: Mapping[tuple[int, str], int] = {}  # of issue_times, where it was wanted
    hidden: Mapping[tuple[int, str], Hidden] = {}
    of_steps: Mapping[tuple[int, str], OfSteps] = {}


def operation_rows(
    found: Collectives,
    most: int = OPERATION_ROWS_MAX,
    links: Links = no_links,
    device: Mapping[tuple[int, str], OfSteps] = {},
) -> list[OperationRow]:
    """The rows with most time first, at most `most`; the others are summed in a last one, ("", "other").

    `links` is called for each group; `device` is what device_times.py has found.
    """
    rows: dict[tuple[str, str], OperationRow] = {}
    for one in found.sums:
        group = found.groups[one.group]
        issue_ns = found.issue_ns.get((one.group, one.operation), 0)
        label = group_label(group.name, group.description)
        numbers = one.calls, one.bytes, one.exposed_ns, one.before_ns
        more = issue_ns, group.size, *_hidden_ns(found, one), *links(group), int("nccl" in group.backend)
        times = device.get((one.group, one.operation))
        more += (UNKNOWN, 0) if times is None else (times.device_ns, times.bytes)
        row = OperationRow(label, one.operation, *numbers, *more)
        before = rows.get(row[:2])
        rows[row[:2]] = row if before is None else _added(before, row)
    for (group, operation), times in device.items():
        if group < 0:
            row = OperationRow("", operation, 0, 0, 0, 0, queued=1)
            rows["", operation] = row._replace(device_ns=times.device_ns, device_bytes=times.bytes)
    ordered = sorted(rows.values(), key=lambda row: (-max(row.exposed_ns, row.device_ns), -row.bytes, row))
    rest = ordered[most:]
    return ordered[:most] + (
        [reduce(_added, rest)._replace(group="", operation="other", size=0, local=0, link_rate=0)]
        if rest
        else []
    )


def _hidden_ns(found: Collectives, sums: Sums) -> tuple[int, int]:
    """At least and at most; UNKNOWN where the end of a wait does not tell when a call was complete, or is not known."""
    hidden = found.hidden.get((sums.group, sums.operation))
    is_waited_by_host = found.groups[sums.group].backend in HOST_BACKENDS
    if hidden is None or not is_waited_by_host or hidden.left < HIDDEN_SHARE_MIN * sums.calls:
        return UNKNOWN, UNKNOWN
    return hidden.least_ns, hidden.most_ns


def _known_sum(one: int, other: int) -> int:
    return UNKNOWN if UNKNOWN in (one, other) else min(one + other, NS_MAX)


def _added(one: OperationRow, other: OperationRow) -> OperationRow:
    return one._replace(
        hidden_ns=_known_sum(one.hidden_ns, other.hidden_ns),
        hidden_max_ns=_known_sum(one.hidden_max_ns, other.hidden_max_ns),
        calls=min(one.calls + other.calls, NS_MAX),
        bytes=min(one.bytes + other.bytes, NS_MAX),
        exposed_ns=min(one.exposed_ns + other.exposed_ns, NS_MAX),
        before_ns=min(one.before_ns + other.before_ns, NS_MAX),
        issue_ns=min(one.issue_ns + other.issue_ns, NS_MAX),
        size=one.size if one.size == other.size else 0,
        local=one.local if one.local == other.local else 0,
        link_rate=max(one.link_rate, other.link_rate),
        queued=max(one.queued, other.queued),
        device_ns=_known_sum(one.device_ns, other.device_ns),
        device_bytes=min(one.device_bytes + other.device_bytes, NS_MAX),
    )


def runs_of(ranks: Iterable[int]) -> list[tuple[int, int, int]]:
    """Ranks in order as runs (first, step, count): [0, 4, 8, 9] is [(0, 4, 3), (9, 1, 1)]."""
    runs: list[list[int]] = []
    for rank in ranks:
        last = runs[-1] if runs else None
        if last is not None and last[2] == 1 and rank > last[0]:
            last[1:] = rank - last[0], 2
        elif last is not None and last[2] > 1 and rank == last[0] + last[1] * last[2]:
            last[2] += 1
        else:
            runs.append([rank, 1, 1])
    return [(first, step, count) for first, step, count in runs]


# ---------------------------------------------------------------------------------------------- writing


def write_group(
    words: memoryview, slot: int, name: str, description: str, backend: str, rank: int, ranks
) -> None:
    """Enter a group in the table, the count last. Texts are cut; ranks in more than RUNS_MAX runs are left out."""
    at = page.W_COLLECTIVES + AT_GROUPS + slot * GROUP_WORDS
    runs = runs_of(ranks)
    raw = words.cast("B")
    for word, text, size in (
        (G_NAME, name, TEXT_BYTES),
        (G_DESCRIPTION, description, TEXT_BYTES),
        (G_BACKEND, backend, BACKEND_BYTES),
    ):
        cut = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()
        raw[8 * (at + word) : 8 * (at + word) + size] = cut.ljust(size, b"\0")
    words[at + G_SIZE], words[at + G_RANK] = len(ranks), rank
    for i, run in enumerate(runs if len(runs) <= RUNS_MAX else ()):
        for j, value in enumerate(run):
            words[at + G_RANKS + 3 * i + j] = value
    words[at + G_RUNS] = len(runs) if len(runs) <= RUNS_MAX else 0
    words[at + G_SEAL] = slot + 1
    words[page.W_COLLECTIVES + GROUPS] = max(words[page.W_COLLECTIVES + GROUPS], slot + 1)


# ---------------------------------------------------------------------------------------------- reading


def read(
    words_at: Callable[[int, int], memoryview], since: int | None = None, with_issue: bool = False
) -> Collectives | None:
    """The collectives of a page, of which `words_at(word, count)` reads words; None if no process group was used.

    The records are those numbered above `since`, or without it the last one of each group; `with_issue` adds issue
    times, in 0.5 ms. Raises ValueError.
    """
    head = words_at(page.W_COLLECTIVES, 4)
    written, groups, dropped, lost = head
    if groups > GROUPS_MAX or max(head) >= NS_MAX:
        raise ValueError(f"{groups} process groups or {written} collectives are impossible")
    if not groups:
        return None
    found = groups_of(words_at(page.W_COLLECTIVES + AT_GROUPS, groups * GROUP_WORDS), groups)
    sums = words_at(page.W_COLLECTIVES + AT_SUMS, groups * OPERATION_SLOTS * SUM_WORDS)
    wanted = [(since + 1, written)] if since is not None else [(g.last, g.last) for g in found if g.last]
    records = [record for first, last in sorted(wanted) for record in _records(words_at, first, last, groups)]
    network = network_of(words_at(page.W_COLLECTIVES + AT_NETWORK, groups * NETWORK_WORDS))
    issue_ns = issue_times(words_at(page.W_COLLECTIVES + AT_RING, RING * RECORD_WORDS)) if with_issue else {}
    entries = entries_of(words_at(page.W_COLLECTIVES + AT_HIDDEN, HIDDEN_MAX * HIDDEN_WORDS), groups)
    sums = sums_of(sums, groups)
    hidden, of_steps = {}, {}
    if found[0].backend == PROFILED:
        of_steps = {key: OfSteps(*numbers) for key, numbers in entries.items()}
    else:
        hidden = {key: Hidden(n, least, max(least, most)) for key, (n, least, most) in entries.items()}
    return Collectives(
        written, dropped, found, sums, tuple(records), lost, network, issue_ns, hidden, of_steps
    )


def _records(words_at, first: int, last: int, groups: int) -> list[Record]:
    """The records numbered first..last that the ring still holds."""
    first, found = max(first, last - RING + 1), []
    number = first
    for begin, count in ring_runs(first, last, RING) if first <= last else ():
        words = words_at(page.W_COLLECTIVES + AT_RING + begin * RECORD_WORDS, count * RECORD_WORDS)
        for at in range(0, len(words), RECORD_WORDS):
            record = record_of(words[at : at + RECORD_WORDS], groups)
            if record is not None and record.number == number:
                found.append(record)
            number += 1
    return found


def issue_times(ring: memoryview) -> dict[tuple[int, str], int]:
    """By group and collective operation, the median over the ring's steps of the time that its calls took to return, in ns.

    That time is the rank's own: such a call starts the collective, which is waited for later. Calls that have waited
    when they return, point-to-point calls and those that raised do not count, nor do the first and the last step, of
    which calls may be missing. {} with fewer than ISSUE_STEPS_MIN steps.
    """
    by_step: dict[int, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for at in range(0, len(ring), RECORD_WORDS):
        kind, enter, returned = ring[at + R_KIND], ring[at + R_ENTER], ring[at + R_RETURN]
        if ring[at] == 0 or ring[at] != ring[at + R_SEAL] or kind >> 16 & _RAISED:
            continue
        calls = by_step[ring[at + R_STEP]]
        if 0 < enter <= returned < NS_MAX and returned != ring[at + R_EXIT] and 0 < kind & 255 < _SEND:
            calls[kind >> 32, kind & 255] += returned - enter
    steps = [by_step[step] for step in sorted(by_step)[1:-1]]
    if len(steps) < ISSUE_STEPS_MIN:
        return {}
    keys = {key for calls in steps for key in calls}
    times = {key: median_low(calls[key] for calls in steps) for key in keys}
    return {(group, OPERATIONS[of]): min(ns, NS_MAX - 1) for (group, of), ns in times.items()}


def groups_of(words: memoryview, count: int) -> tuple[Group, ...]:
    """The first `count` groups of the table. Raises ValueError for what no writer writes."""
    found = []
    for slot in range(count):
        one = words[slot * GROUP_WORDS : (slot + 1) * GROUP_WORDS]
        size, rank, runs = one[G_SIZE], one[G_RANK], one[G_RUNS]
        if one[G_SEAL] != slot + 1 or not 0 < size < _RANK_MAX or rank >= size or runs > RUNS_MAX:
            raise ValueError(f"process group {slot} is impossible")
        if max(one[G_CALLS], one[G_P2P], one[G_LAST]) >= NS_MAX:
            raise ValueError(f"a count of process group {slot} is impossible")
        parts = [(one[at], one[at + 1], one[at + 2]) for at in range(G_RANKS, G_RANKS + 3 * runs, 3)]
        if any(not (f < _RANK_MAX and 0 < s < _RANK_MAX and 0 < c <= size) for f, s, c in parts) or (
            parts and sum(part[2] for part in parts) != size
        ):
            raise ValueError(f"the ranks of process group {slot} are impossible")
        texts = (
            _text(one, G_NAME, TEXT_BYTES),
            _text(one, G_DESCRIPTION, TEXT_BYTES),
            _text(one, G_BACKEND, BACKEND_BYTES),
        )
        found.append(Group(*texts, size, rank, tuple(parts), one[G_CALLS], one[G_P2P], one[G_LAST]))
    return tuple(found)


def sums_of(words: memoryview, groups: int) -> tuple[Sums, ...]:
    """The sums in use of the first `groups` groups. Raises ValueError."""
    found = []
    for group in range(groups):
        for operation in range(1, OPERATION_SLOTS):
            at = (group * OPERATION_SLOTS + operation) * SUM_WORDS
            calls, size, exposed, other = words[at : at + SUM_WORDS]
            if not calls:
                continue
            if operation >= len(OPERATIONS) or max(calls, size, exposed, other) >= NS_MAX:
                raise ValueError(f"sums of operation {operation} of process group {group} are impossible")
            before = min(other, exposed)
            found.append(Sums(group, OPERATIONS[operation], calls, size, exposed, other - before, before))
    return tuple(found)


def entries_of(words: memoryview, groups: int) -> dict[tuple[int, str], tuple[int, int, int]]:
    """The table of hidden time by operation and the groups before this one; one may have been added since.

    Raises ValueError.
    """
    found = {}
    for at in range(0, len(words), HIDDEN_WORDS):
        key, left, least, most = words[at : at + HIDDEN_WORDS]
        if not key:
            break
        group, operation = divmod(key - 1, OPERATION_SLOTS)
        if group >= GROUPS_MAX or operation >= len(OPERATIONS) or max(left, least, most) >= NS_MAX:
            raise ValueError(f"hidden time of operation {operation} of process group {group} is impossible")
        if group < groups:
            found[group, OPERATIONS[operation]] = left, least, most
    return found


def network_of(words: memoryview) -> tuple[Network, ...]:
    """What the transfers of each group have cost. Raises ValueError."""
    if max(words) >= NS_MAX:
        raise ValueError("a figure of the network is impossible")
    return tuple(Network(*words[at : at + NETWORK_WORDS]) for at in range(0, len(words), NETWORK_WORDS))


def record_of(words: memoryview, groups: int) -> Record | None:
    """The record if it is sealed and plausible, None if it is torn, overwritten or out of range."""
    number, kind = words[R_NUMBER], words[R_KIND]
    operation, dtype, flags, group = kind & 255, kind >> 8 & 255, kind >> 16 & 0xFFFF, kind >> 32
    if number == 0 or number != words[R_SEAL] or group >= groups or not 0 < operation < len(OPERATIONS):
        return None
    enter, returned, left, exposed = (words[i] for i in (R_ENTER, R_RETURN, R_EXIT, R_EXPOSED))
    if max(*words[R_SEQUENCE : R_EXPOSED + 1], *words[R_PHASE : R_NETWORK_NS + 1]) >= NS_MAX or not enter:
        return None
    if (returned and returned < enter) or (left and left < enter) or dtype >= len(DTYPES):
        return None
    step = words[R_STEP] - page.STEP_BIAS
    if not -1 <= step < NS_MAX or words[R_PHASE] >= page.PHASE_SLOTS:
        return None
    return Record(
        number=number,
        group=group,
        operation=OPERATIONS[operation],
        dtype=DTYPES[dtype],
        flags=frozenset(name for i, name in enumerate(FLAGS) if flags >> i & 1),
        sequence=words[R_SEQUENCE],
        peer=words[R_PEER] - 1 if words[R_PEER] else None,
        bytes=words[R_BYTES],
        enter_ns=enter,
        return_ns=returned,
        exit_ns=left,
        exposed_ns=exposed,
        step=step,
        phase=words[R_PHASE],
        device_ns=words[R_DEVICE],
        network_bytes=words[R_NETWORK_BYTES],
        network_ns=words[R_NETWORK_NS],
    )


def _text(words: memoryview, at: int, size: int) -> str:
    text = words[at : at + size // 8].tobytes().rstrip(b"\0").decode("utf-8", "replace")
    return text if text.isprintable() else clean_text(text, size)
