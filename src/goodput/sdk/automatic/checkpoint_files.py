"""Recognises a file that is loaded as one that an earlier attempt saved, where the file itself does not have its step.

A commit notes the file's fingerprint in the page: its length and a checksum of SAMPLES parts of it. So it is found
again under another name, through a link or in a copy. Of a directory it is the fingerprint of one of its files; the
METADATA of torch.distributed.checkpoint has an id of each save. A fingerprint takes some 0.1 ms of a file that was just written or read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from goodput.rank_page import page
from goodput.rank_page.own_pages import paths_of
from goodput.user_exceptions import reraise_from_handler

SAMPLES, SAMPLE_BYTES = 16, 4096
# The file of a directory that stands for it: of torch.distributed.checkpoint, and of Accelerate.
METADATA, MAIN_FILES = ".metadata", ("model.safetensors", "pytorch_model.bin")
ATTEMPTS_READ_MAX = 8  # earlier attempts whose pages are read
RANKS_READ_MAX = 64
FILE, DIRECTORY = "file", "directory"  # what all ranks have written together is a directory


def fingerprint(path) -> str:
    """A text that identifies the content of a file or a checkpoint's directory; "" for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        path = getattr(path, "name", None)  # An open file.
    if not isinstance(path, (str, os.PathLike)):
        return ""
    try:
        inside = [os.path.join(path, name) for name in (METADATA, *MAIN_FILES)] if os.path.isdir(path) else ()
        path = next(filter(os.path.exists, inside), path)
        kind = DIRECTORY if os.path.basename(path) == METADATA else FILE
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return f"{kind} {_digest(fd)}"
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        reraise_from_handler(error)
        return ""


def _digest(fd: int) -> str:
    from zlib import crc32  # Loaded late: a process that saves and loads nothing does not need it.

    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise ValueError("no file")
    checksum, last = 0, max(info.st_size - SAMPLE_BYTES, 0)
    # The last part of what torch.save writes has a checksum of each tensor.
    for at in sorted({last * part // (SAMPLES - 1) for part in range(SAMPLES)}):
        checksum = crc32(os.pread(fd, SAMPLE_BYTES, at), checksum)
    return f"{info.st_size:x}-{checksum:08x}"


class EarlierAttempts:
    """What this user's pages of this run's earlier attempts on this machine say of their checkpoints.

    steps     of the checkpoints that this rank committed
    own, any  the step of each fingerprint that this rank committed, and that any rank did
    loaded    fingerprints that this rank loaded without knowing their step
    complete  whether the pages of all ranks are here, so that each rank finds what any other has committed
    """

    def __init__(self, session):
        self.steps: set[int] = set()
        self.own: dict[str, int] = {}
        self.any: dict[str, int] = {}
        self.loaded: set[str] = set()
        identity, directory = session.identity, os.path.dirname(session.writer.path)
        own, world = identity["rank"], identity.get("world_size", 1)
        ranks, found = [own, *(rank for rank in range(min(world, RANKS_READ_MAX)) if rank != own)], set()
        before = identity["attempt"] - 1
        paths = paths_of(directory, identity["run"])
        for attempt in range(max(before - ATTEMPTS_READ_MAX, 0) + 1, before + 1):
            for rank in ranks if not identity.get("worker") else [own]:
                path = paths.get((rank, attempt))
                for event in _events_of(path, rank, found) if path else ():
                    self._add(event, rank == own)
        self.complete = bool(identity.get("worker")) or len(found) >= world

    def _add(self, event, is_own: bool) -> None:
        if event.kind == "checkpoint_committed":
            if event.text:
                self.any[event.text] = event.step
            if is_own:
                self.steps.add(event.step)
                if event.text:
                    self.own[event.text] = event.step
        elif event.kind == "restored" and is_own:
            self.loaded.add(event.text)

    def step_of(self, text: str) -> int | None:
        """The step that was committed with this fingerprint; None if that is unknown, or not known to all ranks."""
        if text.startswith(DIRECTORY):
            return self.own.get(text)
        return self.any.get(text) if self.complete else None


def _events_of(path: str, rank: int, found: set[int]) -> Iterator:
    """The events of a page, if there is one; `found` collects the ranks that have any."""
    from goodput.rank_page.reader import Reader  # Slow to import, needed only after a load.

    try:
        with Reader(path) as reader:
            events = reader.snapshot(since_step=page.NS_MAX, alive=False).events
    except page.PageError:
        return
    found.add(rank)
    yield from events
