"""`goodput whatif`: what each change would be worth, by replay of a run's recorded steps."""

from __future__ import annotations

import contextlib

from goodput.cli import fail, message, os_error_text
from goodput.cli.parsing.progress_line import ProgressLine
from goodput.cli.run_logs.lookup import is_file, logs_of
from goodput.cli.run_logs.output import add_stall_option, is_incomplete, problem_lines

DESCRIPTION = """Replay the recorded steps of a run as if something were different: a slow rank
as fast as the median, no waiting for the loader, half of the communication
overlapped, checkpoints at their best interval, restarts twice as fast, one node
left out. Says how much faster the run would be, with 95 % intervals, what saves
most GPU-hours first. The run is a kept one (`goodput runs`), one with pages on this
machine, a run log, or with --ledger one of a ledger."""
EPILOG = """examples:
  goodput whatif train-4711
  goodput whatif runs.jsonl#my-run --json
  goodput whatif my-run --ledger sqlite:////var/lib/goodput/ledger.db

exit status: 0, 1 if the log or over 1 % of its step lines cannot be used, 2 for a wrong call"""


def add_options(parser) -> None:
    parser.add_argument("run", metavar="RUN",
        help="the run's name, or FILE[#RUN]: a run log, and the run if it has several")  # fmt: skip
    parser.add_argument("--ledger", metavar="URL",
        help="look for the run in this ledger first, without exporting it before")  # fmt: skip
    add_stall_option(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(arguments) -> int:
    try:
        from goodput.whatif import read, text
    except ModuleNotFoundError as error:
        return fail("whatif", f"{error.name} is missing: pip install 'goodput-telemetry[compare]'")
    import msgspec

    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    try:
        with _log(arguments) as (file, run), ProgressLine("reading") as progress:
            found, problems = read.read(file, run, stall_seconds=arguments.stall, progress=progress)
    except LogError as error:
        return fail("whatif", clean_text(error, 500))
    for line in problem_lines(problems):
        message("whatif", clean_text(line, 300))
    if arguments.json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(clean_text(line, 300) for line in text.render(found).split("\n")))
    return int(is_incomplete(problems))


@contextlib.contextmanager
def _log(arguments):
    """The log's file, and the run in it. Raises LogError."""
    from goodput.runlog import LogError

    if is_file(arguments.run):
        file, _, run = arguments.run.partition("#")
        yield file, run or None
        return
    try:
        with logs_of([arguments.run], arguments.ledger) as found:
            log = found[arguments.run]
            if log.thinned_until_ns:
                raise LogError(
                    f"old steps of run {arguments.run!r} were thinned, and it is replayed as a whole"
                )
            if log.note:
                message("whatif", f"run {arguments.run}: {log.note}")
            yield log.path, arguments.run
    except OSError as error:
        raise LogError(os_error_text(error)) from None
