"""`goodput export`: a run of the ledger as a run log, as a Perfetto trace, or its step times as hdrhistogram's log."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from goodput.cli import OldSpelling, fail, message
from goodput.cli.parsing.progress_line import ProgressLine
from goodput.cli.run_logs.lookup import in_ledger, is_file, logs_of

DEFAULT_LEDGER = "goodput-ledger.db"
DESCRIPTION = """Write a run as a run log: one JSON object per line. `goodput replay` computes its account from it.
The run is one of the ledger that --ledger names, while the aggregator may run, else a kept one (`goodput
runs`), one with pages on this machine, or one of the ledger goodput-ledger.db in this folder.
With --hdr, write histograms of step and phase times by minute in hdrhistogram's log format instead.
With --perfetto, write one timeline of all ranks for https://ui.perfetto.dev: steps and their phases,
restarts, stalls, hangs, checkpoints. Ranks are aligned through the steps that they make together,
whatever their clocks; how well is printed."""
EPILOG = """examples: goodput export my-run --output my-run.jsonl.gz
          goodput export my-run --hdr my-run.hlog
          goodput export my-run --perfetto my-run.pftrace
          goodput export my-run.jsonl.gz --perfetto my-run.pftrace.gz"""


def add_options(parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="the run's name, or with --perfetto a run log FILE[#RUN] (default: list the names)",
    )
    parser.add_argument("--ledger", metavar="URL",
        help="look for the run in this ledger first: its SQLAlchemy URL")  # fmt: skip
    add = parser.add_mutually_exclusive_group().add_argument
    add("--output", metavar="FILE",
        help="run log to write, compressed if it ends in .gz (default: standard output)")  # fmt: skip
    add("--hdr", metavar="FILE", help="histogram log to write, one tag for steps and for each phase")
    add("--perfetto", metavar="FILE", help="trace to write, compressed if it ends in .gz")
    parser.add_argument("--log", action=OldSpelling, new="RUN, as FILE[#RUN]")


def call(arguments) -> int:
    run = arguments.run
    is_trace_of_log = arguments.perfetto is not None and arguments.ledger is None and arguments.log is None
    if run is not None and is_trace_of_log and is_file(run):
        file, _, name = (run, "", "") if os.path.exists(run) else run.partition("#")
        arguments.log, arguments.run = file, name or None
    if arguments.log is not None:
        return _export_log(arguments)
    from goodput.runlog import LogError

    ledger, is_there = arguments.ledger, os.path.exists(DEFAULT_LEDGER)
    if ledger is None and is_there and (arguments.run is None or not _is_elsewhere(arguments.run)):
        ledger = f"sqlite:///{os.path.abspath(DEFAULT_LEDGER)}"
    try:
        if arguments.run is None:
            return _list(ledger)
        if ledger is not None:
            _say_thinned(ledger, arguments.run)
        with logs_of([arguments.run], ledger) as logs:
            log = logs[arguments.run]
            if log.note:
                message("export", f"run {arguments.run}: {log.note}")
            _export(log.path, arguments)
    except (LogError, ImportError) as error:
        return fail("export", error)
    except BrokenPipeError:
        raise
    except OSError as error:
        to = arguments.perfetto or arguments.hdr or arguments.output or "standard output"
        return fail("export", f"{to}: {error.strerror}")
    return 0


def _is_elsewhere(run: str) -> bool:
    """Whether the run is kept or has pages, so that the ledger in this folder, which nobody named, is not needed."""
    from goodput.kept_runs.find import kept_parts, page_paths_of

    return bool(kept_parts(run) or page_paths_of(run))


def _list(ledger: str | None) -> int:
    """Print the names of a ledger's runs, or of the kept ones. Raises LogError."""
    from goodput.kept_runs.find import kept_parts
    from goodput.wire.identity import clean_text

    if ledger is None:
        names = list(dict.fromkeys(one.run for one in kept_parts()))
    else:
        with in_ledger(ledger, []) as (_, names):
            pass
    if not names:
        where = "the ledger" if ledger is not None else "the kept runs; name a ledger with --ledger"
        return fail("export", f"there is no run in {where}")
    print("\n".join(clean_text(name, 128) for name in names))
    return 0


