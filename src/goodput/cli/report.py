"""`goodput report`: the account of the runs on this machine, from their rank pages."""

from __future__ import annotations

import json
import time
from functools import partial

from goodput.cli import fail, message, positive_seconds
from goodput.defaults import STALL_SECONDS

HELP = "print the account of the runs on this machine"
DESCRIPTION = """Read the rank pages on this machine and print the account of each run.
Needs no agent and no aggregator. A page keeps only the last 1024 steps of its rank."""
EPILOG = "example: goodput report --run my-run --json"


def add_options(parser) -> None:
    parser.add_argument(
        "--directory", help="folder of the rank pages (default: $GOODPUT_DIR or /dev/shm/goodput)"
    )
    add_account_options(parser.add_argument)


def add_account_options(add) -> None:
    """The options of `goodput report` and `goodput replay`."""
    add("--run", help="only this run, if there are several")
    add("--stall", "--stall-seconds", dest="stall", metavar="SECONDS", type=positive_seconds, default=STALL_SECONDS,
        help="shortest stall (default: %(default)g)")  # fmt: skip
    add("--json", action="store_true", help="print account documents, one per line")
    add("--html", metavar="OUT",
        help="write the interactive page with these accounts to one file, for a browser")  # fmt: skip


def call(arguments) -> int:
    from goodput.account import compute, document
    from goodput.account.text import render
    from goodput.causes import explain
    from goodput.rank_page.deep_look import looks_in
    from goodput.rank_page.page import default_directory
    from goodput.sdk.reports.local_accounts import runs_in
    from goodput.web.timeline import timeline
    from goodput.wire.identity import clean_text

    directory = arguments.directory or default_directory()
    try:
        runs, errors = runs_in(directory, time.perf_counter_ns())
        looks, refused = looks_in(directory)
    except OSError as error:
        return fail("report", f"{directory}: {error.strerror}")
    for text in errors + refused:
        # A file's name may have control characters.
        message("report", f"skipped {clean_text(text, 500)}")
    chosen = [run for run in runs if arguments.run in (None, run.name)]
    documents, timelines = [], {}
    for run in chosen:
        account_of = partial(compute, run, time.time_ns(), stall_seconds=arguments.stall)
        account = account_of()
        found = dict(document(account, explain(account)))
        documents.append(found)
        if arguments.html:
            rows = sum(len(attempt.rows) for attempt in run.attempts.values())
            timelines[run.name] = timeline(account, found, rows, account_of)
        seen = [look for look in looks if look["run"] == run.name]
        if arguments.json:
            print(json.dumps({**found, "deep_looks": seen} if seen else found))
        else:
            print("\n".join([render(found), *_deep_looks(seen), ""]))
    if not chosen:
        return fail("report", f"no run {arguments.run or ''} in {directory}".replace("  ", " "))
    return write_html("report", arguments.html, documents, timelines) if arguments.html else 0


def write_html(command: str, path: str, documents: list, timelines: dict, log: dict | None = None) -> int:
    """Write the page with these accounts to `path`; returns the exit status."""
    from goodput.web.single_file import render

    text = render(documents, command=f"goodput {command}", log=log, timelines=timelines)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return fail(command, f"{path}: {error.strerror}")
    return 0


def _deep_looks(looks: list[dict]) -> list[str]:
    """The newest deep look, and how many other ranks have one."""
    from goodput.rank_page.deep_look import lines

    if not looks:
        return []
    newest = max(looks, key=lambda look: look["unix_ns"])
    others = len(looks) - 1
    more = [f"    {others} other rank{'s have' if others > 1 else ' has'} a deep look too; --json shows it"]
    return ["", *lines(newest, time.time_ns()), *more * bool(others)]
