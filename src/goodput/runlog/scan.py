"""The first pass over a run log: what the account must know before it can judge a step.

In: numbered lines. Out: runs whose attempts know their start, end, resume point and checkpoints, though no steps;
how far each attempt's lines are out of order; and what is wrong with the file, by line number. Lines that are more
than 10 minutes behind others of their rank, and a single line whose time jumps ahead and back, are left out.
Memory grows with ranks and attempts, not with lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from goodput.account import DECLARED, FINAL_STATUSES, Attempt, EndMark, Run
from goodput.account.stall_threshold import StepLengths
from goodput.runlog.complete import complete, contradictions
from goodput.runlog.lines import (
    KINDS,
    LINE_BYTES_MAX,
    TIME_NS_MAX,
    Line,
    LineError,
    hardware,
    parse,
    unknown_fields,
)
from goodput.runlog.source import LogError, Source

BEHIND_NS_MAX = 600 * 10**9
PROBLEMS_MAX = 100
DROPPED_MAX = 200_000
RUNS_MAX = 1000
Key = tuple[str, int, int]  # (run, rank, attempt)


@dataclass
class Problems:
    """What is wrong with a log. `dropped` are the numbers of lines that are not used."""

    lines: int = 0
    listed: list[tuple[int, str]] = field(default_factory=list)  # the first PROBLEMS_MAX
    count: int = 0
    dropped: set[int] = field(default_factory=set)
    ignored: Counter = field(default_factory=Counter)  # kinds and fields that nothing here knows
    repeated: int = 0  # steps that were there already
    squeezed: int = 0  # steps whose time overlaps the step before
    broken: str = ""

    def drop(self, number: int, text: str) -> None:
        """This line is not used."""
        if len(self.dropped) >= DROPPED_MAX:
            raise LogError(f"more than {DROPPED_MAX} lines cannot be used, the last is line {number}: {text}")
        self.dropped.add(number)
        self.note(number, text)

    def document(self) -> dict:
        """As plain values, for the JSON."""
        return {
            "lines": self.lines,
            "problems": [{"line": number, "problem": text} for number, text in self.listed],
            "problem_count": self.count,
            "dropped": len(self.dropped),
            "repeated": self.repeated,
            "overlapping": self.squeezed,
            "ignored": dict(self.ignored.most_common(100)),
            "broken": self.broken,
        }

    def note(self, number: int, text: str) -> None:
        """Something about this line, which is used as far as it can be."""
        self.count += 1
        if len(self.listed) < PROBLEMS_MAX:
            self.listed.append((number, text))


@dataclass
class Track:
    """One attempt's lines in the order of the file."""

    attempt: Attempt
    number: int = 0  # of the first line that was seen of it
    end_number: int = 0  # of the line that ended it last
    high_ns: int | None = None
    disorder_ns: int = 0
    before_ns: int = 0  # where it was before `suspect`, which jumped ahead
    suspect: tuple[int, Line] | None = None
    rewinds: list[tuple[int, int]] = field(
        default_factory=list
    )  # (ns, step): steps from here on were done again
    step_ns: int | None = None
    last_step: int = -1
    tail: dict[str, float] | None = None  # what the last beat or end says of the time after the last step
    tail_ns: int = -1

    def step(self, line: Line, lengths: StepLengths) -> None:
        """Go along with steps in order: measure those after the first, and see where some are done again."""
        time_ns, before_ns = line.time_ns, self.step_ns
        if before_ns is not None:
            if time_ns <= before_ns and line.step <= self.last_step:
                if time_ns == before_ns and line.step < self.last_step:
                    # Steps too short for the digits of their times: their numbers tell the order.
                    self.disorder_ns = max(self.disorder_ns, 1)
                return
            if line.count == 1:
                lengths.add(line.seconds_ns)
            if line.step <= self.last_step:
                self.rewinds.append((time_ns - line.seconds_ns, line.step))
        self.step_ns, self.last_step = time_ns, line.step


@dataclass
class Found:
    """One run of the log. `given` are its run lines, by time."""

    run: Run
    tracks: dict[Key, Track] = field(default_factory=dict)
    given: list[Line] = field(default_factory=list)
    look_ns: int | None = None
    high_ns: int = 0
    end_number: int = 0  # of the line that says when the run ended
    newest: dict[int, int] = field(default_factory=dict)  # by rank, the attempt that began last
    lengths: StepLengths = field(default_factory=StepLengths)  # right where no lines are out of order


