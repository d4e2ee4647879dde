"""`python -m bench.detection.story`: is every planted fault of the alert replay in its run's story, and none on innocent days?

Simulates the worlds of bench.alert_replay without Prometheus: the aggregator's store, accounts and stories. A fault is
found if the story of its run has an event of the expected kind that begins or lasts when the fault does, of the right
rank where one is named. On innocent days an event that blames something (BLAMES) is false, and so is a hardware event
as anything but a coincidence. Exit status 1 if a fault is missing or anything is blamed falsely.

    python -m bench.detection.story [--gpus N] [--days N] [--tick S] [--show RUN]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.alert_replay.innocent import DAYS, innocent
from bench.alert_replay.planted import OUTAGE_AT, SECONDS, planted
from bench.alert_replay.scrape import ScrapedScenario
from goodput.account import compute, document
from goodput.account.attempts import EndMark, Run
from goodput.aggregator.ingest.store import Store
from goodput.causes import explain
from goodput.simulate.reports import acknowledge
from goodput.simulate.scenario import EPOCH_SECONDS, HardwareChange, gpu_uuid
from goodput.simulate.world import World
from goodput.story import text
from goodput.story.build import build_story
from goodput.story.document_types import Story, StoryEvent
from goodput.story.incident import Hardware
from goodput.story.recording import Recording
from goodput.whatif.steps import steps_in

MINUTE = 60.0
STALL_SECONDS, STALE_SECONDS = 60.0, 30.0
# Events that say that something was wrong; restarts and how attempts ended are facts of the innocent scenario too.
BLAMES = ("stall", "hang", "slow rank", "slower", "checkpoint", "no checkpoint", "unseen")
# What an agent reports as a health event, by the series that shows it: (kind, severity).
EVENTS = {
    "goodput_gpu_up": ("lost", "critical"),
    "goodput_gpu_throttled": ("throttle", "warning"),
    "goodput_gpu_xid_errors_total": ("xid", "warning"),
    "goodput_gpu_ecc_errors_total": ("ecc", "critical"),
    "goodput_gpu_rows_remapped": ("row_remap", "critical"),
    "goodput_infiniband_up": ("link_down", "critical"),
    "goodput_network_up": ("link_down", "warning"),
    "goodput_infiniband_errors_total": ("link_flap", "critical"),
    "goodput_infiniband_retransmits_total": ("retransmits", "warning"),
    "goodput_driver_restarts_total": ("driver", "warning"),
}


class Expected(NamedTuple):
    """A fault of a run, and the event that shows it; `at` if it can be found only then, while it lasts."""

    what: str
    run: str
    kind: str
    start: float
    end: float
    word: str = ""  # in the title or a claim
    rank: int | None = None
    at: float | None = None


# The faults of runs in planted.py. The cost of measuring itself (run `watched`) is in no account, an alert alone has it.
EXPECTED = [
    Expected("collectives take most of each step", "drops", "slower", 40, 75, "communication"),
    Expected("the loader takes 60 % of a step more", "starves", "slower", 40, 75, "loader"),
    Expected("one rank computes at two thirds", "limps", "slow rank", 40, 75, "productive", rank=3),
    Expected("kernels take 1.6 times as long", "wastes", "slower", 40, 85, "productive"),
    Expected("half of its time is lost, for hours", "burns", "slower", 90, 290, "communication"),
    Expected("one rank hangs in its loader", "hangs", "stall", 30, 50, "loader", rank=1),
    Expected("one rank of two hangs in its loader", "halts", "stall", 30, 50, "loader", rank=1),
    *(Expected(f"it dies every 5 minutes, {i + 1}", "loops", "restart", 40 + 5 * i, 41 + 5 * i, "before") for i in range(6)),
    Expected("all of its processes fail", "fails", "end", 35, 36, "failed"),
    Expected("one of three ranks was never seen", "misses", "unseen", 1, 40, rank=2),
    Expected("it saves no checkpoints any more", "forgets", "no checkpoint", 35, 95),
    Expected("it dies an hour after its last checkpoint", "forgets", "restart", 95, 97, "lost"),
    Expected("a save takes 25 minutes", "crawls", "checkpoint", 36, 66),
    Expected("an agent does not reach the aggregator", "mute", "unobserved", 30, 45, "unknown", rank=2, at=44),
    Expected("the storage serves a seventh", "sound", "slower", OUTAGE_AT / MINUTE, 395, "loader"),
    Expected("the storage serves a seventh", "burns", "slower", OUTAGE_AT / MINUTE, 395, "loader"),
]  # fmt: skip


@dataclass
class Stories:
    """The stories of a scenario's runs at its end, and at earlier moments (by moment in minutes)."""

    final: dict[str, Story]
    early: dict[float, dict[str, Story]]
    hardware: list[tuple[float, str, Hardware]]  # moment, run that it hit, event


