"""`goodput runs`: the runs that are kept on this machine."""

from __future__ import annotations

import json

from goodput.cli import fail, message, number

DESCRIPTION = """List the runs that are kept, the newest first. `goodput run` keeps all steps of a run in a folder of
yours ($GOODPUT_RUNS, default ~/.local/share/goodput/runs); of other runs this command, `goodput report` and `goodput
top` keep what the pages of their ended processes hold, the last 1024 steps of each rank. A run's name is what `goodput
report`, `compare`, `whatif`, `replay` and `export` take."""
EPILOG = """examples:
  goodput runs
  goodput runs --json | jq -r '.run'
  goodput compare train-4711 train-4822"""
SHOWN = 20


def add_options(parser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help=f"all of them, not only the newest {SHOWN}")
    add("--limit", metavar="N", type=number(int, 1, 1_000_000), default=SHOWN,
        help="at most so many (default: %(default)s)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object per line")


def call(arguments) -> int:
    from goodput.kept_runs.find import kept_parts
    from goodput.kept_runs.folder import settings_of
    from goodput.kept_runs.listing import rows_of, table
    from goodput.rank_page.page import existing_directories

    settings = settings_of()
    if settings is None:
        return fail("runs", "no run is kept: GOODPUT_RUNS turns it off")
    if settings.problem:
        message("runs", f"ignored: {settings.problem}")
    keep_dead("runs", existing_directories())
    rows = rows_of(kept_parts())
    shown = rows if arguments.all else rows[: arguments.limit]
    if arguments.json:
        for row in shown:
            print(json.dumps(row))
        return 0
    if not rows:
        print(f"no run is kept yet in {settings.path}; goodput run SCRIPT keeps one")
        return 0
    print(table(shown))
    if any(row["note"] for row in shown):
        print("\n* not all steps are kept one by one; --json says how many")
    if len(shown) < len(rows):
        print(f"\n{len(rows) - len(shown)} older runs: --all")
    return 0


def keep_dead(command: str, directories: list[str]) -> None:
    """Keep what pages of ended processes hold, and say so."""
    from goodput.kept_runs.dead_pages import keep_dead_pages
    from goodput.kept_runs.find import note_of

    kept, problem = keep_dead_pages(directories)
    for part in kept:
        note = note_of([part])
        message(command, f"kept run {part.run} from its pages{f': {note}' if note else ''}")
    if problem:
        message(command, problem)