class Scan:
    """The first pass. `runs` by name, in the order in which they came."""

    def __init__(
        self, source: Source, stall_seconds: float, progress: Callable[[int], None] = lambda _: None
    ):
        self.problems = Problems()
        self._stall_seconds = stall_seconds
        self.runs: dict[str, Found] = {}
        self._last_run = ""
        self._nameless = False  # there is one run, and no line has named it
        for number, raw in source.lines():
            self.problems.lines = number
            if number % 4096 == 0:
                progress(source.position)
            if number not in self.problems.dropped:
                self._line(number, raw)
        self.problems.broken = source.broken
        for found in self.runs.values():
            for track in found.tracks.values():
                self._confirm(found, track)
            contradictions(found, self.problems)
            complete(found)

    @property
    def disordered(self) -> bool:
        """Whether any attempt's lines are out of order."""
        return any(t.disorder_ns for found in self.runs.values() for t in found.tracks.values())

    def key_of(self, line: Line) -> Key:
        """The attempt that a line belongs to; the rank's newest, where the line does not say."""
        name = self._last_run or "run" if line.run is None else line.run
        number = line.attempt
        if number is None:
            number = self.runs[name].newest.get(line.rank, 1) if name in self.runs else 1
        return name, line.rank, number

    def follow(self, line: Line) -> None:
        """Go along in a second pass, so that what a line leaves out is read as it was in the first."""
        name = self._last_run or "run" if line.run is None else line.run
        if line.kind not in KINDS or name not in self.runs:
            return
        self._last_run = name
        if line.kind == "attempt":
            self.runs[name].newest[line.rank] = 1 if line.attempt is None else line.attempt

    def rewind(self) -> None:
        """Before a second pass."""
        self._last_run = next(iter(self.runs), "")
        for found in self.runs.values():
            found.newest.clear()

    def _line(self, number: int, raw: bytes) -> None:
        if not raw.strip():
            return
        try:
            line = parse(raw)
        except LineError as error:
            self.problems.note(number, _cause(raw, str(error)))
            return
        for text in line.wrong or ():
            self.problems.note(number, text)
        for name in unknown_fields(raw):
            self.problems.ignored[f"field {name[:40]!r} of {line.kind[:40]}"] += 1
        if line.kind not in KINDS:
            self.problems.ignored[f"kind {line.kind[:40]!r}"] += 1
            return
        if line.run is None and line.kind != "run" and not self.runs:
            self.problems.note(
                number, "there is no run line before this; the run begins with what is first seen of it"
            )
        found = self._found(number, line)
        if found is None:
            return
        if line.kind in ("run", "run_end", "look", "attempt"):
            self._whole(number, found, line)
        elif line.kind != "mark":
            self._ordered(number, found, line)

    def _found(self, number: int, line: Line) -> Found | None:
        name = self._last_run or "run" if line.run is None else line.run
        found = self.runs.get(name)
        if found is None and self._nameless:
            found = self._rename(name)
        if found is None:
            self._nameless = line.run is None
            if len(self.runs) >= RUNS_MAX:
                self.problems.drop(number, f"run {name[:40]!r} is one too many: {RUNS_MAX} at most")
                return None
            found = self.runs[name] = Found(Run(name), lengths=StepLengths(int(self._stall_seconds * 1e8)))
        self._last_run = name
        return found

    def _rename(self, name: str) -> Found:
        """The only run so far had no name; this is it, since the line that names it may come late."""
        ((_, found),) = self.runs.items()
        found.run.name, self._nameless = name, False
        found.tracks = {(name, *key[1:]): track for key, track in found.tracks.items()}
        self.runs = {name: found}
        return found

    def _whole(self, number: int, found: Found, line: Line) -> None:
        """A line about the run, or the start of an attempt."""
        run = found.run
        if line.kind == "run":
            found.given.append(line)
            if bytes(line.time) not in (b"", b"null"):
                run.start_ns = line.time_ns if run.start_ns is None else min(run.start_ns, line.time_ns)
        elif line.kind == "run_end":
            if run.end_ns is not None and run.end_ns != line.time_ns:
                self.problems.note(number, "the run ended before; the later end counts")
            found.end_number = number
            run.end_ns = line.time_ns if run.end_ns is None else max(run.end_ns, line.time_ns)
        elif line.kind == "look":
            found.look_ns = line.time_ns if found.look_ns is None else max(found.look_ns, line.time_ns)
        else:
            self._begin(number, found, line)
        if line.kind != "run":
            found.high_ns = max(found.high_ns, line.time_ns)

    def _begin(self, number: int, found: Found, line: Line) -> None:
        n = 1 if line.attempt is None else line.attempt
        key = (found.run.name, line.rank, n)
        found.newest[line.rank] = n
        track = found.tracks.get(key)
        if track is None:
            track = found.tracks[key] = Track(_attempt(line.rank, n, line.time_ns), number)
        elif track.attempt.seen_ns < 0:
            same = track.attempt.start_ns == line.time_ns
            self.problems.repeated += same
            if not same:
                self.problems.drop(number, f"attempt {n} of rank {line.rank} has begun before")
            return
        attempt = track.attempt
        attempt.start_ns, attempt.seen_ns = line.time_ns, -1
        for name in DECLARED:
            value = getattr(line, name)
            if value is not None:
                setattr(attempt, name, str(value) if name == "group" else value)
        if line.phase_states:
            attempt.phase_states = dict(line.phase_states)
        if line.resume_step is not None:
            attempt.note_event("resumed", line.resume_step, line.time_ns)

    def _ordered(self, number: int, found: Found, line: Line) -> None:
        """A line of an attempt's life: see that its time can be."""
        name = found.run.name
        n = found.newest.get(line.rank, 1) if line.attempt is None else line.attempt
        track = found.tracks.get((name, line.rank, n))
        if track is None:
            # Nobody said when it began: with the first that was seen of it.
            began_ns = line.time_ns - line.seconds_ns
            track = found.tracks[name, line.rank, n] = Track(_attempt(line.rank, n, began_ns), number)
        time_ns = line.time_ns
        if track.high_ns is None:
            track.high_ns = time_ns
        elif time_ns < track.high_ns - BEHIND_NS_MAX:
            if track.suspect is None or time_ns < track.before_ns - BEHIND_NS_MAX:
                behind = (track.high_ns - time_ns) / 1e9
                self.problems.drop(
                    number, f"its time is {behind:.0f} s behind what rank {line.rank} has reached"
                )
                return
            wrong, jumped = track.suspect
            ahead = (jumped.time_ns - track.before_ns) / 1e9
            self.problems.drop(wrong, f"its time jumps ahead by {ahead:.0f} s, and the next line is back")
            track.suspect, track.high_ns = None, track.before_ns
        self._confirm(found, track)
        if time_ns > track.high_ns + BEHIND_NS_MAX:
            track.suspect, track.before_ns, track.high_ns = (number, line), track.high_ns, time_ns
            return
        self._take(number, found, track, line)

    def _confirm(self, found: Found, track: Track) -> None:
        """What jumped ahead was no mistake: the next line is there too, or there is none."""
        if track.suspect is not None:
            number, line = track.suspect
            track.suspect = None
            days = (line.time_ns - track.before_ns) / 8.64e13
            if days > 1:
                self.problems.note(
                    number,
                    f"its time is {days:.1f} days after what rank {line.rank} had reached; taken as it is",
                )
            self._take(number, found, track, line)

    def _take(self, number: int, found: Found, track: Track, line: Line) -> None:
        attempt, time_ns = track.attempt, line.time_ns
        found.high_ns = max(found.high_ns, time_ns)
        late = track.high_ns - time_ns
        if late > 0:
            track.disorder_ns = max(track.disorder_ns, late)
        else:
            track.high_ns = time_ns
        if attempt.seen_ns >= 0:
            # No attempt line, so far: it began at the latest with this.
            attempt.start_ns = min(attempt.start_ns, time_ns - line.seconds_ns)
        attempt.last_ns = max(attempt.last_ns, time_ns)
        if line.kind == "step":
            track.step(line, found.lengths)
            if attempt.first_step is None or time_ns < attempt.first_number:
                attempt.first_number, attempt.first_step = time_ns, line.step - line.count + 1
            last = max((attempt.rows_end_ns, attempt.end_step), (time_ns, line.step))
            attempt.rows_end_ns, attempt.end_step = last
        elif line.kind == "checkpoint":
            kind = "checkpoint_committed" if line.committed else "checkpoint_begun"
            attempt.note_event(kind, line.step, line.time_ns)
        elif line.kind in ("beat", "end"):
            self._sign(number, track, line)

    def _sign(self, number: int, track: Track, line: Line) -> None:
        """A beat or an end: the newest says what the rank was at."""
        attempt = track.attempt
        if line.time_ns >= track.tail_ns:
            track.tail_ns, track.tail = line.time_ns, line.phases
            attempt.unmeasured, attempt.hardware = line.unmeasured_steps, hardware(line)
            attempt.phase = line.phase or ("none" if line.phases is not None else "")
        if line.kind == "end":
            if line.reason == "killed":
                attempt.alive = False
            else:
                attempt.ended = line.reason if line.reason in ("finished", "resumed") else "failed"
            if line.over in FINAL_STATUSES:
                attempt.end_mark = EndMark(line.over, 0, TIME_NS_MAX)
            elif line.over is not None:
                self.problems.note(
                    number, f"`over` is {line.over[:40]!r}, want one of {', '.join(FINAL_STATUSES)}"
                )
            track.end_number = number
            attempt.end_ns = max(attempt.end_ns, line.time_ns)


def _cause(raw: bytes, error: str) -> str:
    """Why a line cannot be read."""
    if raw.endswith(b"\n"):
        return error
    if len(raw) >= LINE_BYTES_MAX:
        return f"the line is longer than {LINE_BYTES_MAX} bytes"
    return f"the line is cut off: {error}" if "truncated" in error else error


def _attempt(rank: int, number: int, start_ns: int) -> Attempt:
    """An attempt of which nothing is known: what nobody will say is filled in at the end."""
    return Attempt(rank, number, start_ns, world_size=0, devices=0, phase="")
