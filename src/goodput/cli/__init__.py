"""The command `goodput`: one file per command, found by the folder it lies in.

A command module has `add_parser(subparsers)`, which sets `call`; `call(arguments)` returns the exit status: 0 success,
1 the work failed, 2 a wrong call. Ctrl-C exits with 130, without a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import signal
import sys
import threading

from goodput import __version__

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class Parser(argparse.ArgumentParser):
    """Rejects empty option values, which come from unset shell variables. Positional arguments may be empty."""

    def _get_values(self, action, arg_strings):
        if action.option_strings and "" in arg_strings:
            # Omitting an option without a default may weaken the command: --tokens.
            has_default = not action.required and action.default is not None
            advice = "omit it for its default" if has_default else "is a variable unset?"
            raise argparse.ArgumentError(action, f"empty value; {advice}")
        return super()._get_values(action, arg_strings)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="goodput",
        description="Was every second of every GPU useful work, and if not, why, and which rank?",
        epilog="example: goodput demo",
    )
    top.add_argument("--version", action="version", version=f"goodput {__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        importlib.import_module(f"{__name__}.{found.name}").add_parser(subparsers)
    return top


@contextlib.contextmanager
def loading():
    """While modules are imported, an interrupt ends the process at once.

    As an exception it might be raised in an import callback, where Python prints and ignores it, or in a compiled
    module that cannot handle it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread is interrupted.
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    with loading():
        chosen = parser().parse_args(arguments)
    try:
        status = chosen.call(chosen)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        # A second one would print a traceback of the exit.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter's own flush at exit would print an error and exit with 120.
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
