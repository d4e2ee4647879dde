"""`goodput whatif`: what each change would be worth, by replay of a run's recorded steps."""

from __future__ import annotations

import contextlib

from goodput.cli import fail, message, os_error_text
from goodput.cli.replay import is_incomplete, problem_lines, progress_bar

HELP = "say what each change to a run would be worth, with intervals"
DESCRIPTION = """Replay the recorded steps of a run as if something were different: a slow rank
as fast as the median, no waiting for the loader, half of the communication
overlapped, checkpoints at their best interval, restarts twice as fast, one node
left out. Says how much faster the run would be, with 95 % intervals, what saves
most GPU-hours first. The run is a run log (`goodput export`), or one of a ledger."""
EPILOG = """examples:
  goodput export my-run > run.jsonl; goodput whatif run.jsonl
  goodput whatif runs.jsonl#my-run --json
  goodput whatif my-run --ledger sqlite:////var/lib/goodput/ledger.db

exit status: 0, 1 if the log or over 1 % of its step lines cannot be used, 2 for a wrong call"""


def add_options(parser) -> None:
    parser.add_argument("run", metavar="FILE[#RUN]",
        help="the run log, and the run if it has several; with --ledger the run")  # fmt: skip
    parser.add_argument("--ledger", metavar="URL", help="a run of this ledger, without exporting it before")
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
        with _log(arguments) as (file, run), progress_bar() as progress:
            found, problems = read.read(file, run, progress=progress)
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
    if arguments.ledger is None:
        file, _, run = arguments.run.partition("#")
        yield file, run or None
        return
    from goodput.aggregator.ledger.ledger import LedgerError
    from goodput.cli.export import exported
    from goodput.runlog import LogError

    try:
        with exported(arguments.ledger, [arguments.run]) as found:
            log = found[arguments.run]
            if log.thinned_until_ns:
                raise LogError(
                    f"old steps of run {arguments.run!r} were thinned, and it is replayed as a whole"
                )
            yield log.path, arguments.run
    except LedgerError as error:
        raise LogError(str(error)) from None
    except OSError as error:
        raise LogError(os_error_text(error)) from None
