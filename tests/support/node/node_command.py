"""The command `goodput node` in a process of its own."""

import os
import subprocess
import sys

from support.paths import PYTHONPATH

CALL = """
import argparse, sys
from goodput.cli import node
parser = argparse.ArgumentParser(prog="goodput")
layout = {"epilog": node.EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
node.add_options(parser.add_subparsers().add_parser("node", **layout))
sys.exit(node.call(parser.parse_args(sys.argv[1:])))
"""


def command(*arguments, **environment) -> list:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GOODPUT")}
    return [sys.executable, "-c", CALL, "node", *arguments], {
        **environ,
        "PYTHONPATH": PYTHONPATH,
        **environment,
    }


def run(*arguments, **environment) -> subprocess.CompletedProcess:
    call, environ = command(*arguments, **environment)
    return subprocess.run(call, env=environ, capture_output=True, text=True, timeout=300)
