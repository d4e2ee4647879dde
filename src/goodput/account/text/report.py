"""An account as text: the answer in three lines, then a table that closes to 100.0 %.

With `full` also the factors, what follows from them, and each cause's advice. An unknown figure has no line; unknown
factors say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from goodput.account.states import STATES
from goodput.account.text.causes import cause_lines
from goodput.account.text.communication import collective_lines, slow_issue_lines, slow_link_lines
from goodput.account.text.formats import (
    COLUMNS,
    UNKNOWN_STEP,
    bytes_text,
    digits,
    dollars,
    duration,
    on,
    percent,
    tenths,
    unit_of,
    whole,
    wrap,
)
from goodput.account.text.states_table import more_than_rank, state_rows

# Reports say how much of the time in steps was compared between ranks where it is less than this share.
COMPARED_SHARE_MIN = 0.95
EARLY_EVALUATION_SHARE_MIN = 0.005
STRETCHES_SHOWN = 8
WORKERS_SHOWN = 4
MOVED_SHOWN = 8  # hosts
STAGES_SHOWN = 8
# For a run of a few seconds with a failure the formula gives an unusably short interval.
BEST_INTERVAL_RUN_SECONDS_MIN, BEST_INTERVAL_SECONDS_MIN = 600.0, 10.0


def render(
    document: Mapping[str, Any],
    *,
    full: bool = False,
    columns: int = COLUMNS,
    colour: bool = False,
    more: str = "the option --full",
) -> str:
    """The account as text of at most so many columns; `full` has what else is known of it, `more` is how to get that."""
    wrapped = partial(wrap, columns=columns)
    world, wall, unit = document["world_size"], document["end"] - document["start"], unit_of(document)
    answer = document.get("answer")  # A document of an earlier version has none.
    lines = [
        wrapped(
            f"run {document['run']}: {document['status']}, {world} rank{'s' * (world != 1)}, "
            f"{wall:.1f} s, {document['gpu_seconds']:.1f} {unit}-seconds"
        ),
        "",
        *map(wrapped, _incomplete_lines(document)),
        *(wrapped(f"  {line}") for line in (answer["lines"] if answer else ())),
        *[""] * bool(answer),
        *map(wrapped, head := _warnings(document, full)),
        *[""] * bool(head),
        *_table(document, columns),
    ]
    below = [wrapped(line) for part in (_PARTS if full else _FIRST_PARTS) for line in part(document)]
    lines += ["", *below] if below else []
    if not full:
        lines += ["", f"  more: {more}"]
    # Names in it come from other programs, and a terminal acts on what is not printable.
    text = "".join(one if one.isprintable() or one == "\n" else "?" for one in "\n".join(lines))
    return _coloured(text) if colour else text


def _warnings(document: Mapping[str, Any], full: bool) -> list[str]:
    """What a reader has to know before any figure. The hang is in the answer too, where there is one."""
    return [
        *_moved_lines(document),
        *(_hang_lines(document) if full or "answer" not in document else []),
        *(f"  wrong input: {error}" for error in document["errors"]),
        *_worker_lines(document),
        *_part_lines(document),
    ]


def _table(document: Mapping[str, Any], columns: int) -> list[str]:
    unit = unit_of(document)
    width = len(f"{unit}-seconds") + 1
    rows = [
        _row(f"  {s:<14}{seconds:>{width}.2f}{share:>8}%", f"{what}{_marked(document, s)}", columns)
        for s, seconds, share, what in state_rows(document)
    ]
    return [
        f"  {'state':<14}{f'{unit}-seconds':>{width}}{'percent':>9}   what it is",
        *rows,
        f"  {'total':<14}{document['gpu_seconds']:>{width}.2f}{'100.0':>8}%",
    ]


BOLD, RED, YELLOW, GREEN, PLAIN = (f"\x1b[{code}m" for code in (1, 31, 33, 32, 0))
_COLOURS = {
    "  goodput ": BOLD,
    "  why: ": YELLOW + BOLD,
    "  next: ": GREEN + BOLD,
    "  wrong input: ": YELLOW,
    "  incomplete: ": RED,
}


def _coloured(text: str) -> str:
    """With the first words of the lines that matter in colour."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        for first, code in _COLOURS.items():
            if line.startswith(first):
                words = first.strip()
                lines[at] = f"  {code}{words}{PLAIN}{line[2 + len(words) :]}"
    return "\n".join(lines)


def _row(figures: str, meaning: str, columns: int) -> str:
    """A row of the table of states; only its last column is wrapped."""
    indent = len(figures) + 3
    return figures + wrap(f"{' ' * indent}{meaning}", indent, columns)[len(figures) :]


