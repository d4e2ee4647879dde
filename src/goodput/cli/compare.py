"""`goodput compare`: did a change make steps faster, by how much, in which states, and how sure is that."""

from __future__ import annotations

import argparse
import math
import re
import sys

from goodput.cli import fail
from goodput.cli.replay import progress_bar

HELP = "compare the steps of two runs, with confidence intervals"
DESCRIPTION = """Compare the steps of runs: their length and the time in each state, with 95 % confidence
intervals that hold for steps that are alike in a row. The states' changes add up to the step's.
A step lasts from the end of the one before to its own. The first step of each attempt and a
warm-up are left out; where a run changes its pace is said. Runs are run logs (`goodput export`)."""
EPILOG = """examples:
  goodput compare before.jsonl after.jsonl --fail-if-slower 2%
  goodput compare a1.jsonl a2.jsonl --to b1.jsonl b2.jsonl --markdown

exit status: 0, 1 if the new runs are slower than allowed or a log cannot be used, 2 for a wrong call or runs
that are not comparable"""


def add_options(parser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="FILE[#RUN]",
        help="the base and the new run; with --to, all runs of the base",
    )
    add("--to", nargs="+", metavar="FILE[#RUN]", help="the new runs")
    add("--per", choices=("step", "sample"), default="step",
        help="compare the time of a step or, where batches differ, of a sample (default: %(default)s)")  # fmt: skip
    add("--any-size", action="store_true", help="compare steps of runs of different numbers of ranks")
    add("--any-device", action="store_true", help="compare runs on different devices")
    add("--fail-if-slower", metavar="SHARE", type=share,
        help="exit with 1 if steps are slower by more than this, such as 2%%, and not by chance")  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the comparison as JSON")
    form.add_argument("--markdown", action="store_true", help="print a table for a pull request")


def share(text: str) -> float:
    """An argparse type: "2%" or "0.02"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text, re.ASCII)
    value = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share such as 2% or 0.02")
    return value


def call(arguments) -> int:
    base, new = (arguments.runs, arguments.to) if arguments.to else (arguments.runs[:1], arguments.runs[1:])
    if not arguments.to and len(arguments.runs) != 2:
        return fail(
            "compare", "two runs are compared, or several with --to: goodput compare A1 A2 --to B1 B2", 2
        )
    try:
        from goodput.compare import comparison, steps, text
    except ModuleNotFoundError as error:
        return fail("compare", f"{error.name} is missing: pip install 'goodput-telemetry[compare]'")
    import msgspec

    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    count, allowed = (
        len(base) + len(new),
        {"any_size": arguments.any_size, "any_device": arguments.any_device},
    )
    try:
        with progress_bar() as progress:
            read = [
                steps.read(*_file_and_run(one), progress=lambda at, n=n: progress((n + at) / count))
                for n, one in enumerate([*base, *new])
            ]
        found = comparison.compare(read[: len(base)], read[len(base) :], per=arguments.per, **allowed)
    except LogError as error:
        return fail("compare", clean_text(error, 500))
    except comparison.NotComparable as error:
        return fail("compare", clean_text(error, 500), 2)
    if arguments.json:
        print(msgspec.json.encode(found).decode())
    else:
        shown = text.markdown(found) if arguments.markdown else text.render(found)
        print("\n".join(clean_text(line, 300) for line in shown.split("\n")))
    return _status(found.step, arguments.fail_if_slower)


def _file_and_run(text: str) -> tuple[str, str | None]:
    file, _, run = text.partition("#")
    return file, run or None


def _status(step, allowed: float | None) -> int:
    if allowed is None or step.share <= allowed or step.share_low <= 0:
        return 0
    print(
        f"goodput compare: slower by {100 * step.share:.1f} %, allowed are {100 * allowed:g} %",
        file=sys.stderr,
    )
    return 1