def stories(
    scenario: ScrapedScenario, tick: float, early: tuple[float, ...] = (), seconds: float | None = None
) -> Stories:
    """Simulate the scenario with a push every `tick` seconds, all of it or `seconds`, and tell all of its runs."""
    seconds = float(scenario.ticks.times[-1]) if seconds is None else seconds
    times = np.arange(0, seconds + 1e-9, tick)
    world, store = World(scenario, times, wanted=()), Store()
    found, ends = Stories({}, {}, hardware_events(scenario)), list(scenario.declared_ends)
    due = sorted(at * MINUTE for at in early)
    for number, now in enumerate(times.tolist()):
        world.advance(number)
        for run in world.current(now):
            for attempt, rank, report in world.reports(run, now):
                store.merge(report, round((now + EPOCH_SECONDS) * 1e9))
                acknowledge(attempt, rank)
        while ends and ends[0][0] <= now:
            _declare(store, *ends.pop(0))
        if due and due[0] <= now:
            found.early[due.pop(0) / MINUTE] = stories_of(store, now, found.hardware)
    found.final = stories_of(store, seconds, found.hardware)
    return found


def _declare(store: Store, at: float, run: str, reason: str) -> None:
    until_ns = round((at + EPOCH_SECONDS) * 1e9)
    for attempt in store.runs[run].attempts.values():
        attempt.end_mark = EndMark(reason, 0, until_ns)


def stories_of(store: Store, now: float, hardware: list[tuple[float, str, Hardware]]) -> dict[str, Story]:
    now_ns = round((now + EPOCH_SECONDS) * 1e9)
    return {
        name: story_of(run, now_ns, [event for at, of, event in hardware if of == name and at <= now])
        for name, run in store.runs.items()
    }


def story_of(run: Run, now_ns: int, hardware: list[Hardware]) -> Story:
    account = compute(run, now_ns, stall_seconds=STALL_SECONDS, stale_seconds=STALE_SECONDS, known_only=True)
    recording = Recording()
    for attempt in run.attempts.values():
        for step in steps_in(run.name, attempt):
            recording.add(step)
    return build_story(document(account, explain(account)), recording, hardware)


def hardware_events(scenario: ScrapedScenario) -> list[tuple[float, str, Hardware]]:
    """What agents would report of the scenario's changes, for each run on the node at that time."""
    found = []
    for change in scenario.changes:
        if change.name not in EVENTS:
            continue
        labels = dict(change.labels)
        device = labels.get("gpu") or "/".join(labels[name] for name in ("device", "port") if name in labels)
        for run, ranks in _hit(scenario, change, labels.get("gpu")):
            kind, severity = EVENTS[change.name]
            xid = int(labels.get("xid", 0))
            event = (change.node, change.start + EPOCH_SECONDS, kind, device, xid, "", severity, "", ranks)
            found.append((change.start, run, Hardware(*event)))
    return sorted(found, key=lambda one: one[0])


