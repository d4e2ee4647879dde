"""Where ranks were while they were in no phase, as one sentence: functions and lines with their shares of the samples."""

from __future__ import annotations

from collections import Counter

SHOWN_MAX, SHARE_MIN = 3, 0.05


def where(account) -> str:
    """A sentence, or "" without samples; the reason where they could not be taken."""
    counts: Counter[str] = Counter()
    for places, _, _ in account.stacks:
        counts.update(places)
    total = sum(samples for _, samples, _ in account.stacks)
    if not total:
        reason = next((reason for _, _, reason in account.stacks if reason), "")
        return f" Its stacks were not sampled ({reason})." if reason else ""
    # A function is named once, with the line that was seen most.
    functions: dict[str, tuple[int, str]] = {}
    for place, count in counts.most_common():
        name = place.rpartition(", line ")[0]
        sum_before, shown = functions.get(name, (0, place))
        functions[name] = (sum_before + count, shown)
    found = sorted(functions.values(), key=lambda one: (-one[0], one[1]))[:SHOWN_MAX]
    parts = [
        f"{100 * count / total:.0f} % in {place}" for count, place in found if count >= SHARE_MIN * total
    ]
    return f" Of {total} samples of stacks outside phases: {'; '.join(parts)}." if parts else ""
