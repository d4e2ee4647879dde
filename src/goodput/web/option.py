"""The `--html` option of `goodput replay` and `goodput report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def add_html_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html",
        metavar="OUT",
        help="write the interactive page with these accounts to one file, for a browser",
    )


def write_html(
    command: str,
    path: str,
    documents: Sequence[Mapping[str, Any]],
    *,
    log: dict | None = None,
    timelines: dict | None = None,
) -> int:
    """Write the page to `path`; returns the exit status of the command."""
    from goodput.web.single_file import render

    text = render(documents, command=f"goodput {command}", log=log, timelines=timelines)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"goodput {command}: {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
