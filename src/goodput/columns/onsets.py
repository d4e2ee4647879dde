"""The steps in which ranks were slow, `slow_ranks.onset.Onset` of many attempts as arrays.

Steps of many attempts are noted at once, the first of each, then the second of each: 0.05 us a step. The sums are added
up in the same order as an Onset does it, so they are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import pairwise
from math import log

import numpy as np

from goodput.account.facts import Key
from goodput.account.slow_ranks.onset import (
    FALSE_ALARM_STEPS,
    SLOW_SHARE_BESIDE,
    Onset,
    Stretch,
    chance_beside,
    log_ratio,
)

_NUMBERS = {"sum": float, "began": np.int64, "sum_beside": float, "began_beside": np.int64}
_ARRAYS = {**_NUMBERS, "first": np.int64, "slow": bool, "known": bool}
_NONE = -1  # a first step that is not known
# Of fewer attempts the steps are noted one by one.
AT_ONCE_LEAST = 24
_ALARM = log(FALSE_ALARM_STEPS)


class OnsetColumns(MutableMapping[Key, Onset]):
    """The onsets of the attempts that a table has folds of, by its rows."""

    sum: np.ndarray
    began: np.ndarray
    sum_beside: np.ndarray
    began_beside: np.ndarray
    first: np.ndarray
    slow: np.ndarray
    known: np.ndarray  # those that there are

    def __init__(self, places: Mapping[Key, int], onsets: Mapping[Key, Onset] | None = None):
        """`places` has the row of each key; it may get more of them."""
        self._places, self._stretches = places, dict[int, list[Stretch]]()
        for name, kind in _ARRAYS.items():
            setattr(self, name, np.zeros(0, kind))
        self.take_places(places)
        self.update(onsets or {})

    def copy(self) -> OnsetColumns:
        """An independent one."""
        other = OnsetColumns.__new__(OnsetColumns)
        other._places, other._stretches = self._places, dict(self._stretches)
        for name in _ARRAYS:
            setattr(other, name, getattr(self, name).copy())
        return other

    def take_places(self, places: Mapping[Key, int]) -> None:
        """Go by these rows, which may be more than before."""
        self._places, more = places, len(places) - len(self.sum)
        if more > 0:
            for name in _ARRAYS:
                fill = _NONE if name == "first" else 0
                setattr(self, name, np.pad(getattr(self, name), (0, more), constant_values=fill))

    def slow_keys(self) -> list[Key]:
        """The attempts that are slow now."""
        slow = set(np.flatnonzero(self.slow).tolist())
        return [key for key, at in self._places.items() if at in slow] if slow else []

    def __getitem__(self, key: Key) -> Onset:
        if key not in self:
            raise KeyError(key)
        return self._of(self._places[key])

    def _of(self, at: int) -> Onset:
        first = self.first.item(at)
        numbers = self.sum.item(at), self.began.item(at), self.sum_beside.item(at), self.began_beside.item(at)
        return Onset(
            self._stretches.get(at, []), self.slow.item(at), *numbers, None if first == _NONE else first
        )

    def __setitem__(self, key: Key, onset: Onset) -> None:
        self._set(self._places[key], onset)

    def _set(self, at: int, onset: Onset) -> None:
        for name in (*_NUMBERS, "slow"):
            getattr(self, name)[at] = getattr(onset, name)
        self.first[at] = _NONE if onset.first is None else onset.first
        self.known[at] = True
        if onset.stretches:
            self._stretches[at] = onset.stretches

    def __delitem__(self, key: Key) -> None:
        raise TypeError("an onset cannot be taken out of a table")

    def __contains__(self, key: object) -> bool:
        at = self._places.get(key, len(self.known))  # type: ignore[call-overload]
        return at < len(self.known) and bool(self.known[at])

    def __iter__(self) -> Iterator[Key]:
        return (key for key in self._places if key in self)

    def __len__(self) -> int:
        return int(self.known.sum())

    def note(
        self,
        at: np.ndarray,
        steps: np.ndarray,
        hit: np.ndarray,
        beside: np.ndarray,
        sizes: np.ndarray,
        apart: np.ndarray,
    ) -> None:
        """Note steps of these rows, those of each row in order, side by side.

        `hit` and `beside` are those of onset.Hits, `sizes` the number of ranks that were compared, two at least, and `apart`
        how many of them were beside others.
        """
        begins = np.flatnonzero(np.append(True, np.diff(at) != 0))
        rows, counts = at[begins], np.diff(np.append(begins, len(at)))
        self.known[rows] = True
        ratios = _ratios(sizes, apart)
        if len(rows) < AT_ONCE_LEAST:
            self._note_each(rows, begins, counts, steps, hit, beside, ratios)
            return
        for place in range(int(counts.max())):
            going = counts > place
            entry = begins[going] + place
            self._note_one(rows[going], steps[entry], hit[entry], beside[entry], ratios[:, entry])

    def _note_each(self, rows, begins, counts, steps, hit, beside, ratios) -> None:
        for row, begin, count in zip(rows.tolist(), begins.tolist(), counts.tolist(), strict=True):
            own, onset = slice(begin, begin + count), self._of(row)
            chances, others = ratios[5:, own].tolist()
            edges = [0, *(i for i in range(1, count) if chances[i] != chances[i - 1]), count]
            step, hits, besides = steps[own].tolist(), hit[own].tolist(), beside[own].tolist()
            for low, high in pairwise(edges):
                some = slice(low, high)
                onset.note_steps(step[some], hits[some], besides[some], chances[low], others[some])
            self._set(row, onset)

    def _note_one(
        self, at: np.ndarray, step: np.ndarray, hit: np.ndarray, beside: np.ndarray, ratios: np.ndarray
    ) -> None:
        """Onset.note of one step of each of these rows."""
        no, yes, beside_no, beside_yes, still_slow, _, chance = ratios
        new = self.first[at] == _NONE
        self.first[at[new]] = step[new]
        sums, began, slow = self.sum[at], self.began[at], self.slow[at]
        over = sums <= 0
        sums[over], began[over] = 0.0, step[over]
        grown = np.where(hit, yes, no)
        sums = np.where(slow, sums - np.where(beside & ~hit, still_slow, grown), sums + grown)
        quiet = ~slow & (chance < 1)
        others, began_others = self.sum_beside[at], self.began_beside[at]
        over = quiet & (others <= 0)
        others[over], began_others[over] = 0.0, step[over]
        others[quiet] += np.where(beside, beside_yes, beside_no)[quiet]
        self.sum[at], self.began[at] = sums, began
        self.sum_beside[at], self.began_beside[at] = others, began_others
        alarm = (sums >= _ALARM) | (~slow & (others >= _ALARM))
        for row in at[alarm].tolist():
            onset = self._of(row)
            onset.change(_ALARM)
            self._set(row, onset)


def _ratios(sizes: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Of steps that so many ranks were compared in, of which `apart` were beside others: (7, steps), the ratios of no hit and
    of a hit, the same for hits beside others, that of such a hit of a rank that is slow, and the chances of both."""
    width = int(sizes.max()) + 1
    if (sizes == sizes[0]).all():
        # Numbers up to the group's size need no sorting.
        present = np.bincount(apart) > 0
        kinds, of = sizes[0] * width + np.flatnonzero(present), (np.cumsum(present) - 1)[apart]
    else:
        kinds, of = np.unique(sizes * width + apart, return_inverse=True)
    found = []
    for size, others in (divmod(kind, width) for kind in kinds.tolist()):
        chance, beside = max(1, size // 8) / size, chance_beside(size, others)
        ratios = [log_ratio(False, chance), log_ratio(True, chance), 0.0, 0.0, 0.0]
        if beside < 1:
            ratios[2:] = (
                *(log_ratio(hit, beside, SLOW_SHARE_BESIDE) for hit in (False, True)),
                log_ratio(True, beside),
            )
        found.append((*ratios, chance, beside))
    return np.array(found).reshape(-1, 7).T[:, of]
