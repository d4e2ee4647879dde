"""`goodput top`: the runs of this node or of a cluster, live on a terminal."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys

from goodput.cli import OldSpelling, fail, loading, message, number
from goodput.cli.node import FILES, attribute_of, path, url, variable_of
from goodput.cli.runs import keep_dead

DESCRIPTION = """Show the runs of this node from their rank pages, or with --url those of a cluster
from its aggregator: ranks sorted by trouble, where each is and for how long, its
time by state, step times, hangs, and the time left where the number of steps is
known. Printed once where the output is no terminal."""
EPILOG = """examples:
  goodput top                                             this node
  goodput top --url https://goodput.internal:9471 --token-file FILE   a cluster
  goodput top my-run --once                               print it once
  goodput top --json | jq '.opened.ranks[] | select(.severity > 0)'

exit status: 0, 1 if nothing can be read or there is no such run, 2 for a wrong call"""
REFRESH_SECONDS = 2.0
AGENT = "http://127.0.0.1:9470"


def add_options(parser) -> None:
    add = parser.add_argument
    add("name", metavar="RUN", nargs="?", help="open this run")
    add("--run", action=OldSpelling, new="RUN, without an option")
    add("--aggregator", dest="url", type=url, action=OldSpelling, new="--url", default=argparse.SUPPRESS)
    add("--url", metavar="URL", type=url,
        help="read the runs of this aggregator (default: the rank pages of this node)")  # fmt: skip
    for option, text in FILES.items():
        variable = variable_of(option)
        add(option, metavar="FILE", type=path, default=os.environ.get(variable) or None,
            help=f"with --url: {text.replace('scope ingest', 'scope read')} (default: ${variable})")  # fmt: skip
    add("--directory", type=path,
        help="folder of the rank pages (default: $GOODPUT_DIR, else all of /run/goodput, /dev/shm/goodput and /tmp/goodput)")  # fmt: skip
    add("--agent", metavar="URL", type=url, default=AGENT,
        help="this node's agent, for the activity and power of GPUs (default: %(default)s)")  # fmt: skip
    add("--interval", metavar="SECONDS", type=number(float, 0.2, 3600, " seconds"), default=REFRESH_SECONDS,
        help="time between readings (default: %(default)g)")  # fmt: skip
    add("--once", action="store_true", help="print once, as where the output is no terminal")
    add("--json", action="store_true", help="print once, as JSON")


def call(arguments) -> int:
    arguments.name = arguments.name or arguments.run
    if arguments.url and arguments.directory:
        return fail("top", "--url and --directory exclude each other", 2)
    if arguments.url and bool(arguments.client_cert) != bool(arguments.client_key):
        return fail("top", "--client-cert and --client-key go together", 2)
    try:
        with loading():
            import goodput.top.pages
            import goodput.top.printed
            import goodput.top.screen
            from goodput.top.model import SourceError
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "goodput":
            raise
        return fail("top", f"{error.name} is missing: pip install 'goodput-telemetry[top]'")
    source = _source(arguments)
    if isinstance(source, goodput.top.pages.PageSource):
        keep_dead("top", source.directories)
    if not (arguments.once or arguments.json) and _has_screen():
        return _show(arguments, source)
    try:
        frame = source.read(arguments.name)
    except SourceError as error:
        return fail("top", error)
    if arguments.name and frame.opened is None:
        text = f"no run {arguments.name} in {source.title}"
        if isinstance(source, goodput.top.pages.PageSource):
            from goodput.cli.report import removed_text

            text += removed_text(source.directories, arguments.name, [])
        return fail("top", text)
    if arguments.json:
        print(goodput.top.printed.as_json(frame))
        return 0
    console, glyphs = _console()
    goodput.top.printed.as_text(frame, arguments.name, console, glyphs)
    return 0


def _source(arguments):
    from goodput.defaults import STALL_SECONDS
    from goodput.rank_page.page import existing_directories
    from goodput.rank_page.shared_folders import pages_beside

    if arguments.url:
        from goodput.top.api import ApiSource
        from goodput_exporters.push.credentials import Credentials

        source = ApiSource(
            arguments.url, Credentials(*(getattr(arguments, attribute_of(one)) for one in FILES))
        )
        if source.client.token_is_exposed:
            message(
                "top", f"the token is sent in clear text to {arguments.url}: use https, or a proxy with TLS"
            )
        return source
    from goodput.top.gpus import AgentGpus
    from goodput.top.pages import PageSource

    directories = [arguments.directory] if arguments.directory else existing_directories()
    notes = [] if arguments.directory else pages_beside(directories, os.geteuid())
    return PageSource(directories, STALL_SECONDS, AgentGpus(arguments.agent), notes)


def _has_screen() -> bool:
    return (
        sys.stdout.isatty()
        and sys.stdin.isatty()
        and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    )


def _console():
    from rich.console import Console

    from goodput.top.glyphs import Glyphs, is_utf8

    is_terminal = sys.stdout.isatty()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Names may have characters that the terminal does not.
    has_colour = is_terminal and not os.environ.get("NO_COLOR")
    # On a pipe as wide as $COLUMNS, else as the terminal of another stream, else 80. rich takes $COLUMNS of 0 literally.
    columns = os.environ.get("COLUMNS", "")
    width = shutil.get_terminal_size().columns if columns.isdecimal() and not int(columns) else None
    console = Console(
        file=sys.stdout, highlight=False, no_color=not has_colour, width=width, emoji=False, markup=False
    )
    is_unicode = (
        is_utf8(sys.stdout.encoding or "", os.environ)
        if is_terminal
        else sys.stdout.encoding.lower() == "utf-8"
    )
    return console, Glyphs(is_unicode, has_colour and console.color_system is not None)


def _show(arguments, source) -> int:
    from goodput.top.pages import PageSource
    from goodput.top.polling import Polling
    from goodput.top.screen import Screen
    from goodput.top.stacks import StackTaker
    from goodput.top.view import View

    console, glyphs = _console()
    screen = None
    polling = Polling(source, arguments.interval, lambda: screen and screen.wake())
    polling.opened = arguments.name
    stacks = StackTaker(source if isinstance(source, PageSource) else None)
    screen = Screen(console, polling, View(arguments.name), glyphs, sys.stdin.fileno(), stacks)
    return screen.run()
