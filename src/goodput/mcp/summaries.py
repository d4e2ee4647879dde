"""The API's documents as the tools' answers: hours instead of seconds, largest first, lists cut to what can be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from goodput.account.states import MEANINGS
from goodput.mcp import answers

Document = Mapping[str, Any]
LISTED_MAX = 20
TEXT_CHARS_MAX, STACK_CHARS_MAX = 1000, 4000
CLAIMS_MAX, CLAIM_CHARS_MAX = 6, 240


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


def rounded(value: float) -> float:
    """To six significant digits, which is more than any of it is measured to."""
    return float(f"{value:.6g}")


def rounded_or_none(value: float | None) -> float | None:
    return None if value is None else rounded(value)


def hours(gpu_seconds: float) -> float:
    return rounded(gpu_seconds / 3600)


def text(value: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """What others wrote, without control characters and cut."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in value)
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"


def run_row(run: Document) -> answers.RunRow:
    return answers.RunRow(
        run=text(run["run"]),
        status=run["status"],
        start=iso(run["start"]),
        end=iso(run["end"]),
        ranks=run["world_size"],
        gpus=run.get("gpus", 0),  # An aggregator of an earlier version has none, as below.
        without_gpus=run.get("is_on_cpu", False),
        gpu_hours=hours(run["gpu_seconds"]),
        dollars=rounded_or_none(run["cost"]),
        goodput=rounded_or_none(run["goodput"]),
        mfu=rounded_or_none(run["mfu"]),
        restarts=run["restarts"],
        leading_cause=run["leading_cause"],
        culprit=_culprit(run.get("culprit")),
        hangs=run["hang"],
        wasted_gpu_hours=hours(run["waste_gpu_seconds"]),
        wasted_dollars=rounded_or_none(run["waste_cost"]),
    )


def _culprit(found: Document | None) -> answers.Culprit | None:
    if found is None:
        return None
    return answers.Culprit(
        rank=found["rank"], host=found["host"] and text(found["host"]), stage=found["stage"]
    )


def state_times(states: Mapping[str, float], cost: Document | None = None) -> list[answers.StateTime]:
    """The states that occur, largest first."""
    whole, dollars = sum(states.values()), cost["states"] if cost else {}
    return [
        answers.StateTime(
            state=state,
            meaning=MEANINGS.get(state, ""),
            gpu_hours=hours(seconds),
            share=rounded(seconds / whole),
            dollars=rounded_or_none(dollars.get(state)),
        )
        for state, seconds in sorted(states.items(), key=lambda item: -item[1])
        if seconds > 0
    ]


def account(found: Document, is_window: bool = False) -> answers.Account:
    checkpoints, failure = found["checkpoints"], found.get("failure")
    return answers.Account(
        run=text(found["run"]),
        status=found["status"],
        start=iso(found["start"]),
        end=iso(found["end"]),
        ranks=found["world_size"],
        without_gpus=found.get("is_on_cpu", False),
        gpu_hours=hours(found["gpu_seconds"]),
        dollars=rounded_or_none(found["cost"] and found["cost"]["total"]),
        states=state_times(found["states"], found["cost"]),
        **{
            name: rounded_or_none(found["factors"][name])
            for name in ("availability", "step_efficiency", "goodput", "compute_efficiency", "mfu")
        },
        mfu_unknown_because=found["mfu_unknown"],
        observed=rounded_or_none(found["coverage"]["time"]),
        estimated=[name for name, basis in found["basis"].items() if basis == "estimated"],
        steps_kept=found["steps"]["kept"],
        steps_lost=found["steps"]["lost"],
        restarts=len(found["restarts"]),
        restart_gpu_hours=hours(sum(one["gpu_seconds"] for one in found["restarts"])),
        checkpoint_interval_seconds=rounded_or_none(checkpoints["interval_seconds"]),
        best_checkpoint_interval_seconds=rounded_or_none(checkpoints["best_interval_seconds"]),
        leading_cause=next(iter(found["advice_order"]), None),
        failure=(failure and text(failure["text"])) or None,
        failed_rank=failure and failure["rank"],
        failed_step=failure and failure["step"],
        hangs=None if is_window else found["hang"] is not None,
        errors=[text(error) for error in found["errors"][:LISTED_MAX]],
    )


