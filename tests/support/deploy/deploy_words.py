"""What the tests of deploy/ share: a command line of goodput as the program itself would read it.

In: the words after `goodput`. Out: the parsed arguments; AssertionError with the program's own complaint.
"""

import contextlib
import io

from support.servers import servers

from goodput import cli

DEPLOY = servers.REPOSITORY / "deploy"


def parsed(*words: str):
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return cli.parser().parse_args(words)
    except SystemExit:
        raise AssertionError(f"goodput {' '.join(words)}: {complaint.getvalue()}") from None
