"""The child process of History: calls a pickled function with the ledger, and writes its pickled result.

    python -m goodput.aggregator.accounts.history_worker < job

Errors are one line on standard error with exit status 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys

from goodput.aggregator.ledger.ledger import Ledger, LedgerError


def main() -> int:
    # Die with the aggregator: the result would have no reader.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    url, function, arguments = pickle.load(sys.stdin.buffer)
    # The aggregator, which takes reports, has priority.
    with contextlib.suppress(OSError):
        os.nice(5)
    try:
        with contextlib.closing(Ledger(url, create=False)) as ledger:
            result = function(ledger, *arguments)
    except LedgerError as error:
        print(error, file=sys.stderr)
        return 1
    pickle.dump(result, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
