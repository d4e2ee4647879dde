"""Stacks of ranks on this machine, taken by py-spy on request, as the node agent takes those of hanging ranks."""

from __future__ import annotations

from collections.abc import Callable

from goodput.rank_page.page import PageError
from goodput.rank_page.page_file import PageFile
from goodput.stack_samples.py_spy import NOT_PERMITTED, may_read
from goodput.top.pages import PageSource
from goodput.wire import schema
from goodput_exporters.push.stacks import Stacks

AGAIN_SECONDS = 2.0


class StackTaker:
    """`source` has the pages; None where the ranks are on other machines. A dump takes about 0.3 s, in a thread."""

    def __init__(self, source: PageSource | None, changed: Callable[[], None] = lambda: None):
        self._source, self._changed = source, changed
        self._texts: dict[tuple[str, int], str] = {}
        self._asked: dict[schema.StackRequest, tuple[str, int]] = {}
        self._stacks = Stacks(lambda _: True, refusal=self._refusal, again_seconds=AGAIN_SECONDS)
        self._paths: dict[schema.StackRequest, str] = {}

    def take(self, run: str, rank: int | None) -> None:
        """Take the stack of a rank; `text` has it some tenths of a second later."""
        if rank is None or self._source is None:
            return
        found = self._source.local.pages.get((run, rank))
        if found is None or not found.attempt.alive:
            self._texts[run, rank] = "the process is gone"
            return
        attempt = found.attempt
        if not may_read(found.pid):
            self._texts[run, rank] = NOT_PERMITTED
            return
        process = schema.StackRequest(run, rank, attempt.host, found.pid, attempt.start_ns)
        self._texts[run, rank] = "py-spy takes the stack ..."
        self._asked[process], self._paths[process] = (run, rank), found.path
        self._stacks.request([process])

    def text(self, run: str, rank: int) -> str | None:
        """The newest stack of a rank, or why there is none; None where none was requested."""
        pending = self._stacks.pending()
        for stack in pending:
            if stack.of in self._asked:
                self._texts[self._asked[stack.of]] = stack.text
        self._stacks.acknowledge(pending)
        return self._texts.get((run, rank))

    def stop(self) -> None:
        self._stacks.stop()

    def _refusal(self, process: schema.StackRequest) -> str:
        """Why a process is not that of its page."""
        try:
            with PageFile(self._paths[process]) as page:
                return page.process_problem(process.pid)
        except PageError as error:
            return str(error)