def causes(found: Document) -> answers.Causes:
    by_state = {cause["state"]: cause for cause in found["causes"]}
    order = [by_state[state] for state in found["advice_order"] if state in by_state]
    order += [cause for cause in found["causes"] if cause["state"] not in found["advice_order"]]
    return answers.Causes(
        run=text(found["run"]),
        start=iso(found["start"]),
        end=iso(found["end"]),
        goodput=rounded_or_none(found["factors"]["goodput"]),
        causes=[
            answers.Cause(
                state=cause["state"],
                meaning=MEANINGS.get(cause["state"], ""),
                share=rounded(cause["share"]),
                gpu_hours=hours(cause["gpu_seconds"]),
                avoidable_gpu_hours=hours(cause["avoidable_gpu_seconds"]),
                dollars=rounded_or_none(cause["cost"]),
                speedup_without=rounded_or_none(cause["gain"]),
                speedup_low=rounded_or_none(cause["gain_low"]),
                speedup_high=rounded_or_none(cause["gain_high"]),
                speedup_basis=cause["gain_basis"],
                advice=text(cause["advice"]),
            )
            for cause in order[:LISTED_MAX]
        ],
        omitted=max(len(order) - LISTED_MAX, 0),
    )


def stragglers(found: Document) -> answers.Stragglers:
    slow, whole = found["straggler"], found["gpu_seconds"]
    hosts = {one["rank"]: text(one["host"]) for one in slow["shares"]}
    lists = {name: slow[name] for name in ("shares", "hosts", "stages", "onsets")}
    return answers.Stragglers(
        run=text(found["run"]),
        start=iso(found["start"]),
        end=iso(found["end"]),
        slowdown=rounded_or_none(slow["slowdown"]),
        waiting_share=rounded(found["states"]["straggler"] / whole) if whole else 0.0,
        culprit=slow["culprit"],
        culprit_host=hosts.get(slow["culprit"]),
        because=slow["because"],
        because_phase=slow["because_phase"],
        since_step=slow["since_step"],
        since_start=slow["since_start"],
        culprit_stage=slow["culprit_stage"],
        ranks=[
            answers.SlowRank(rank=one["rank"], host=text(one["host"]), share=rounded(one["share"]))
            for one in slow["shares"][:LISTED_MAX]
        ],
        hosts=[
            answers.SlowHost(host=text(one["host"]), share=rounded(one["share"]))
            for one in slow["hosts"][:LISTED_MAX]
        ],
        stages=[
            answers.SlowStage(stage=one["stage"], share=rounded(one["share"]))
            for one in slow["stages"][:LISTED_MAX]
        ],
        slow_steps=[answers.SlowSteps(**one) for one in slow["onsets"][-LISTED_MAX:]],
        slow_issue=_slow_issue(slow.get("slow_issue")),  # An aggregator of an earlier version has none.
        omitted=sum(max(len(one) - LISTED_MAX, 0) for one in lists.values()),
    )


def _slow_issue(found: Document | None) -> answers.SlowIssue | None:
    if found is None:
        return None
    return answers.SlowIssue(
        rank=found["rank"],
        host=text(found["host"]),
        group=text(found["group"]),
        operation=text(found["operation"]),
        seconds=rounded(found["seconds"]),
        usual_seconds=rounded(found["usual_seconds"]),
    )


def hangs(found: Document) -> answers.Hangs:
    """What each rank was doing when it last reported, from a run's document with `live`."""
    alive = [one for one in found["live"] if one["alive"]]
    dead = [one["rank"] for one in found["live"] if not one["alive"] and not one["ended"]]
    by_phase: dict[str, list[Document]] = defaultdict(list)
    for one in alive:
        by_phase[one["phase"]].append(one)
    longest = {phase: max(ranks, key=lambda one: one["phase_seconds"]) for phase, ranks in by_phase.items()}
    return answers.Hangs(
        run=text(found["run"]),
        status=found["status"],
        hang=_hang(found["hang"]) if found["hang"] else None,
        alive_ranks=len(alive),
        dead_ranks=dead[:LISTED_MAX],
        phases=[
            answers.PhaseCount(
                phase=text(phase),
                ranks=len(by_phase[phase]),
                longest_seconds=rounded(one["phase_seconds"]),
                longest_rank=one["rank"],
            )
            for phase, one in sorted(longest.items(), key=lambda item: -len(by_phase[item[0]]))[:LISTED_MAX]
        ],
        oldest_report_seconds=rounded(max(one["report_age_seconds"] for one in alive)) if alive else None,
        omitted=max(len(dead) - LISTED_MAX, 0) + max(len(longest) - LISTED_MAX, 0),
    )


def _hang(hang: Document) -> answers.Hang:
    return answers.Hang(
        since=iso(hang["since"]),
        seconds=rounded(hang["seconds"]),
        culprit=hang["culprit"],
        host=hang["host"] and text(hang["host"]),
        phase=hang["phase"] and text(hang["phase"]),
        step=hang["step"],
        reason=text(hang["reason"]),
        suspects=[
            answers.Suspect(
                rank=one["rank"],
                host=text(one["host"]),
                phase=text(one["phase"]),
                seconds=rounded(one["seconds"]),
                step=one["step"],
                kind=one["kind"],
            )
            for one in hang["suspects"][:LISTED_MAX]
        ],
        waiting_ranks=hang["victims"],
        stack=hang["stack"] and text(hang["stack"], STACK_CHARS_MAX),
        stack_rank=hang["stack_rank"],
    )


