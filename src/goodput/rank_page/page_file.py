"""One page as a file: its checks, its identity and whether its owner lives. What a trainer reads of other pages.

with PageFile(path) as file:
    print(file.identity["rank"], file.alive())
"""

from __future__ import annotations

import json
import os
import stat
from collections import namedtuple

from goodput.rank_page import page
from goodput.rank_page.page import PageError, owner_is_locking
from goodput.rank_page.process_owner import owner_problem
from goodput.wire.identity import check_identity, without_wrong_options

_REVISION_READS_MAX = 4
# What differs between the versions of a page: built-in phases, the word R_OUTSIDE of a step, whether it has
# collectives, the file's length, events in the ring, words of an event, the first word after its text.
Layout = namedtuple("Layout", "phases outside collectives file_bytes event_ring event_words event_text_end")
_EVENTS = (page.EVENT_RING, page.EVENT_WORDS, page.E_SEAL)
_SHORT_EVENTS = (256, 16, 12)


def _layout(phases: tuple[str, ...], collectives: bool = False, events: tuple = _SHORT_EVENTS) -> Layout:
    slots = len(phases) + page.USER_PHASES_MAX
    size = 8 * (page.W_HISTOGRAMS + 2 * slots * page.HISTOGRAM_WORDS + collectives * page.COLLECTIVES_WORDS)
    return Layout(phases, page.R_TOTALS + slots, collectives, size, *events)


# By version. Events of version 4 had 64 bytes of text. Version 3 had no collectives, version 2 no phase `rollout` either.
LAYOUTS = {
    page.VERSION: _layout(page.PHASES, collectives=True, events=_EVENTS),
    4: _layout(page.PHASES, collectives=True),
    3: _layout(page.PHASES),
    2: _layout(page.PHASES[: page.PHASES.index("rollout")]),
}


class PageFile:
    """An open page, treated as hostile. Holds one descriptor; raises PageError and nothing else.

    With `fd` it reads an open page that stays its owner's to close.
    """

    def __init__(self, path: str, fd: int | None = None):
        self.path = path
        self._revision = 0
        if fd is not None:
            self.fd = fd
            self.identity = self._check()
            return
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise PageError("unreadable", f"{path!r}: {why}") from None
        try:
            self.identity = self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def alive(self, procfs: str = "/proc") -> bool:
        """Whether the owner lives: it holds the lock, or its pid is still the process that made the page."""
        return owner_is_locking(self.fd) or not self.process_problem(self.identity["pid"], procfs)

    @property
    def owner(self) -> int:
        """The user whose file it is."""
        return os.fstat(self.fd).st_uid

    def standing(self) -> tuple[bool, bool]:
        """Whether its process locks it, and whether the file has the name of its run, rank and attempt.

        Of two pages of one process the higher one is its own: a copy has no lock, and most often another name.
        """
        found = self.identity
        name = page.file_name(found["run"], found["rank"], found["attempt"])
        alias = f"{name.removesuffix(page.SUFFIX)}{page.ALIAS}{self.owner}{page.SUFFIX}"
        return owner_is_locking(self.fd), os.path.basename(self.path) in (name, alias)

    def process_problem(self, pid: int, procfs: str = "/proc") -> str:
        """Why a process is not the one that made this page, "" if it is: start time and user must be the page's."""
        return owner_problem(self.owner, pid, self.identity.get("pid_start_ticks"), procfs)

    def ended(self) -> str:
        """Why its owner has ended, one of page.END_REASONS."""
        (reason,) = self._words(page.W_ENDED, 1)
        if reason >= len(page.END_REASONS):
            raise PageError("value", f"{self.path}: end reason {reason} out of range")
        return page.END_REASONS[reason]

    def last_unix_ns(self) -> int:
        """When its owner was last in another phase or step, by its clock at the start."""
        (last_ns,) = self._words(page.W_LAST, 1)
        return self.identity["start_unix_ns"] + last_ns - self.identity["start_mono_ns"]

    def _check(self) -> dict:
        info = os.fstat(self.fd)
        if not stat.S_ISREG(info.st_mode):
            raise PageError("foreign", f"{self.path}: not a regular file")
        if info.st_size < 32:
            raise PageError("truncated", f"{self.path}: {info.st_size} bytes, a page has {page.FILE_BYTES}")
        magic, version, size = self._words(page.W_MAGIC, 3)
        if magic != page.MAGIC:
            raise PageError("foreign", f"{self.path}: no goodput page (magic {magic:#x})")
        if version not in LAYOUTS:
            known = " and ".join(map(str, sorted(LAYOUTS)))
            raise PageError("version", f"{self.path}: layout version {version}, this reader knows {known}")
        self.layout = LAYOUTS[version]
        if not size == info.st_size == self.layout.file_bytes:
            wanted = self.layout.file_bytes
            raise PageError("truncated", f"{self.path}: {info.st_size} bytes, a page has {wanted}")
        found = self._read_identity()
        if found is None:
            raise PageError("identity", f"{self.path}: the identity changes too fast to be read")
        return found

    def _read_identity(self) -> dict | None:
        """The identity and its revision as one; None if it changes at each attempt to read it."""
        (first_bytes,) = self._words(page.W_IDENTITY_BYTES, 1)
        for _ in range(_REVISION_READS_MAX):
            (revision,) = self._words(page.W_REVISION, 1)
            try:
                blob = self._read(*_identity_place(revision, first_bytes))
                if self._words(page.W_REVISION, 1)[0] != revision:
                    continue
                found = check_identity(without_wrong_options(json.loads(blob)))
            except (ValueError, RecursionError) as error:
                raise PageError("identity", f"{self.path}: {error}") from None
            self._revision = revision
            return found
        return None

    def _read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self.fd, length, offset)
        except OSError as error:
            raise PageError("unreadable", f"{self.path}: {error.strerror}") from None
        if len(data) != length:
            raise PageError("truncated", f"{self.path}: ends before byte {offset + length}")
        return data

    def _words(self, first: int, count: int) -> memoryview:
        return memoryview(self._read(8 * first, 8 * count)).cast("Q")


def _identity_place(revision: int, first_bytes: int) -> tuple[int, int]:
    """(offset, length) of the identity of a revision. Raises ValueError where it would not fit its place."""
    number, length = divmod(revision, 1 << page.REVISION_SHIFT)
    offset, most = page.IDENTITY_PLACES[number % 2]
    length = length if revision else first_bytes
    if length > most:
        raise ValueError(f"identity of {length} bytes, {most} at most")
    return offset, length