def _hang_lines(document: Mapping[str, Any]) -> list[str]:
    hang = document["hang"]
    if hang is None:
        return []
    is_over = document["status"] != "running"
    what = "hung until it ended: no rank completed" if is_over else "hangs: no rank has completed"
    return [f"  {what} a step for {duration(hang['seconds'])}; {hang['reason']}"]


def _worker_lines(document: Mapping[str, Any]) -> list[str]:
    """What the account covers of a run whose processes have no ranks."""
    workers = document.get("workers")
    if not workers:
        return []
    left_out, counted = workers["left_out"], workers["counted"]
    names = [f"{one['rank']} is {one['worker']}" for one in document["ranks"][:WORKERS_SHOWN]]
    names += ["..."] * (counted > WORKERS_SHOWN)
    more = f"; {left_out} without a step {'is' if left_out == 1 else 'are'} left out" if left_out else ""
    return [
        f"  covers {counted} process{'es' * (counted != 1)} without ranks, numbered ({', '.join(names)}),"
        f" each as one rank while it lives{more}"
    ]


def _moved_lines(document: Mapping[str, Any]) -> list[str]:
    """Hosts whose times were moved; a document of an earlier version does not have them."""
    found = document.get("moved_clocks", ())
    shown = [f"of {one['host']} by {one['seconds']:+.3f} s" for one in found[:MOVED_SHOWN]]
    more = [f"of {len(found) - MOVED_SHOWN} more"] if len(found) > MOVED_SHOWN else []
    return [f"  clocks were off: times {', '.join(shown + more)} were moved"] if found else []


def _part_lines(document: Mapping[str, Any]) -> list[str]:
    """Which ranks the account of some pages covers, where the run has others."""
    elsewhere = document.get("ranks_elsewhere")  # A document of an earlier version has none.
    if not elsewhere:
        return []
    ranks = [one["rank"] for one in document["ranks"]]
    shown = ", ".join(map(str, ranks[:WORKERS_SHOWN])) + ", ..." * (len(ranks) > WORKERS_SHOWN)
    return [
        f"  covers rank{'s' * (len(ranks) > 1)} {shown} alone, of {len(ranks) + elsewhere}; waiting for the others counts as "
        "communication"
    ]


def _incomplete_lines(document: Mapping[str, Any]) -> list[str]:
    """Lines that warn of steps that the account lacks, because lines of its run log could not be used."""
    steps = document.get("step_lines")
    if not steps or not steps["incomplete"]:
        return []
    return [
        f"  incomplete: {steps['unusable']:,} of {steps['read']:,} step lines of the log"
        f" ({percent(steps['share'])}) cannot be used, so the figures below are wrong by as much. The first is"
        f" {steps['first']}"
    ]


def _marked(document: Mapping[str, Any], state: str) -> str:
    return " (an estimate)" if document["basis"].get(state) == "estimated" else ""


# The space between a number and its unit, at which no line is broken.


def _factor_lines(document: Mapping[str, Any]) -> list[str]:
    f, steps = document["factors"], document["steps"]
    return [
        f"  goodput {percent(f['goodput'])} = availability {percent(f['availability'])}"
        f" x step efficiency {percent(f['step_efficiency'])}",
        *_mfu_line(document),
        *_reachable_line(document),
        *_copies_line(document),
        f"  steps of all ranks: {steps['kept']} kept, {steps['lost']} lost;"
        f" ranks observed {percent(document['coverage']['ranks'])}, time {percent(document['coverage']['time'])}"
        f"{_clock(document)};"
        f" over {duration(document['stall_threshold_seconds'])} without a step is a stall",
    ]


def _mfu_line(document: Mapping[str, Any]) -> list[str]:
    f = document["factors"]
    hfu = (
        ""
        if f["hfu"] is None or document.get("is_on_cpu")
        else f"; HFU {percent(f['hfu'])}, which counts recomputation"
    )
    chain = f" = goodput x compute efficiency {percent(f['compute_efficiency'])}"
    if document.get("mfu_unknown"):
        chain = f": {document['mfu_unknown']}"
    elif f["compute_efficiency"] is None:
        chain = "; compute efficiency unknown"
    return [f"  MFU {percent(f['mfu'])}{chain}{hfu}"]


def _known_mfu_line(document: Mapping[str, Any]) -> list[str]:
    is_known = document["factors"]["mfu"] is not None and not document.get("mfu_unknown")
    return _mfu_line(document) if is_known else []


