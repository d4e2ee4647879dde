"""`goodput analyze`: where the time of traced steps went."""

from __future__ import annotations

import json
import os

from goodput.cli import has_colour, message

DESCRIPTION = """Read traces of torch.profiler (Kineto; JSON or gzip), one file per rank, and split the time of
each step on each device into computing, exposed communication, exposed copies, loader, host and idle.
docs/analyze.md explains them. A file that cannot be read is reported on standard error with the place and
the reason; the others are still used, and so is what can be read of a broken one; the exit status is 1.
With --flight, read dumps of PyTorch's Flight Recorder instead: what is wrong with the collectives of a
hang, and what each operation cost. With --ras, ask NCCL's RAS in a running job, twice in 5 s: which ranks
are missing, have failed or are behind."""
EPILOG = """example: goodput analyze rank0.json.gz rank1.json.gz --json
         goodput analyze --flight /tmp/dumps
         goodput analyze --ras localhost:28028"""

LARGE_BYTES = 16 << 20
PROBLEMS_SHOWN = 10


def add_options(parser) -> None:
    parser.add_argument("traces", metavar="TRACE", nargs="*", help="a trace: .json or .json.gz")
    parser.add_argument(
        "--flight",
        metavar="DIR",
        help="a folder of Flight Recorder dumps, one file a rank, or of the sockets of workers that still answer",
    )
    parser.add_argument(
        "--ras", metavar="HOST:PORT", help="where NCCL's RAS of a job listens, or a file with its JSON"
    )
    parser.add_argument("--json", action="store_true", help="print one document, with every step")


def call(arguments) -> int:
    from goodput.trace import TraceError, analyze_one, combine
    from goodput.trace.text import clean, render

    if sum((bool(arguments.traces), arguments.flight is not None, arguments.ras is not None)) != 1:
        message("analyze", "give either traces, --flight DIR or --ras HOST:PORT")
        raise SystemExit(2)
    if arguments.flight is not None:
        return _flight(arguments)
    if arguments.ras is not None:
        return _ras(arguments)
    ranks, errors = [], []
    for order, path in enumerate(arguments.traces):
        try:
            found = _read(analyze_one, path, order)
        except TraceError as error:
            errors.append(clean(str(error))[:500])
            message("analyze", errors[-1])
            continue
        ranks.append(found)
        found["losses"] = [clean(loss)[:500] for loss in found["losses"]]
        for loss in found["losses"]:
            message("analyze", loss)
        for line in _problem_lines(found):
            message("analyze", clean(line)[:300])
    if not ranks and not arguments.json:
        return 1
    document = combine(ranks, errors)
    if arguments.json:
        print(json.dumps(document))
    else:
        print(render(document, colour=has_colour()))
    return 1 if document["errors"] else 0


def _flight(arguments) -> int:
    """Dumps of the Flight Recorder."""
    from goodput.trace import TraceError
    from goodput.trace.hangs.flight import analyze_flight
    from goodput.trace.hangs.flight_text import render
    from goodput.trace.text import clean

    try:
        document = analyze_flight(arguments.flight)
    except TraceError as error:
        message("analyze", clean(str(error))[:500])
        return 1
    for error in document["errors"]:
        message("analyze", clean(error)[:500])
    print(json.dumps(document) if arguments.json else render(document))
    return 1 if document["errors"] else 0


def _ras(arguments) -> int:
    """What NCCL's RAS knows of a job."""
    from goodput.trace import TraceError
    from goodput.trace.hangs.ras import analyze_ras, render
    from goodput.trace.text import clean

    try:
        document = analyze_ras(arguments.ras)
    except TraceError as error:
        message("analyze", clean(str(error))[:500])
        return 1
    print(json.dumps(document) if arguments.json else render(document))
    return 0


def _read(analyze_one, path: str, order: int) -> dict:
    """Analyze a file, with a progress bar on a terminal if it is large."""
    from goodput.cli.parsing.progress_line import ProgressLine

    try:
        large = os.path.getsize(path) >= LARGE_BYTES
    except OSError:
        large = False
    if not large:
        return analyze_one(path, order)
    with ProgressLine("reading") as progress:
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
