"""`goodput replay`: the account of a run log."""

from __future__ import annotations

import os

from goodput.cli import SECONDS_MAX, OldSpelling, fail, message, number, os_error_text
from goodput.cli.run_logs.lookup import is_file, logs_of
from goodput.cli.run_logs.output import NO_STORY, add_account_options, print_account, story_package

DESCRIPTION = """Compute the account of a run from all its steps: of a kept one (`goodput runs`), of one with pages
on this machine, with --ledger of one of a ledger, or of a run log: one JSON object per line, plain or gzip.
Write one by hand, convert your own logs to it, or take one from `goodput export`.
Problems with the file are printed on standard error, by line; the rest is still used.
If more than 1 % of the step lines cannot be used, the account says so and the exit status is 1. It is 1 too for a
gzip file that is cut off or damaged: the account is of what can be read of it."""
EPILOG = "example: goodput replay docs/example-run.jsonl --html account.html"

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
