"""An account as text: a table that closes to 100.0 %, the factors, what follows from them, and advice.

Lines have at most 80 columns, without colour. An unknown figure has no line; unknown factors say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goodput.account.states import MEANINGS, STATES
from goodput.account.text.communication import collective_lines, slow_issue_lines, slow_link_lines
from goodput.account.text.formats import (
    UNKNOWN_STEP,
    bytes_text,
    digits,
    dollars,
    duration,
    interval,
    on,
    percent,
    tenths,
    unit_of,
    whole,
    wrap,
)

# Reports say how much of the time in steps was compared between ranks where it is less than this share.
COMPARED_SHARE_MIN = 0.95
EARLY_EVALUATION_SHARE_MIN = 0.005
STRETCHES_SHOWN = 8
WORKERS_SHOWN = 4
MOVED_SHOWN = 8  # hosts
STAGES_SHOWN = 8
# A host or stage is shown if waiting for it explains this much more than waiting for its slowest rank.
MORE_SHARE_MIN = 0.05
# If the largest cause lies outside the steps, the largest one inside has a line too, from this share on.
OUTSIDE_STEPS = {"startup", "compile", "down", "queue"}
INSIDE_STEPS = {"loader", "h2d", "communication", "straggler", "bubble", "launch", "unattributed"}
INSIDE_SHARE_MIN = 0.01
# For a run of a few seconds with a failure the formula gives an unusably short interval.
BEST_INTERVAL_RUN_SECONDS_MIN, BEST_INTERVAL_SECONDS_MIN = 600.0, 10.0


def state_rows(document: Mapping[str, Any]) -> list[tuple[str, float, str, str]]:
    """(state, GPU-seconds, percent, meaning) of the states that have time; the percents sum to 100.0."""
    states = [(state, document["states"][state]) for state in STATES]
    shares = tenths([seconds for _, seconds in states])
    return [
        (state, seconds, f"{share // 10}.{share % 10}", MEANINGS[state])
        for (state, seconds), share in zip(states, shares, strict=True)
        if seconds > 0
    ]


def more_than_rank(share: float, shares: list[tuple], count: int) -> tuple | None:
    """The (host or stage, share) that explains more of the waiting than the rank that explains `share` of it.

    `shares` are largest first. None where `count` is 1, or where the rank alone explains as much.
    """
    return shares[0] if count > 1 and shares and shares[0][1] >= share + MORE_SHARE_MIN else None


def render(document: Mapping[str, Any]) -> str:
    """The whole account as text."""
    world, wall, unit = document["world_size"], document["end"] - document["start"], unit_of(document)
    width = len(f"{unit}-seconds") + 1
    head = [
        *_incomplete_lines(document),
        *_moved_lines(document),
        *_hang_lines(document),
        *(f"  wrong input: {error}" for error in document["errors"]),
        *_worker_lines(document),
        *_part_lines(document),
    ]
    lines = [
        f"run {document['run']}: {document['status']}, {world} rank{'s' * (world != 1)}, "
        f"{wall:.1f} s, {document['gpu_seconds']:.1f} {unit}-seconds",
        "",
        *map(wrap, head),
        *[""] * bool(head),
        f"  {'state':<14}{f'{unit}-seconds':>{width}}{'percent':>9}   what it is",
    ]
    lines += [
        _row(f"  {s:<14}{seconds:>{width}.2f}{share:>8}%", f"{what}{_marked(document, s)}")
        for s, seconds, share, what in state_rows(document)
    ]
    lines += [f"  {'total':<14}{document['gpu_seconds']:>{width}.2f}{'100.0':>8}%", ""]
    parts = (
        _factor_lines,
        _phase_line,
        _early_evaluation_line,
        _role_lines,
        _figure_lines,
        collective_lines,
        _compared_line,
        _straggler_lines,
    )
    parts += (_restart_lines, _cause_lines)
    lines += [wrap(line) for part in parts for line in part(document)]
    # Names in it come from other programs, and a terminal acts on what is not printable.
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in "\n".join(lines))


def _row(figures: str, meaning: str) -> str:
    """A row of the table of states; only its last column is wrapped."""
    return figures + wrap(f"{' ' * len(figures)}   {meaning}", len(figures) + 3)[len(figures) :]


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
    hfu = "" if f["hfu"] is None else f"; HFU {percent(f['hfu'])}, which counts recomputation"
    chain = f" = goodput x compute efficiency {percent(f['compute_efficiency'])}"
    if document.get("mfu_unknown"):
        chain = f": {document['mfu_unknown']}"
    elif f["compute_efficiency"] is None:
        chain = "; compute efficiency unknown"
    return [
        f"  goodput {percent(f['goodput'])} = availability {percent(f['availability'])}"
        f" x step efficiency {percent(f['step_efficiency'])}",
        f"  MFU {percent(f['mfu'])}{chain}{hfu}",
        *_reachable_line(document),
        *_copies_line(document),
        f"  steps of all ranks: {steps['kept']} kept, {steps['lost']} lost;"
        f" ranks observed {percent(document['coverage']['ranks'])}, time {percent(document['coverage']['time'])}"
        f" ({_clock(document['coverage'])});"
        f" over {duration(document['stall_threshold_seconds'])} without a step is a stall",
    ]


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


def _clock(coverage: dict) -> str:
    """On which clock phases are, and in how many steps they were measured."""
    share, measured = coverage["device_clock"], coverage["phases"]
    clock = f"{percent(share)} on the device clock" if share else "host clock"
    if measured in (None, 1.0):
        return clock
    return f"{clock}; phases measured in {percent(measured)} of steps, off in the others (GOODPUT_BUDGET)"


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


def _spent(restarts: list[dict], unit: str) -> str:
    costs = [restart["cost"] for restart in restarts]
    money = "" if None in costs else f" ({dollars(sum(costs))})"
    return f"{sum(restart['gpu_seconds'] for restart in restarts):.2f} {unit}-seconds{money}"


def _cause_lines(document: Mapping[str, Any]) -> list[str]:
    """The leading cause in the order of advice, the one in the steps if it is another, and what is paid once."""
    if not document["causes"]:
        return []
    first, *others = _ordered_causes(document)
    name = "largest cause" if first is document["causes"][0] else "largest recurring cause"
    gain = _faster(first["gain"], "; without it the run would be") + (_interval(first) or _by_share(first))
    lines = ["", f"  {name}: {_cause(document, first)}{gain}", *_advice_lines(document, first)]
    inside = next((one for one in others if one["state"] in INSIDE_STEPS), None)
    if first["state"] in OUTSIDE_STEPS and inside is not None and inside["share"] >= INSIDE_SHARE_MIN:
        lines += [f"  in the steps: {_cause(document, inside)}", *_advice_lines(document, inside)]
    return [*lines, *_once_lines(document, others)]


def _ordered_causes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """In the order of advice; a document of an earlier version has only the order by size."""
    place = {state: i for i, state in enumerate(document.get("advice_order", ()))}
    return sorted(document["causes"], key=lambda cause: place.get(cause["state"], len(place)))


def _cause(document: Mapping[str, Any], cause: Mapping[str, Any]) -> str:
    share = next(share for state, _, share, _ in state_rows(document) if state == cause["state"])
    return f"{cause['state']}, {share} % of all {unit_of(document)} time"


def _by_share(cause: Mapping[str, Any]) -> str:
    """Where other ranks wait for those in the state, its share is not what they would gain."""
    is_known = cause["gain"] is not None and cause.get("gain_basis") != "replay"
    return ", by its share alone" if is_known else ""


def _interval(cause: Mapping[str, Any]) -> str:
    low, high = cause.get("gain_low"), cause.get("gain_high")
    return "" if low is None or high is None else interval(low, high)


def _faster(gain: float | None, what: str) -> str:
    return "" if gain is None else f"{what} {gain:.2f}x as fast"


def _advice_lines(document: Mapping[str, Any], cause: Mapping[str, Any]) -> list[str]:
    """What a cause costs over the whole run, if the run has steps to make, and its advice.

    Over a typical length its share is shown only if it differs.
    """
    advice, length = f"  advice: {cause['advice']}", _length(document)
    if not length:
        return [advice]
    share, seconds = cause["whole_run_share"], cause["whole_run_gpu_seconds"]
    is_typical = document["whole_run"]["basis"] == "typical"
    if is_typical and percent(share) == percent(cause["share"]):
        return [advice]
    basis = " (a typical length, since total_steps is not declared)" if is_typical else ""
    return [
        f"    {length}{basis}: {percent(share)}, {duration(seconds)} of"
        f" {duration(document['whole_run']['gpu_seconds'])} {unit_of(document)} time"
        f"{_faster(1 / (1 - share) if share < 1 else None, '; by that share without it')} (an estimate)",
        advice,
    ]


def _length(document: Mapping[str, Any]) -> str:
    """The run's full length in words, "" where it is unknown or reached."""
    found = document.get("whole_run")
    if found is None or found["done"] >= found["steps"]:
        return ""
    run = "over the whole run of" if found["basis"] == "declared" else "in a run of"
    return f"{run} {found['steps']:,} steps"


def _once_lines(document: Mapping[str, Any], causes: list[Mapping[str, Any]]) -> list[str]:
    """What is paid once, with advice on its largest part where that matters over the whole run."""
    least = INSIDE_SHARE_MIN * document["gpu_seconds"]
    once = [(cause.get("once_gpu_seconds", 0.0), cause) for cause in causes]
    once = sorted((one for one in once if one[0] >= least), key=lambda one: -one[0])
    if not once:
        return []
    parts = [f"{cause['state']} {percent(seconds / document['gpu_seconds'])}" for seconds, cause in once]
    line, found = f"  paid once, at the run's start and end: {', '.join(parts)}", document["whole_run"]
    if length := _length(document):
        share = sum(seconds for seconds, _ in once) / found["gpu_seconds"]
        line += f"; {length}, {percent(share)} (an estimate)"
    largest, cause = once[0]
    is_worth_it = found is not None and largest >= INSIDE_SHARE_MIN * found["gpu_seconds"]
    return [line, f"  advice: {cause['advice']}"] if is_worth_it else [line]
