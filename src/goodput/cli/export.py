"""`goodput export`: a run of the ledger as a run log."""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a run of the ledger as a run log",
        description="Write what the ledger has of a run as a run log: one JSON object per line.\n"
        "`goodput replay` of it gives the account that the aggregator gives. The aggregator may go on meanwhile.",
        epilog="example: goodput export my-run --output my-run.jsonl.gz",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the run's name; left out, the names are listed"
    )
    parser.add_argument(
        "--ledger", metavar="URL", help="SQLAlchemy URL (default: sqlite, goodput-ledger.db in this folder)"
    )
    parser.add_argument("--output", metavar="FILE", help="default: standard output; packed if it ends in .gz")
    parser.set_defaults(call=call)


def call(arguments) -> int:
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError
    from goodput.runlog.export import export
    from goodput.wire.identity import clean_text

    try:
        url = arguments.ledger or f"sqlite:///{os.path.abspath('goodput-ledger.db')}"
        ledger = Ledger(url, create=False)
    except LedgerError as error:
        print(f"goodput export: {error}; name one with --ledger", file=sys.stderr)
        return 1
    try:
        names = ledger.runs()
        if arguments.run is None:
            print("\n".join(clean_text(name, 128) for name in names))
            return 0
        if arguments.run not in names:
            there = ", ".join(clean_text(name, 128) for name in names[-10:]) or "none"
            print(
                f"goodput export: no run {clean_text(arguments.run, 128)!r}; there is {there}",
                file=sys.stderr,
            )
            return 1
        _write(export(ledger, arguments.run, time.time_ns()), arguments.output)
    except LedgerError as error:
        print(f"goodput export: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"goodput export: {arguments.output}: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        ledger.close()
    return 0


def _write(lines, output: str | None) -> None:
    """All lines to the file, which is there only when it is whole."""
    if output is None:
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    part = f"{output}.part"
    try:
        with gzip.open(part, "wb") if output.endswith(".gz") else open(part, "wb") as file:
            for line in lines:
                file.write(line)
        os.replace(part, output)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
