"""The rank pages of this node: finds them, reports what is new in them, exposes their series and removes finished ones.

Of several processes of one rank (a restart beside the page of the dead one) a scrape has the newest, so every series
exists once. An invalid page is counted by reason at every poll, logged once, and affects no other. At most `pages_max`
pages are followed, shared between users as in page_share.py. A page is removed when its process is dead, the grace
period is over, and all of it was acknowledged (or `keep_seconds_max` has passed). A poll costs about 0.5 ms at 8 live
ranks, and 15 us per new step.

    ranks = Ranks(settings); reports = ranks.poll(); removed = ranks.sweep(settled=lambda key: True)
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from goodput.rank_page import page
from goodput.rank_page.deep_look import LookError
from goodput.rank_page.page import PageError
from goodput.rank_page.process_owner import ENDED
from goodput.rank_page.reader import Reader
from goodput.wire import schema
from goodput.wire.identity import clean_text, name_of_user
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.ranks.deep_look_series import (
    add_look,
    exemplar_of,
    look_of,
    remove_look,
)
from goodput_exporters.collectors.ranks.nccl_series import add_nccl
from goodput_exporters.collectors.ranks.node_links import NodeLinks
from goodput_exporters.collectors.ranks.page_share import Entry, PageShare, RowShare
from goodput_exporters.collectors.ranks.rank import Rank
from goodput_exporters.collectors.ranks.rank_series import add_histograms, add_rank
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks
from goodput_exporters.collectors.ranks.reported_connections import ReportedConnections
from goodput_exporters.system.ranks import RankKey, RankPhases, RankProcess

log = logging.getLogger("goodput.node")

WAIT_SECONDS_MIN = 0.1
# Poll again when a quarter of the step ring will have been written.
RING_DIVISOR = 4
ENTRIES_PER_PAGE_MAX = 16
DRAFTS_MAX = 256
LOGGED_MAX = 4096
# Exposed from the start, so that the first error is an increase: those of page.PageError, then our own.
REASONS = (
    "unreadable",
    "foreign",
    "truncated",
    "version",
    "identity",
    "value",
    "excess",
    "user",
    "owner",
    "overrun",
    "look",
)


class Ranks:
    name = "ranks"

    def __init__(self, settings: Settings):
        self._settings = settings
        self._lock = threading.Lock()  # A scrape reads histograms by descriptors that a sweep closes.
        self._ranks: dict[tuple[str, int], Rank] = {}  # by file name and inode
        self._share, self._rows = PageShare(settings), RowShare()
        self._reached = ReachedPeaks(settings.probe, settings.monotonic_ns)
        self._links = NodeLinks(settings.sysfs, settings.monotonic_ns)
        self._connections = ReportedConnections(settings)
        self._drafts: list[str] = []
        self._errors: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._rejected: set[str] = set()  # paths, in the last poll
        self._logged: set[str] = set()
        self._missing, self._refused = settings.directory, False  # why there is no page directory
        self._sequence = 0
        self._polled_ns = settings.monotonic_ns()
        # How long to wait for the next poll: the interval, or less where a step ring would be overrun.
        self.wait_seconds = settings.interval_seconds

    def poll(self) -> list[schema.RankReport]:
        """What is new in each page. Raises NoData where there is no page directory.

        Pages that were found before are followed even when the directory or their names are gone.
        """
        with self._lock:
            now_ns = self._settings.monotonic_ns()
            self._rejected.clear()
            # A higher sequence supersedes, also that of an agent that ran here before this one.
            self._sequence = max(self._settings.unix_ns(), self._sequence + 1)
            try:
                self._scan()
            except (NoData, CollectorError):
                if not self._ranks:
                    raise
            join_plugins(self._ranks.values())
            self._rows.refill({rank.owner for rank in self._ranks.values()}, now_ns)
            self._connections.poll([rank for rank in self._ranks.values() if not rank.retired], now_ns)
            self._links.poll(rank.identity for rank in self._ranks.values() if not rank.joined)
            reports = [self._poll_rank(rank) for rank in self._ranks.values() if not rank.retired]
            self.wait_seconds = self._next_wait(now_ns)
            return [report for report in reports if report is not None]

    def sweep(self, settled: Callable[[RankKey], bool]) -> list[RankKey]:
        """Remove finished pages and stale drafts; the keys of the pages removed."""
        with self._lock:
            now_ns = self._settings.monotonic_ns()
            done = [at for at, rank in self._ranks.items() if self._is_done(rank, now_ns, settled)]
            removed = [key for at in done if (key := self._remove(at)) is not None]
            for name in self._drafts:
                self._remove_draft(name)
            return removed

    def owns(self, process: schema.StackRequest) -> bool:
        """Whether it is a living rank with a page here whose pid is the same process in this PID namespace."""
        with self._lock:
            ranks = self._ranks.values()
            return any(schema.stack_request(rank.identity) == process and rank.is_local() for rank in ranks)

    def refusal(self, process: schema.StackRequest) -> str:
        """Why a process that a page here names is not to be read: "" if a page of its own user names it."""
        with self._lock:
            named = [r for r in self._ranks.values() if schema.stack_request(r.identity) == process]
            problems = [rank.process_problem() for rank in named]
            return "" if "" in problems else next(iter(problems), ENDED)

    def processes(self) -> list[RankProcess]:
        """The processes of the living ranks, of each rank the newest."""
        with self._lock:
            return [rank.process() for rank in self._newest() if rank.alive]

    def living(self) -> list[tuple[str, int]]:
        """(run, rank) of the living ranks."""
        with self._lock:
            return [rank.key[:2] for rank in self._newest() if rank.alive]

    def followed(self) -> list[Rank]:
        """The living ranks with their last snapshots."""
        with self._lock:
            return [rank for rank in self._newest() if rank.alive]

    def now(self) -> list[RankPhases]:
        """The living ranks with their totals up to this moment; one whose page cannot be read now is left out."""
        with self._lock:
            found = [rank.now(self._settings.monotonic_ns) for rank in self._newest() if rank.alive]
            return [one for one in found if one is not None]

    def close(self) -> None:
        with self._lock:
            for rank in self._ranks.values():
                rank.reader.close()
            self._ranks.clear()

    def collect(self, families) -> None:
        with self._lock:
            shown = self._newest()
            for rank in shown:
                self._guarded(rank, rank.refresh)
                add_rank(families, rank, self._settings.monotonic_ns())
            for rank in shown:
                look = self._look(rank)
                exemplar = exemplar_of(rank, look)
                self._guarded(rank, lambda r=rank, e=exemplar: add_histograms(families, r, e))
                self._guarded(rank, lambda rank=rank: add_nccl(families, rank))
                if look is not None:
                    device = look["seen"]["device"] if look["seen"] else ""
                    reached = self._reached.h2d(device)
                    add_look(families, rank, look, self._settings.unix_ns(), reached)
            self._add_counts(families)
            if self._missing:
                raise (CollectorError if self._refused else NoData)(self._missing)

    def _look(self, rank: Rank) -> dict | None:
        """An invalid deep-look file counts as an error and does not affect its page."""
        try:
            return look_of(rank)
        except LookError as error:
            self._errors["look"] += 1
            self._log(f"{rank.reader.path} (look)", f"deep look refused: {error}")
            return None

    def _add_counts(self, families) -> None:
        good = [
            rank
            for rank in self._ranks.values()
            if not (rank.retired or rank.joined or rank.reader.path in self._rejected)
        ]
        live, refused = sum(rank.alive for rank in good), sum(self._share.refused.values())
        for state, count in (
            ("live", live),
            ("dead", len(good) - live),
            ("rejected", len(self._rejected)),
            ("refused", refused),
        ):
            families.add("goodput_node_pages", {"state": state}, count)
        for reason, count in sorted(self._errors.items()):
            families.add("goodput_node_page_errors_total", {"reason": reason}, count)
        families.add_counts("goodput_node_connection_reads_total", "outcome", self._connections.outcomes)

    def _newest(self) -> list[Rank]:
        newest: dict[tuple[str, int], Rank] = {}
        for rank in self._ranks.values():
            known = newest.get(rank.key[:2])
            if rank.snapshot is None or rank.retired or rank.joined:
                continue
            if known is None or _age(rank) > _age(known):
                newest[rank.key[:2]] = rank
        return [newest[of_rank] for of_rank in sorted(newest)]

    def _scan(self) -> None:
        """Follow new pages, list the drafts, and close retired pages whose file is gone."""
        entries, inodes = self._entries(), {inode for _, inode in self._ranks}
        present = {(name, inode) for name, inode, _ in entries} & self._ranks.keys()
        # Further names of one page are left aside.
        new = {entry.inode: entry for entry in entries if entry.inode not in inodes}.values()
        followed = Counter(rank.owner for rank in self._ranks.values())
        for entry in self._share.choose(new, followed):
            at = self._follow(entry, followed)
            present |= {at} if at else set()
        for (reason, owner), count in self._share.refused.items():
            self._errors[reason] += count
            self._log(
                f"{reason} {owner}", f"{count} rank pages of user {owner} are refused: {self._bound(reason)}"
            )
        for at in [at for at, rank in self._ranks.items() if rank.retired and at not in present]:
            self._ranks.pop(at).reader.close()

    def refusals(self) -> list[str]:
        """Which users' rank pages are refused, and why."""
        refused = dict(self._share.refused)
        return [
            f"{n} rank pages of user {user} are refused: {self._bound(why)}"
            for (why, user), n in refused.items()
        ]

    def _bound(self, reason: str) -> str:
        if reason == "user":
            return f"the agent follows at most {self._settings.user_pages_max} of one user"
        return f"{self._settings.pages_max} pages are followed already"

    def _entries(self) -> list[Entry]:
        """The pages in the directory, with their owners where they are not followed; the drafts are set aside."""
        entries_max = ENTRIES_PER_PAGE_MAX * self._settings.pages_max
        found, self._drafts = [], []
        try:
            with os.scandir(self._settings.directory) as directory:
                for entry in directory:
                    if not entry.name.endswith((page.SUFFIX, page.PLUGIN_SUFFIX)):
                        continue
                    if len(found) >= entries_max:
                        self._reject("excess", self._settings.directory, f"over {entries_max} pages")
                        break
                    if entry.name.startswith("."):
                        self._drafts += [entry.name] if len(self._drafts) < DRAFTS_MAX else []
                        continue
                    at = entry.name, entry.inode()
                    with contextlib.suppress(FileNotFoundError):
                        owner = -1 if at in self._ranks else entry.stat(follow_symlinks=False).st_uid
                        found.append(Entry(*at, owner))
        except OSError as error:
            self._missing = f"{self._settings.directory}: {error.strerror}"
            self._refused = error.errno not in (errno.ENOENT, errno.ENODEV)
            raise (CollectorError if self._refused else NoData)(self._missing) from None
        self._missing = ""
        return found

    def _follow(self, entry: Entry, followed: Counter[int]) -> tuple[str, int] | None:
        path = os.path.join(self._settings.directory, entry.name)
        if len(self._ranks) >= self._settings.pages_max and not self._displace(entry.owner, followed):
            self._share.refused["excess", entry.owner] += 1
            return None
        try:
            reader = Reader(path)
        except PageError as error:
            self._reject(error.reason, path, str(error))
            return None
        info = os.fstat(reader.fd)
        at = (entry.name, info.st_ino)
        # Replaced since it was listed, maybe by another user's file: that has its own turn at the next poll.
        if at in self._ranks or info.st_uid != entry.owner:
            reader.close()
            return at
        name = self._reported_name(reader)
        rank = Rank(entry.name, reader, self._settings.procfs, self._reached, self._links, name)
        if not self._is_own_page(rank):
            reader.close()
            return None
        self._ranks[at] = rank
        followed[entry.owner] += 1
        return at

    def _reported_name(self, reader: Reader) -> str | None:
        """The name under which a new page's run is reported, where that is not its own.

        A run is one user's. Where several users have pages that name it, the first keeps the name, and the others' pages
        are reported apart: none keeps another user's ranks from being reported, and none is mixed with another's.
        """
        run, user = reader.identity["run"], reader.owner
        same = [one for one in self._ranks.values() if not one.retired and one.reader.identity["run"] == run]
        own = next((one for one in same if one.owner == user), None)
        name = own.identity.run if own else name_of_user(run, user) if same else run
        if name == run:
            return None
        text = (
            f"a page of user {user} names run {run!r}, which another user has here: reported as run {name!r}"
        )
        self._errors["owner"] += 1
        self._log(reader.path, text)
        return name

    def _is_own_page(self, new: Rank) -> bool:
        """Whether no page that is followed is rather the one of its process. A lesser one is not followed any more."""
        for at, rank in self._ranks.items():
            if (
                rank.retired
                or rank.is_plugin != new.is_plugin
                or (rank.owner, rank.key) != (new.owner, new.key)
            ):
                continue
            is_better = new.reader.standing() > rank.reader.standing()
            worse, better = (rank, new) if is_better else (new, rank)
            text = f"{worse.reader.path}: not followed, a copy of the page of the same process, {better.reader.path}"
            self._reject("identity", worse.reader.path, text)
            if is_better:
                self._ranks.pop(at).reader.close()
            return is_better
        return True

    def _displace(self, owner: int, followed: Counter[int]) -> bool:
        """Stop following the page found last of the user with most, if that makes room for a user with fewer."""
        other = self._share.displaced(owner, followed)
        if other is None:
            return False
        at = next(at for at, rank in reversed(self._ranks.items()) if rank.owner == other)
        self._ranks.pop(at).reader.close()
        followed[other] -= 1
        self._share.refused["excess", other] += 1
        return True

    def _poll_rank(self, rank: Rank) -> schema.RankReport | None:
        before, rank.new_steps = rank.event_gaps, 0
        if not self._rows.has_left(rank.owner):
            self._errors["user"] += 1
            self._log(
                f"rows {rank.owner}", f"pages of user {rank.owner} have too many new steps to read them all"
            )
            return None
        report = self._guarded(rank, lambda: rank.poll(self._settings.monotonic_ns(), self._sequence))
        self._rows.take(rank.owner, rank.new_steps)
        self._errors["overrun"] += rank.event_gaps - before
        return report

    def _guarded(self, rank: Rank, act: Callable):
        try:
            return act()
        except (PageError, OSError) as error:
            self._reject(getattr(error, "reason", "unreadable"), rank.reader.path, str(error))
            return None

    def _reject(self, reason: str, path: str, text: str) -> None:
        self._rejected.add(path)
        self._errors[reason] += 1
        self._log(path, f"page rejected ({reason}): {text}")

    def _log(self, path: str, text: str) -> None:
        """Once for each path."""
        if path not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(path)
            log.warning("%s", clean_text(text, 1000))

    def _next_wait(self, now_ns: int) -> float:
        elapsed_seconds, self._polled_ns = (now_ns - self._polled_ns) / 1e9, now_ns
        steps = max((rank.new_steps for rank in self._ranks.values() if not rank.retired), default=0)
        safe_seconds = elapsed_seconds * page.STEP_RING / RING_DIVISOR / steps if steps else math.inf
        return min(self._settings.interval_seconds, max(WAIT_SECONDS_MIN, safe_seconds))

    def _is_done(self, rank: Rank, now_ns: int, settled: Callable[[RankKey], bool]) -> bool:
        if rank.dead_since_ns is None or rank.retired:
            return False
        dead_seconds = (now_ns - rank.dead_since_ns) / 1e9
        if dead_seconds >= self._settings.keep_seconds_max:
            return True
        return dead_seconds >= self._settings.grace_seconds and settled(rank.key)

    def _remove(self, at: tuple[str, int]) -> RankKey | None:
        rank = self._ranks[at]
        try:
            unlink_same(self._settings.directory, rank.name, at[1])
        except OSError as error:
            # Closing it would mean following it again at the next poll, as if it were new.
            rank.retired = True
            log.warning("cannot remove the page of a dead rank, %s: %s", rank.reader.path, error.strerror)
        else:
            del self._ranks[at]
            remove_look(rank.reader.path)
            join_plugins(self._ranks.values())
            rank.reader.close()
        return rank.key

    def _remove_draft(self, name: str) -> None:
        """Remove the draft of a process that died while it created its page, after the grace period."""
        path = os.path.join(self._settings.directory, name)
        with contextlib.suppress(OSError):  # Another user's, or gone.
            info = os.lstat(path)
            is_old = self._settings.unix_ns() / 1e9 - info.st_mtime > self._settings.grace_seconds
            if is_old and stat.S_ISREG(info.st_mode) and not page.is_locked(path):
                os.unlink(path)


