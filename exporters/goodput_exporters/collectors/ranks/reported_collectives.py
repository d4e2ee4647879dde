"""Which collectives of a rank are reported.

Of one without progress, and of one that died, its groups and last calls, when they change: those of its page, or where
that has none those that NCCL's profiler plugin has recorded beside it. Of all ranks what each operation of their page
has cost, every OPERATIONS_NS.
"""

from __future__ import annotations

from goodput.rank_page.collective_records import RING, Links, Record, no_links, operation_rows
from goodput.rank_page.collective_records import Collectives as Found
from goodput.rank_page.device_times import device_times
from goodput.rank_page.page import NS_MAX, PageError
from goodput.rank_page.reader import Reader, Snapshot
from goodput.wire.collectives import (
    CALLS_MAX,
    GROUPS_MAX,
    CallRow,
    Collectives,
    GroupRow,
    Operations,
    ReportedOperation,
    group_problem,
    operations_problem,
)
from goodput_exporters.collector import CollectorError
from goodput_exporters.system.files import COUNTER_BYTES_MAX, read_text

# A rank that has completed no step for this long may hang; again after so long, for an aggregator that is new.
AFTER_NS, AGAIN_NS = 10 * 10**9, 60 * 10**9
OPERATIONS_NS = 10 * 10**9


class ReportedCollectives:
    """What was reported last of one rank. A poll of a rank that makes progress costs nothing."""

    def __init__(self):
        self._last: Collectives | None = None
        self._last_ns = 0
        self._progress_ns = 0

    def poll(
        self,
        reader: Reader,
        snapshot: Snapshot,
        now_ns: int,
        alive: bool,
        procfs: str,
        plugin: Reader | None = None,
    ) -> Collectives | None:
        """The collectives to report at monotonic `now_ns`, None if there are none or no others than before.

        `plugin` is the file of the profiler plugin in this rank's process; `reader` itself where there is no page.
        """
        if plugin is reader:
            self._progress_ns = snapshot.last_ns  # Its steps are not recorded, so each call is progress.
        elif snapshot.steps or not self._progress_ns:
            self._progress_ns = (
                snapshot.steps[-1].end_ns if snapshot.steps else snapshot.identity["start_mono_ns"]
            )
        if alive and now_ns - self._progress_ns < AFTER_NS:
            return None
        read = _read(reader) or (_read(plugin) if plugin is not None and plugin is not reader else None)
        if read is None:
            return None
        head, found = read
        collectives = rows(found, head, snapshot, alive and _is_stopped(snapshot.identity["pid"], procfs))
        if collectives == self._last and now_ns - self._last_ns < AGAIN_NS:
            return None
        self._last, self._last_ns = collectives, now_ns
        return collectives


class ReportedOperations:
    """What the operations of one rank have cost, as last read: `rows`. A poll between two readings costs nothing."""

    def __init__(self):
        self.rows: Operations = ()
        self._read_ns = self._told_ns = 0

    def poll(
        self,
        reader: Reader,
        now_ns: int,
        is_over: bool,
        links: Links = no_links,
        plugin: Reader | None = None,
    ) -> Operations | None:
        """What to report at monotonic `now_ns`, None if it is as before.

        `links` are those of a group; see NodeLinks. `plugin` is as in ReportedCollectives.
        """
        if not is_over and self._read_ns and now_ns - self._read_ns < OPERATIONS_NS:
            return None
        self._read_ns = now_ns
        try:
            found = reader.collectives(with_issue=True)
        except PageError:
            return None
        before = self.rows
        rows = []
        if found is not None:
            times = {} if plugin in (None, reader) else device_times(found, _sums(plugin))
            rows = operation_rows(found, links=links, device=times)
        reported = (ReportedOperation(*row) for row in rows)
        self.rows = tuple(row for row in reported if not operations_problem([row]))
        if self.rows == before and now_ns - self._told_ns < AGAIN_NS:
            return None
        self._told_ns = now_ns
        return self.rows or None


def _sums(plugin: Reader) -> Found | None:
    """What the plugin's file has but its records; None if it is invalid."""
    try:
        return plugin.collectives(since=NS_MAX - 1)
    except PageError:
        return None


def _read(reader: Reader) -> tuple[Found, Found] | None:
    """The last record of each group, and the whole ring; None if there is none or the page is invalid."""
    try:
        head = reader.collectives()
        found = reader.collectives(since=max(head.written - RING, 0)) if head else None
    except PageError:
        return None
    return None if head is None or found is None else (head, found)


def rows(found: Found, head: Found, snapshot: Snapshot, is_stopped: bool) -> Collectives:
    """The groups used last with their last calls; `head` has the last record of each group, `found` the whole ring."""
    recent: dict[int, list[CallRow]] = {}
    older = [one for one in head.records if not found.records or one.number < found.records[0].number]
    for one in (*older, *found.records):
        recent.setdefault(one.group, []).append(
            CallRow(
                one.sequence,
                one.operation,
                one.dtype,
                one.bytes,
                -1 if one.peer is None else one.peer,
                snapshot.unix_ns(one.enter_ns),
                snapshot.unix_ns(left) if (left := _left_ns(one)) else 0,
            )
        )
    used = sorted(
        (i for i in range(len(found.groups)) if found.groups[i].last), key=lambda i: -found.groups[i].last
    )
    rows = []
    for i in used[:GROUPS_MAX]:
        group = found.groups[i]
        calls = tuple(recent.get(i, ())[-CALLS_MAX:])
        row = GroupRow(
            group.name, group.description, group.backend, group.size, group.ranks, group.calls, calls
        )
        # A hostile page may have numbers for which an aggregator refuses all that is reported of the rank.
        if not group_problem(row):
            rows.append(row)
    return Collectives(tuple(rows), len(rows) == len(used), is_stopped)


def _left_ns(record: Record) -> int:
    """When a call was left, 0 if it is open: one that raised, as when its peer is gone, was not completed.

    One whose future was taken may be complete; as long as nothing is seen to wait for it, it is not taken for open.
    """
    if "raised" in record.flags:
        return 0
    return record.exit_ns or (record.return_ns if "future" in record.flags else 0)


def _is_stopped(pid: int, procfs: str) -> bool:
    """Whether a signal or a debugger has stopped the process (proc(5), /proc/pid/stat field 3)."""
    try:
        text = read_text(f"{procfs}/{pid}/stat", COUNTER_BYTES_MAX) or ""
        return text.rsplit(")", 1)[1].split()[0] in ("T", "t")
    except (CollectorError, IndexError):
        return False
