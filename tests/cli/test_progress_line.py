"""Progress of commands that take long: on a terminal one line that is gone in the end, elsewhere nothing, or messages."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from goodput.cli.parsing import progress_line
from goodput.cli.parsing.progress_line import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds since the start, set by the test."""
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 100.0 + seconds)


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    found = Terminal()
    # Not sys.stderr itself, which pytest sets again after the fixtures.
    monkeypatch.setattr(progress_line, "sys", SimpleNamespace(stderr=found))
    return found


def test_line_on_a_terminal(clock, terminal):
    with ProgressLine("reading") as progress:
        clock(0.9)
        progress(0.1)
        assert terminal.getvalue() == ""
        clock(4)
        progress(0.25)
        assert terminal.getvalue() == "\rreading: 25 %, 12 s left\x1b[K"
        clock(4.1)
        progress(0.26)
        clock(1000)
        progress(1500, 3000)
        progress(1501, 3000)
    lines = terminal.getvalue().split("\r")[2:]
    assert lines == ["reading: 1,500 of 3,000, 50 %, 17 min left\x1b[K", "\x1b[K"]


def test_amount_without_an_end(clock, terminal):
    progress = ProgressLine("compacting")
    clock(5)
    progress(12345, None)
    assert terminal.getvalue() == "\rcompacting: 12,345\x1b[K"


def test_nothing_or_messages_where_there_is_no_terminal(clock, capsys):
    silent, said = ProgressLine("reading"), ProgressLine("checking", "ledger")
    for seconds in (1, 9, 11, 12, 22):
        clock(seconds)
        silent(seconds / 30)
        said(seconds, 30)
    silent.end()
    said.end()
    assert capsys.readouterr().err.splitlines() == [
        "goodput ledger: checking: 11 of 30, 37 %, 19 s left",
        "goodput ledger: checking: 22 of 30, 73 %, 8 s left",
    ]
