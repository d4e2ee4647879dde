"""A second pass over a log line by line: steps and phases of each attempt in the order of their ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from goodput.runlog.lines import Line, LineError, parse
from goodput.runlog.log_file import LogFile, lines_of
from goodput.runlog.scan import Scan
from goodput.runlog.scan_results import AttemptTrack

# An attempt, the number of a line, and the line.
Placed = tuple[AttemptTrack, int, Line]


class OrderedLines:
    """Lines of the kinds `others` are not put in order."""

    def __init__(self, scan: Scan, others: frozenset[str] = frozenset()):
        self._scan, self._others = scan, others
        self._high: dict[AttemptTrack, int] = {}
        self._waiting: dict[AttemptTrack, list[tuple]] = {}
        scan.rewind()

    def of_block(self, first: int, block: bytes) -> Iterator[Placed]:
        """Those of a block that are now in order, and of the blocks before."""
        high, dropped = self._high, self._scan.problems.dropped
        for number, raw in enumerate(lines_of(block), first):
            try:
                line = parse(raw)
            except LineError:
                continue
            track = self._scan.track_of(line)
            if track is None or number in dropped:
                continue
            is_ordered = line.kind in ("step", "phase")
            if not is_ordered and line.kind not in self._others:
                continue
            late_ns = track.disorder_ns
            if not late_ns or not is_ordered:
                yield track, number, line
                continue
            heap = self._waiting.setdefault(track, [])
            heapq.heappush(heap, (line.time_ns, line.step_number, number, line))
            high[track] = max(high.get(track, line.time_ns), line.time_ns)
            while heap[0][0] < high[track] - late_ns:
                yield track, *heapq.heappop(heap)[2:]

    def rest_of(self, track: AttemptTrack) -> Iterator[Placed]:
        """Those of an attempt that still wait."""
        heap = self._waiting.pop(track, [])
        while heap:
            yield track, *heapq.heappop(heap)[2:]

    def rest(self) -> Iterator[Placed]:
        for track in list(self._waiting):
            yield from self.rest_of(track)


def ordered_lines(
    log_file: LogFile,
    scan: Scan,
    progress: Callable[[int], None] = lambda _: None,
    others: frozenset[str] = frozenset(),
) -> Iterator[Placed]:
    """All lines of the log, see OrderedLines."""
    order = OrderedLines(scan, others)
    for first, block in log_file.blocks():
        progress(log_file.position)
        yield from order.of_block(first, block)
    yield from order.rest()
