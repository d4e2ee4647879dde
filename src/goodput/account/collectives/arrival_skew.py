"""How much of the waiting in each operation was for the last rank to arrive, and how much what all ranks paid.

The account knows both of each step: `straggler`, and the rest (_core/compare.c). Of one operation it follows where
there is nothing else to wait in. Where there is, a rank has waited for others in an operation as long as it has waited
beyond the rank that waited least a call: the rule of a step, applied to the sums of an attempt. Ranks that take turns in
being last have about the same sums, so what is found in this way is too little, and used only where it is at least
EXPLAINED_MIN of the rank's `straggler`, which it then divides.
"""

from __future__ import annotations

from collections.abc import Sequence

Key = tuple[str, str]  # process group, operation
EXPLAINED_MIN = 0.5


class LeastWaits:
    """By unit of ranks that are compared, and operation, the waiting and the calls of the rank that waited least a call."""

    def __init__(self) -> None:
        self._by_unit: dict[str, dict[Key, tuple[int, int]]] = {}

    def add(self, unit: str, keys: Sequence[Key], calls: Sequence[int], waits: Sequence[int]) -> None:
        """Count a rank, which waited so many ns in so many calls of these operations."""
        least = self._by_unit.setdefault(unit, {})
        for key, count, ns in zip(keys, calls, waits, strict=True):
            if count > 0 and key[0]:
                known = least.get(key)
                if known is None or ns * known[1] < known[0] * count:
                    least[key] = ns, count

    def beyond(self, unit: str, keys: Sequence[Key], calls: Sequence[int], waits: Sequence[int]) -> list[int]:
        """The ns that a rank waited beyond the one that waited least, by operation; 0 for several in one, without a group."""
        least = self._by_unit.get(unit, {})
        found = []
        for key, count, ns in zip(keys, calls, waits, strict=True):
            least_ns, least_calls = least.get(key, (ns, count))
            found.append(max(ns - least_ns * count // least_calls, 0) if count > 0 and key[0] else 0)
        return found


def split(waits: Sequence[int], straggler_ns: int, beyond: Sequence[int]) -> tuple[list[int], list[int]]:
    """Waiting for other ranks, and what all paid, of each of a rank's operations, in ns.

    `waits` sum to more than `straggler_ns`, which is the waiting for others in all of them. What is in neither result is
    not known. Where `beyond` explains enough, nothing is left: then the first sums to `straggler_ns`.
    """
    total, explained = sum(waits), sum(beyond)
    if explained and explained >= EXPLAINED_MIN * straggler_ns:
        skew = _shared_out(straggler_ns, beyond, waits)
        return skew, [ns - mine for ns, mine in zip(waits, skew, strict=True)]
    others = total - straggler_ns
    return [max(ns - others, 0) for ns in waits], [max(ns - straggler_ns, 0) for ns in waits]


def _shared_out(ns: int, weights: Sequence[int], bounds: Sequence[int]) -> list[int]:
    """`ns` in proportion to the weights, none above its bound; what that leaves goes to the largest weights first."""
    whole = sum(weights)
    found = [min(ns * weight // whole, most) for weight, most in zip(weights, bounds, strict=True)]
    left = ns - sum(found)
    if left:
        for at in sorted(range(len(found)), key=weights.__getitem__, reverse=True):
            more = min(left, bounds[at] - found[at])
            found[at] += more
            left -= more
    return found
