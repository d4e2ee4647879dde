"""`goodput report`: the account of the runs whose rank pages lie on this machine."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "report",
        help="print the account of the runs on this machine",
        description="Read the rank pages on this machine and print the account of each run.\n"
        "Needs no agent and no aggregator; the last 1024 steps of a rank are told apart.",
        epilog="example: goodput report --run my-run --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", help="where the pages lie (default: $GOODPUT_DIR or /dev/shm/goodput)")
    parser.add_argument("--run", help="this run alone")
    parser.add_argument(
        "--stall",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="least length of a stall (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print account documents, one per line")
    parser.set_defaults(call=call)


def call(arguments) -> int:
    from goodput.account import compute, document
    from goodput.account.text import render
    from goodput.causes import explain
    from goodput.identity import clean_text
    from goodput.local import runs_in
    from goodput.page import default_directory

    if not 0 < arguments.stall < math.inf:
        print(
            f"goodput report: --stall {arguments.stall}: want a positive number of seconds", file=sys.stderr
        )
        return 2
    directory = arguments.directory or default_directory()
    try:
        runs, errors = runs_in(directory, time.perf_counter_ns())
    except OSError as error:
        print(f"goodput report: {directory}: {error.strerror}", file=sys.stderr)
        return 1
    for text in errors:
        # A file's name may hold anything, also what a terminal obeys.
        print(f"goodput report: skipped {clean_text(text, 500)}", file=sys.stderr)
    chosen = [run for run in runs if arguments.run in (None, run.name)]
    for run in chosen:
        account = compute(run, time.time_ns(), stall_seconds=arguments.stall)
        found = document(account, explain(account))
        print(json.dumps(found) if arguments.json else render(found) + "\n")
    if not chosen:
        print(
            f"goodput report: no run {arguments.run or ''} in {directory}".replace("  ", " "), file=sys.stderr
        )
    return 0 if chosen else 1
