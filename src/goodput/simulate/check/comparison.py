"""What the stack reports, compared with the truth: errors of states, precision and recall of culprits, delays, hangs.

A slow rank or stage counts as planted where it makes steps at least SLOWDOWN_MIN longer. It is looked for twice: in the
series of the last 10 to 15 minutes, from which alerts fire, and in the account of exactly the time in which it was slow.
What is named is right where such a fault was planted there in that time, however small.

    report = together([compare(outcome), ...]); report.failures; report.document()
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from goodput.simulate.check.simulation import Outcome
from goodput.simulate.check.stack import Observation

STATE_ERROR_MAX = 0.01  # of a run's GPU-seconds
PRECISION_MIN = RECALL_MIN = 0.95
SLOWDOWN_MIN = 0.10
HANG_DELAY_SECONDS_MAX = 30.0  # after the stall threshold
# Until everything of a moment was pushed, and for how long the alerts' series look back.
SETTLE_SECONDS, LOOK_BACK_SECONDS = 30.0, 900.0
_COUNTS = ("planted", "found", "named", "right")
Named = tuple[str, int]  # "rank" or "stage", its number


@dataclass
class Score:
    """How many of one kind were planted and found, how many were named and rightly so, and how long it took."""

    planted: int = 0
    found: int = 0
    named: int = 0
    right: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def recall(self) -> float | None:
        return self.found / self.planted if self.planted else None

    @property
    def precision(self) -> float | None:
        return self.right / self.named if self.named else None

    def add(self, other: Score) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.delays += other.delays

    def document(self) -> dict:
        counts = {name: getattr(self, name) for name in _COUNTS}
        delays = {
            "delay_seconds_median": median(self.delays) if self.delays else None,
            "delay_seconds_max": max(self.delays, default=None),
        }
        return {**counts, "precision": self.precision, "recall": self.recall, **delays}


@dataclass
class Report:
    """`states`: by run and state the truth and what the stack reported, in GPU-seconds, and the error as a share of all."""

    states: dict[str, dict[str, tuple[float, float, float]]] = field(default_factory=dict)
    scores: dict[str, Score] = field(default_factory=lambda: defaultdict(Score))
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pushes: dict[str, int] = field(default_factory=dict)

    def worst_states(self) -> dict[str, float]:
        """The largest error of each state over all runs."""
        worst: dict[str, float] = {}
        for states in self.states.values():
            for state, (_, _, error) in states.items():
                worst[state] = max(worst.get(state, 0.0), error)
        return worst

    def document(self) -> dict:
        return {
            "ok": not self.failures,
            "failures": self.failures,
            "notes": self.notes,
            "worst_states": self.worst_states(),
            "states": {
                run: {
                    state: {"truth_gpu_seconds": truth, "gpu_seconds": reported, "error_share": error}
                    for state, (truth, reported, error) in states.items()
                }
                for run, states in self.states.items()
            },
            "scores": {name: score.document() for name, score in self.scores.items()},
            "pushes": dict(self.pushes),
        }


def compare(outcome: Outcome) -> Report:
    """One scenario, without a judgement on precision and recall: culprits are few in each."""
    report = Report()
    for run in outcome.truth["runs"]:
        _compare_states(report, run, outcome.accounts[run["run"]])
        _compare_culprits(report, run, outcome.observations[run["run"]])
        _compare_windows(report, run, outcome.windows[run["run"]], outcome.quiet[run["run"]])
        _compare_hangs(report, run, outcome.observations[run["run"]])
    _compare_health(report, outcome)
    report.pushes = dict(outcome.pushes)
    if outcome.refusals:
        first = outcome.refusals[0]
        report.failures.append(f"{len(outcome.refusals)} rank reports were rejected, first {first}")
    return report


def together(reports: Iterable[Report]) -> Report:
    """Several scenarios' comparisons as one, judged."""
    result = Report()
    for one in reports:
        for run, states in one.states.items():
            result.states[run if run not in result.states else f"{run} ({len(result.states)})"] = states
        for name, score in one.scores.items():
            result.scores[name].add(score)
        for outcome, count in one.pushes.items():
            result.pushes[outcome] = result.pushes.get(outcome, 0) + count
        result.failures += one.failures
        result.notes += one.notes
    for name, score in result.scores.items():
        _judge(result, name, score)
    return result


def _judge(report: Report, name: str, score: Score) -> None:
    """Only sums over causes have to keep the bounds: of one cause there may be three."""
    if "/" in name:
        return
    for what, value, least in (
        ("recall", score.recall, RECALL_MIN),
        ("precision", score.precision, PRECISION_MIN),
    ):
        if value is not None and value < least:
            report.failures.append(f"{name}: {what} {value:.3f}, at least {least:g} is expected")


