"""Finds live rank pages in folders where any user may write, beside the private folder that a reader uses.

A training that was started without its user's $GOODPUT_DIR writes into a shared folder, where nobody looks for it.

    for text in pages_beside(["/home/me/pages"], user=os.geteuid()): print(text)
"""

from __future__ import annotations

import os
import stat

from goodput.rank_page import page

# Of one folder; more are left aside.
PAGES_MAX = 1024


def pages_beside(used: list[str], user: int | None, environ=os.environ) -> list[str]:
    """One message for each shared default folder with live pages, of this user alone if one is given, of all otherwise.

    Empty where no folder in `used` is private: whoever reads a shared folder knows that others write there.
    """
    private = [folder for folder in used if os.path.isdir(folder) and not _is_shared(folder)]
    if not private:
        return []
    read = {os.path.realpath(folder) for folder in used}
    messages = []
    for folder in page.default_directories(environ):
        count = _live_pages(folder, user) if _is_shared(folder) else 0
        if count:
            which = f"{count} live rank page{'s' * (count > 1)}{' of yours' if user is not None else ''}"
            how = (
                f"read beside {' and '.join(private)}"
                if os.path.realpath(folder) in read
                else f"not read: {' and '.join(used)} is. --directory {folder} reads that folder"
            )
            messages.append(f"{which} in {folder}, where any user may write: {how}")
    return messages


def _is_shared(folder: str) -> bool:
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _live_pages(folder: str, user: int | None) -> int:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(page.SUFFIX) and name[0] != "."]
    except OSError:
        return 0
    paths = [os.path.join(folder, name) for name in names[:PAGES_MAX]]
    return sum((user is None or page.is_of_user(path, user)) and page.is_locked(path) for path in paths)
