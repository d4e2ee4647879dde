"""A page gets another name before its first step: its process turned out to be another rank, or of another run.

In: the page's writer, the identity it is to have and a directory. Out: the same file, with all that was written so
far, under the name of that identity. Whoever follows it under the old one is told by the identity (page_reader.py);
no reader ever sees the page of a rank that is not there. It does not know why a page is moved.
"""

from __future__ import annotations

import os

from goodput.rank_page import page


def move(writer: page.Writer, identity: dict, directory: str) -> None:
    """Rename the page in this directory. Raises page.Claimed or OSError, and then it has its old name."""
    before, path = writer.path, os.path.join(directory, page.file_name(*map(identity.get, _NAMED)))
    if before == path:
        return
    page.publish(before, path)
    writer.path = path
    _unname(writer, before)


def withdraw(writer: page.Writer) -> None:
    """Take the page's name away; from now on it is for its own process alone."""
    path, writer.path = writer.path, None
    _unname(writer, path)


def _unname(writer: page.Writer, path: str) -> None:
    try:
        if os.lstat(path).st_ino == os.fstat(writer.fd).st_ino:
            os.unlink(path)
    except OSError:
        pass  # It is gone, or not ours to remove.


_NAMED = ("run", "rank", "attempt")