def _phase_line(document: Mapping[str, Any]) -> list[str]:
    """How compute is divided, where it is more than one phase; a document of an earlier version has no phases."""
    phases = document.get("phases", ())
    if len(phases) < 2:
        return []
    parts = zip(phases, tenths([one["share"] for one in phases]), strict=True)
    shares = [f"{one['phase']} {share // 10}.{share % 10} %" for one, share in parts]
    return [f"  compute in steps: {', '.join(shares)}"]


def _early_evaluation_line(document: Mapping[str, Any]) -> list[str]:
    """Evaluation before the first step, which is `startup`; a document of an earlier version does not have it."""
    seconds = document.get("startup_evaluation_gpu_seconds")
    if not seconds or seconds < EARLY_EVALUATION_SHARE_MIN * document["gpu_seconds"]:
        return []
    return [
        f"  startup: {seconds:.2f} {unit_of(document)}-seconds of it are evaluation before the first step"
    ]


def _reachable_line(document: Mapping[str, Any]) -> list[str]:
    """The compute efficiency against what the nodes reach; none if they were not probed."""
    reached = document.get("reachable")
    if not reached:
        return []
    nominal = document["factors"]["compute_efficiency"]
    beside = "" if nominal is None else f"{nominal:.1%} of the nominal peak, "
    return [f"  compute efficiency: {beside}{reached['compute_efficiency']:.1%} of the probed peak"]


def _copies_line(document: Mapping[str, Any]) -> list[str]:
    """How fast the last traced step copied to the device; none without a traced step that copied."""
    found = document.get("device_copies")
    if not found:
        return []
    lowest = "" if found["ranks"] == 1 else f", the lowest of {found['ranks']} ranks"
    share = found["reached_ratio"]
    of_node = "" if share is None else f", {percent(share)} of what the node can do"
    return [
        f"  copies to the device: {bytes_text(found['h2d_bytes_per_second'])}/s in the last traced step of rank"
        f" {found['rank']}{on(found['host'])}{of_node}{lowest}"
    ]


def _role_lines(document: Mapping[str, Any]) -> list[str]:
    """Each role's account, which closes by itself, where the run has several."""
    lines = []
    for one in document.get("roles", ()):
        shares = zip(STATES, tenths([one["states"][state] for state in STATES]), strict=True)
        spent = sorted(((share, state) for state, share in shares if share), reverse=True)
        trains = f"goodput {percent(one['goodput'])}" if sum(one["steps"].values()) else "makes no steps"
        lines.append(
            f"  role {one['role']}: {one['ranks']} rank{'s' * (one['ranks'] != 1)}, {one['gpu_seconds']:.1f}"
            f" {unit_of(document)}-seconds, {trains}: "
            + ", ".join(f"{state} {share // 10}.{share % 10} %" for share, state in spent)
        )
    return lines


def _clock(document: Mapping[str, Any]) -> str:
    """On which clock phases are, where there is a device, and in how many steps they were measured."""
    share, measured = (document["coverage"][name] for name in ("device_clock", "phases"))
    clock = f"{percent(share)} on the device clock" if share else "host clock"
    parts = [] if document.get("is_on_cpu") and not share else [clock]
    if measured not in (None, 1.0):
        parts.append(f"phases measured in {percent(measured)} of steps, off in the others (GOODPUT_BUDGET)")
    return f" ({'; '.join(parts)})" if parts else ""


def _figure_lines(document: Mapping[str, Any]) -> list[str]:
    """Throughput, pipeline, checkpoints and money, where known."""
    lines = []
    rate = document["throughput"]
    if rate["goodput"] is not None or rate.get("samples_basis") in ("one rank", "some ranks"):
        lines.append(_throughput_line(rate))
    pipe = document["pipeline"]
    if pipe is not None and pipe["bubble"] is not None:
        ideal = pipe["ideal_bubble"]
        least = f"; {percent(ideal)} cannot be avoided with {pipe['microbatches']} microbatches"
        lines.append(
            f"  pipeline of {pipe['stages']} stages: {percent(pipe['bubble'])} of kept steps is waiting"
            f"{'' if ideal is None else least}"
        )
        lines += _pipeline_waits(pipe.get("waits", []))  # A document of an earlier version has none.
    return [*lines, *_checkpoint_lines(document), *_money_lines(document)]


def _pipeline_waits(waits: list[Mapping[str, Any]]) -> list[str]:
    """The stages that wait longest in their sends and receives."""
    longest = sorted(waits, key=lambda one: -one["step_seconds"])[:STAGES_SHOWN]
    lines = []
    for one in sorted(longest, key=lambda one: (one["stage"], one["operation"])):
        each = one["microbatch_seconds"]
        micro = "" if each is None else f", {duration(each)} a microbatch"
        lines.append(
            f"    stage {one['stage']} waits {duration(one['step_seconds'])} a step in {one['operation']}{micro}"
        )
    return lines


