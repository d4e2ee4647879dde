"""`goodput mcp`: an MCP server on stdio, so that assistants can ask the aggregator about runs."""

from __future__ import annotations

import argparse
import os
from contextlib import closing

from goodput.cli import OldSpelling, fail, loading, message
from goodput.cli.node import attribute_of, path, url, variable_of

DESCRIPTION = """Answer questions about runs over the Model Context Protocol (MCP) on standard input and output:
which runs there are, where their GPU time went, what to change, which rank is slow or hangs.
Tools only read; they see what the token may see. An assistant starts this command itself."""
EPILOG = """examples:
  goodput mcp --url http://127.0.0.1:9471
  goodput mcp --url https://goodput.internal:9471 --token-file FILE

exit status: 0 when the assistant has closed the input, 1 if the server cannot start, 2 for a wrong call"""
FILES = {
    "--token-file": "token of scope read, read again for each request",
    "--ca-file": "certificate authorities (PEM) to trust for an https address, instead of the system's",
    "--client-cert": "certificate (PEM, with its chain), if the aggregator requires one",
    "--client-key": "the key of --client-cert (PEM, not encrypted)",
}


def add_options(parser) -> None:
    add = parser.add_argument
    add("--aggregator", dest="url", type=url, action=OldSpelling, new="--url", default=argparse.SUPPRESS)
    add("--url", metavar="URL", type=url,
        default=os.environ.get("GOODPUT_AGGREGATOR") or None,
        help="the aggregator's URL (default: $GOODPUT_AGGREGATOR)")  # fmt: skip
    for option, text in FILES.items():
        variable = variable_of(option)
        add(option, metavar="FILE", type=path, default=os.environ.get(variable) or None,
            help=f"{text} (default: ${variable})")  # fmt: skip


def call(arguments) -> int:
    if not arguments.url:
        return fail("mcp", "no aggregator: set --url or GOODPUT_AGGREGATOR", 2)
    if bool(arguments.client_cert) != bool(arguments.client_key):
        return fail("mcp", "--client-cert and --client-key go together", 2)
    try:
        with loading():
            from goodput.mcp.read_api import ReadApi
            from goodput.mcp.server import server_of
            from goodput_exporters.push.credentials import Credentials
    except ModuleNotFoundError as error:
        return fail("mcp", f"{error.name} is missing: pip install 'goodput-telemetry[mcp]'")
    credentials = Credentials(*(getattr(arguments, attribute_of(option)) for option in FILES))
    with closing(ReadApi(arguments.url.rstrip("/"), credentials)) as api:
        if api.token_is_exposed:
            message(
                "mcp", f"the token is sent in clear text to {arguments.url}: use https, or a proxy with TLS"
            )
        server_of(api).run("stdio")
    return 0