def _say_thinned(url: str, run: str) -> None:
    """Raises LogError."""
    from goodput.aggregator.ledger.closed_runs import thinned_seconds
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError
    from goodput.runlog import LogError

    try:
        ledger = Ledger(url, create=False)
        try:
            seconds = thinned_seconds(ledger, run) if run in ledger.runs() else 0
        finally:
            ledger.close()
    except LedgerError as error:
        raise LogError(f"{error}; name one with --ledger") from None
    if seconds:
        message(
            "export", f"old steps of this run were thinned to one row per {seconds} s: its log is less exact"
        )


def _export(log: str, arguments) -> None:
    """Write what is wanted of a run log."""
    from goodput.runlog.log_file import LogFile

    if arguments.perfetto is not None:
        _write_trace(log, arguments.run, arguments.perfetto)
        return
    with LogFile(log) as file:
        lines = _lines_with_progress(file, arguments.output or arguments.hdr)
        if arguments.hdr is not None:
            from goodput.histograms.hdr_log import write_log
            from goodput.runlog.step_histograms import step_histograms

            with _replacing(arguments.hdr) as part, open(part, "w", encoding="utf-8") as hdr:
                write_log(hdr, step_histograms(lines))
        elif arguments.output is None:
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        else:
            packed = arguments.output.endswith(".gz")
            with _replacing(arguments.output) as part, (gzip.open if packed else open)(part, "wb") as output:
                output.writelines(lines)


def _lines_with_progress(file, path: str | None) -> Iterator[bytes]:
    """The lines of a log; what is written to a file shows how far it is."""
    from goodput.runlog.log_file import lines_of

    with ProgressLine("exporting") as progress:
        for _, block in file.blocks():
            yield from lines_of(block)
            if path is not None and file.size:
                progress(file.position, file.size)


def _export_log(arguments) -> int:
    """The trace of a run log."""
    from goodput.runlog import LogError

    if arguments.perfetto is None or arguments.ledger is not None:
        return fail("export", "--log goes with --perfetto and without --ledger", 2)
    try:
        return _write_trace(arguments.log, arguments.run, arguments.perfetto)
    except LogError as error:
        return fail("export", error)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("export", f"{arguments.perfetto}: {error.strerror}")


def _write_trace(log: str, run: str | None, path: str) -> int:
    """Write the trace and print problems of the log and what was aligned how well; returns the status. Raises LogError."""
    from goodput.cli.run_logs.output import is_incomplete, problem_lines
    from goodput.perfetto.timeline import write_trace
    from goodput.runlog import LogError, replay
    from goodput.wire.identity import clean_text

    if log == "-":
        raise LogError("a trace needs a log that can be read several times, which standard input cannot")
    with ProgressLine("reading") as progress:
        replayed = replay(log, progress=lambda at: progress(at / 2))
        names = [one.account.run for one in replayed]
        if run is None and len(names) > 1:
            shown = ", ".join(clean_text(name, 128) for name in names[:10])
            raise LogError(f"{log}: {len(names)} runs; name one of {shown}")
        chosen = next((one for one in replayed if run in (None, one.account.run)), None)
        if chosen is None:
            raise LogError(
                f"{log}: no run {clean_text(run or '', 128)!r}; it has {clean_text(names[0], 128)!r}"
            )
        with _replacing(path) as part, (gzip.open if path.endswith(".gz") else open)(part, "wb") as file:
            found = write_trace(file, log, chosen, lambda at: progress(0.5 + at / 2))
    for line in problem_lines(chosen.problems):
        message("export", clean_text(line, 300))
    message("export", _alignment_text(found))
    return int(is_incomplete(chosen.problems))


def _alignment_text(found) -> str:
    """How many ranks are aligned, and what is left."""
    from goodput.account.text import duration_ns

    ranks = f"{found.steps:,} steps of {found.ranks} rank{'s' * (found.ranks != 1)}"
    if not found.aligned:
        return f"{ranks}, each on its own clock: no ranks make steps together"
    low, high = (
        f"{'-' if ns < 0 else '+'}{duration_ns(abs(ns))}"
        for ns in (found.offset_low_ns, found.offset_high_ns)
    )
    alone = f"; {found.alone} keep their own clock" if found.alone else ""
    return (
        f"{ranks}; clocks {low} to {high} off are aligned, leaving "
        f"{duration_ns(found.residual.p50_ns)} (p95 {duration_ns(found.residual.p95_ns)}){alone}"
    )


@contextmanager
def _replacing(path: str):
    """A temporary path that replaces `path` on success and is removed on an error; what is no file, such as /dev/null or a
    pipe, is written to instead."""
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    part = f"{path}.part"
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