def _throughput_line(rate: Mapping[str, Any]) -> str:
    line, actual, ideal = f"  throughput goodput {percent(rate['goodput'])}", *map(rate.get, _RATES)
    if actual is not None:
        line += f": {whole(actual)} samples per second"
        line += "" if ideal is None else f" of {whole(ideal)} ({_BASES[rate['ideal_basis']]})"
    return line + _samples_note(rate)


_RATES = ("samples_per_second", "ideal_samples_per_second")


def _samples_note(rate: Mapping[str, Any]) -> str:
    """Which ranks report the samples, where that decides what they are."""
    count, per_second = rate.get("samples_ranks"), rate["samples_per_second"]
    notes = {
        "one rank": "only one rank reports samples, taken as those of the whole run",
        "some ranks": f"only {count} ranks report samples, taken as those of the whole run",
        "whole batch on each rank": f"{count} ranks each report the whole batch, which is counted once",
    }
    note = notes.get(rate.get("samples_basis") or "")
    if rate.get("samples_basis") == "same on each rank" and per_second is not None and count:
        note = f"the sum of {count} equal ranks, {whole(per_second / count)} if each reports the whole batch"
    return f"; {note}" if note else ""


_BASES = {"given": "given", "best shown": "the best that the run has shown"}


def _checkpoint_lines(document: Mapping[str, Any]) -> list[str]:
    saving, wall = document["checkpoints"], document["end"] - document["start"]
    if saving["save_seconds"] is None:
        return []
    every, count = saving["interval_seconds"], saving["committed"]
    often = f", {count} committed" if every is None else f" each {duration(every)}"
    best, advice = saving["best_interval_seconds"], ""
    if best is not None and (wall >= BEST_INTERVAL_RUN_SECONDS_MIN or best >= BEST_INTERVAL_SECONDS_MIN):
        advice = f"; the best interval for the failures seen is {duration(best)} (estimate)"
    return [f"  checkpoints: saving takes {duration(saving['save_seconds'])}{often}{advice}"]


def _money_lines(document: Mapping[str, Any]) -> list[str]:
    cost, energy = document["cost"], document["energy"]
    parts = []
    if cost is not None:
        idle = cost["total"] - cost["states"]["productive"]
        parts.append(f"cost {dollars(cost['total'])}, {dollars(idle)} of it not productive")
    if energy is not None:
        guess = " (estimate)" if document["basis"]["energy"] == "estimated" else ""
        parts.append(f"energy {digits(energy['total'] / 3.6e6)} kWh{guess}")
    return [f"  {'; '.join(parts)}"] if parts else []


def _compared_line(document: Mapping[str, Any]) -> list[str]:
    """How much of the steps was compared between ranks, where a part was not."""
    share = document["coverage"].get("compared")  # A document of an earlier version has none.
    if share is None or share >= COMPARED_SHARE_MIN or not document["states"]["communication"]:
        return []
    return [
        f"  {percent(share)} of the time in steps was compared between ranks; in the rest, waiting for a slower rank"
        " counts as communication"
    ]


def _straggler_lines(document: Mapping[str, Any]) -> list[str]:
    straggler, lines = document["straggler"], []
    rank, stage = straggler["culprit"], straggler.get("culprit_stage")
    if rank is not None:
        found = next(one for one in straggler["shares"] if one["rank"] == rank)
        since = _since(straggler)
        lines.append(
            f"  slow rank: {rank}{on(found['host'])} ({_because(straggler)}){since}, which explains"
            f" {percent(found['share'])} of the waiting{_more_places(document, found['share'])}"
        )
    if stage is not None:
        share = next(one["share"] for one in straggler["stages"] if one["stage"] == stage)
        phase = straggler.get("stage_because_phase")
        where = f" ({phase})" if phase else ""
        lines.append(f"  slow stage: {stage}{where}, which explains {percent(share)} of the waiting")
    if lines:
        lines[-1] += f"; steps take {straggler['slowdown']:.2f}x as long as if their work were spread evenly"
    return [*lines, *_stretch_lines(document), *slow_issue_lines(straggler), *slow_link_lines(straggler)]


def _because(straggler: Mapping[str, Any]) -> str:
    """The state in which the culprit is slow, and the phase, unless both have one name."""
    state, phase = straggler["because"], straggler.get("because_phase")
    return state if phase in (None, state) else f"{state}, {phase}"


