"""Where ranks were while they were in no phase: functions and lines with their shares of the samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from goodput.account.document_types import SampledPlace, StackSamples
from goodput.wire.sampled_stacks import PLACES_MAX, SampledStacks

RANKS_MAX = 256  # with samples, in one account
SHOWN_MAX, SHARE_MIN = 3, 0.05


def sampled_ranks(attempts: Iterable) -> list[tuple[int, SampledStacks]]:
    """(rank, samples) of the newest attempt of each rank that has some, or a reason; at most RANKS_MAX ranks."""
    sampled = [attempt for attempt in attempts if attempt.stacks.samples or attempt.stacks.reason]
    sampled.sort(key=lambda attempt: (attempt.rank, attempt.start_ns, attempt.attempt))
    newest = {attempt.rank: attempt.stacks for attempt in sampled}
    return list(newest.items())[:RANKS_MAX]


def where(account, rank: int | None = None) -> str:
    """A sentence about all ranks, or one; the reason where they could not be sampled, "" where they were not."""
    stacks = [one for of, one in account.stacks if rank in (None, of)]
    total = sum(one.samples for one in stacks)
    if not total:
        reason = _reason(stacks)
        return f" Its stacks were not sampled ({reason})." if reason else ""
    # A function is named once, with the line that was seen most.
    functions: dict[str, tuple[int, str]] = {}
    for place, count in _sum(stacks).most_common():
        name = place.rpartition(", line ")[0]
        sum_before, shown = functions.get(name, (0, place))
        functions[name] = (sum_before + count, shown)
    found = sorted(functions.values(), key=lambda one: (-one[0], one[1]))[:SHOWN_MAX]
    parts = [
        f"{100 * count / total:.0f} % in {place}" for count, place in found if count >= SHARE_MIN * total
    ]
    return f" Of {total} samples of stacks outside phases: {'; '.join(parts)}." if parts else ""


def summary(account) -> StackSamples | None:
    """The samples as part of the account document; None where no rank was sampled."""
    if not account.stacks:
        return None
    stacks, hosts = [one for _, one in account.stacks], account.hosts()
    total = sum(one.samples for one in stacks)
    return {
        "samples": total,
        "places": _shares(_sum(stacks), total, PLACES_MAX),
        "reason": None if total else _reason(stacks),
        "ranks": [
            {
                "rank": rank,
                "host": hosts.get(rank, ""),
                "samples": one.samples,
                "places": _shares(Counter(one.places), one.samples, SHOWN_MAX),
                "reason": None if one.samples else one.reason,
            }
            for rank, one in account.stacks
        ],
    }


def _sum(stacks: list[SampledStacks]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for one in stacks:
        counts.update(one.places)
    return counts


def _reason(stacks: list[SampledStacks]) -> str | None:
    return next((one.reason for one in stacks if one.reason), None)


def _shares(counts: Counter[str], total: int, most: int) -> list[SampledPlace]:
    found = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    return [{"place": place, "samples": count, "share": count / total} for place, count in found if total]
