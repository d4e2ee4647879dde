"""`goodput whatif`: what each change would be worth, by replay of a run's recorded steps."""

from __future__ import annotations

from goodput.cli import fail, message
from goodput.cli.replay import progress_bar

HELP = "say what each change to a run would be worth, with intervals"
DESCRIPTION = """Replay the recorded steps of a run as if something were different: a slow rank
as fast as the median, no waiting for the loader, half of the communication
overlapped, checkpoints at their best interval, restarts twice as fast, one node
left out. Says how much faster the run would be, with 95 % intervals, what saves
most GPU-hours first. The run is a run log (`goodput export`)."""
EPILOG = """examples:
  goodput export my-run > run.jsonl; goodput whatif run.jsonl
  goodput whatif runs.jsonl#my-run --json

exit status: 0, 1 if the log cannot be used, 2 for a wrong call"""


def add_options(parser) -> None:
    parser.add_argument("run", metavar="FILE[#RUN]", help="the run log, and the run if it has several")
    parser.add_argument("--json", action="store_true", help="print JSON")


def call(arguments) -> int:
    try:
        from goodput.whatif import read, text
    except ModuleNotFoundError as error:
        return fail("whatif", f"{error.name} is missing: pip install 'goodput-telemetry[compare]'")
    import msgspec

    from goodput.cli.replay import problem_lines
    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    file, _, run = arguments.run.partition("#")
    try:
        with progress_bar() as progress:
            found, problems = read.read(file, run or None, progress=progress)
    except LogError as error:
        return fail("whatif", clean_text(error, 500))
    for line in problem_lines(problems):
        message("whatif", clean_text(line, 300))
    if arguments.json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(clean_text(line, 300) for line in text.render(found).split("\n")))
    return 0
