"""Reading rank pages, each treated as hostile: whatever a file holds, the answer is a Snapshot or a PageError.

In: a path. Out: `Snapshot`, the page at one moment, with the steps and events that are new to the caller.
Readers use `pread`, never a mapping: a page truncated under them gives `PageError`, not SIGBUS. Every offset,
count and index is checked before use; a torn or overtaken record is left out. A snapshot without new steps
takes about 20 us, each new step about 10 us.

    with Reader(path) as reader:
        snapshot = reader.snapshot(since_step=120)
        print(snapshot.identity["rank"], snapshot.phase, snapshot.steps_done, reader.alive())
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass, field

from goodput import page
from goodput.identity import check_identity
from goodput.page import PageError, owner_is_locking, process_start_ticks


@dataclass(frozen=True)
class StepRecord:
    """A completed step: its number in the attempt, index, monotonic bounds and cumulative ns per phase."""

    number: int
    step: int
    start_ns: int
    end_ns: int
    samples: int
    totals: tuple[int, ...]
    outside: tuple[int, ...]


@dataclass(frozen=True)
class EventRecord:
    number: int
    kind: str
    time_ns: int
    step: int
    text: str


@dataclass(frozen=True)
class Snapshot:
    """What a page said at one moment. Times are the rank's monotonic ns, totals ns per phase index."""

    identity: dict
    phases: tuple[str, ...]
    phase_states: dict[str, str]
    last_ns: int
    phase: str
    steps_done: int
    samples: int
    step_next: int
    step_start_ns: int
    ended: str
    end_ns: int
    cost_ns: int
    background: int
    totals: tuple[int, ...]
    background_totals: tuple[int, ...]
    drops: dict[str, int]
    steps: list[StepRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)

    def unix_ns(self, mono_ns: int) -> int:
        """A monotonic instant of this rank on its host's wall clock, anchored once at the start."""
        return self.identity["start_unix_ns"] + mono_ns - self.identity["start_mono_ns"]