def _compare_states(report: Report, run: dict, account: dict) -> None:
    whole, found = run["gpu_seconds"], {}
    for state in sorted({*run["states"], *account["states"]}):
        truth, reported = run["states"].get(state, 0.0), account["states"].get(state, 0.0)
        if truth or reported:
            error = abs(reported - truth) / whole
            found[state] = truth, reported, error
            if error > STATE_ERROR_MAX:
                text = f"{run['run']}: {state} is {reported:.1f} GPU-seconds, {truth:.1f} in truth: {error:.2%} off"
                report.failures.append(text)
    report.states[run["run"]] = found
    if abs(account["gpu_seconds"] - whole) > STATE_ERROR_MAX * whole:
        text = f"{run['run']}: {account['gpu_seconds']:.1f} GPU-seconds in all, {whole:.1f} in truth"
        report.failures.append(text)


def _who(culprit: dict) -> Named:
    return ("rank", culprit["rank"]) if culprit["rank"] is not None else ("stage", culprit["stage"])


def _is_planted(culprit: dict) -> bool:
    return culprit["slowdown"] >= 1 + SLOWDOWN_MIN


def _names(one: Observation) -> list[Named]:
    named = [("rank", one.slow_rank), ("stage", one.slow_stage)]
    return [(what, number) for what, number in named if number is not None]


def _compare_culprits(report: Report, run: dict, observations: list[Observation]) -> None:
    """Compare the culprits that the alerts' series name."""
    total, after = (report.scores[f"culprits, as alerts see them{text}"] for text in ("", "/after another"))
    for culprit in filter(_is_planted, run["culprits"]):
        begin, end = culprit["begin_seconds"], culprit["end_seconds"] + SETTLE_SECONDS
        seen = [one.now for one in observations if begin <= one.now <= end and _who(culprit) in _names(one)]
        for score in (after if _is_after_another(culprit, run) else total,):
            score.planted += 1
            score.found += bool(seen)
            score.delays += [seen[0] - begin] if seen else []
        if not seen:
            report.notes.append(f"{run['run']}: alerts do not see {_text(culprit)}")
    for named, first, last in _stretches(observations):
        right = any(
            _who(one) == named
            and one["begin_seconds"] <= last
            and first <= one["end_seconds"] + LOOK_BACK_SECONDS
            for one in run["culprits"]
        )
        total.named += 1
        total.right += right
        if not right:
            report.notes.append(f"{run['run']}: {named[0]} {named[1]} is named from {first:g} to {last:g} s")


def _is_after_another(culprit: dict, run: dict) -> bool:
    """Whether the time that the alerts' series look back over has another culprit, which may be waited for more."""
    begin, end = culprit["begin_seconds"] - LOOK_BACK_SECONDS, culprit["end_seconds"]
    others = [one for one in run["culprits"] if one is not culprit]
    return any(one["begin_seconds"] <= end and one["end_seconds"] >= begin for one in others)


def _stretches(observations: list[Observation]) -> list[tuple[Named, float, float]]:
    """(who, first, last) of consecutive scrapes that name the same."""
    found: list[tuple[Named, float, float]] = []
    open_: dict[Named, tuple[float, float]] = {}
    for one in observations:
        names = _names(one)
        for gone in [named for named in open_ if named not in names]:
            found.append((gone, *open_.pop(gone)))
        for named in names:
            open_[named] = open_.get(named, (one.now, one.now))[0], one.now
    return found + [(named, *span) for named, span in open_.items()]


def _compare_windows(report: Report, run: dict, windows: list[dict], quiet: list[dict]) -> None:
    """Compare the culprits of accounts over times with a slow rank, and over times without one."""
    name = "culprits, in their time's account"
    for culprit, window in zip(run["culprits"], windows, strict=True):
        if not _is_planted(culprit):
            continue
        named, who = _named(window), _who(culprit)
        for score in (report.scores[name], report.scores[f"{name}/{_cause(culprit)}"]):
            score.planted += 1
            score.found += who in named
            score.named += len(named)
            score.right += named.count(who)
        if named != [who]:
            report.notes.append(f"{run['run']}: the account names {named}, slow is {_text(culprit)}")
        if who in named:
            key = "because_phase" if who[0] == "rank" else "stage_because_phase"
            _compare_cause(report, run, culprit, window["straggler"].get(key))
    for window in quiet:
        named = _named(window)
        report.scores[name].named += len(named)
        report.scores[f"{name}/nobody is slow"].named += len(named)
        if named:
            text = f"the account of {window['end'] - window['start']:.0f} s without a culprit names {named}"
            report.notes.append(f"{run['run']}: {text}")


