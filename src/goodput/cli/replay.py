"""`goodput replay`: the account of a run log."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager

from goodput.cli import SECONDS_MAX, OldSpelling, fail, message, number, os_error_text
from goodput.cli.export import is_file, logs_of
from goodput.cli.report import (
    NO_STORY,
    account_text,
    add_account_options,
    print_story,
    story_package,
    write_html,
)

HELP = "print the account of a kept run or of a run log"
DESCRIPTION = """Compute the account of a run from all its steps: of a kept one (`goodput runs`), of one with pages
on this machine, with --ledger of one of a ledger, or of a run log: one JSON object per line, plain or gzip.
Write one by hand, convert your own logs to it, or take one from `goodput export`.
Problems with the file are printed on standard error, by line; the rest is still used.
If more than 1 % of the step lines cannot be used, the account says so and the exit status is 1. It is 1 too for a
gzip file that is cut off or damaged: the account is of what can be read of it."""
EPILOG = "example: goodput replay docs/example-run.jsonl --html account.html"

PROBLEMS_SHOWN = 20
GAIN_ROWS_MAX = 100_000  # steps of all ranks, the newest; with what is computed of them they take 50 MB
clock_time = number(float, -SECONDS_MAX, SECONDS_MAX, " seconds on the log's clock")


def add_options(parser) -> None:
    add = parser.add_argument
    add("file", metavar="RUN", help='the run\'s name, or a run log FILE[#RUN]; "-" reads standard input')
    add("--ledger", metavar="URL", help="look for the run in this ledger first")
    add("--start", type=clock_time, metavar="SECONDS", help="account from this time on, on the log's clock")
    add("--end", type=clock_time, metavar="SECONDS", help="account up to this time")
    add("--run", action=OldSpelling, new="FILE#RUN")
    add_account_options(add)


def call(arguments) -> int:
    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    if arguments.story and story_package() is None:
        return fail("replay", NO_STORY)
    try:
        if arguments.ledger is None and is_file(arguments.file):
            path, run = arguments.file, arguments.run
            if not os.path.exists(path):
                path, _, named = path.partition("#")
                run = run or named or None
            return print_account("replay", arguments, path, run)
        with logs_of([arguments.file], arguments.ledger) as found:
            log = found[arguments.file]
            if log.note:
                message("replay", f"run {arguments.file}: {log.note}")
            return print_account("replay", arguments, log.path, arguments.run or arguments.file)
    except LogError as error:
        return fail("replay", clean_text(error, 500))
    except OSError as error:
        if error.filename is None:
            raise  # What is printed cannot be written.
        return fail("replay", os_error_text(error))


def print_account(command: str, arguments, path: str, run: str | None) -> int:
    """Print the accounts of a run log, or of one of its runs; returns the exit status. Raises LogError."""
    from goodput.account import document
    from goodput.account.hang import without_stack
    from goodput.account.text.answer import with_hang
    from goodput.causes import explain
    from goodput.runlog import replay
    from goodput.web.single_file import printable
    from goodput.wire.identity import clean_text

    start, end = getattr(arguments, "start", None), getattr(arguments, "end", None)
    if start is not None and end is not None and start > end:
        return fail(command, "--start must not be after --end", 2)
    start_ns, end_ns = (None if at is None else round(at * 1e9) for at in (start, end))
    window = None if start_ns is None and end_ns is None else (start_ns, end_ns)
    if arguments.story and window is not None:
        return fail(command, "--story covers all of a run, without --start and --end", 2)
    wanted = arguments.story or arguments.html
    recorders, recordings = (
        (_recorders(), _recordings() if wanted else None) if window is None else (None, None)
    )
    with progress_bar() as progress:
        replayed = replay(
            path,
            stall_seconds=arguments.stall,
            window=window,
            progress=progress,
            take_steps=_Several([one for one in (recorders, recordings) if one is not None]),
        )
    problems = replayed[0].problems
    for text in problem_lines(problems):
        message(command, clean_text(text, 300))
    chosen = [one for one in replayed if run in (None, one.account.run)]
    if not chosen:
        names = ", ".join(one.account.run for one in replayed[:10])
        return fail(command, f"no run {clean_text(run, 128)!r}; the log has {clean_text(names, 300)}")
    log = problems.document()
    accounts = [one.account for one in chosen]
    if recorders is not None:
        for account in accounts:
            account.replayed = recorders.gains(account)
    documents = [
        {
            **with_hang(
                document(one.account, explain(one.account)),
                None if one.hang is None else without_stack(one.hang),
            ),
            "log": log,
        }
        for one in chosen
    ]
    stories = _stories(recordings, documents) if recordings is not None else {}
    for found in documents:
        if arguments.story:
            print_story(printable(stories[found["run"]]), arguments.json)
            continue
        print(json.dumps(found) if arguments.json else account_text(printable(found), arguments.full) + "\n")
    status = int(is_incomplete(problems))
    if not arguments.html:
        return status
    timelines = _timelines(path, arguments.stall, problems.lines, accounts, documents)
    return write_html(command, arguments.html, documents, timelines, stories, log) or status


def _recorders():
    """What takes the steps, to compute by replay what removing each cause would bring; None without NumPy."""
    try:
        from goodput.whatif.recorders import Recorders
    except ModuleNotFoundError:
        return None
    return Recorders(rows_max=GAIN_ROWS_MAX)


class _Several:
    """Passes the steps of a log to several (runlog.replay.TakesSteps)."""

    def __init__(self, takers: list):
        self._takers = takers

    def add(self, step) -> None:
        for taker in self._takers:
            taker.add(step)

    def add_columns(self, run, attempt, steps, counts, states) -> None:
        for taker in self._takers:
            taker.add_columns(run, attempt, steps, counts, states)


def _recordings():
    """What takes the steps for the stories of the runs; None without NumPy."""
    package = story_package()
    return None if package is None else package[0].Recordings()


def _stories(recordings, documents: list) -> dict:
    """By run."""
    from goodput.story.build import build_story

    return {found["run"]: build_story(found, recordings.of(found["run"])) for found in documents}


def _timelines(path: str, stall_seconds: float, lines: int, accounts: list, documents: list) -> dict:
    """The timeline of the only run, if its log can be read once per bucket; empty otherwise."""
    from goodput.runlog import replay
    from goodput.web.timeline import timeline

    if len(accounts) != 1 or path == "-":
        return {}

    def account_of(window):
        replayed = replay(path, stall_seconds=stall_seconds, window=window)
        return next(one.account for one in replayed if one.account.run == accounts[0].run)

    return {accounts[0].run: timeline(accounts[0], documents[0], lines, account_of)}


def is_incomplete(problems) -> bool:
    """Whether a log could not be read to its end, or so many of its step lines not be used, that the exit status is 1."""
    steps = problems.step_quality()
    return bool(problems.broken) or (steps is not None and steps["incomplete"])


def problem_lines(problems) -> list[str]:
    """A log's problems as lines for standard error."""
    lines = [f"line {number}: {text}" for number, text in problems.listed[:PROBLEMS_SHOWN]]
    if problems.count > PROBLEMS_SHOWN:
        lines.append(f"… and {problems.count - PROBLEMS_SHOWN} more")
    if problems.unusable_steps:
        lines.append(f"{problems.unusable_steps} of {problems.step_lines} step lines cannot be used")
    if problems.dropped:
        lines.append(f"{len(problems.dropped)} of {problems.lines} lines left out because of their times")
    if problems.repeated:
        lines.append(f"{problems.repeated} lines are duplicates and count once")
    if problems.ignored:
        names = ", ".join(f"{what} ({count})" for what, count in problems.most_ignored(10))
        lines.append(f"ignored: {names}")
    if problems.broken:
        lines.append(problems.broken)
    return lines


@contextmanager
def progress_bar():
    """A function of the share that is read, 0 to 1. It draws a bar if standard error is a terminal and rich is there."""
    try:
        if not sys.stderr.isatty():
            raise ModuleNotFoundError
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield lambda share: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=1.0)
        yield lambda share: bar.update(task, completed=share)
