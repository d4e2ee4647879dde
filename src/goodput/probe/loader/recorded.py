"""The knee of a loader from trainings that ran with it: what their rank pages count of batches, workers and steps.

A worker that is alone makes a batch in `alone` seconds. Where n busy workers take longer, they queue for something that
makes batches at their rate together, n / seconds; a training takes one batch each `besides` seconds at most. So the knee
is where workers that do not slow each other down reach the lower of both rates, as for a probed loader (`limit`).
Two recorded numbers of workers show whether workers slow each other down; with one, only waits for cores do.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from math import ceil, inf

from goodput.account import Attempt
from goodput.account.attempts import padded
from goodput.account.states import INDEX, state_of
from goodput.account.text import milliseconds
from goodput.probe.loader.limit import CLOSE, STILL_FASTER

BATCHES_MIN = 20
# Records whose busy workers differ by this factor show whether workers slow each other down.
APART = 1.5
# A loader whose workers are busy for less than this share of their time keeps up with the training.
BUSY = 0.9
DOING = {
    "cpu": "computing or waiting for a core",
    "blocked": "blocked on storage, the network or a lock (records do not tell which)",
    "storage": "waiting for files or the network",
    "lock": "waiting for a lock",
    "collate": "in the collate function",
}
# No part of what a training does between two batches.
_NOT_BESIDES = {
    INDEX[state]
    for state in ("loader", "checkpoint", "evaluation", "rollout", "restore", "compile", "startup")
}


@dataclass(frozen=True)
class Record:
    """The loader of one rank's attempt. Times are seconds of one batch: `seconds` a worker's, divided in `parts` by DOING.

    `busy` is how many workers were busy on average, `delay` the part of `seconds` in which they waited for a core, and
    `besides` what the training takes between two batches; these are None where they are not known. `lock_share` is the
    part of "blocked" that is waiting for a lock, where workers were sampled (`live_waits`).
    """

    run: str
    rank: int
    attempt: int
    workers: int
    batch_size: int
    batches: int
    seconds: float
    busy: float
    parts: dict[str, float]
    wait: float
    delay: float | None
    besides: float | None
    lock_share: float | None = None

    @property
    def locked(self) -> float | None:
        """Seconds of a batch in which a worker waits for a lock."""
        return None if self.lock_share is None else self.lock_share * self.parts["blocked"]

    @property
    def is_busy(self) -> bool:
        return self.busy >= BUSY * self.workers


@dataclass(frozen=True)
class Limit:
    """What all batches go through. `rate` is in batches a second, `alone` as in the module's text."""

    name: str
    rate: float
    alone: float
    text: str


def record_of(run: str, attempt: Attempt) -> Record | None:
    """The record of an attempt's main loader; None of too few batches."""
    found = attempt.loader
    workers, seen = found.get("workers", 0), found.get("worker_seen", 0)
    batches = found.get("worker_batches", 0) if workers else found.get("inside", 0)
    if batches < BATCHES_MIN or (workers and not seen):
        return None
    per_batch = {name: ns / 1e9 / batches for name, ns in found.items() if name.endswith("_ns")}
    if workers:
        delay, computing = per_batch.get("worker_delay_ns", 0.0), per_batch.get("worker_cpu_ns", 0.0)
        collate, dataset = per_batch.get("worker_collate_ns", 0.0), per_batch.get("worker_dataset_ns", 0.0)
        idle = per_batch.get("worker_idle_ns", 0.0)
        seconds = dataset + collate
        busy = workers * seconds / max(seconds + idle, 1e-9)
        parts = {
            "cpu": computing + delay,
            "blocked": max(dataset - computing - delay, 0.0),
            "collate": collate,
        }
        is_delay_known = found.get("worker_delay_known", 0) == seen
    else:
        names = {"cpu": "wait_decode_ns", "blocked": "wait_storage_ns", "collate": "wait_collate_ns"}
        parts = {part: per_batch.get(name, 0.0) for part, name in names.items()}
        seconds, busy, delay, is_delay_known = sum(parts.values()), 1.0, 0.0, False
    taken = max(found.get("batches", 0), 1)
    return Record(
        run=run,
        rank=attempt.rank,
        attempt=attempt.attempt,
        workers=workers,
        batch_size=found.get("batch_size", 0),
        batches=batches,
        seconds=max(seconds, 1e-9),
        busy=busy,
        parts=parts,
        wait=found.get("wait_ns", 0) / 1e9 / taken,
        delay=delay if is_delay_known else None,
        besides=_besides(attempt, taken),
    )


def _besides(attempt: Attempt, batches: int) -> float | None:
    """Seconds of the training between two batches, without the loader and planned phases; None unless all were measured."""
    rows = list(attempt.ordered_rows())
    if len(rows) < 2 or attempt.unmeasured:
        return None
    width = len(attempt.phases)
    states = [state_of(name, attempt.phase_states) for name in attempt.phases]
    totals = zip(states, padded(rows[-1].totals, width), padded(rows[0].totals, width), strict=True)
    spent_ns = sum(now - then for state, now, then in totals if state not in _NOT_BESIDES)
    return max(spent_ns, 0) / 1e9 / (rows[-1].number - rows[0].number) * rows[-1].number / batches


def waiting_most(records: list[Record]) -> list[Record]:
    """Of each attempt of a run the rank that waited most for its loader: the others wait for it, not for theirs."""
    found: dict[tuple[str, int], Record] = {}
    for one in records:
        held = found.get((one.run, one.attempt))
        if held is None or one.wait > held.wait:
            found[one.run, one.attempt] = one
    return list(found.values())


