"""`goodput compare`: did a change make steps faster, by how much, in which states, and how sure is that."""

from __future__ import annotations

import argparse
import math
import re
import sys

from goodput.cli import fail, message, os_error_text
from goodput.cli.parsing.progress_line import ProgressLine
from goodput.cli.run_logs.lookup import is_file, logs_of
from goodput.cli.run_logs.output import add_stall_option, is_incomplete, problem_lines

DESCRIPTION = """Compare the steps of runs: their length and the time in each state, with 95 % confidence
intervals that hold for steps that are alike in a row. The states' changes add up to the step's.
A step lasts from the end of the one before to its own. The first step of each attempt and a
warm-up are left out; where a run changes its pace is printed. Runs are kept ones (`goodput runs`), those
with pages on this machine, run logs, with --ledger those of a ledger, or windows of these: @START..END in
steps, in time since the run's start, or by the clock.
With --scaling, runs of different sizes: the work per second and GPU against the smallest size."""
EPILOG = """examples:
  goodput compare train-4711 train-4822
  goodput compare before.jsonl after.jsonl --fail-if-slower 2%
  goodput compare a1.jsonl a2.jsonl --to b1.jsonl b2.jsonl --markdown
  goodput compare run.jsonl@..5000 run.jsonl@5000..     steps of one run
  goodput compare run.jsonl@10m..1h run.jsonl@2026-01-31T14:00..2026-01-31T15:00
  goodput compare before after --ledger sqlite:////var/lib/goodput/ledger.db
  goodput compare 8.jsonl 16.jsonl 32.jsonl --scaling --html scaling.html

exit status: 0, 1 if the new runs are slower than allowed, or a log or over 1 % of its step lines
cannot be used, 2 for a wrong call or runs that are not comparable"""


