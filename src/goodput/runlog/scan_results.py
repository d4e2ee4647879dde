"""What the first pass over a run log collects: runs, their attempts, and problems by line number."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field

from goodput.account import Attempt, Run
from goodput.account.document_types import StepLines
from goodput.runlog.lines import TIME_NS_MAX, Line
from goodput.runlog.log_file import LogError
from goodput.runlog.phase_layout import PhaseNames

PROBLEMS_MAX = 100
IGNORED_MAX, OTHERS = 1000, "others"
DROPPED_MAX = 200_000
RANGES_MAX = 1000
UNUSABLE_SHARE_MAX = 0.01  # of step lines; above it the account is incomplete


@dataclass
class Problems:
    """What is wrong with a log. `dropped` holds the numbers of lines that are not used."""

    lines: int = 0
    listed: list[tuple[int, str]] = field(default_factory=list)  # the first PROBLEMS_MAX
    count: int = 0
    dropped: set[int] = field(default_factory=set)
    # Unknown kinds, fields and phases, the first IGNORED_MAX of them by name.
    ignored: Counter[str] = field(default_factory=Counter)
    repeated: int = 0  # duplicate lines
    overlapping: int = 0  # steps that overlap the step before
    broken: str = ""  # why the file could not be read to its end
    step_lines: int = 0
    unusable_steps: int = 0  # step lines that are not used
    unusable_first: tuple[int, str] | None = None  # the first of them, and why

    def unusable(self, number: int, text: str) -> None:
        """Record that this step line is not used."""
        self.unusable_steps += 1
        self.unusable_first = self.unusable_first or (number, text)

    def drop(self, number: int, text: str, is_step: bool = False) -> None:
        """Record that this line is not used."""
        if is_step:
            self.unusable(number, text)
        if len(self.dropped) >= DROPPED_MAX:
            raise LogError(f"more than {DROPPED_MAX} lines cannot be used, the last is line {number}: {text}")
        self.dropped.add(number)
        self.note(number, text)

    def note(self, number: int, text: str) -> None:
        """Record a problem of a line that is still used as far as possible."""
        self.count += 1
        if len(self.listed) < PROBLEMS_MAX:
            self.listed.append((number, text))

    def ignore(self, what: str) -> None:
        """Count something unknown, which is left out."""
        is_counted = what in self.ignored or len(self.ignored) < IGNORED_MAX
        self.ignored[what if is_counted else OTHERS] += 1

    def most_ignored(self, count: int) -> list[tuple[str, int]]:
        """What was ignored most often, with how often."""
        return sorted(self.ignored.items(), key=lambda one: (-one[1], one[0]))[:count]

    def step_quality(self) -> StepLines | None:
        """How many step lines were lost, as the account document has it; None if all were used."""
        first = self.unusable_first
        if first is None:
            return None
        share = self.unusable_steps / self.step_lines
        return {
            "read": self.step_lines,
            "unusable": self.unusable_steps,
            "share": share,
            "incomplete": share > UNUSABLE_SHARE_MAX,
            "first": f"line {first[0]}: {first[1]}",
        }

    def document(self) -> dict:
        return {
            "lines": self.lines,
            "problems": [{"line": number, "problem": text} for number, text in self.listed],
            "problem_count": self.count,
            "dropped": len(self.dropped),
            "step_lines": self.step_lines,
            "unusable_step_lines": self.unusable_steps,
            "repeated": self.repeated,
            "overlapping": self.overlapping,
            "ignored": dict(self.most_ignored(100)),
            "broken": self.broken,
        }


class StepNumbers:
    """Step numbers as ranges; beyond RANGES_MAX of them the lowest are joined."""

    def __init__(self):
        self._ranges: list[list[int]] = []  # [first, last], in order and apart

    def add(self, first: int, last: int) -> None:
        ranges = self._ranges
        if ranges:
            newest = ranges[-1]
            if newest[0] <= first <= newest[1] + 1:
                if last > newest[1]:
                    newest[1] = last
                return
        if not ranges or first > ranges[-1][1]:
            ranges.append([first, last])
        else:
            insort(ranges, [first, last])
            joined = [ranges[0]]
            for low, high in ranges[1:]:
                if low <= joined[-1][1] + 1:
                    joined[-1][1] = max(joined[-1][1], high)
                else:
                    joined.append([low, high])
            self._ranges = ranges = joined
        if len(ranges) > RANGES_MAX:
            ranges[1][0] = ranges.pop(0)[0]

    def highest(self) -> int:
        """-1 without any."""
        return self._ranges[-1][1] if self._ranges else -1

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._ranges, number, key=lambda one: one[0]) - 1
        return at >= 0 and number <= self._ranges[at][1]


@dataclass(eq=False)
class AttemptTrack:
    """One attempt's lines in the order of the file."""

    attempt: Attempt
    number: int = 0  # of its first line
    last_number: int = 0  # of its last line but those of `attempt`
    end_number: int = 0  # of its last `end` line
    numbers: StepNumbers = field(default_factory=StepNumbers)  # of the steps that are used
    high_ns: int | None = None  # the latest time so far
    disorder_ns: int = 0  # how far a line lies behind `high_ns`, at most
    before_ns: int = 0  # `high_ns` before `suspect`
    suspect: tuple[int, Line] | None = None  # a line far ahead of the others, until the next confirms it
    rewinds: list[tuple[int, int]] = field(default_factory=list)  # (ns, step): steps repeated from here on
    step_ns: int | None = None
    last_step: int = -1
    tail: dict[str, float] | None = None  # phases after the last step, from the last beat or end
    tail_ns: int = -TIME_NS_MAX
    phase_ns: int | None = None  # how long it was in its phase then

    def step(self, line: Line) -> None:
        """Add the next step: whether it repeats earlier ones."""
        time_ns, step, before_ns = line.time_ns, line.step_number, self.step_ns
        if before_ns is not None:
            if time_ns <= before_ns and step <= self.last_step:
                if time_ns == before_ns and step < self.last_step:
                    # Steps shorter than the resolution of their times: their numbers give the order.
                    self.disorder_ns = max(self.disorder_ns, 1)
                return
            if step <= self.last_step:
                self.rewinds.append((time_ns - line.seconds_ns, step))
        self.step_ns, self.last_step = time_ns, step


@dataclass
class RunTrack:
    """One run of the log."""

    run: Run
    tracks: dict[tuple[int, int], AttemptTrack] = field(default_factory=dict)  # by (rank, attempt)
    run_lines: list[Line] = field(default_factory=list)
    look_ns: int | None = None  # the time up to which the log goes, from its `look` lines
    high_ns: int = -TIME_NS_MAX  # the latest time so far; a log's times may all be negative
    end_number: int = 0  # of the line with the run's end
    newest: dict[int, int] = field(default_factory=dict)  # rank -> the attempt that began last
    phases: PhaseNames = field(default_factory=PhaseNames)

    def now_ns(self) -> int:
        """The time up to which the log goes."""
        return self.high_ns if self.look_ns is None else self.look_ns

    def span_ns(self) -> int:
        """From its earliest time, or 0, to its latest."""
        starts = [track.attempt.start_ns for track in self.tracks.values()]
        known = (
            self.high_ns,
            self.now_ns(),
            self.run.end_ns or 0,
            *(t.attempt.known_end_ns() or 0 for t in self.tracks.values()),
        )
        return max(known) - min(0, *starts)

    def number_of(self, line: Line) -> int:
        """The attempt that a line belongs to: without a number, the newest of its rank."""
        return self.newest.get(line.rank, 1) if line.attempt is None else line.attempt