def _since(straggler: Mapping[str, Any]) -> str:
    """ " since step N" or " from the start"; "" if the culprit is not slow now, or no step stands out."""
    step = straggler["since_step"]
    if step is None:
        return ""
    return " from the start" if straggler.get("since_start") else f" since step {step}"


def stretch_text(onset: Mapping[str, Any]) -> str:
    """When a rank was slow: "from the start until step 213", "since step 350", "steps 100 to 213"."""
    first, last = onset["first_step"], onset["last_step"]
    if onset.get("from_start"):
        return "from the start" if last is None else f"from the start until step {last}"
    return f"since step {first}" if last is None else f"steps {first} to {last}"


def _stretch_lines(document: Mapping[str, Any]) -> list[str]:
    """The stretches in which ranks were slow, those that last first; not the one the culprit's line has."""
    straggler = document["straggler"]
    named = (straggler["culprit"], straggler["since_step"])
    found = [
        one
        for one in straggler["onsets"]
        if one["last_step"] is not None or (one["rank"], one["first_step"]) != named
    ]
    found.sort(key=lambda one: (one["last_step"] is not None, -(one["last_step"] or 0), one["rank"]))
    if not found:
        return []
    several = len({one["attempt"] for one in found}) > 1
    parts = [
        f"rank {one['rank']} {stretch_text(one)}" + (f" of attempt {one['attempt']}" if several else "")
        for one in found[:STRETCHES_SHOWN]
    ]
    more = len(found) - STRETCHES_SHOWN
    return [f"  slow in stretches: {'; '.join(parts)}{f'; {more} more' if more > 0 else ''}"]


def _more_places(document: Mapping[str, Any], share: float) -> str:
    """The host and the stage that explain more than the rank does."""
    straggler, stages = document["straggler"], (document["pipeline"] or {"stages": 1})["stages"]
    hosts = len({rank["host"] for rank in document["ranks"]})
    host = more_than_rank(share, [(one["host"], one["share"]) for one in straggler["hosts"]], hosts)
    stage = more_than_rank(share, [(one["stage"], one["share"]) for one in straggler["stages"]], stages)
    parts = [f"all of {host[0]} {percent(host[1])}"] if host else []
    parts += [f"all of stage {stage[0]} {percent(stage[1])}"] if stage else []
    return f" ({', '.join(parts)})" if parts else ""


def _restart_lines(document: Mapping[str, Any]) -> list[str]:
    lines, restarts, unit = [], document["restarts"], unit_of(document)
    for restart in restarts:
        down, point = restart["down_seconds"], restart["resume_step"]
        resumed = {None: UNKNOWN_STEP, -1: "from the beginning"}.get(point, f"after step {point}")
        lines.append(
            f"  restart {restart['attempt'] - 1}: down {'unknown' if down is None else f'{down:.2f} s'}, "
            f"{restart['lost_steps']} steps lost ({restart['lost_gpu_seconds']:.2f} {unit}-seconds), "
            f"resumed {resumed}; in all {_spent([restart], unit)}"
        )
    if len(restarts) > 1:
        lines.append(f"  {len(restarts)} restarts: {_spent(restarts, unit)} in all")
    return lines


def _short_restart_lines(document: Mapping[str, Any]) -> list[str]:
    """All restarts in one line."""
    restarts = document["restarts"]
    return (
        [f"  {len(restarts)} restarts: {_spent(restarts, unit_of(document))} in all"]
        if restarts[1:]
        else _restart_lines(document)
    )


def _coverage_line(document: Mapping[str, Any]) -> list[str]:
    """How far the figures can be trusted, where not wholly."""
    coverage = document["coverage"]
    seen = [one for one in (coverage["ranks"], coverage["time"]) if one is not None and one < 0.9995]
    if not seen:
        return []
    return [f"  ranks observed {percent(coverage['ranks'])}, time {percent(coverage['time'])}"]


def _spent(restarts: list[dict], unit: str) -> str:
    costs = [restart["cost"] for restart in restarts]
    money = "" if None in costs else f" ({dollars(sum(costs))})"
    return f"{sum(restart['gpu_seconds'] for restart in restarts):.2f} {unit}-seconds{money}"


_FIRST_PARTS = (_known_mfu_line, _short_restart_lines, _coverage_line, _compared_line)
_PARTS = (
    _factor_lines,
    _phase_line,
    _early_evaluation_line,
    _role_lines,
    _figure_lines,
    collective_lines,
    _compared_line,
    _straggler_lines,
    _restart_lines,
    cause_lines,
)
