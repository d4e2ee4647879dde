"""`goodput analyze`: where the time of traced steps went."""

from __future__ import annotations

import json
import os
import sys

from goodput.cli import message

HELP = "show where the time of traced steps went"
DESCRIPTION = """Read traces of torch.profiler (Kineto; JSON or gzip), one file per rank, and split the time of
each step on each device into computing, exposed communication, exposed copies, loader, host and idle.
docs/analyze.md explains them. A file that cannot be read is reported on standard error with the place and
the reason; the others are still used, and the exit status is 1."""
EPILOG = "example: goodput analyze rank0.json.gz rank1.json.gz --json"

LARGE_BYTES = 16 << 20
PROBLEMS_SHOWN = 10


def add_options(parser) -> None:
    parser.add_argument("traces", metavar="TRACE", nargs="+", help="a trace: .json or .json.gz")
    parser.add_argument("--json", action="store_true", help="print one document, with every step")


def call(arguments) -> int:
    from goodput.trace import TraceError, analyze_one, combine
    from goodput.trace.text import clean, render

    ranks, errors = [], []
    for order, path in enumerate(arguments.traces):
        try:
            found = _read(analyze_one, path, order)
        except TraceError as error:
            errors.append(clean(str(error))[:500])
            message("analyze", errors[-1])
            continue
        ranks.append(found)
        for line in _problem_lines(found):
            message("analyze", clean(line)[:300])
    if not ranks and not arguments.json:
        return 1
    document = combine(ranks, errors)
    if arguments.json:
        print(json.dumps(document))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(render(document, colour=colour))
    return 1 if errors else 0


def _read(analyze_one, path: str, order: int) -> dict:
    """Analyze a file, with a progress bar on a terminal if it is large."""
    from goodput.cli.replay import progress_bar

    try:
        large = os.path.getsize(path) >= LARGE_BYTES
    except OSError:
        large = False
    if not large:
        return analyze_one(path, order)
    with progress_bar() as progress:
        return analyze_one(path, order, progress)


def _problem_lines(rank: dict) -> list[str]:
    """Messages about the events that were left out."""
    lines = [
        f"{rank['file']}: {one['count']} event{'s' * (one['count'] != 1)} left out: {one['what']}"
        f" (the first is number {one['first_event']})"
        for one in rank["problems"][:PROBLEMS_SHOWN]
    ]
    if len(rank["problems"]) > PROBLEMS_SHOWN:
        lines.append(f"{rank['file']}: … and for {len(rank['problems']) - PROBLEMS_SHOWN} more reasons")
    return lines
