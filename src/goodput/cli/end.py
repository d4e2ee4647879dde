"""`goodput end`: tell the aggregator that a run is over, so that a cancelled run does not count as down."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from contextlib import closing
from datetime import datetime

from goodput.cli import OldSpelling, fail, loading, message
from goodput.cli.node import FILES, add_aggregator_options, attribute_of, seconds, url

DESCRIPTION = """Tell the aggregator that a run is over. Without this a cancelled run counts as down and raises an
alert, like one that crashed. Each rank ends when it was last seen alive; a new attempt starts as
usual. While ranks are still alive the command waits, then fails."""
EPILOG = """examples:
  goodput end my-run --url https://goodput.internal:9471 --token-file FILE   after scancel
  goodput end my-run --reason finished                    succeeded, though its ranks did not report it
  goodput end my-run --at 2026-05-01T08:30:00Z            ranks ran until then, though unobserved
"""

REASONS = ("finished", "failed", "cancelled")
TIMEOUT_SECONDS, AGAIN_SECONDS = 20.0, 2.0
ALIVE = 409
COUNTS = ("ended", "known", "already", "alive")


def add_options(parser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="the run's name")
    add("--reason", choices=REASONS, default="cancelled",
        help="finished: all its work counts; failed, cancelled: work up to its last checkpoint counts (default: %(default)s)")  # fmt: skip
    add("--at", metavar="TIME", type=moment,
        help="when the run's GPUs were released, as 2026-05-01T08:30:00Z or unix seconds: ranks that were seen dead are "
        "down until then, others ran (default: when each was last seen alive)")  # fmt: skip
    add("--wait", metavar="SECONDS", type=seconds(0), default=60.0,
        help="how long to wait for ranks that are still alive (default: %(default)s)")  # fmt: skip
    add("--force", action="store_true",
        help="end it though ranks are alive, as a rank counts until its agent's next check; ranks that are still "
        "alive a minute later continue the run")  # fmt: skip
    add_aggregator_options(add, "the aggregator's URL (default: $GOODPUT_AGGREGATOR)", "--url")
    add("--aggregator", type=url, action=OldSpelling, new="--url", default=argparse.SUPPRESS)
    add("--json", action="store_true", help="print the aggregator's response")


def moment(text: str) -> float:
    """Unix seconds; a time without a zone is in this machine's zone."""
    try:
        found = float(text)
    except ValueError:
        try:
            # Python 3.10 does not parse Z.
            found = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text)).timestamp()
        except (ValueError, OverflowError, OSError):
            found = math.nan
    if not 0 <= found < 4e9:
        raise argparse.ArgumentTypeError(f"{text!r}: want a time as 2026-05-01T08:30:00Z, or unix seconds")
    return found


def call(arguments) -> int:
    if not arguments.aggregator:
        return fail("end", "no aggregator: set --url or GOODPUT_AGGREGATOR", 2)
    if bool(arguments.client_cert) != bool(arguments.client_key):
        return fail("end", "--client-cert and --client-key go together", 2)
    if not 0 < len(arguments.run) <= 128 or not arguments.run.isprintable():
        return fail("end", "RUN must be 1 to 128 printable characters", 2)
    with loading():
        from goodput_exporters.push.client import AggregatorClient
        from goodput_exporters.push.credentials import Credentials, Unreachable
    credentials = Credentials(*(getattr(arguments, attribute_of(option)) for option in FILES))
    address = arguments.aggregator.rstrip("/")
    with closing(AggregatorClient(address, credentials)) as client:
        if client.token_is_exposed:
            message("end", f"the token is sent in clear text to {address}: use https, or a proxy with TLS")
        try:
            answer = _post(client, arguments)
        except Unreachable as error:
            return fail("end", f"{address}: {client.explain(error)}")
    if answer.status != 200:
        advice = "; --force ends it now" if answer.status == ALIVE else ""
        return fail("end", f"{address}: HTTP {answer.status}: {answer.detail()[:500]}{advice}")
    found = answer.document() or {}
    if not all(type(found.get(name)) is int for name in COUNTS):
        return fail("end", f"{address}: the server at this address is not an aggregator")
    print(json.dumps(found) if arguments.json else _text(arguments, found))
    return 0


def _post(client, arguments):
    """Repeat the request while ranks are alive, up to --wait seconds; return the last response."""
    from goodput_exporters.push.client import run_path

    body = json.dumps({"reason": arguments.reason, "at": arguments.at, "force": arguments.force}).encode()
    path = run_path(arguments.run, "end")
    deadline, is_first = time.monotonic() + arguments.wait, True
    while True:
        answer = client.post(path, body, "application/json", TIMEOUT_SECONDS)
        if answer.status != ALIVE or time.monotonic() + AGAIN_SECONDS > deadline:
            return answer
        if is_first:
            print(f"waiting up to {arguments.wait:.0f} s: {answer.detail()}", file=sys.stderr)
            is_first = False
        time.sleep(AGAIN_SECONDS)


def _text(arguments, found: dict) -> str:
    parts = [f"{found['ended']} rank{'s' * (found['ended'] != 1)} ended"]
    more = {
        "known": "had reported their end",
        "already": "were already ended this way",
        "alive": "were still alive",
    }
    parts += [f"{found[name]} {words}" for name, words in more.items() if found[name]]
    return f"run {arguments.run} is over, {arguments.reason}: {', '.join(parts)}"
