"""`goodput export`: a run of the ledger as a run log, as a Perfetto trace, or its step times as hdrhistogram's log."""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import NamedTuple

from goodput.cli import fail, message

HELP = "write a run from the ledger as a run log, Perfetto trace, or histograms"
DESCRIPTION = """Write a run from the ledger as a run log: one JSON object per line. `goodput replay` computes the
aggregator's account from it. The aggregator may run meanwhile.
With --hdr, write histograms of step and phase times by minute in hdrhistogram's log format instead.
With --perfetto, write one timeline of all ranks for https://ui.perfetto.dev: steps and their phases,
restarts, stalls, hangs, checkpoints. Ranks are aligned through the steps that they make together,
whatever their clocks; how well is printed."""
EPILOG = """examples: goodput export my-run --output my-run.jsonl.gz
          goodput export my-run --hdr my-run.hlog
          goodput export my-run --perfetto my-run.pftrace
          goodput export --log my-run.jsonl.gz --perfetto my-run.pftrace.gz"""


def add_options(parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="name of the run (default: list the names)")
    parser.add_argument("--ledger", metavar="URL",
        help="SQLAlchemy URL (default: SQLite file goodput-ledger.db in this folder)")  # fmt: skip
    add = parser.add_mutually_exclusive_group().add_argument
    add("--output", metavar="FILE",
        help="run log to write, compressed if it ends in .gz (default: standard output)")  # fmt: skip
    add("--hdr", metavar="FILE", help="histogram log to write, one tag for steps and for each phase")
    add("--perfetto", metavar="FILE", help="trace to write, compressed if it ends in .gz")
    parser.add_argument("--log", metavar="FILE",
        help="with --perfetto: a run log to read instead of a ledger")  # fmt: skip


def call(arguments) -> int:
    if arguments.log is not None:
        return _export_log(arguments)
    from goodput.aggregator.ledger.closed_runs import thinned_seconds
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError
    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    try:
        url = arguments.ledger or f"sqlite:///{os.path.abspath('goodput-ledger.db')}"
        ledger = Ledger(url, create=False)
    except LedgerError as error:
        return fail("export", f"{error}; name one with --ledger")
    try:
        names = ledger.runs()
        if arguments.run is None:
            print("\n".join(clean_text(name, 128) for name in names))
            return 0
        if arguments.run not in names:
            known = ", ".join(clean_text(name, 128) for name in names[-10:]) or "none"
            return fail(
                "export", f"no run {clean_text(arguments.run, 128)!r}; the last in this ledger: {known}"
            )
        seconds = thinned_seconds(ledger, arguments.run)
        if seconds:
            message(
                "export",
                f"old steps of this run were thinned to one row per {seconds} s: its log is less exact",
            )
        _export(ledger, arguments)
    except (LedgerError, LogError, ImportError) as error:
        return fail("export", error)
    except BrokenPipeError:
        raise
    except OSError as error:
        to = arguments.perfetto or arguments.hdr or arguments.output or "standard output"
        return fail("export", f"{to}: {error.strerror}")
    finally:
        ledger.close()
    return 0


def _export(ledger, arguments) -> None:
    from goodput.runlog.export import export

    lines = export(ledger, arguments.run, time.time_ns())
    if arguments.hdr is not None:
        from goodput.histograms.hdr_log import write_log
        from goodput.runlog.step_histograms import step_histograms

        with _replacing(arguments.hdr) as part, open(part, "w", encoding="utf-8") as file:
            write_log(file, step_histograms(lines))
    elif arguments.perfetto is not None:
        # The log is read several times.
        folder = os.path.dirname(os.path.abspath(arguments.perfetto))
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".goodput-", suffix=".jsonl") as log:
            log.writelines(lines)
            log.flush()
            _write_trace(log.name, arguments.run, arguments.perfetto)
    elif arguments.output is None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
    else:
        packed = arguments.output.endswith(".gz")
        with _replacing(arguments.output) as part, (gzip.open if packed else open)(part, "wb") as file:
            file.writelines(lines)


class Exported(NamedTuple):
    path: str
    thinned_until_ns: dict[int, int]  # by rank, as closed_runs.thinned_until_ns has it


@contextmanager
def exported(url: str, names: list[str]):
    """Temporary run logs of these runs of a ledger, by name. Raises LedgerError and OSError."""
    from goodput.aggregator.ledger.closed_runs import thinned_until_ns
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError
    from goodput.runlog.export import export

    ledger = Ledger(url, create=False)
    try:
        known = ledger.runs()
        missing = [name for name in names if name not in known]
        if missing:
            raise LedgerError(
                f"no run {missing[0]!r}; the last in this ledger: {', '.join(known[-10:]) or 'none'}"
            )
        with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
            found = {}
            for at, name in enumerate(names):
                path = os.path.join(folder, f"{at}.jsonl")
                with open(path, "wb") as file:
                    file.writelines(export(ledger, name, time.time_ns()))
                # Afterwards: more may have been thinned meanwhile.
                found[name] = Exported(path, thinned_until_ns(ledger, name))
            yield found
    finally:
        ledger.close()


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
    from goodput.cli.replay import is_incomplete, problem_lines, progress_bar
    from goodput.perfetto.timeline import write_trace
    from goodput.runlog import LogError, replay
    from goodput.wire.identity import clean_text

    if log == "-":
        raise LogError("a trace needs a log that can be read several times, which standard input cannot")
    with progress_bar() as progress:
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