def add_options(parser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="RUN[@START..END]",
        help="the base and the new run, by name or as FILE[#RUN]; with --to, all runs of the base; with --scaling, all "
        "runs",
    )
    add("--to", nargs="+", metavar="NEW", help="the new runs, given as those of the base are")
    add("--ledger", metavar="URL",
        help="look for runs in this ledger first, without exporting them before")  # fmt: skip
    add("--scaling", nargs="?", const="auto", choices=("auto", "strong", "weak"), metavar="KIND",
        help="how well runs of different sizes scale: strong (a step does the same work at every size), weak (a "
        "GPU's step does), by default as the samples say")  # fmt: skip
    add("--per", choices=("step", "sample"), default="step",
        help="compare the time of a step or, where batches differ, of a sample (default: %(default)s)")  # fmt: skip
    add("--any-size", action="store_true", help="compare steps of runs of different numbers of ranks")
    add("--any-device", action="store_true", help="compare runs on different devices")
    add("--fail-if-slower", metavar="SHARE", type=share,
        help="exit with 1 if steps are slower by more than this, such as 2%%, and not by chance")  # fmt: skip
    add_stall_option(add)
    add("--html", metavar="FILE", help="also write a page with pictures")
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
    problem = _wrong_call(arguments)
    if problem:
        return fail("compare", problem, 2)
    try:
        from goodput.compare import comparison, selection
    except ModuleNotFoundError as error:
        return fail("compare", f"{error.name} is missing: pip install 'goodput-telemetry[compare]'")
    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    try:
        return _scaling(arguments) if arguments.scaling else _comparison(arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("compare", clean_text(os_error_text(error), 500))
    except LogError as error:
        return fail("compare", clean_text(error, 500))
    except (comparison.NotComparable, selection.SelectionError) as error:
        return fail("compare", clean_text(error, 500), 2)


def _wrong_call(arguments) -> str:
    if arguments.scaling:
        if arguments.fail_if_slower is not None:
            return "--fail-if-slower compares two sides; it does not go with --scaling"
        if arguments.per == "sample" and arguments.scaling != "auto":
            return f"--per sample does not go with --scaling {arguments.scaling}: work is either samples or steps"
        if len([*arguments.runs, *(arguments.to or [])]) < 2:
            return "--scaling needs runs of at least two sizes"
    elif not arguments.to and len(arguments.runs) != 2:
        return "two runs are compared, or several with --to: goodput compare A1 A2 --to B1 B2"
    return ""


def _read(words: list[str], ledger: str | None, stall: float) -> list:
    """The steps that each word names: of a log, or of a run that is found by its name."""
    from goodput.compare import selection, steps

    files = {word: selection.parse(word) for word in words if _is_file(word, ledger)}
    named = {word: selection.parse_run(word) for word in words if word not in files}
    with (
        logs_of(list(dict.fromkeys(run for run, _ in named.values())), ledger) as logs,
        ProgressLine("reading") as bar,
    ):
        read = []
        for n, word in enumerate(words):
            progress = lambda at, n=n: bar((n + at) / len(words))  # noqa: E731
            if word in files:
                read.append(steps.read(*files[word], stall_seconds=stall, progress=progress))
                continue
            run, window = named[word]
            log = logs[run]
            found = steps.read(
                *(log.path, run, window),
                thinned_until_ns=log.thinned_until_ns,
                stall_seconds=stall,
                progress=progress,
            )
            found.path = f"run {run}" if not log.thinned_until_ns else found.path
            read.append(found)
    for run, log in logs.items():
        if log.note:
            message("compare", f"run {run}: {log.note}")
    return read


def _is_file(word: str, ledger: str | None) -> bool:
    from goodput.compare import selection

    return is_file(word) or (ledger is None and is_file(selection.parse_run(word)[0]))


def _comparison(arguments) -> int:
    from goodput.compare import comparison, text

    base, new = (arguments.runs, arguments.to) if arguments.to else (arguments.runs[:1], arguments.runs[1:])
    read = _read([*base, *new], arguments.ledger, arguments.stall)
    base, new = read[: len(base)], read[len(base) :]
    found = comparison.compare(
        *(base, new),
        per=arguments.per,
        any_size=arguments.any_size,
        any_device=arguments.any_device,
    )
    if arguments.html:
        from goodput.compare.html import comparison_page

        _write(arguments.html, comparison_page(found, base, new))
    _print(arguments, found, text)
    return max(_problems(read), _status(found.step, arguments.fail_if_slower))


def _scaling(arguments) -> int:
    from goodput.compare import scaling, scaling_text

    kind = "samples" if arguments.per == "sample" else arguments.scaling
    read = _read([*arguments.runs, *(arguments.to or [])], arguments.ledger, arguments.stall)
    found = scaling.scaling(read, kind, any_device=arguments.any_device)
    if arguments.html:
        from goodput.compare.html import scaling_page

        _write(arguments.html, scaling_page(found))
    _print(arguments, found, scaling_text)
    return _problems(read)


def _problems(read: list) -> int:
    """Print what is left out of each run, and the problems of each log once; returns 1 if one is incomplete."""
    from goodput.wire.identity import clean_text

    for one in read:
        if one.whole_from is not None:
            text = f"{one.name}: older steps were thinned, it is compared from step {one.whole_from:,} on"
            message("compare", clean_text(text, 300))
    by_path = {one.path: one.problems for one in read}
    for path, problems in by_path.items():
        for line in problem_lines(problems):
            message("compare", clean_text(f"{path}: {line}", 300))
    return int(any(map(is_incomplete, by_path.values())))


def _print(arguments, found, text) -> None:
    """`text` is the module that renders what was found."""
    import msgspec

    from goodput.wire.identity import clean_text

    if arguments.json:
        print(msgspec.json.encode(found).decode())
        return
    shown = text.markdown(found) if arguments.markdown else text.render(found)
    print("\n".join(clean_text(line, 300) for line in shown.split("\n")))


def _write(path: str, page: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def _status(step, allowed: float | None) -> int:
    if allowed is None or step.share <= allowed or step.share_low <= 0:
        return 0
    print(
        f"goodput compare: slower by {100 * step.share:.1f} %, allowed are {100 * allowed:g} %",
        file=sys.stderr,
    )
    return 1