def predict(records: list[Record]) -> dict:
    """The document of these records, as `recorded_text.render` and JSON show it. Raises ValueError without any.

    `knee` is None where it is not known; `keep_up` is the workers that the training needs if they do not slow each other
    down, None where it is not known what the training takes besides.
    """
    if not records:
        raise ValueError("no record")
    size = max(records, key=lambda one: one.batches).batch_size
    used = sorted((one for one in records if one.batch_size == size), key=lambda one: (one.busy, one.workers))
    known = [one.besides for one in used if one.besides is not None]
    besides = statistics.median(known) if known else None
    limit = _limit(used, besides)
    knee = None if limit is None else _knee(limit, besides)
    alone = used[0].seconds
    return {
        "records": [asdict(one) for one in used],
        "left_out": len(records) - len(used),
        "batch_size": size or None,
        "besides": besides,
        "knee": knee,
        "limit": {"name": "unknown", "text": _unknown(used)}
        if limit is None
        else {"name": limit.name, "text": limit.text},
        "keep_up": ceil(CLOSE * alone / besides) if besides else None,
    }


def _knee(limit: Limit, besides: float | None) -> int:
    """The fewest workers whose rate is within 5 % of the limit's; 0 where the training itself is as fast."""
    enough = CLOSE * limit.rate
    inside = 1 / (limit.alone + besides) if besides is not None else 0.0
    return 0 if inside >= enough else max(ceil(enough * limit.alone - 1e-9), 1)


def _limit(used: list[Record], besides: float | None) -> Limit | None:
    """What binds, of the records in the order of their busy workers; None where they do not show it."""
    few, many = used[0], used[-1]
    training = 1 / besides if besides else inf
    apart = many.busy >= APART * few.busy
    queues = (_growth(few, many),) if apart else (_cores(many), _locks(many))
    shared = min((one for one in queues if one is not None), key=lambda one: one.alone, default=None)
    if shared is not None and shared.rate <= training:
        return shared
    alone = few.seconds if shared is None else shared.alone
    # So many keep up: some have, or were busy at once without slowing each other down.
    enough = max((one.workers for one in used if not one.is_busy), default=0)
    keeps_up = CLOSE * training * alone <= max(enough, many.busy if apart else 0)
    if training < inf and (shared is not None or keeps_up):
        text = f"the training takes a batch every {milliseconds(1 / training)}, besides waiting for it"
        return Limit("training", training, alone, text)
    return None


def _growth(few: Record, many: Record) -> Limit | None:
    """What a batch takes longer for with more busy workers; None if it takes about as long."""
    if many.seconds < STILL_FASTER * few.seconds:
        return None
    grown = {part: many.parts[part] - few.parts[part] for part in few.parts}
    name = max(grown, key=grown.__getitem__)
    text = (
        f"with {many.busy:.1f} busy workers instead of {few.busy:.1f} a batch takes a worker "
        f"{milliseconds(many.seconds - few.seconds)} longer, "
    )
    kind = _of_blocked(few, many, grown[name]) if name == "blocked" else ""
    if kind:
        spent = many.locked or 0.0 if kind == "lock" else many.parts[name] - (many.locked or 0.0)
        text += f"{milliseconds(spent)} of the {milliseconds(many.seconds)} {DOING[kind]}, as sampled now"
    else:
        text += f"{milliseconds(grown[name])} of it {DOING[name]}"
    name = kind or name
    return Limit(name, many.busy / many.seconds, few.seconds, text)


def _of_blocked(few: Record, many: Record, grown: float) -> str:
    """Whether most of this growth is "storage" or "lock"; "" where that is not known.

    Of few workers that were not sampled: n workers that take turns wait for each other's at most in proportion to n.
    """
    locked = many.locked
    if locked is None:
        return ""
    most = locked * few.busy / many.busy if few.locked is None else few.locked
    if locked - min(most, few.parts["blocked"]) >= grown / 2:
        return "lock"
    return "storage" if locked - (few.locked or 0.0) <= grown / 2 else ""


def _locks(one: Record) -> Limit | None:
    """Waits for a lock of several workers that are always busy: alone a worker waits for nobody."""
    if one.locked is None or one.workers < 2 or not one.is_busy:
        return None
    if one.seconds < STILL_FASTER * (one.seconds - one.locked):
        return None
    text = f"of the {milliseconds(one.seconds)} that a batch takes a worker, it waits {milliseconds(one.locked)} for a lock"
    return Limit("lock", one.busy / one.seconds, max(one.seconds - one.locked, 1e-9), text)


def _cores(one: Record) -> Limit | None:
    """Waits for cores of several workers that are always busy; one alone waits for other processes."""
    if (
        one.delay is None
        or one.workers < 2
        or not one.is_busy
        or one.seconds < STILL_FASTER * (one.seconds - one.delay)
    ):
        return None
    text = f"of the {milliseconds(one.seconds)} that a batch takes a worker, it waits {milliseconds(one.delay)} for a core"
    return Limit("cpu", one.busy / one.seconds, max(one.seconds - one.delay, 1e-9), text)


def _unknown(used: list[Record]) -> str:
    numbers = sorted({one.workers for one in used})
    has = ", ".join(map(str, numbers))
    if used[-1].busy >= APART * used[0].busy:
        return f"workers do not slow each other down up to {used[-1].busy:.1f} busy ones; train with more to tell further"
    return (
        f"all records have num_workers={has}, which does not show whether workers slow each other down: "
        "train for a minute with another number too, and give both runs"
    )
