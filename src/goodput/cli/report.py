"""`goodput report`: the account of the runs on this machine, from their rank pages."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import sys
import time
from functools import cache, partial

from goodput.cli import fail, has_colour, message, positive_seconds, terminal_columns
from goodput.defaults import FLOPS_COUNTING, STALL_SECONDS

HELP = "print the account of the runs on this machine"
DESCRIPTION = """Read the rank pages on this machine and print the account of each run.
Needs no agent and no aggregator. A page keeps only the last 1024 steps of its rank."""
EPILOG = "example: goodput report --run my-run --json"
NAMES_SHOWN = 10
COUNT_SECONDS_MAX = 10  # that a report waits for the count of FLOPs of a training that has just ended


def add_options(parser) -> None:
    parser.add_argument(
        "--directory",
        help="folder of the rank pages (default: $GOODPUT_DIR, else all of /run/goodput, /dev/shm/goodput and /tmp/goodput)",
    )
    # Used by the report that `goodput run` prints; what it reads is printed below the account.
    parser.add_argument("--at-exit", action="store_true", help=argparse.SUPPRESS)
    add_account_options(parser.add_argument)


def add_account_options(add) -> None:
    """The options of `goodput report` and `goodput replay`."""
    add("--run", help="only this run, if there are several")
    add("--stall", "--stall-seconds", dest="stall", metavar="SECONDS", type=positive_seconds, default=STALL_SECONDS,
        help="shortest stall (default: %(default)g)")  # fmt: skip
    add("--story", action="store_true",
        help="print what happened when, and what it cost, instead of the account")  # fmt: skip
    add("--full", action="store_true",
        help="print all that is known of each run: factors, phases, collectives, pipeline, each cause with its advice")  # fmt: skip
    add("--json", action="store_true", help="print account documents, or stories, one per line")
    add("--html", metavar="OUT",
        help="write the interactive page with these accounts to one file, for a browser")  # fmt: skip


def call(arguments) -> int:
    from goodput.account import compute, document
    from goodput.causes import explain
    from goodput.probe import reachable
    from goodput.rank_page.deep_look import looks_in
    from goodput.rank_page.page import existing_directories
    from goodput.rank_page.shared_folders import pages_beside
    from goodput.sdk.reports.local_accounts import continued_runs
    from goodput.web.timeline import timeline
    from goodput.wire.identity import clean_text

    footer = sys.stdin.read() if arguments.at_exit else ""
    directories = [arguments.directory] if arguments.directory else existing_directories()
    began_ns, looks, refused = time.time_ns(), [], []
    try:
        runs, errors = counted_runs_in(directories, arguments.run)
        for directory in directories:
            seen, wrong = looks_in(directory)
            looks, refused = looks + seen, refused + wrong
    except OSError as error:
        return fail("report", f"{error.filename or directories[0]}: {error.strerror}")
    for text in errors + refused:
        # A file's name may have control characters.
        message("report", f"skipped {clean_text(text, 500)}")
    for text in [] if arguments.directory else pages_beside(directories, os.geteuid()):
        message("report", text)
    removed = removed_text(directories, arguments.run, [run.name for run in runs])
    chosen = [run for run in runs if arguments.run in (None, run.name)]
    for name, text in continued_runs(runs).items():
        if arguments.run in (None, name):
            message("report", clean_text(text, 500))
    documents, timelines, stories = [], {}, {}
    if arguments.story and story_package() is None:
        return fail("report", NO_STORY)
    if not any(one.alive and not one.ended for run in runs for one in run.attempts.values()):
        measure_peaks(chosen)
    for run in chosen:
        account_of = partial(
            compute, run, _moment_ns(run, began_ns, arguments.at_exit), stall_seconds=arguments.stall
        )
        account = account_of()
        account.replayed = _replayed_gains(run, account)
        seen = [look for look in looks if look["run"] == run.name]
        reachable.add_reached(account, _copies_in(seen))
        found = dict(document(account, explain(account)))
        reached = reachable.compute_efficiency(account)
        if reached is not None and found["reachable"] is None:
            found["reachable"] = {"compute_efficiency": reached}
        documents.append(found)
        if arguments.html:
            timelines[run.name] = timeline(account, found, account_of)
        if arguments.story or arguments.html:
            stories |= _story(run, found)
        if arguments.story:
            print_story(stories[run.name], arguments.json)
        elif arguments.json:
            print(json.dumps({**found, "deep_looks": seen} if seen else found))
        else:
            print("\n".join([account_text(found, arguments.full), *_deep_looks(seen), ""]))
    print(footer, end="")
    if not chosen:
        return fail("report", no_run_text(directories, arguments.run, [run.name for run in runs]) + removed)
    if removed:
        message("report", f"some processes are missing above{removed}")
    return write_html("report", arguments.html, documents, timelines, stories) if arguments.html else 0


def account_text(found: dict, full: bool) -> str:
    """A document as text that fits the terminal."""
    from goodput.account.text import render

    return render(found, full=full, columns=terminal_columns(), colour=has_colour())


def _moment_ns(run, began_ns: int, is_at_exit: bool) -> int:
    """The end of the account: neither what this command waits for nor the exit of a process is time without a process."""
    ends = [attempt.known_end_ns() for attempt in run.attempts.values()]
    if is_at_exit and None not in ends:
        return max(ends)
    return began_ns if all(attempt.ended for attempt in run.attempts.values()) else time.time_ns()


NO_STORY = "a story needs NumPy: pip install 'goodput-telemetry[compare]'"


def story_package():
    """The modules that record steps and build stories, None without NumPy."""
    try:
        from goodput.story import build, recording
    except ModuleNotFoundError:
        return None
    return recording, build


def _story(run, found: dict) -> dict:
    """The story of a run whose rows are at hand, by its name; empty without NumPy."""
    package = story_package()
    if package is None:
        return {}
    from goodput.whatif.steps import steps_in

    recording = package[0].Recording()
    for attempt in run.attempts.values():
        for step in steps_in(run.name, attempt):
            recording.add(step)
    return {run.name: package[1].build_story(found, recording)}


def print_story(story, as_json: bool) -> None:
    """As text or as one line of JSON."""
    from goodput.story.text import render

    print(json.dumps(story) if as_json else f"{render(story)}\n")


def _replayed_gains(run, account):
    """What removing each cause would bring, by replay of the pages' steps; None without NumPy."""
    try:
        from goodput.whatif.gains import replayed_gains
        from goodput.whatif.recorders import recorded
    except ModuleNotFoundError:
        return None
    return replayed_gains(account, recorded(run))


