"""Reads rank pages, each treated as hostile: whatever a file holds, the result is a Snapshot or a PageError.

Readers use `pread`, never a mapping: a page truncated under them gives `PageError`, not SIGBUS. Every offset, count and
index is checked before use; a torn or overtaken record is left out. Declared fields that changed are taken with the
next snapshot; a page whose run, rank, attempt or process changed is rejected. A snapshot without new steps takes about
20 us, each new step about 10 us.

    with Reader(path) as reader:
        snapshot = reader.snapshot(since_step=120)
        print(snapshot.identity["rank"], snapshot.phase, snapshot.steps_done, reader.alive())
"""

from __future__ import annotations

import errno
import os
from operator import itemgetter
from time import monotonic_ns
from typing import NamedTuple

from goodput.rank_page import collective_records, page
from goodput.rank_page.device_steps import Known, before_first, first_waiting, merge
from goodput.rank_page.loader_words import LOADER, loader_of, workers_of
from goodput.rank_page.page import PageError
from goodput.rank_page.page_file import PageFile
from goodput.rank_page.records import (
    EventRecord,
    Snapshot,
    StepRecord,
    device_record,
    ring_runs,
    sampling_of,
    step_records,
)
from goodput.wire.identity import clean_text

__all__ = ["EventRecord", "Reader", "Snapshot", "StepRecord"]


# How far a step may lie outside of its page's time: a process may be killed between the stores of the two.
STEP_SLACK_NS = 3600 * 10**9


class PhaseTimes(NamedTuple):
    """Names of the phases and the states of a user's own, the index of the running one, and totals in ns until `last_ns`."""

    phases: tuple[str, ...]
    phase_states: dict[str, str]
    running: int
    has_ended: bool
    last_ns: int
    totals: tuple[int, ...]


