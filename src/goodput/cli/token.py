"""`goodput token`: create, list and revoke the tokens of `goodput serve --tokens` and `goodput node --tokens`."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
import time

from goodput.cli import fail, message, number

DESCRIPTION = """Maintain the token file of an aggregator or agent, which applies changes within a second. The file
stores hashes only: a token is shown once. To rotate, create a second token, distribute it, revoke the first."""
EPILOG = """examples:
  goodput token create --scope ingest --name nodes --file tokens.json --output ingest-token
  goodput token create --scope read --name prometheus --file tokens.json --output read-token
  goodput token create --scope metrics --name prometheus --file node-tokens.json --output metrics-token
  goodput token create --scope read --name vision-team --tenant vision --expires 90d --file tokens.json
  goodput token create --scope ingest --name vision-nodes --tenant vision --gpus 512 --file tokens.json
  goodput token list --file tokens.json
  goodput token revoke --name vision-team --file tokens.json
"""

_UNITS = {"m": 60, "h": 3600, "d": 86_400}


def add_options(parser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    create = actions.add_parser("create", help="create a token and print it, once")
    add = create.add_argument
    add("--scope", required=True, choices=("ingest", "read", "metrics"),
        help="ingest: push reports; read: read runs; metrics: read the /metrics of node agents only")  # fmt: skip
    add("--name", required=True, metavar="NAME", help="whose token it is, shown in lists and logs")
    add("--run", action="append", metavar="GLOB",
        help="limit it to this run, or to runs matching a shell pattern; repeatable (default: all)")  # fmt: skip
    add("--tenant", metavar="NAME", help="limit it to runs named NAME/…; --run then selects among those")
    add("--expires", metavar="TIME", type=duration,
        help="lifetime, such as 90d, 12h or 30m (default: never expires)")  # fmt: skip
    add("--gpus", type=number(int, 1, 1 << 24, " GPUs"), metavar="N",
        help="with --run or --tenant, of scope ingest: its runs may have so many GPUs together while they report; ranks "
        "beyond are refused (default: no limit)")  # fmt: skip
    add("--output", metavar="FILE",
        help="write the token to this file with mode 0600 instead of printing it; an existing file is replaced and "
        "keeps its owner and group")  # fmt: skip
    listing = actions.add_parser("list", help="list the tokens, without their secrets")
    listing.add_argument("--json", action="store_true", help="print JSON")
    revoke = actions.add_parser("revoke", help="remove a token from the file")
    which = revoke.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--name", metavar="NAME", help="the token of this name; if there are several, add --all"
    )
    which.add_argument("--id", metavar="ID", help="the token with this id, as shown by `list`")
    revoke.add_argument("--all", action="store_true", help="with --name: every token of this name")
    for action in (create, listing, revoke):
        action.add_argument("--file", required=True, metavar="FILE", help="the token file")


def duration(text: str) -> float:
    found = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number and m, h or d, such as 90d")
    return float(found[1]) * _UNITS[found[2]]


def call(arguments) -> int:
    from goodput.access.token_file import FileError

    action = {"create": _create, "list": _list, "revoke": _revoke}[arguments.action]
    try:
        return action(arguments)
    except FileError as error:
        return fail("token", error)
    except ValueError as error:
        return fail("token", error, 2)


def _create(arguments) -> int:
    from goodput.access.token_file import FileError, changing, replacing
    from goodput.access.tokens import ALL, make

    now = time.time()
    text, token = make(
        arguments.name,
        arguments.scope,
        runs=tuple(arguments.run or ALL),
        tenant=arguments.tenant,
        created=round(now),
        expires=round(now + arguments.expires) if arguments.expires else None,
        gpus=arguments.gpus,
    )
    created = f"created token {token.id} ({token.scope}, {token.name})"
    if arguments.output:
        if os.path.realpath(arguments.output) == os.path.realpath(arguments.file):
            raise FileError(f"--output {arguments.output}: that is the token file")
        # The token is valid before its text replaces the old one, so no reader of the file is ever refused.
        with replacing(arguments.output, text), changing(arguments.file) as tokens:
            tokens.append(token)
        print(f"{created}: {arguments.output}")
    else:
        with changing(arguments.file) as tokens:
            tokens.append(token)
        print(text)
        _warn_of_output(f"{created}; it is not shown again")
    _warn(arguments.file)
    return 0


def _list(arguments) -> int:
    from goodput.access.token_file import read

    tokens = read(arguments.file)
    _warn(arguments.file)
    if arguments.json:
        shown = ("id", "name", "scope", "runs", "tenant", "created", "expires", "gpus")
        print(json.dumps([{name: getattr(token, name) for name in shown} for token in tokens], indent=2))
        return 0
    rows = [("ID", "SCOPE", "NAME", "RUNS", "GPUS", "CREATED", "EXPIRES")]
    for token in tokens:
        runs = " ".join(token.access().runs)
        rows.append(
            (
                token.id,
                token.scope,
                token.name,
                runs,
                str(token.gpus or "any"),
                _minute(token.created),
                _expiry(token),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _revoke(arguments) -> int:
    from goodput.access.token_file import FileError, changing

    if arguments.all and not arguments.name:
        raise ValueError("--all needs --name")
    with changing(arguments.file) as tokens:
        revoked = [token for token in tokens if arguments.id == token.id or arguments.name == token.name]
        if not revoked:
            raise FileError(
                f"{arguments.file}: no token {(arguments.id or arguments.name)!r}; see goodput token list"
            )
        if len(revoked) > 1 and not arguments.all:
            # As during a rotation, when the new one is in use already.
            raise FileError(
                f"{arguments.file}: {len(revoked)} tokens are named {arguments.name!r}: use --id with one of "
                f"{', '.join(token.id for token in revoked)} (see goodput token list), or --all"
            )
        tokens[:] = [token for token in tokens if token not in revoked]
    print("\n".join(f"revoked {token.id} ({token.scope}, {token.name})" for token in revoked))
    return 0


def _minute(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(unix_seconds)) if unix_seconds else "unknown"


def _expiry(token) -> str:
    if token.expires is None:
        return "never"
    return "expired" if token.expires <= time.time() else _minute(token.expires)


def _warn(path: str) -> None:
    from goodput.access.token_file import permission_problem

    if problem := permission_problem(path):
        message("token", f"warning: {problem}")


def _warn_of_output(created: str) -> None:
    """Print on a terminal what was created; warn if standard output is a file that others can read."""
    if sys.stdout.isatty():
        message("token", created)
        return
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        message(
            "token",
            f"warning: every user of this machine may read the output file (mode {stat.S_IMODE(mode):04o}); "
            "chmod 600 it, or use --output FILE",
        )