def _hit(
    scenario: ScrapedScenario, change: HardwareChange, gpu: str | None
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for run in scenario.runs:
        for attempt in run.attempts:
            if not attempt.start <= change.start < attempt.end:
                continue
            places = enumerate(attempt.places)
            ranks = tuple(
                rank
                for rank, (node, index) in places
                if node == change.node and gpu in (None, gpu_uuid(node, index))
            )
            if ranks:
                yield run.run, ranks


def lacking(found: Stories, until: float = float("inf")) -> list[str]:
    """The faults that were over after `until` seconds and are missing, and hardware events that no story has."""
    late = [one.what for one in EXPECTED if one.end * MINUTE <= until and not _is_found(one, found)]
    for at, run, event in (one for one in found.hardware if one[0] <= until):
        story = found.final[run]
        name = f"{event.kind} {event.code}".removesuffix(" 0").replace("_", " ")
        seen = any(
            name in one["title"] or any(name in it["text"] for it in one["claims"]) for one in story["events"]
        )
        late += [] if seen else [f"{event.kind} on {event.node} at {at / MINUTE:.0f} min"]
    return late


def _is_found(one: Expected, found: Stories) -> bool:
    stories = found.final if one.at is None else found.early[one.at]
    return any(_matches(one, event, stories[one.run]["end"]) for event in stories[one.run]["events"])


def _matches(one: Expected, event: StoryEvent, run_end: float) -> bool:
    start, end = one.start * MINUTE + EPOCH_SECONDS, one.end * MINUTE + EPOCH_SECONDS
    ends = event["end"] if event["end"] is not None else run_end
    words = [event["title"], *(claim["text"] for claim in event["claims"] if claim["basis"] != "coincident")]
    slack = max(2 * MINUTE, 0.1 * (end - start))
    during = start - slack <= event["time"] <= end or (event["time"] < start and ends >= end - slack)
    right_rank = one.rank is None or one.rank in event["ranks"]
    return event["kind"] == one.kind and during and right_rank and any(one.word in text for text in words)


def false_blames(found: Stories) -> list[str]:
    """What innocent stories blame."""
    return [
        f"{run}: {event['kind']}: {event['title']}"
        for run, story in found.final.items()
        for event in story["events"]
        if event["kind"] in BLAMES
    ]


def unplanned(found: Stories) -> list[str]:
    """Events that blame something in the planted scenario where no fault of a run was."""
    wrong = []
    for run, story in found.final.items():
        for event in story["events"]:
            expected = any(one.run == run and _overlaps(one, event, story["end"]) for one in EXPECTED)
            if event["kind"] in BLAMES and not expected:
                wrong.append(f"{run}: {event['kind']}: {event['title']}")
    return wrong


def _overlaps(one: Expected, event: StoryEvent, run_end: float) -> bool:
    ends = event["end"] if event["end"] is not None else run_end
    start, end = one.start * MINUTE + EPOCH_SECONDS, one.end * MINUTE + EPOCH_SECONDS
    return event["time"] <= end + 2 * MINUTE and ends >= start - 2 * MINUTE


def as_causes(found: Stories) -> list[str]:
    """Hardware that is mentioned beside an event otherwise than as a coincidence."""
    return [
        f"{run}: {claim['text']}"
        for run, story in found.final.items()
        for event in story["events"]
        if event["kind"] != "hardware"
        for claim in event["claims"]
        if claim["basis"] != "coincident" and any(kind in claim["text"] for kind in ("xid", "link down", "ecc", "throttle", "row remap"))
    ]  # fmt: skip


def main() -> int:
    it = argparse.ArgumentParser("bench.detection.story", description=__doc__.split("\n")[0])
    it.add_argument("--gpus", type=int, default=8, help="GPUs on each innocent node (default: %(default)s)")
    it.add_argument("--days", type=float, default=DAYS, help="innocent days (default: %(default)s)")
    it.add_argument("--tick", type=float, default=60, help="seconds between pushes (default: %(default)s)")
    it.add_argument("--show", metavar="RUN", help="print the story of this run")
    options = it.parse_args()
    scenario, _ = planted(10)
    assert scenario.ticks.times[-1] == SECONDS
    both = stories(scenario, 10, tuple(one.at for one in EXPECTED if one.at is not None))
    calm = stories(innocent(options.gpus, days=options.days), options.tick)
    late, wrong = lacking(both), [*unplanned(both), *as_causes(both)]
    false = [*false_blames(calm), *as_causes(calm)]
    count = len(EXPECTED) + len(both.hardware)
    print(f"planted: {count - len(late)} of {count} faults found, {len(wrong)} events without a fault")
    events = sum(len(story["events"]) for story in calm.final.values())
    print(f"innocent: {options.days:g} days, {len(calm.final)} runs, {events} events, {len(false)} false")
    for line in (*late, *wrong, *false):
        print(f"  {line}")
    for story in (*both.final.values(), *calm.final.values()):
        if story["run"] == options.show:
            print(f"\n{text.render(story)}")
    return int(bool(late or wrong or false))


if __name__ == "__main__":
    sys.exit(main())
