"""This user's pages in a directory, and the attempt of a rank that follows them.

Any user may write there, under any name and with any content: a file of another user's, or one that is no page of the run
and rank in its name, counts for nothing.

    identity["attempt"] = next_attempt(directory, identity)
"""

from __future__ import annotations

import os
from collections import namedtuple

from goodput.rank_page import page
from goodput.user_exceptions import reraise_from_handler

TYPE_CHECKING = False  # `typing` is not imported: it takes longer than all of goodput.
if TYPE_CHECKING:
    from collections.abc import Iterator

# Of one scan of the page directory; more are left aside.
PAGES_MAX = 1024

Page = namedtuple("Page", "path alive identity ended")


def next_attempt(directory: str, identity: dict) -> int:
    """The identity's attempt, or one more than the highest attempt of this rank whose process is dead.

    The page of a live process is not skipped: taking its number raises Claimed in `Writer`.
    """
    run, rank, attempt = identity["run"], identity["rank"], identity["attempt"]
    paths = paths_of(directory, run)
    for number, path in sorted(((n, path) for (r, n), path in paths.items() if r == rank), reverse=True):
        if number < attempt:
            break
        found = _page(path)
        if found is not None and _names(found.identity, run, rank, number):
            return number + (not found.alive)
    return attempt


def pages(directory: str, run: str | None = None) -> Iterator[Page]:
    """This user's pages in a directory, of one run if it is given; those that cannot be read are skipped."""
    for path in list(_own_paths(directory, run))[:PAGES_MAX]:
        found = _page(path)
        if found is not None and run in (None, found.identity["run"]):
            yield found


def paths_of(directory: str, run: str) -> dict[tuple[int, int], str]:
    """This user's page files of a run by the rank and attempt in their names, unread."""
    found = {}
    prefix = page.file_prefix(run)
    for path in _own_paths(directory, run):
        rank, _, rest = os.path.basename(path)[len(prefix) : -len(page.SUFFIX)].partition(".")
        attempt = rest.partition(page.ALIAS)[0]
        is_number = all(text.isascii() and text.isdigit() for text in (rank, attempt))
        if is_number and int(attempt[:9]) < page.ATTEMPT_MAX:
            found[int(rank[:19]), int(attempt[:9])] = path
    return found


def _own_paths(directory: str, run: str | None) -> Iterator[str]:
    prefix, user = "" if run is None else page.file_prefix(run), os.geteuid()
    for name in os.listdir(directory):
        if name.startswith(prefix) and name.endswith(page.SUFFIX) and not name.startswith("."):
            path = os.path.join(directory, name)
            if page.is_of_user(path, user):
                yield path


def _page(path: str) -> Page | None:
    from goodput.rank_page.page_file import PageFile  # Here, since most processes find no page.

    try:
        with PageFile(path) as file:
            if file.owner == os.geteuid():
                return Page(path, page.is_locked(path), file.identity, file.ended())
    except (page.PageError, OSError) as error:
        reraise_from_handler(error)
    return None


def _names(identity: dict, run: str, rank: int, attempt: int) -> bool:
    return (identity["run"], identity["rank"], identity["attempt"]) == (run, rank, attempt)
