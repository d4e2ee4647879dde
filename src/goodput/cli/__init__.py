"""The command `goodput`: one file per command, found by the folder it lies in.

A command module has `add_parser(subparsers)`, which sets `call`; `call(arguments)` returns the exit status:
0 it worked, 1 the work failed, 2 the call was wrong.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys

from goodput import __version__


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="goodput",
        description="Was every second of every GPU useful work, and if not, why, and which rank?",
        epilog="example: goodput demo",
    )
    top.add_argument("--version", action="version", version=f"goodput {__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        importlib.import_module(f"{__name__}.{found.name}").add_parser(subparsers)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    chosen = parser().parse_args(arguments)
    try:
        status = chosen.call(chosen)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter flushes once more on its way out, and would complain and exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        extra = {
            "rich": "demo",
            "numpy": "demo",
            "prometheus_client": "node",
            "msgspec": "node",
            "httpx": "node",
        }
        name = (error.name or "").split(".")[0]
        print(
            f"goodput: this command needs {name}: pip install 'goodput-telemetry[{extra.get(name, 'server')}]'",
            file=sys.stderr,
        )
        return 1
