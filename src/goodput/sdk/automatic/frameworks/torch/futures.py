"""Follows Works to their futures, and to whoever polls them, so that what was completed there is not recorded as open.

A wait for a future of a Work, or for one that follows it by `then`, is `communication` and ends the record, as `Work.wait`
does; so does a Work or a future that is found to be complete. What waits elsewhere is not seen: callbacks, futures that
torch.futures collects. Its record has the flag `future`, and no verdict on a hang takes it for open.
"""

from __future__ import annotations

from goodput.rank_page.collective_records import FLAG
from goodput.sdk.automatic.frameworks.torch.communication import timer
from goodput.user_exceptions import drop_own_frames

MODULE = "torch"
RELIES_ON = """torch/csrc/distributed/c10d/init.cpp: the class Work with get_future and is_completed; torch/csrc/jit/python/init.cpp:
the class torch._C.Future with wait, then and done; torch/futures/__init__.py: Future calls them by super()."""


def apply(torch, auto) -> None:
    records = auto.records
    if records is None:
        return
    work, future = torch.distributed.distributed_c10d.Work, torch._C.Future
    wait, timed = future.wait, timer(torch, auto)
    waited = timed(records.wrap(wait, "", flags=FLAG["future"]), traced=wait)

    @auto.patches.wrap("wait", future)
    def _wait(self, *args, **kwargs):
        try:
            # Futures of other things, such as remote calls, are left alone.
            return (waited if records.awaits(self) else wait)(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise

    def pass_on(of, found, flags: int) -> None:
        records.passed_on(of, found, flags)

    def complete(of, found, flags: int) -> None:
        if found:
            records.completed(of, flags)

    _note(auto, work, "get_future", pass_on, 0)
    _note(auto, future, "then", pass_on, FLAG["future"])
    _note(auto, work, "is_completed", complete, 0)
    _note(auto, future, "done", complete, FLAG["future"])


def _note(auto, owner, name: str, noted, flags: int) -> None:
    """Call `noted(self, what the method returned, flags)` after each call of a method."""
    method = getattr(owner, name)

    @auto.patches.wrap(name, owner)
    def call(self, *args, **kwargs):
        try:
            found = method(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        noted(self, found, flags)
        return found
