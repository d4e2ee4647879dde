"""`goodput replay`: the account of a run log."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from functools import partial

from goodput.cli import SECONDS_MAX, fail, message, number
from goodput.cli.report import (
    NO_STORY,
    account_text,
    add_account_options,
    print_story,
    story_package,
    write_html,
)

HELP = "print the account of a run log"
DESCRIPTION = """Compute the account of a run log: one JSON object per line, plain or gzip.
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
    add("file", metavar="FILE", help='the run log; "-" reads standard input')
    add("--start", type=clock_time, metavar="SECONDS", help="account from this time on, on the log's clock")
    add("--end", type=clock_time, metavar="SECONDS", help="account up to this time")
    add_account_options(add)


def call(arguments) -> int:
    from goodput.account import document
    from goodput.account.hang import without_stack
    from goodput.account.text.answer import with_hang
    from goodput.causes import explain
    from goodput.runlog import LogError, replay
    from goodput.web.single_file import printable
    from goodput.wire.identity import clean_text

    if None not in (arguments.start, arguments.end) and arguments.start > arguments.end:
        return fail("replay", "--start must not be after --end", 2)
    start_ns, end_ns = (None if at is None else round(at * 1e9) for at in (arguments.start, arguments.end))
    window = None if start_ns is None and end_ns is None else (start_ns, end_ns)
    if arguments.story and window is not None:
        return fail("replay", "--story covers all of a run, without --start and --end", 2)
    if arguments.story and story_package() is None:
        return fail("replay", NO_STORY)
    wanted = arguments.story or arguments.html
    recorders, recordings = (
        (_recorders(), _recordings() if wanted else None) if window is None else (None, None)
    )
    try:
        with progress_bar() as progress:
            replayed = replay(
                arguments.file,
                stall_seconds=arguments.stall,
                window=window,
                progress=progress,
                take_steps=_Several([one for one in (recorders, recordings) if one is not None]),
            )
    except LogError as error:
        return fail("replay", clean_text(error, 500))
    problems = replayed[0].problems
    for text in problem_lines(problems):
        message("replay", clean_text(text, 300))
    chosen = [one for one in replayed if arguments.run in (None, one.account.run)]
    if not chosen:
        names = ", ".join(one.account.run for one in replayed[:10])
        return fail(
            "replay", f"no run {clean_text(arguments.run, 128)!r}; the log has {clean_text(names, 300)}"
        )
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
    timelines = _timelines(arguments, accounts, documents)
    return write_html("replay", arguments.html, documents, timelines, stories, log) or status


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


def _timelines(arguments, accounts: list, documents: list) -> dict:
    """The timelines of those runs of which the log can be read once per bucket; empty for standard input."""
    from goodput.runlog import replay
    from goodput.web import timeline

    if arguments.file == "-":
        return {}

    def account_of(run, window):
        replayed = replay(arguments.file, stall_seconds=arguments.stall, window=window)
        return next(one.account for one in replayed if one.account.run == run)

    # All runs together take no longer than one alone may.
    allowed = timeline.SECONDS / len(accounts), timeline.SECONDS_MAX / len(accounts)
    return {
        account.run: timeline.timeline(account, found, partial(account_of, account.run), *allowed)
        for account, found in zip(accounts, documents, strict=True)
    }


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
