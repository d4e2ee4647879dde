"""Which of the page files in a directory are opened, so that no user can keep out the ranks of others.

Everybody may write to the directory. The pages of root and of the agent's own user come first and share `pages_max`;
every other user has at most `user_pages_max` pages that are followed or tried in one poll, those first that were not
tried for longest. Where all together exceed `pages_max`, users get one page after the other in turn.

Of the steps in the pages of one such user some ROWS_PER_SECOND are read: each takes 10 us here, and place in the backlog.

    share = PageShare(settings); for entry in share.choose(entries, followed): ...; share.refused
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import NamedTuple

from goodput_exporters.collector import Settings

# Of one user: 16 ranks with a thousand steps a second.
ROWS_PER_SECOND, ROWS_AT_ONCE = 16_384, 16_384


class Entry(NamedTuple):
    """A page file that is not followed."""

    name: str
    inode: int
    owner: int

    @property
    def at(self) -> tuple[str, int]:
        return self.name, self.inode


class PageShare:
    """`refused` are the page files that the last choice left out, by (reason, user)."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._trusted = {0, os.geteuid()}
        self._round = 0
        self._tried: dict[tuple[str, int], int] = {}  # round of the last try, of the entries that are there
        self.refused: Counter[tuple[str, int]] = Counter()

    def choose(self, entries: Iterable[Entry], followed: Counter[int]) -> list[Entry]:
        """The entries to open, in order; `followed` counts the pages that are followed, by user."""
        self._round += 1
        self.refused.clear()
        by_owner: dict[int, list[Entry]] = {}
        for entry in entries:
            by_owner.setdefault(entry.owner, []).append(entry)
        known = {entry.at for entry in chain.from_iterable(by_owner.values())}
        self._tried = {at: when for at, when in self._tried.items() if at in known}
        chosen = {owner: self._of_user(owner, own, followed[owner]) for owner, own in by_owner.items()}
        trusted = [chosen.pop(owner) for owner in sorted(chosen.keys() & self._trusted)]
        others = sorted(chosen.values(), key=lambda own: followed[own[0].owner] if own else 0)
        turns = chain.from_iterable(zip_longest(*others))
        found = [*chain.from_iterable(trusted), *(entry for entry in turns if entry is not None)]
        self._tried.update((entry.at, self._round) for entry in found)
        return found

    def _of_user(self, owner: int, entries: list[Entry], followed: int) -> list[Entry]:
        if owner in self._trusted:
            return entries
        free = max(self._settings.user_pages_max - followed, 0)
        if len(entries) > free:
            self.refused["user", owner] += len(entries) - free
        return sorted(entries, key=lambda entry: self._tried.get(entry.at, 0))[:free]

    def displaced(self, owner: int, followed: Counter[int]) -> int | None:
        """The user who gives up a page for one of `owner`, where `pages_max` are followed; None refuses it."""
        others = {user: count for user, count in followed.items() if user not in self._trusted}
        most = max(others, key=lambda user: others[user], default=None)
        if most is None or most == owner:
            return None
        return most if owner in self._trusted or others[most] > followed[owner] + 1 else None


class RowShare:
    """How many new steps of each user's pages may be read now: a token bucket, without bound for root and our own user."""

    def __init__(self):
        self._trusted = {0, os.geteuid()}
        self._left: dict[int, float] = {}
        self._since_ns = 0

    def refill(self, owners: set[int], now_ns: int) -> None:
        more, self._since_ns = (now_ns - self._since_ns) * ROWS_PER_SECOND / 1e9, now_ns
        left = {owner: self._left.get(owner, ROWS_AT_ONCE) + more for owner in owners - self._trusted}
        self._left = {owner: min(rows, ROWS_AT_ONCE) for owner, rows in left.items()}

    def has_left(self, owner: int) -> bool:
        return self._left.get(owner, 1) > 0

    def take(self, owner: int, rows: int) -> None:
        if owner in self._left:
            self._left[owner] -= rows
