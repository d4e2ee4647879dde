"""`goodput report`: the account of the runs on this machine, from their rank pages."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import sys
import time
from contextlib import closing
from functools import cache, partial
from typing import cast

from goodput.cli import (
    OldSpelling,
    fail,
    loading,
    message,
    os_error_text,
)
from goodput.cli.node import FILES, attribute_of, path, url, variable_of
from goodput.cli.run_logs.output import (
    MORE,
    NO_STORY,
    account_text,
    add_account_options,
    print_account,
    print_story,
    story_package,
    write_html,
)
from goodput.cli.runs import keep_dead
from goodput.defaults import FLOPS_COUNTING

DESCRIPTION = """Print the account of a run by its name: of a kept one (`goodput runs`) from all its steps, while it
still trains from its pages, with --ledger or --url of one of an aggregator. Without a name, of each
run whose rank pages are on this machine; a page has only the last 1024 steps of its rank.
Needs no agent and no aggregator."""
EPILOG = """examples: goodput report
          goodput report train-4711 --html report.html
          goodput report my-run --url https://goodput.internal:9471 --token-file FILE"""
NAMES_SHOWN = 10
URL_SECONDS = 20.0
COUNT_SECONDS_MAX = 10  # that a report waits for the count of FLOPs of a training that has just ended


def add_options(parser) -> None:
    add = parser.add_argument
    add("name", metavar="RUN", nargs="?", help="only this run (default: all with pages on this machine)")
    add("--run", action=OldSpelling, new="RUN, without an option")
    add("--ledger", metavar="URL", help="look for the run in this ledger first")
    add("--url", metavar="URL", type=url, help="the run's account as this aggregator has it")
    for option, text in FILES.items():
        variable = variable_of(option)
        add(option, metavar="FILE", type=path, default=os.environ.get(variable) or None,
            help=f"with --url: {text.replace('scope ingest', 'scope read')} (default: ${variable})")  # fmt: skip
    add(
        "--directory",
        help="folder of the rank pages (default: $GOODPUT_DIR, else all of /run/goodput, /dev/shm/goodput and /tmp/goodput)",
    )
    # Used by the report that `goodput run` prints; what it reads is printed below the account.
    parser.add_argument("--at-exit", action="store_true", help=argparse.SUPPRESS)
    add_account_options(parser.add_argument)


def call(arguments) -> int:
    arguments.name = arguments.name or arguments.run
    if arguments.story and story_package() is None:
        return fail("report", NO_STORY)
    if arguments.url is not None:
        return _report_of_aggregator(arguments)
    if arguments.name is not None and arguments.directory is None:
        status = _report_of_log(arguments)
        if status is not None:
            return status
    return _report_of_pages(arguments)


def _report_of_log(arguments) -> int | None:
    """By all steps of a run that is over, or in the ledger; None where only pages have it, or say more."""
    from goodput.kept_runs.find import kept_parts, lives, page_paths_of

    run = arguments.name
    if arguments.ledger is None and (not kept_parts(run) or lives(run)):
        return None
    from goodput.cli.run_logs.lookup import logs_of
    from goodput.wire.identity import clean_text

    try:
        from goodput.runlog import LogError
    except ModuleNotFoundError as error:
        text = f"the log of a kept run is read with {error.name}: pip install 'goodput-telemetry[compare]'"
        if arguments.ledger is not None or not page_paths_of(run):
            return fail("report", text)
        message("report", f"by its pages, which have the last steps alone; {text}")
        return None

    try:
        with logs_of([run], arguments.ledger) as found:
            if found[run].note:
                message("report", f"run {run}: {found[run].note}")
            return print_account("report", arguments, found[run].path, run)
    except LogError as error:
        return fail("report", clean_text(error, 500))
    except OSError as error:
        if error.filename is None:
            raise  # What is printed cannot be written.
        return fail("report", os_error_text(error))


def _report_of_aggregator(arguments) -> int:
    """The account that an aggregator has of the run."""
    from goodput.web.single_file import printable
    from goodput.wire.identity import clean_text

    if arguments.name is None or arguments.html or arguments.story:
        return fail("report", "--url prints one run's account: goodput report RUN --url URL", 2)
    if bool(arguments.client_cert) != bool(arguments.client_key):
        return fail("report", "--client-cert and --client-key go together", 2)
    with loading():
        from goodput_exporters.push.client import AggregatorClient, run_path
        from goodput_exporters.push.credentials import Credentials, Unreachable
    credentials = Credentials(*(getattr(arguments, attribute_of(option)) for option in FILES))
    with closing(AggregatorClient(arguments.url.rstrip("/"), credentials)) as client:
        if client.token_is_exposed:
            message(
                "report",
                f"the token is sent in clear text to {arguments.url}: use https, or a proxy with TLS",
            )
        try:
            answer = client.get(run_path(arguments.name), URL_SECONDS)
        except Unreachable as error:
            return fail("report", f"{arguments.url}: {client.explain(error)}")
    found = answer.document()
    if answer.status != 200 or not found or "factors" not in found:
        why = clean_text(answer.detail(), 300) if answer.status != 200 else "the server is not an aggregator"
        return fail(
            "report",
            f"run {clean_text(arguments.name, 128)!r} at {arguments.url}: HTTP {answer.status}: {why}",
        )
    print(
        json.dumps(found)
        if arguments.json
        else account_text(cast("dict", printable(found)), arguments.full) + "\n"
    )
    return 0


def _report_of_pages(arguments) -> int:
    from goodput.account import compute, document
    from goodput.causes import explain
    from goodput.kept_runs.find import not_found_text
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
        runs, errors = counted_runs_in(directories, arguments.name)
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
    removed = removed_text(directories, arguments.name, [run.name for run in runs])
    chosen = [run for run in runs if arguments.name in (None, run.name)]
    for name, text in continued_runs(runs).items():
        if arguments.name in (None, name):
            message("report", clean_text(text, 500))
    documents, timelines, stories = [], {}, {}
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
            more = f"goodput report {shlex.quote(run.name)} --full" if arguments.at_exit else MORE
            print("\n".join([account_text(found, arguments.full, more), *_deep_looks(seen), ""]))
    print(footer, end="")
    if not arguments.at_exit:
        keep_dead("report", directories)
    if not chosen:
        if arguments.name is not None and arguments.directory is None and not removed:
            return fail("report", not_found_text(arguments.name))
        return fail("report", no_run_text(directories, arguments.name, [run.name for run in runs]) + removed)
    if removed:
        message("report", f"some processes are missing above{removed}")
    return write_html("report", arguments.html, documents, timelines, stories) if arguments.html else 0


def _moment_ns(run, began_ns: int, is_at_exit: bool) -> int:
    """The end of the account: neither what this command waits for nor the exit of a process is time without a process."""
    ends = [attempt.known_end_ns() for attempt in run.attempts.values()]
    if is_at_exit and None not in ends:
        return max(ends)
    return began_ns if all(attempt.ended for attempt in run.attempts.values()) else time.time_ns()


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
        f"it had sent them to the aggregator: goodput top {run} --url {url}"
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