class Reader(PageFile):
    """Reads one page, treating it as hostile. Holds one descriptor; raises PageError and nothing else.

    With `fd` it reads an open page that stays its owner's to close.
    """

    def __init__(self, path: str, fd: int | None = None):
        self._known: tuple[Known, ...] = ()  # before the last snapshot and after it
        super().__init__(path, fd)

    def snapshot(self, since_step: int = 0, since_event: int = 0, alive: bool | None = None) -> Snapshot:
        """The page now, with the steps and events numbered above the given ones that the rings still hold.

        A step whose device record is still to come is left for a later snapshot, while the owner is `alive`.
        """
        # The live words are read before the rings, so the rings hold at least as many records as they count.
        # The last boundary is read before the totals, in a call of its own since one copy has no order within
        # it: so the totals cover at least the time up to that boundary.
        head = self._read(8 * page.LIVE, 512)
        live = memoryview(head + self._read(8 * page.LIVE + 512, 3584)).cast("Q")
        at = lambda word: live[word - page.LIVE]  # noqa: E731
        if at(page.W_REVISION) != self._revision:
            self._follow_identity()
        names, states = self._phase_table(at(page.W_USER_PHASES))
        width = len(names)
        totals = self._vector(live, page.W_TOTALS - page.LIVE, width)
        phase, ended = at(page.W_PHASE), at(page.W_ENDED)
        if phase >= width or ended >= len(page.END_REASONS):
            raise PageError("value", f"{self.path}: phase index {phase} or end reason {ended} out of range")
        last, steps_done = at(page.W_LAST), at(page.W_STEPS)
        step_next = at(page.W_STEP_NEXT) - page.STEP_BIAS
        drops = {what: at(page.W_DROPS + i) for i, what in enumerate(page.DROPS)}
        if max(*drops.values(), *map(at, _BOUNDED)) >= page.NS_MAX or not 0 <= step_next < page.NS_MAX:
            raise PageError("value", f"{self.path}: a time or count is impossible")
        state, why = at(page.W_DEVICE_STATE), at(page.W_DEVICE_WHY)
        if state >= len(page.DEVICE_STATES) or why >= len(page.DEVICE_WHYS):
            raise PageError("value", f"{self.path}: device clock state {state} or reason {why} out of range")
        steps, known = self._in_time(self._steps(since_step, steps_done, width), last), None
        if state >= _ACTIVE:
            steps, known = self._on_device(live, since_step, steps_done, width, alive)
        loader, workers, sampling = self._loader(live)
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
            cost_ns=at(page.W_COST) + at(page.W_DEVICE_COST),
            background=at(page.W_BACKGROUND),
            totals=totals if known is None else _continued(known, totals),
            background_totals=self._vector(live, page.W_BACKGROUND_TOTALS - page.LIVE, width),
            drops=drops,
            host_totals=totals,
            device_totals=known.totals if known else (),
            device_ns=known.device_ns if known else 0,
            device_state=page.DEVICE_STATES[state],
            device_why=page.DEVICE_WHYS[why],
            loader=loader,
            sampling=sampling,
            workers=workers,
            steps=steps,
            events=self._events(since_event, at(page.W_EVENTS)),
        )

    def phase_times(self) -> PhaseTimes:
        """How long the rank was in each phase until its last boundary, by the host's clock. A quarter of a snapshot."""
        # In two calls, as in `snapshot`.
        head = memoryview(self._read(8 * page.LIVE, 512)).cast("Q")
        at = lambda word: head[word - page.LIVE]  # noqa: E731
        names, states = self._phase_table(at(page.W_USER_PHASES))
        raw = self._read(8 * page.W_TOTALS, 8 * len(names))
        totals = self._vector(memoryview(raw).cast("Q"), 0, len(names))
        phase, ended, last = at(page.W_PHASE), at(page.W_ENDED), at(page.W_LAST)
        if phase >= len(names) or ended >= len(page.END_REASONS) or last >= page.NS_MAX:
            raise PageError(
                "value", f"{self.path}: phase index {phase}, end {ended} or time {last} out of range"
            )
        return PhaseTimes(names, states, phase, bool(ended), last, totals)

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

    def collectives(
        self, since: int | None = None, with_issue: bool = False
    ) -> collective_records.Collectives | None:
        """The collectives now, None if no process group was used (collective_records.read)."""
        if not self.layout.collectives:
            return None
        try:
            return collective_records.read(self._words, since, with_issue)
        except ValueError as error:
            raise PageError("value", f"{self.path}: {error}") from None

    # -- below here: parts of a snapshot

    def _follow_identity(self) -> None:
        """Take declared fields that changed; an identity that is being written is left for the next snapshot."""
        before = self._revision
        found = self._read_identity()
        if found is None:
            return
        other = [name for name in _CONSTANT if found.get(name) != self.identity.get(name)]
        if other:
            self._revision = before
            raise PageError(
                "identity", f"{self.path}: {other[0]} changed, which is fixed once a page is open"
            )
        self.identity = found

    def _vector(self, words: memoryview, at: int, width: int) -> tuple[int, ...]:
        values = tuple(words[at : at + width])
        if max(values) >= page.NS_MAX:
            raise PageError("value", f"{self.path}: a phase total of {max(values)} ns is impossible")
        return values

    def _loader(self, live: memoryview) -> tuple[dict, tuple[dict, ...], dict]:
        at = page.W_LOADER - page.LIVE
        try:
            loader = loader_of(live[at : at + len(LOADER)])
            words = self._words(page.W_WORKERS, page.WORKERS_MAX * page.WORKER_WORDS) if loader else ()
            return loader, workers_of(words), sampling_of(live)
        except ValueError as error:
            raise PageError("value", f"{self.path}: {error}") from None

    def _phase_table(self, count: int) -> tuple[tuple[str, ...], dict[str, str]]:
        if not count:
            return self.layout.phases, {}
        if count > page.USER_PHASES_MAX:
            raise PageError("value", f"{self.path}: {count} user phases, {page.USER_PHASES_MAX} at most")
        names, states = list(self.layout.phases), {}
        raw = self._read(page.USER_OFFSET, count * page.USER_ENTRY_BYTES)
        for at in range(0, len(raw), page.USER_ENTRY_BYTES):
            name, state = _text_of(raw[at : at + 32]), _text_of(raw[at + 32 : at + 64])
            if not name or name in states or name in self.layout.phases:
                raise PageError("value", f"{self.path}: user phase name {name!r} is empty or repeated")
            names.append(name)
            states[name] = state
        return tuple(names), states

    def _steps(self, since: int, done: int, width: int) -> list[StepRecord]:
        first = max(since + 1, done - page.STEP_RING + 1)
        if first > done:
            return []
        records = []
        for begin, count in ring_runs(first, done, page.STEP_RING):
            at, size = page.W_STEP_RING + begin * page.STEP_WORDS, count * page.STEP_WORDS
            found = step_records(self._read(8 * at, 8 * size), width, self.layout.outside)
            # A newer one waits for the next snapshot: it may use a phase that the live words did not have. The number
            # of another slot would be there twice.
            records += [
                record
                for slot, record in enumerate(found, begin)
                if record and first <= record.number <= done and (record.number - 1) % page.STEP_RING == slot
            ]
        return sorted(records, key=itemgetter(0))

    def _in_time(self, steps: list[StepRecord], last_ns: int) -> list[StepRecord]:
        """Those of the steps that lie between the page's start and its last boundary, with some slack."""
        start_ns = self.identity["start_mono_ns"]
        if steps and max(one.end_ns for one in steps) > last_ns:  # A step may have ended since that was read.
            last_ns = memoryview(self._read(8 * page.W_LAST, 8)).cast("Q")[0]
        low, high = start_ns - STEP_SLACK_NS, last_ns + STEP_SLACK_NS
        return [one for one in steps if low <= one.start_ns and one.end_ns <= high]

    def _on_device(
        self, live: memoryview, since: int, done: int, width: int, alive: bool | None
    ) -> tuple[list[StepRecord], Known]:
        """The merged steps after `since`, and the reader's position after them."""
        at = lambda word: live[word - page.LIVE]  # noqa: E731
        newest, waits = min(at(page.W_DEVICE_DONE), done), done + 1
        comes = newest < done and not at(page.W_ENDED) and at(page.W_DEVICE_STATE) == _ACTIVE
        if comes and (self.alive() if alive is None else alive):
            waits = first_waiting(done, monotonic_ns() - at(page.W_LAST))
        known = next((known for known in self._known if known.number == since), None)
        if since > done and self._known:
            known = self._known[-1]  # Without new steps the totals continue from the last snapshot.
            done = known.number
        begin = (known or before_first(width)).widened(width)
        records = self._steps(begin.number, done, width)
        found = self._device_records(max(begin.number, 1), newest, width) if records else {}
        merged = merge(begin, records, found, at(page.W_DEVICE_BASE), waits)
        last = merged[-1][3] if merged else begin
        if known is not None or since == 0:
            self._known = (begin, last) if last is not begin or known is None else self._known
        steps = [
            StepRecord(r.number, r.step, r.start_ns, r.end_ns, r.samples, totals, r.outside, device_ns)
            for r, totals, device_ns, _ in merged
            if r.number > since
        ]
        return steps, last

    def _events(self, since: int, written: int) -> list[EventRecord]:
        ring, size, text_end = self.layout.event_ring, self.layout.event_words, self.layout.event_text_end
        first = max(since + 1, written - ring + 1)
        events = []
        for number in range(first, written + 1):
            at = page.W_EVENT_RING + (number - 1) % ring * size
            words = self._words(at, size)
            # A word that changed while being read belongs to a newer event: leave it for the next snapshot.
            if words[0] != number or words[size - 1] != number:
                continue
            kind, time_ns, step = words[1], words[2], words[3] - page.STEP_BIAS
            if time_ns >= page.NS_MAX or not -1 <= step < page.NS_MAX:
                raise PageError("value", f"{self.path}: event {number} has an impossible time or step")
            if 0 < kind < len(page.EVENT_KINDS):
                text = _text_of(words[page.E_TEXT : text_end].tobytes())
                events.append(EventRecord(number, page.EVENT_KINDS[kind], time_ns, step, text))
        return events

    def _device_records(self, first: int, last: int, width: int) -> dict[int, tuple[tuple[int, ...], int]]:
        """(totals, device ns) of the device records from `first` to `last` that the ring still holds, by number."""
        first, records = max(first, last - page.DEVICE_RING + 1), {}
        for begin, count in ring_runs(first, last, page.DEVICE_RING) if first <= last else ():
            words = self._words(page.W_DEVICE_RING + begin * page.DEVICE_WORDS, count * page.DEVICE_WORDS)
            for i in range(count):
                record = device_record(words[i * page.DEVICE_WORDS : (i + 1) * page.DEVICE_WORDS], width)
                if record is not None:
                    records[record[0]] = record[1:]
        return records

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


def _continued(known: Known, totals: tuple[int, ...]) -> tuple[int, ...]:
    """The present host totals, continued from the totals given for the last step."""
    columns = zip(totals, known.host, known.totals, strict=True)
    return tuple(given + max(now - then, 0) for now, then, given in columns)


# Fields that are fixed once a page is open.
_CONSTANT = ("run", "rank", "attempt", "host", "pid", "pid_start_ticks", "start_unix_ns", "start_mono_ns")
_ACTIVE = page.DEVICE_STATES.index("active")

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


def _text_of(raw: bytes) -> str:
    """A text of a page; what is not printable, such as a terminal's control sequences, becomes "?"."""
    text = raw.rstrip(b"\0").decode("utf-8", "replace")
    return text if text.isprintable() else clean_text(text, len(text))
