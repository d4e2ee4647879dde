"""`goodput token`: make, list and revoke the tokens that `goodput serve --tokens` and `goodput node --tokens` ask for.

In: the command line, a token file. Out: a new token, once, in the file that --output names or on standard output; the
changed token file. Whoever runs with that takes the change up within a second.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
import time

EXAMPLE = """examples:
  goodput token create --scope ingest --name nodes --file tokens.json --output ingest-token
  goodput token create --scope read --name prometheus --file tokens.json --output read-token
  goodput token create --scope metrics --name prometheus --file node-tokens.json --output metrics-token
  goodput token create --scope read --name vision-team --tenant vision --expires 90d --file tokens.json
  goodput token list --file tokens.json
  goodput token revoke --name vision-team --file tokens.json
"""
_UNITS = {"m": 60, "h": 3600, "d": 86_400}


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "token",
        help="make, list and revoke the tokens of those who push and read",
        description="Keep the tokens that an aggregator or agent asks for. The file has hashes alone: a token is shown\n"
        "once, when it is made. Rotate by making a second one, handing it out, and revoking the first.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    create = actions.add_parser("create", help="make a token and print it; it cannot be shown again")
    create.add_argument(
        "--scope",
        required=True,
        choices=("ingest", "read", "metrics"),
        help="to push reports, to read, or to read the /metrics of node agents and nothing of an aggregator",
    )
    create.add_argument("--name", required=True, metavar="NAME", help="who it is for, for people and logs")
    create.add_argument("--run", action="append", metavar="GLOB",
        help="runs that it is for: a name, or a pattern as of a shell; may be given several times (default: all)")  # fmt: skip
    create.add_argument(
        "--tenant", metavar="NAME", help="only runs named NAME/…; --run then says which of those"
    )
    create.add_argument(
        "--expires", metavar="TIME", type=duration, help="after such as 90d, 12h, 30m (default: never)"
    )
    create.add_argument("--output", metavar="FILE",
        help="write the token there, with mode 0600, instead of printing it; one that is there is replaced and keeps "
        "its owner and group")  # fmt: skip
    listing = actions.add_parser("list", help="what tokens there are; never what they are")
    listing.add_argument("--json", action="store_true", help="as JSON")
    revoke = actions.add_parser("revoke", help="take a token out of the file")
    which = revoke.add_mutually_exclusive_group(required=True)
    which.add_argument("--name", metavar="NAME", help="the token of this name; of several, all with --all")
    which.add_argument("--id", metavar="ID", help="the one with this id, as `list` shows it")
    revoke.add_argument("--all", action="store_true", help="with --name: every token of this name")
    for action in (create, listing, revoke):
        action.add_argument("--file", required=True, metavar="FILE", help="the token file")
    parser.set_defaults(call=call)


def duration(text: str) -> float:
    found = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: want a number and m, h or d, such as 90d")
    return float(found[1]) * _UNITS[found[2]]


def call(arguments) -> int:
    from goodput.access.token_file import FileError

    act = {"create": _create, "list": _list, "revoke": _revoke}[arguments.action]
    try:
        return act(arguments)
    except FileError as error:
        _complain(str(error))
        return 1
    except ValueError as error:
        _complain(str(error))
        return 2


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
    )
    made = f"made token {token.id} ({token.scope}, {token.name})"
    if arguments.output:
        if os.path.realpath(arguments.output) == os.path.realpath(arguments.file):
            raise FileError(f"--output {arguments.output}: that is the token file")
        # The token is in force before its text takes the old one's place: whoever reads that is never refused for it.
        with replacing(arguments.output, text), changing(arguments.file) as tokens:
            tokens.append(token)
        print(f"{made}: {arguments.output}")
    else:
        with changing(arguments.file) as tokens:
            tokens.append(token)
        print(text)
        _warn_of_output(f"{made}; it is not shown again")
    _warn(arguments.file)
    return 0


def _list(arguments) -> int:
    from goodput.access.token_file import read

    tokens = read(arguments.file)
    _warn(arguments.file)
    if arguments.json:
        shown = ("id", "name", "scope", "runs", "tenant", "created", "expires")
        print(json.dumps([{name: getattr(token, name) for name in shown} for token in tokens], indent=2))
        return 0
    rows = [("ID", "SCOPE", "NAME", "RUNS", "CREATED", "EXPIRES")]
    for token in tokens:
        runs = " ".join(token.access().runs)
        rows.append((token.id, token.scope, token.name, runs, _minute(token.created), _expiry(token)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _revoke(arguments) -> int:
    from goodput.access.token_file import FileError, changing

    with changing(arguments.file) as tokens:
        gone = [token for token in tokens if arguments.id == token.id or arguments.name == token.name]
        if arguments.all and not arguments.name:
            raise ValueError("--all goes with --name")
        if not gone:
            raise FileError(
                f"{arguments.file}: no token {(arguments.id or arguments.name)!r}; see goodput token list"
            )
        if len(gone) > 1 and not arguments.all:
            # As in a rotation, where the new one is in use already.
            raise FileError(
                f"{arguments.file}: {len(gone)} tokens are named {arguments.name!r}: --id with one of "
                f"{', '.join(token.id for token in gone)} (see goodput token list), or --all"
            )
        tokens[:] = [token for token in tokens if token not in gone]
    print("\n".join(f"revoked {token.id} ({token.scope}, {token.name})" for token in gone))
    return 0


def _minute(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(unix_seconds)) if unix_seconds else "unknown"


def _expiry(token) -> str:
    if token.expires is None:
        return "never"
    return "expired" if token.expires <= time.time() else _minute(token.expires)


def _warn(path: str) -> None:
    from goodput.access.token_file import warning

    if problem := warning(path):
        _complain(f"warning: {problem}")


def _warn_of_output(made: str) -> None:
    """What a person at a terminal may wonder about, and a redirection that others may read."""
    if sys.stdout.isatty():
        _complain(made)
        return
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        _complain(
            f"warning: everybody on this machine may read the file that this was written to (mode "
            f"{stat.S_IMODE(mode):04o}); chmod 600 it, or take --output FILE"
        )


def _complain(text: str) -> None:
    print(f"goodput token: {text}", file=sys.stderr)
