"""First pass over a run log: the start, end, resume point and checkpoints of each attempt, without its steps.

Lines more than 10 minutes behind others of their attempt are dropped, and so is a single line whose time jumps ahead
and back. Memory grows with ranks and attempts, not with lines.
"""

from __future__ import annotations

from collections.abc import Callable

from goodput.account import DECLARED, FINAL_STATUSES, Attempt, EndMark, Run
from goodput.runlog.attempt_completion import complete_attempts, note_contradictions
from goodput.runlog.lines import (
    KINDS,
    LINE_BYTES_MAX,
    TIME_NS_MAX,
    KnownLine,
    Line,
    LineError,
    collectives,
    hardware,
    is_step_line,
    parse,
    stacks,
    to_ns,
    unknown_fields,
)
from goodput.runlog.log_file import LogFile, lines_of
from goodput.runlog.scan_results import AttemptTrack, Problems, RunTrack

BEHIND_NS_MAX = 600 * 10**9
RUNS_MAX = 1000


class Scan:
    """Reads the whole log. `runs` is by name, in the order of the file."""

    def __init__(self, log_file: LogFile, progress: Callable[[int], None] = lambda _: None):
        self.problems = Problems()
        self.runs: dict[str, RunTrack] = {}
        self.last_run = ""
        self._nameless = False  # there is one run so far, and no line has named it
        for number, block in log_file.blocks():
            self._read_block(number, block)
            progress(log_file.position)
        self.problems.broken = log_file.broken
        for found in self.runs.values():
            for track in found.tracks.values():
                self._confirm(found, track)
            note_contradictions(found, self.problems)
            complete_attempts(found)

    def track_of(self, line: Line) -> AttemptTrack | None:
        """The attempt of a line in a second pass, in which omitted fields mean the same as in the first."""
        found = self.runs.get(self._run_name(line))
        if found is None or line.kind not in KINDS:
            return None
        self.last_run = found.run.name
        if line.kind == "attempt":
            found.newest[line.rank] = 1 if line.attempt is None else line.attempt
        return found.tracks.get((line.rank, found.number_of(line)))

    def rewind(self) -> None:
        """Start a second pass."""
        self.last_run = next(iter(self.runs), "")
        for found in self.runs.values():
            found.newest.clear()

    def _run_name(self, line: Line) -> str:
        return self.last_run or "run" if line.run is None else str(line.run)

    def _read_block(self, number: int, block: bytes) -> None:
        for at, raw in enumerate(lines_of(block), number):
            self._read(at, raw)

    def _read(self, number: int, raw: bytes) -> None:
        self.problems.lines = number
        if not raw.strip():
            return
        try:
            line = parse(raw)
        except LineError as error:
            reason = _reason(raw, str(error))
            self.problems.note(number, reason)
            if is_step_line(raw):
                self.problems.step_lines += 1
                self.problems.unusable(number, reason)
            return
        self.problems.step_lines += line.kind == "step"
        for text in line.warnings or ():
            self.problems.note(number, text)
        for name in () if type(line) is KnownLine else unknown_fields(raw):
            self.problems.ignore(f"field {name[:40]!r} of {line.kind[:40]}")
        if line.kind not in KINDS:
            self.problems.ignore(f"kind {line.kind[:40]!r}")
            return
        if line.run is None and line.kind != "run" and not self.runs:
            self.problems.note(
                number, "no run line before this one: the run starts at its first attempt, step or beat"
            )
        found = self._run(number, line)
        if found is None:
            return
        if line.kind in ("run", "run_end", "look", "attempt"):
            self._unordered(number, found, line)
        elif line.kind != "mark":
            self._ordered(number, found, line)

    def _run(self, number: int, line: Line) -> RunTrack | None:
        name = self._run_name(line)
        found = self.runs.get(name)
        if found is None and self._nameless:
            # The only run so far: the line with its name may come late.
            ((_, found),) = self.runs.items()
            found.run.name, self._nameless, self.runs = name, False, {name: found}
        if found is None:
            self._nameless = line.run is None
            if len(self.runs) >= RUNS_MAX:
                text = f"too many runs: {name[:40]!r} is beyond the first {RUNS_MAX}"
                self.problems.drop(number, text, line.kind == "step")
                return None
            found = self.runs[name] = RunTrack(Run(name))
        self.last_run = name
        return found

    def _unordered(self, number: int, found: RunTrack, line: Line) -> None:
        """A line about the run, or the start of an attempt; neither has to be in order of time."""
        run = found.run
        if line.kind == "run":
            found.run_lines.append(line)
            if bytes(line.time) not in (b"", b"null"):
                run.start_ns = line.time_ns if run.start_ns is None else min(run.start_ns, line.time_ns)
        elif line.kind == "run_end":
            if run.end_ns is not None and run.end_ns != line.time_ns:
                self.problems.note(number, "another run_end line has a different time; the later one counts")
            found.end_number = number
            run.end_ns = line.time_ns if run.end_ns is None else max(run.end_ns, line.time_ns)
        elif line.kind == "look":
            found.look_ns = line.time_ns if found.look_ns is None else max(found.look_ns, line.time_ns)
        else:
            self._begin(number, found, line)
        if line.kind != "run":
            found.high_ns = max(found.high_ns, line.time_ns)

    def _begin(self, number: int, found: RunTrack, line: Line) -> None:
        n = 1 if line.attempt is None else line.attempt
        found.newest[line.rank] = n
        track = found.tracks.get((line.rank, n))
        if track is None:
            track = _track(number, found, line.rank, n, line.time_ns)
        elif track.attempt.seen_ns < 0:
            same = track.attempt.start_ns == line.time_ns
            self.problems.repeated += same
            if not same:
                self.problems.drop(number, f"attempt {n} of rank {line.rank} already began at another time")
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
        if line.restored:
            attempt.note_event("restored", -1, line.time_ns)

    def _ordered(self, number: int, found: RunTrack, line: Line) -> None:
        """A line of an attempt's life; dropped if its time is implausible."""
        n = found.number_of(line)
        track = found.tracks.get((line.rank, n))
        if track is None:
            # Its attempt line is missing or late: it began at the latest with this line.
            track = _track(number, found, line.rank, n, line.time_ns - line.seconds_ns)
        time_ns = line.time_ns
        if track.high_ns is None:
            track.high_ns = time_ns
        elif time_ns < track.high_ns - BEHIND_NS_MAX:
            if track.suspect is None or time_ns < track.before_ns - BEHIND_NS_MAX:
                behind = (track.high_ns - time_ns) / 1e9
                text = f"its time is {behind:.0f} s behind the newest line of rank {line.rank}"
                # A file that was written twice loses nothing.
                self.problems.drop(
                    number, text, line.kind == "step" and line.step_number not in track.numbers
                )
                return
            wrong, jumped = track.suspect
            ahead = (jumped.time_ns - track.before_ns) / 1e9
            text = f"its time jumps ahead by {ahead:.0f} s, and the next line does not"
            self.problems.drop(wrong, text, jumped.kind == "step")
            track.suspect, track.high_ns = None, track.before_ns
        self._confirm(found, track)
        if time_ns > track.high_ns + BEHIND_NS_MAX:
            track.suspect, track.before_ns, track.high_ns = (number, line), track.high_ns, time_ns
            return
        self._add(number, found, track, line)

    def _confirm(self, found: RunTrack, track: AttemptTrack) -> None:
        """Use a line that jumped ahead: the next line is there too, or there is none."""
        if track.suspect is None:
            return
        number, line = track.suspect
        track.suspect = None
        days = (line.time_ns - track.before_ns) / 8.64e13
        if days > 1:
            self.problems.note(
                number, f"its time is {days:.1f} days after the line before of rank {line.rank}; it is used"
            )
        self._add(number, found, track, line)

    def _add(self, number: int, found: RunTrack, track: AttemptTrack, line: Line) -> None:
        attempt, time_ns = track.attempt, line.time_ns
        if time_ns > found.high_ns:
            found.high_ns = time_ns
        late = 0 if track.high_ns is None else track.high_ns - time_ns
        if late > 0:
            track.disorder_ns = max(track.disorder_ns, late)
        else:
            track.high_ns = time_ns
        if attempt.seen_ns >= 0:
            # No attempt line so far: it began at the latest with this line.
            attempt.start_ns = min(attempt.start_ns, time_ns - line.seconds_ns)
        if time_ns > attempt.last_ns:
            attempt.last_ns = time_ns
        attempt.has_rollout = attempt.has_rollout or has_rollout(line, attempt.phase_states)
        found.phases.add(line.phases or ())
        found.phases.add((line.phase,) if line.phase else ())
        track.last_number = max(track.last_number, number)
        if line.kind == "step":
            step = line.step_number
            first = step - line.count + 1
            track.step(line)
            track.numbers.add(first, step)
            if attempt.first_step is None or (time_ns, first) < (attempt.first_number, attempt.first_step):
                attempt.first_number, attempt.first_step = time_ns, first
            if (time_ns, step) > (attempt.rows_end_ns, attempt.end_step):
                attempt.rows_end_ns, attempt.end_step = time_ns, step
        else:
            self._take_other(number, track, line)

    def _take_other(self, number: int, track: AttemptTrack, line: Line) -> None:
        """What a line says that is no step, besides its time."""
        if line.kind == "checkpoint":
            kind = "checkpoint_committed" if line.committed else "checkpoint_begun"
            track.attempt.note_event(kind, line.step_number, line.time_ns)
        elif line.kind in ("beat", "end"):
            self._beat(number, track, line)

    def _beat(self, number: int, track: AttemptTrack, line: Line) -> None:
        """A beat or an end: the newest has the rank's current phase."""
        attempt = track.attempt
        # An end that does not say where the process was keeps the phase of its last beat.
        says_nothing = line.kind == "end" and line.phase is None and line.phases is None
        if line.time_ns >= track.tail_ns and says_nothing and attempt.phase:
            attempt.unmeasured = line.unmeasured_steps or attempt.unmeasured
            attempt.hardware = hardware(line) or attempt.hardware
            attempt.stacks = attempt.stacks if line.stack_samples is None else stacks(line)
            attempt.collectives = attempt.collectives if line.collectives is None else collectives(line)
        elif line.time_ns >= track.tail_ns:
            track.tail_ns, track.tail = line.time_ns, line.phases
            track.phase_ns = None if line.phase_seconds is None else round(line.phase_seconds * 1e9)
            attempt.unmeasured, attempt.hardware = line.unmeasured_steps, hardware(line)
            attempt.stacks, attempt.collectives = stacks(line), collectives(line)
            attempt.phase = line.phase or ("none" if line.phases is not None else "")
        if line.over is not None:
            self._set_end_mark(number, attempt, line)
        if line.kind == "end":
            if line.step is not None:
                attempt.note_event("failed", line.step_number, line.time_ns, line.text or "")
            if line.reason == "killed":
                attempt.alive = False
            else:
                attempt.ended = line.reason if line.reason in ("finished", "resumed") else "failed"
            attempt.end_ns = max(attempt.end_ns, line.time_ns) if track.end_number else line.time_ns
            track.end_number = number

    def _set_end_mark(self, number: int, attempt: Attempt, line: Line) -> None:
        """What a beat or an end declares for the whole run: that it was declared over, or is abandoned, and since when."""
        over = line.over or ""
        if over not in FINAL_STATUSES:
            text = f"`over` is {over[:40]!r}, want one of {', '.join(FINAL_STATUSES)}"
            return self.problems.note(number, text)
        try:
            at_ns = to_ns(bytes(line.over_at), needed=False, name="over_at")
        except LineError as error:
            return self.problems.note(number, f"{error}; it is left out")
        attempt.end_mark = EndMark(over, at_ns, TIME_NS_MAX)


