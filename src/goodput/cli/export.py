"""`goodput export`: a run of the ledger as a run log, or its step times as hdrhistogram's log."""

from __future__ import annotations

import gzip
import os
import sys
import time
from contextlib import contextmanager

from goodput.cli import fail, message

HELP = "write a run from the ledger as a run log, or its step times as histograms"
DESCRIPTION = """Write a run from the ledger as a run log: one JSON object per line. `goodput replay` computes the
aggregator's account from it. The aggregator may run meanwhile.
With --hdr, write histograms of step and phase times by minute in hdrhistogram's log format instead."""
EPILOG = """examples: goodput export my-run --output my-run.jsonl.gz
          goodput export my-run --hdr my-run.hlog"""


def add_options(parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="name of the run (default: list the names)")
    parser.add_argument("--ledger", metavar="URL",
        help="SQLAlchemy URL (default: SQLite file goodput-ledger.db in this folder)")  # fmt: skip
    add = parser.add_mutually_exclusive_group().add_argument
    add("--output", metavar="FILE",
        help="run log to write, compressed if it ends in .gz (default: standard output)")  # fmt: skip
    add("--hdr", metavar="FILE", help="histogram log to write, one tag for steps and for each phase")


def call(arguments) -> int:
    from goodput.aggregator.ledger.closed_runs import thinned_seconds
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError
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
                "export", f"steps of this run were thinned to one row per {seconds} s: its log is less exact"
            )
        _export(ledger, arguments)
    except (LedgerError, ImportError) as error:
        return fail("export", error)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("export", f"{arguments.hdr or arguments.output}: {error.strerror}")
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
    elif arguments.output is None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
    else:
        packed = arguments.output.endswith(".gz")
        with _replacing(arguments.output) as part, (gzip.open if packed else open)(part, "wb") as file:
            file.writelines(lines)


@contextmanager
def _replacing(path: str):
    """A temporary path that replaces `path` on success and is removed on an error."""
    part = f"{path}.part"
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
