"""`goodput.report()`: the account of this process's own page. The account is imported on the first call only."""

from __future__ import annotations

from _thread import get_ident

from goodput.user_exceptions import reraise_from_handler

TYPE_CHECKING = False  # See recorder/plain.py.
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Report:
    """The account of this process. `account` is {} where nothing is measured."""

    def __init__(self, account: Mapping[str, Any], notes: list[str]):
        self.account, self.notes = account, notes

    def __str__(self) -> str:
        if not self.account:
            return "\n".join(["goodput: nothing is measured in this process", *self.notes])
        return self._text(full=False)

    __repr__ = __str__

    @property
    def full(self) -> str:
        """All that is known of this process as text."""
        return self._text(full=True) if self.account else str(self)

    def _text(self, full: bool) -> str:
        from goodput.account.text import render

        return "\n".join([render(self.account, full=full, more="goodput.report().full"), *self.notes])

    def _repr_html_(self) -> str | None:
        """For notebooks; None, which shows the text instead, where it fails."""
        try:
            from goodput.sdk.reports.notebook_html import report_html

            return report_html(self.account, self.notes)
        except Exception as error:
            reraise_from_handler(error)
            return None


def report(session) -> Report:
    """The report of a session; never raises."""
    try:
        if session.writer is None:
            return Report({}, [])
        return _report(session)
    except Exception as error:
        reraise_from_handler(error)
        return Report({}, [f"goodput: no report: {type(error).__name__}: {error}"])


def _report(session) -> Report:
    import time

    now_ns = time.perf_counter_ns()  # Before the imports, which are not training time.
    from goodput.account import Run, compute, document
    from goodput.causes import explain
    from goodput.rank_page.reader import Reader
    from goodput.sdk.reports.local_accounts import (
        attempt_of,
        collectives_of,
        is_without_gpu,
        own_plugin,
    )

    if session.recorder.thread == get_ident():  # Other threads' records wait for its next step.
        session.recorder.drain_background()
        if session.automatic is not None:
            session.automatic.count_all()  # as of now, which the page has every few steps
    # The descriptor is the writer's own: opening and closing the file again would drop the owner's lock.
    reader = Reader(session.writer.path or "this process's page", session.writer.fd)
    snapshot = reader.snapshot()
    attempt = attempt_of(snapshot, now_ns, alive=not snapshot.ended)
    attempt.collectives = collectives_of(reader, own_plugin())
    run = Run(
        snapshot.identity["run"],
        {(attempt.rank, attempt.attempt): attempt},
        only_ranks=(attempt.rank,),
        is_without_gpu=is_without_gpu(),
        is_of_pages=True,
    )
    account = compute(run, snapshot.unix_ns(now_ns))
    notes = [*_deep_look(session), *_notes(snapshot)]
    return Report(document(account, explain(account)), notes)


def _deep_look(session) -> list[str]:
    deep = getattr(session.automatic, "deep_look", None)
    if deep is None or not deep.has_begun():
        return []
    import time

    from goodput.sdk.reports.deep_look_text import deep_look_lines

    if session.recorder.thread == get_ident():
        deep.collect()
    return ["", *deep_look_lines(deep.document(), time.time_ns())]


def _notes(snapshot) -> list[str]:
    spent = max(snapshot.last_ns - snapshot.identity["start_mono_ns"], 1)
    share = 100 * snapshot.cost_ns / spent
    notes = [f"  goodput itself cost {snapshot.cost_ns / 1e9:.4f} s ({share:.3f} % of all time)"]
    sampling = snapshot.sampling
    if sampling.get("unmeasured_steps"):
        notes[0] += (
            f"; {sampling['unmeasured_steps']} steps were timed without phases, which would have cost more than "
            f"{sampling['budget_ppm'] / 1e4:g} % of step time (GOODPUT_BUDGET)"
        )
    if sampling.get("skipped_steps") or sampling.get("compilations"):
        notes.append(
            f"  {sampling['skipped_steps']} steps skipped by mixed precision, "
            f"{sampling['compilations']} compilations"
        )
    if snapshot.steps_done and sampling.get("micro_batches", 0) > 1.5 * snapshot.steps_done:
        notes.append(f"  {sampling['micro_batches'] / snapshot.steps_done:.3g} backward passes a step")
    dropped = {what: count for what, count in snapshot.drops.items() if count}
    if dropped:
        notes.append("  dropped: " + ", ".join(f"{count} {what}" for what, count in dropped.items()))
    return notes
