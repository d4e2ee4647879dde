"""The account of a run log as `goodput replay` and `goodput report` print it, and what is wrong with a log."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import cast

from goodput.cli import OldSpelling, fail, has_colour, message, positive_seconds, terminal_columns
from goodput.cli.parsing.progress_line import ProgressLine
from goodput.defaults import STALL_SECONDS

PROBLEMS_SHOWN = 20
MORE = "the option --full"
GAIN_ROWS_MAX = 100_000  # steps of all ranks, the newest; with what is computed of them they take 50 MB
NO_STORY = "a story needs NumPy: pip install 'goodput-telemetry[compare]'"


def add_stall_option(add) -> None:
    """`--stall`, of every command that makes accounts of logs or pages."""
    add("--stall", metavar="SECONDS", type=positive_seconds, default=STALL_SECONDS,
        help="shortest stall (default: %(default)g)")  # fmt: skip


def add_account_options(add) -> None:
    """The options of `goodput report` and `goodput replay`."""
    add_stall_option(add)
    add("--stall-seconds", dest="stall", type=positive_seconds, action=OldSpelling, new="--stall",
        default=argparse.SUPPRESS)  # fmt: skip
    add("--story", action="store_true",
        help="print what happened when, and what it cost, instead of the account")  # fmt: skip
    add("--full", action="store_true",
        help="print all that is known of each run: factors, phases, collectives, pipeline, each cause with its advice")  # fmt: skip
    add("--json", action="store_true", help="print account documents, or stories, one per line")
    add("--html", metavar="FILE",
        help="write the interactive page with these accounts to one file, for a browser")  # fmt: skip


def account_text(found: dict, full: bool, more: str = MORE) -> str:
    """A document as text that fits the terminal; `more` is what shows the rest of it."""
    from goodput.account.text import render

    return render(found, full=full, more=more, columns=terminal_columns(), colour=has_colour())


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
    with ProgressLine("reading") as progress:
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
    documents: list = [
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
        print(
            json.dumps(found)
            if arguments.json
            else account_text(cast("dict", printable(found)), arguments.full) + "\n"
        )
    status = int(is_incomplete(problems))
    if not arguments.html:
        return status
    timelines = _timelines(path, arguments.stall, accounts, documents)
    return write_html(command, arguments.html, documents, timelines, stories, log) or status


def print_story(story, as_json: bool) -> None:
    """As text or as one line of JSON."""
    from goodput.story.text import render

    print(json.dumps(story) if as_json else f"{render(story)}\n")


def story_package():
    """The modules that record steps and build stories, None without NumPy."""
    try:
        from goodput.story import build, recording
    except ModuleNotFoundError:
        return None
    return recording, build


def write_html(
    command: str, path: str, documents: list, timelines: dict, stories: dict, log: dict | None = None
) -> int:
    """Write the page with these accounts to `path`; returns the exit status."""
    from goodput.web.single_file import render

    text = render(documents, command=f"goodput {command}", log=log, timelines=timelines, stories=stories)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return fail(command, f"{path}: {error.strerror}")
    return 0


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


def _timelines(path: str, stall_seconds: float, accounts: list, documents: list) -> dict:
    """The timelines of those runs of which the log can be read once per bucket; empty for standard input."""
    from goodput.runlog import replay
    from goodput.web import timeline

    if path == "-":
        return {}

    def account_of(run, window):
        replayed = replay(path, stall_seconds=stall_seconds, window=window)
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