def has_rollout(line: Line, states: dict[str, str]) -> bool:
    """Whether the line has time of a phase that counts as a rollout."""
    if line.kind == "phase":
        return line.seconds_ns > 0 and states.get(line.phase or "", line.phase) == "rollout"
    return spends_rollout(line.phases or {}, states)


def spends_rollout(phases: dict[str, float], states: dict[str, str]) -> bool:
    if not states:
        return phases.get("rollout", 0) > 0
    return any(seconds > 0 and states.get(name, name) == "rollout" for name, seconds in phases.items())


def _reason(raw: bytes, error: str) -> str:
    if raw.endswith(b"\n"):
        return error
    if len(raw) >= LINE_BYTES_MAX:
        return f"the line is longer than {LINE_BYTES_MAX} bytes"
    return f"the line is cut off: {error}" if "truncated" in error else error


def _track(number: int, found: RunTrack, rank: int, n: int, start_ns: int) -> AttemptTrack:
    """A new attempt without fields: `complete_attempts` fills in what no line has."""
    attempt = Attempt(
        rank, n, start_ns, last_ns=-TIME_NS_MAX, rows_end_ns=-TIME_NS_MAX, world_size=0, devices=0, phase=""
    )
    track = found.tracks[rank, n] = AttemptTrack(attempt, number)
    return track
