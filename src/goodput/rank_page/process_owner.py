"""Whether a process is the one that a page names: its start time and all of its users must be those of the page.

Any user may write a page with another user's pid. Two reads of some 20 us each.
"""

from __future__ import annotations

import os

from goodput.rank_page.page import PROCESS_BYTES_MAX, open_now, process_start_ticks

ENDED = "the process has ended"


def process_users(pid: int, procfs: str = "/proc") -> frozenset[int]:
    """The user ids of a process: effective, real, saved and of file access; empty where it is gone or hidden."""
    users = set()
    try:
        # Always the effective user's, also of a process that is not dumpable.
        users.add(os.stat(f"{procfs}/{pid}").st_uid)
        with open(f"{procfs}/{pid}/status", "rb", opener=open_now) as file:
            for line in file.read(PROCESS_BYTES_MAX).splitlines():
                if line.startswith(b"Uid:"):
                    users.update(map(int, line.split()[1:5]))
    except (OSError, ValueError):
        pass
    return frozenset(users)


def owner_problem(owner: int, pid: int, start_ticks: int | None, procfs: str = "/proc") -> str:
    """Why a process is not that of a page with this owner and start time, "" if it is."""
    users = process_users(pid, procfs)
    # Read last: so the users were those of the process with this start time, if the pid was reused in between.
    if start_ticks is None or process_start_ticks(pid, procfs) != start_ticks:
        return ENDED
    if users == {owner}:
        return ""
    others = ", ".join(str(user) for user in sorted(users - {owner}))
    return f"refused: its page belongs to user {owner}, its process {pid} to {others or 'an unknown user'}"