def join_plugins(ranks: Iterable[Rank]) -> None:
    """Join each file of NCCL's profiler plugin to the newest page of its process, where there is one."""
    pages: dict[tuple, Rank] = {}
    plugins = []
    for rank in ranks:
        if rank.is_plugin:
            plugins.append(rank)
        elif not rank.retired:
            rank.plugin = None
            known = pages.get(rank.process_key())
            pages[rank.process_key()] = rank if known is None else max(known, rank, key=_age)
    for plugin in plugins:
        of_page = pages.get(plugin.process_key())
        plugin.joined = of_page is not None
        if of_page is not None:
            of_page.plugin = plugin.reader


def _age(rank: Rank) -> tuple[int, int]:
    return rank.identity.attempt, rank.identity.start_ns


def unlink_same(directory: str, name: str, inode: int) -> None:
    """Remove directory/name if it is still this inode. Raises OSError where that is not allowed.

    Between a check and an unlink, a restarted rank could publish its page under the same name and lose it. So the
    file is renamed before the check, and renamed back if it is another page.
    """
    path, aside = os.path.join(directory, name), os.path.join(directory, f".gone.{os.getpid()}.{name}")
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        if os.lstat(path).st_ino == inode:
            os.rename(path, aside)
            if os.lstat(aside).st_ino != inode:
                os.link(aside, path, follow_symlinks=False)
            os.unlink(aside)