class Reader:
    """Reads one page, treating it as hostile. Holds one descriptor; raises PageError and nothing else.

    With `fd` it reads an open page that stays its owner's to close.
    """

    def __init__(self, path: str, fd: int | None = None):
        self.path = path
        if fd is not None:
            self.fd = fd
            self.identity = self._check()
            return
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise PageError("unreadable", f"{path!r}: {error}") from None
        try:
            self.identity = self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def alive(self, procfs: str = "/proc") -> bool:
        """Whether the owner lives: it holds the lock, or its pid still has the recorded start time."""
        if owner_is_locking(self.fd):
            return True
        ticks = self.identity.get("pid_start_ticks")
        return ticks is not None and process_start_ticks(self.identity["pid"], procfs) == ticks

    def snapshot(self, since_step: int = 0, since_event: int = 0) -> Snapshot:
        """The page now, with the steps and events numbered above the given ones that the rings still hold."""
        # The live words are read before the rings, so the rings hold at least what the words promise.
        # The last boundary is read before the totals, in a call of its own since one copy has no order within
        # it: so the totals cover at least the time up to that boundary.
        head = self._read(8 * page.LIVE, 512)
        live = memoryview(head + self._read(8 * page.LIVE + 512, 3584)).cast("Q")
        at = lambda word: live[word - page.LIVE]  # noqa: E731
        names, states = self._phase_table(at(page.W_USER_PHASES))
        width = len(names)
        totals = self._vector(live, page.W_TOTALS, width)
        phase, ended = at(page.W_PHASE), at(page.W_ENDED)
        if phase >= width or ended >= len(page.END_REASONS):
            raise PageError("value", f"{self.path}: phase index {phase} or end reason {ended} out of range")
        last, steps_done = at(page.W_LAST), at(page.W_STEPS)
        step_next = at(page.W_STEP_NEXT) - page.STEP_BIAS
        drops = {what: at(page.W_DROPS + i) for i, what in enumerate(page.DROPS)}
        if max(*drops.values(), *map(at, _BOUNDED)) >= page.NS_MAX or not 0 <= step_next < page.NS_MAX:
            raise PageError("value", f"{self.path}: a time or count is impossible")
        return Snapshot(
            identity=self.identity,
            phases=names,
            phase_states=states,
            last_ns=last,
            phase=names[phase],
            steps_done=steps_done,
            samples=at(page.W_SAMPLES),
            step_next=step_next,
            step_start_ns=at(page.W_STEP_START),
            ended=page.END_REASONS[ended],
            end_ns=at(page.W_END),
            cost_ns=at(page.W_COST),
            background=at(page.W_BACKGROUND),
            totals=totals,
            background_totals=self._vector(live, page.W_BACKGROUND_TOTALS, width),
            drops=drops,
            steps=self._steps(since_step, steps_done, width),
            events=self._events(since_event, at(page.W_EVENTS)),
        )

    def histogram_blocks(self, slot: int) -> list[tuple[int, memoryview]]:
        """The written octaves of one histogram as (first bin, u64 counts); untouched ones are skipped."""
        base = 8 * (page.W_HISTOGRAMS + slot * page.HISTOGRAM_WORDS)
        blocks = []
        for start, end in self._data_extents(base, base + 8 * page.HISTOGRAM_WORDS):
            first = (start - base) // 8192
            last = -(-(end - base) // 8192)
            for octave in range(first, last):
                counts = memoryview(self._read(base + octave * 8192, 8192)).cast("Q")
                blocks.append((octave * 1024, counts))
        return blocks

    # -- below here: parts of a snapshot

    def _check(self) -> dict:
        info = os.fstat(self.fd)
        if not stat.S_ISREG(info.st_mode):
            raise PageError("foreign", f"{self.path}: not a regular file")
        if info.st_size < 32:
            raise PageError("truncated", f"{self.path}: {info.st_size} bytes, a page has {page.FILE_BYTES}")
        magic, version, size, length = self._words(page.W_MAGIC, 4)
        if magic != page.MAGIC:
            raise PageError("foreign", f"{self.path}: no goodput page (magic {magic:#x})")
        if version != page.VERSION:
            raise PageError(
                "version", f"{self.path}: layout version {version}, this reader knows {page.VERSION}"
            )
        if size != page.FILE_BYTES or info.st_size != page.FILE_BYTES:
            raise PageError("truncated", f"{self.path}: {info.st_size} bytes, a page has {page.FILE_BYTES}")
        if length > page.IDENTITY_BYTES_MAX:
            raise PageError("identity", f"{self.path}: identity of {length} bytes")
        try:
            return check_identity(json.loads(self._read(page.IDENTITY_OFFSET, length)))
        except (ValueError, RecursionError) as error:
            raise PageError("identity", f"{self.path}: {error}") from None

    def _read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self.fd, length, offset)
        except OSError as error:
            raise PageError("unreadable", f"{self.path}: {error.strerror}") from None
        if len(data) != length:
            raise PageError("truncated", f"{self.path}: ends before byte {offset + length}")
        return data

    def _words(self, first: int, count: int) -> memoryview:
        return memoryview(self._read(8 * first, 8 * count)).cast("Q")

    def _vector(self, live: memoryview, word: int, width: int) -> tuple[int, ...]:
        values = tuple(live[word - page.LIVE : word - page.LIVE + width])
        if max(values) >= page.NS_MAX:
            raise PageError("value", f"{self.path}: a phase total of {max(values)} ns is impossible")
        return values

    def _phase_table(self, count: int) -> tuple[tuple[str, ...], dict[str, str]]:
        if count > page.USER_PHASES_MAX:
            raise PageError("value", f"{self.path}: {count} user phases, {page.USER_PHASES_MAX} at most")
        names, states = list(page.PHASES), {}
        raw = self._read(page.USER_OFFSET, count * page.USER_ENTRY_BYTES) if count else b""
        for at in range(0, len(raw), page.USER_ENTRY_BYTES):
            name = raw[at : at + 32].rstrip(b"\0").decode("utf-8", "replace")
            state = raw[at + 32 : at + 64].rstrip(b"\0").decode("utf-8", "replace")
            if not name or name in states or name in page.PHASES:
                raise PageError("value", f"{self.path}: user phase name {name!r} is empty or repeated")
            names.append(name)
            states[name] = state
        return tuple(names), states

    def _steps(self, since: int, done: int, width: int) -> list[StepRecord]:
        first = max(since + 1, done - page.STEP_RING + 1)
        if first > done:
            return []
        records = []
        for begin, count in _ring_runs(first, done, page.STEP_RING):
            words = self._words(page.W_STEP_RING + begin * page.STEP_WORDS, count * page.STEP_WORDS)
            for i in range(count):
                record = _step_record(words[i * page.STEP_WORDS : (i + 1) * page.STEP_WORDS], width)
                number = record.number if record is not None else 0
                # A newer one waits for the next look: it may use a phase that the live words did not know. The
                # number of another slot would be there twice.
                if first <= number <= done and (number - 1) % page.STEP_RING == begin + i:
                    records.append(record)
        return sorted(records, key=lambda record: record.number)

    def _events(self, since: int, written: int) -> list[EventRecord]:
        first = max(since + 1, written - page.EVENT_RING + 1)
        events = []
        for number in range(first, written + 1):
            at = page.W_EVENT_RING + (number - 1) % page.EVENT_RING * page.EVENT_WORDS
            words = self._words(at, page.EVENT_WORDS)
            # A word that changed while being read belongs to a newer event: leave it for the next look.
            if words[0] != number or words[page.EVENT_WORDS - 1] != number:
                continue
            kind, time_ns, step = words[1], words[2], words[3] - page.STEP_BIAS
            if time_ns >= page.NS_MAX or not -1 <= step < page.NS_MAX:
                raise PageError("value", f"{self.path}: event {number} has an impossible time or step")
            if 0 < kind < len(page.EVENT_KINDS):
                text = words[4:12].tobytes().rstrip(b"\0").decode("utf-8", "replace")
                events.append(EventRecord(number, page.EVENT_KINDS[kind], time_ns, step, text))
        return events

    def _data_extents(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that were ever written, by SEEK_DATA; all of it where that is unknown."""
        extents = []
        try:
            while start < end:
                begin = os.lseek(self.fd, start, os.SEEK_DATA)
                if begin >= end:
                    break
                start = min(os.lseek(self.fd, begin, os.SEEK_HOLE), end)
                extents.append((begin, start))
        except OSError as error:
            if error.errno != errno.ENXIO:
                return [(start, end)]
        return extents


def _ring_runs(first: int, last: int, ring: int) -> list[tuple[int, int]]:
    """Slots of the records numbered first..last (from 1) as runs (slot, count); at most two."""
    begin, count = (first - 1) % ring, last - first + 1
    if begin + count <= ring:
        return [(begin, count)]
    return [(begin, ring - begin), (0, count - (ring - begin))]


def _step_record(words: memoryview, width: int) -> StepRecord | None:
    """A sealed and plausible record, else None (torn, overtaken, or nonsense)."""
    number = words[page.R_NUMBER]
    if number == 0 or number != words[page.R_SEAL]:
        return None
    start, end = words[page.R_START], words[page.R_END]
    totals = tuple(words[page.R_TOTALS : page.R_TOTALS + width])
    outside = tuple(words[page.R_OUTSIDE : page.R_OUTSIDE + width])
    if not start <= end < page.NS_MAX or max(totals) >= page.NS_MAX:
        return None
    if any(o > t for o, t in zip(outside, totals, strict=True)):
        return None
    step = words[page.R_STEP] - page.STEP_BIAS
    if step < 0 or step >= page.NS_MAX or words[page.R_SAMPLES] >= page.NS_MAX:
        return None
    return StepRecord(number, step, start, end, words[page.R_SAMPLES], totals, outside)


# Times and counts of the live state, which no rank can have brought to NS_MAX.
_BOUNDED = (
    page.W_LAST,
    page.W_STEPS,
    page.W_EVENTS,
    page.W_STEP_START,
    page.W_END,
    page.W_COST,
    page.W_BACKGROUND,
    page.W_SAMPLES,
)
