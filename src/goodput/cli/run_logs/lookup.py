"""The run logs of what a command was called with: a file, a kept run, one with pages, or one of a ledger."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, contextmanager
from typing import NamedTuple


class Exported(NamedTuple):
    path: str
    thinned_until_ns: dict[int, int]  # by rank, as closed_runs.thinned_until_ns has it
    note: str = ""  # what the log lacks


def is_file(word: str) -> bool:
    """Whether a word is a log's file, and no run's name: FILE[#RUN], or standard input."""
    return word == "-" or "#" in word or os.path.exists(word)


@contextmanager
def logs_of(names: list[str], ledger: str | None):
    """Run logs of these runs, by name: of the ledger if there is one, of kept runs, or of pages. Raises LogError and OSError."""
    from goodput.kept_runs.find import NotFound, log_of
    from goodput.runlog import LogError
    from goodput.wire.identity import clean_text

    with ExitStack() as stack:
        found, elsewhere = {}, ""
        if ledger is not None:
            found, known = stack.enter_context(in_ledger(ledger, names))
            last = ", ".join(clean_text(name, 128) for name in known[-10:]) or "none"
            elsewhere = f"the ledger (the last runs there: {last})"
        for name in names:
            if name not in found:
                try:
                    log = stack.enter_context(log_of(name, elsewhere))
                except NotFound as error:
                    raise LogError(str(error)) from None
                found[name] = Exported(log.path, {}, log.note)
        try:
            yield found
        except LogError as error:
            text = str(error)
            for name, log in found.items():
                text = text.replace(log.path, f"run {name}")
            raise LogError(text) from None


@contextmanager
def in_ledger(url: str, names: list[str]):
    """Temporary run logs of those of these runs that are in a ledger, by name, and the names of all. Raises LogError and OSError."""
    from goodput.aggregator.ledger.closed_runs import thinned_until_ns
    from goodput.aggregator.ledger.ledger import Ledger, LedgerError
    from goodput.runlog import LogError
    from goodput.runlog.export import export

    try:
        ledger = Ledger(url, create=False)
    except LedgerError as error:
        raise LogError(str(error)) from None
    try:
        known = ledger.runs()
        with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
            found = {}
            for at, name in enumerate(name for name in names if name in known):
                path = os.path.join(folder, f"{at}.jsonl")
                with open(path, "wb") as file:
                    file.writelines(export(ledger, name, time.time_ns()))
                # Afterwards: more may have been thinned meanwhile.
                found[name] = Exported(path, thinned_until_ns(ledger, name))
            yield found, known
    except LedgerError as error:
        raise LogError(str(error)) from None
    finally:
        ledger.close()