def no_run_text(directories: list[str], name: str | None, names: list[str]) -> str:
    """That a run, or any, has no page in these folders, and the runs that have."""
    from goodput.wire.identity import clean_text

    wanted = f"no run {clean_text(name, 128)!r}" if name else "no run"
    shown = ", ".join(clean_text(one, 128) for one in names[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    there = f"; the runs there: {shown}{more}" if names else ""
    return f"{wanted} in {' or '.join(directories)}{there}"


def removed_text(directories: list[str], name: str | None, names: list[str]) -> str:
    """That the agent removed pages of a run, or of the last one where no run has pages, and where its figures are; or ""."""
    from goodput.rank_page import removed_pages
    from goodput.wire.identity import clean_text

    found = {run: one for folder in directories for run, one in removed_pages.read(folder).items()}
    if name is None and len(names) <= 1:
        name = names[0] if names else max(found, key=lambda run: found[run].unix_ns, default=None)
    if name not in found:
        return ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found[name].unix_ns / 1e9))
    url, run = clean_text(found[name].sent_to, 255), shlex.quote(clean_text(name, 128))
    where = (
        f"it had sent them to the aggregator: goodput top --url {url} --run {run}"
        if url
        else "no aggregator has them (goodput node --aggregator), so they are gone"
    )
    return f"; the agent removed pages of {run} at {at}, after their processes had ended; {where}"


def counted_runs_in(directories: list[str], name: str | None) -> tuple[list, list[str]]:
    """The runs in these folders; if a training has just ended, with the FLOPs that a child process still counts."""
    from goodput.sdk.reports.local_accounts import runs_in

    end, began_ns = time.monotonic() + COUNT_SECONDS_MAX, time.perf_counter_ns()
    while True:
        runs, errors = runs_in(directories[0], began_ns, *directories[1:])
        chosen = [run for run in runs if name in (None, run.name)]
        if time.monotonic() > end or not any(
            is_counting(one) for run in chosen for one in run.attempts.values()
        ):
            return runs, errors
        time.sleep(0.1)


def is_counting(attempt) -> bool:
    """Whether the training has ended so recently that its FLOPs may still be counted."""
    age_ns = time.time_ns() - attempt.end_ns
    is_unknown = attempt.flops_per_step is None and attempt.flops_unknown == FLOPS_COUNTING
    return is_unknown and bool(attempt.ended) and age_ns < COUNT_SECONDS_MAX * 1e9


def measure_peaks(runs: list) -> None:
    """Set the peak of ranks that trained on this machine's CPU: measured once for all of them, for a second."""
    from goodput.flops import cpu_peak

    peak_of = cache(cpu_peak.measured_peak)
    for attempt in (one for run in runs for one in run.attempts.values()):
        if attempt.peak_flops_per_second is None and attempt.flops_per_step and attempt.device:
            attempt.peak_flops_per_second = peak_of(attempt.device, attempt.dtype)


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


def _copies_in(looks: list[dict]) -> dict[int, tuple[float | None, str]]:
    """By rank how fast its last traced step copied to which device."""
    from goodput.rank_page.deep_look import h2d_rate

    return {look["rank"]: (h2d_rate(look["seen"]), look["seen"]["device"]) for look in looks if look["seen"]}


def _deep_looks(looks: list[dict]) -> list[str]:
    """The newest deep look, and how many other ranks have one."""
    from goodput.probe import kept
    from goodput.sdk.reports.deep_look_text import deep_look_lines

    if not looks:
        return []
    newest = max(looks, key=lambda look: look["unix_ns"])
    device = newest["seen"]["device"] if newest["seen"] else ""
    reached = kept.value(kept.load(socket.gethostname()), "h2d_pinned", device) if device else None
    others = len(looks) - 1
    more = [f"    {others} other rank{'s have' if others > 1 else ' has'} a deep look too; --json shows it"]
    return ["", *deep_look_lines(newest, time.time_ns(), reached), *more * bool(others)]