def timeline(found: Document) -> answers.Timeline:
    buckets, marks = found["buckets"], found["marks"]
    first = buckets[0] if buckets else {"start": 0.0, "end": 0.0}
    # Checkpoints are many; what went wrong is listed before them, then the newest.
    chosen = sorted(marks, key=lambda mark: (mark["kind"] == "checkpoint", -mark["time"]))[:LISTED_MAX]
    return answers.Timeline(
        run=text(found["run"]),
        status=found["status"],
        start=iso(found["start"]),
        end=iso(found["end"]),
        bucket_seconds=rounded(first["end"] - first["start"]),
        buckets=[_bucket(one) for one in buckets],
        marks=[
            answers.Mark(
                kind=mark["kind"],
                time=iso(mark["time"]),
                end=iso_or_none(mark["end"]),
                step=mark["step"],
                attempt=mark["attempt"],
            )
            for mark in sorted(chosen, key=lambda mark: mark["time"])
        ],
        marks_omitted=len(marks) - len(chosen),
        is_sample=found["sampled"] is not None,
    )


def _bucket(bucket: Document) -> answers.Bucket:
    whole, states = bucket["gpu_seconds"], bucket["states"]
    losses = {state: seconds for state, seconds in states.items() if state != "productive" and seconds > 0}
    worst = max(losses, key=lambda state: losses[state], default=None)
    return answers.Bucket(
        start=iso(bucket["start"]),
        goodput=rounded(states.get("productive", 0.0) / whole) if whole else None,
        largest_loss=worst,
        largest_loss_share=rounded(losses[worst] / whole) if worst and whole else None,
    )


def rank(found: Document, number: int) -> answers.RankAnswer | None:
    """None if no rank of that number is listed."""
    one = next((rank for rank in found["ranks"] if rank["rank"] == number), None)
    live = next((rank for rank in found["live"] if rank["rank"] == number), None)
    if one is None:
        return None
    return answers.RankAnswer(
        run=text(found["run"]),
        rank=number,
        host=text(one["host"]),
        gpus=one["devices"],
        role=text(one["role"]),
        states=state_times(one["states"]),
        steps_kept=one["steps"]["kept"],
        steps_lost=one["steps"]["lost"],
        alive=live and live["alive"],
        ended=(live and live["ended"]) or None,
        phase=text(live["phase"]) if live and live["alive"] else None,
        phase_seconds=rounded(live["phase_seconds"]) if live and live["alive"] else None,
        step=live and live["step"],
        last_step_seconds=rounded_or_none(live and live["step_seconds"]),
    )


def health_events(events: list[Document], limit: int) -> answers.HealthEvents:
    return answers.HealthEvents(
        events=[
            answers.HealthEvent(
                time=iso(one["time"]),
                **{name: text(one[name]) for name in ("node", "device", "kind", "name", "severity", "text")},
                ranks_hit=[text(f"{hit['run']} rank {hit['rank']}") for hit in one["hits"][:LISTED_MAX]],
                gpu_hours=None if one["gpu_seconds"] is None else hours(one["gpu_seconds"]),
                dollars=rounded_or_none(one["cost"]),
            )
            for one in events[:limit]
        ],
        omitted=max(len(events) - limit, 0),
    )


def story(found: Document) -> answers.Story:
    """The LISTED_MAX events that cost most, in their order."""
    events = found["events"]
    most = sorted(range(len(events)), key=lambda at: -(events[at]["gpu_seconds"] or 0.0))[:LISTED_MAX]
    return answers.Story(
        run=text(found["run"]),
        status=found["status"],
        start=iso(found["start"]),
        end=iso(found["end"]),
        gpu_hours=hours(found["gpu_seconds"]),
        told_gpu_hours=hours(found["told_gpu_seconds"]),
        pace=text(found["pace"]),
        events=[_story_event(events[at]) for at in sorted(most)],
        omitted=found["left_out"] + len(events) - len(most),
    )


def _story_event(one: Document) -> answers.StoryEvent:
    return answers.StoryEvent(
        time=iso(one["time"]),
        end=iso_or_none(one["end"]),
        kind=one["kind"],
        title=text(one["title"], CLAIM_CHARS_MAX),
        step=one["step"],
        gpu_hours=None if one["gpu_seconds"] is None else hours(one["gpu_seconds"]),
        dollars=rounded_or_none(one["cost"]),
        cost_basis=one["cost_basis"],
        claims=[
            answers.Claim(basis=claim["basis"], text=text(claim["text"], CLAIM_CHARS_MAX))
            for claim in one["claims"][:CLAIMS_MAX]
        ],
    )