def _named(account: dict) -> list[Named]:
    straggler = account["straggler"]
    named = [("rank", straggler["culprit"]), ("stage", straggler["culprit_stage"])]
    return [(what, number) for what, number in named if number is not None]


def _compare_cause(report: Report, run: dict, culprit: dict, phase: str | None) -> None:
    """Whether the phase is right in which it is slow; simulated runs measure all of them."""
    for name in ("phases of culprits", f"phases of culprits/{_cause(culprit)}"):
        score = report.scores[name]
        score.planted += 1
        score.named += phase is not None
        score.found += phase == culprit["kind"]
        score.right += phase == culprit["kind"]
    if phase != culprit["kind"]:
        report.notes.append(f"{run['run']}: {_text(culprit)} is reported as slow in {phase}")


def _cause(culprit: dict) -> str:
    return f"{culprit['kind']} of a {_who(culprit)[0]}"


def _text(culprit: dict) -> str:
    what, number = _who(culprit)
    begin, end = culprit["begin_seconds"], culprit["end_seconds"]
    return f"{what} {number} ({culprit['kind']}, {culprit['slowdown']:.2f} x, {begin:.0f} to {end:.0f} s)"


def _compare_hangs(report: Report, run: dict, observations: list[Observation]) -> None:
    threshold, score = run["stall_threshold_seconds"], report.scores["hangs"]
    spans = []
    for hang in run["hangs"]:
        begin, end = hang["begin_seconds"], hang["end_seconds"]
        spans.append((begin, end + SETTLE_SECONDS))
        if end - begin < threshold + HANG_DELAY_SECONDS_MAX:
            continue
        seen = [one for one in observations if begin <= one.now <= end and one.hang_seconds > 0]
        right = [one for one in seen if _names_hang(one, hang)]
        delay = right[0].now - begin - threshold if right else None
        is_found = delay is not None and right[0] is seen[0] and delay <= HANG_DELAY_SECONDS_MAX
        for one in (score, report.scores[f"hangs/{hang['kind']}"]):
            one.planted += 1
            one.found += is_found
            one.delays += [] if delay is None else [delay]
        wrong = sorted({str(one.hang_rank) for one in seen if not _names_hang(one, hang)})
        if not is_found or wrong:
            text = f"{run['run']}: {hang['kind']} from {begin:.0f} to {end:.0f} s, of {hang['ranks'] or 'nobody'}"
            text += f": named after {'ever' if delay is None else f'{delay:.0f} s'}, wrongly rank {wrong or 'none'}"
            (report.notes if is_found else report.failures).append(text)
    for one in observations:
        if one.hang_seconds > 0:
            right = any(begin <= one.now <= end for begin, end in spans)
            score.named, score.right = score.named + 1, score.right + right
            if not right:
                report.failures.append(
                    f"{run['run']}: a hang is reported at {one.now:g} s, and there is none"
                )


def _names_hang(one: Observation, hang: dict) -> bool:
    return one.hang_rank in hang["ranks"] if hang["ranks"] else one.hang_rank is None


def _compare_health(report: Report, outcome: Outcome) -> None:
    """Every event is counted once, however often it was reported."""
    expected: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in outcome.truth["health"]:
        expected[one["run"], one["kind"], one["severity"]] += 1
    score = report.scores["health events"]
    for key in expected.keys() | outcome.health.keys():
        planted, reported = expected[key], outcome.health.get(key, 0)
        score.planted, score.named = score.planted + planted, score.named + reported
        score.found += min(planted, reported)
        score.right += min(planted, reported)
        if planted != reported:
            report.notes.append(f"{key[0]}: {reported} health events {key[1]} ({key[2]}), {planted} in truth")


def text(report: Report) -> str:
    """The report as tables for a terminal."""
    lines = ["state           worst error  (share of a run's GPU-seconds)"]
    for state, error in sorted(report.worst_states().items(), key=lambda item: -item[1]):
        lines.append(f"  {state:<14}{error:>10.3%}")
    lines += ["", f"{'':<44}planted  found  recall  named  right  precision  delay median / max"]
    for name, score in sorted(report.scores.items()):
        if not (score.planted or score.named):
            continue
        shown = "  " * ("/" in name) + name.rpartition("/")[2]
        delays = f"{median(score.delays):.0f} / {max(score.delays):.0f} s" if score.delays else ""
        line = f"{shown:<44}{score.planted:>7}{score.found:>7}{_share(score.recall):>8}"
        lines.append(
            line + f"{score.named:>7}{score.right:>7}{_share(score.precision):>11}  {delays}".rstrip()
        )
    lines += [""] + [f"note: {one}" for one in report.notes] + [f"FAILED: {one}" for one in report.failures]
    lines.append(
        "all within tolerance" if not report.failures else f"{len(report.failures)} outside tolerance"
    )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
