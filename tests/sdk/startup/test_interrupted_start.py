"""What a signal handler of the user's raises anywhere in our calls reaches the user, and the call is done all the same."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from itertools import count

import pytest

import goodput
from goodput.rank_page.reader import Reader
from goodput.sdk.recorder.recorder import State
from goodput.sdk.startup.session import INTERRUPTS_MAX, Session

OWN = os.path.dirname(goodput.__file__) + os.sep
BEFORE = 4  # points of a call before it begins; interrupted there it is not done, or at the next call
FIELDS = {"run": "limited", "rank": 3, "world_size": 8, "device": "a device", "hardware_flops_per_step": 2.5}


class Interrupter:
    """Raises a signal, whose handler raises `exception`, at the `n`-th point in goodput's files where CPython runs handlers.

    Those are the beginning of a function and the return of a compiled one; besides them there are only loops' ends.
    """

    def __init__(self, n: int, exception: type[BaseException]):
        self.left, self.exception = n, exception

    def __enter__(self):
        self._handler = signal.signal(signal.SIGUSR1, self._interrupt)
        sys.setprofile(self._point)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, self._handler)

    def _interrupt(self, _number, _frame):
        raise self.exception("the user's")

    def _point(self, frame, event, _argument):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OWN):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)


def interrupted_everywhere(call, prepare, exception: type[BaseException]):
    """Prepared states after `call(state)` was interrupted at its first, second, ... point, until it is not any more."""
    for n in count(1):
        state = prepare(n)
        with Interrupter(n, exception) as interrupter:
            try:
                call(state)
            except exception as error:
                assert str(error) == "the user's"
                raised = True
            else:
                raised = False
        if interrupter.left > 0:
            assert n > 20 and not raised
            return
        assert raised, n
        if n <= BEFORE:
            call(state)
        yield n, state


@pytest.fixture
def prepare(tmp_path):
    def made(n: int) -> Session:
        session = Session(environ={"GOODPUT_DIR": str(tmp_path / str(n))})
        session.recorder.costs.calibrate(1, 1, 0)  # It is not measured: that would be thousands of lines.
        return session

    return made


def steps_of(session: Session) -> None:
    recorder = session.recorder
    for _ in range(2):
        recorder.begin_step(recorder.end_gap(time.perf_counter_ns()), None, 1)
        recorder.end_step(time.perf_counter_ns())


def one_page(tmp_path, n: int):
    """The only page of a directory, as the agent reads it."""
    names = os.listdir(tmp_path / str(n))
    assert len(names) == 1, (n, names)
    path = str(tmp_path / str(n) / names[0])
    fd = os.open(path, os.O_RDONLY)
    try:
        return Reader(path, fd).snapshot()
    finally:
        os.close(fd)


@pytest.mark.parametrize("exception", [TimeoutError, RuntimeError, KeyboardInterrupt])
def test_interrupted_start_is_done(prepare, tmp_path, capsys, exception):
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    for n, session in interrupted_everywhere(lambda session: session.start(**FIELDS), prepare, exception):
        steps_of(session)
        found = one_page(tmp_path, n)
        assert found.steps_done == 2 and {**found.identity, **FIELDS} == found.identity
        assert found.last_ns - found.identity["start_mono_ns"] == sum(found.totals)
        session.stop("finished")
        session.writer.close()
    del session
    gc.collect()  # Mappings hold files, too.
    # Two were interrupted between os.open and the store of its result.
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    assert capsys.readouterr().err == ""


def test_interrupted_declaration_is_done(prepare, tmp_path, capsys):
    def started(n: int) -> Session:
        session = prepare(n)
        session.start(**FIELDS)
        return session

    def declare(session: Session) -> None:
        session.declare(dtype="bf16", flops_per_step=5e9)

    for n, session in interrupted_everywhere(declare, started, TimeoutError):
        steps_of(session)
        found = one_page(tmp_path, n)
        assert (found.identity["dtype"], found.identity["flops_per_step"]) == ("bf16", 5e9), n
        session.stop("finished")
        session.writer.close()
    assert capsys.readouterr().err == ""


def test_interrupted_return_to_an_earlier_step_is_done(prepare, tmp_path, capsys):
    def stepped(n: int) -> Session:
        session = prepare(n)
        session.start(**FIELDS)
        steps_of(session)
        steps_of(session)
        return session

    for n, session in interrupted_everywhere(lambda session: session.resume(1), stepped, TimeoutError):
        steps_of(session)
        names = sorted(os.listdir(tmp_path / str(n)))
        if len(names) == 1:  # Interrupted before it began.
            assert one_page(tmp_path, n).steps_done == 6 and n < 2 * BEFORE + BEFORE
            continue
        path = str(tmp_path / str(n) / names[1])
        found = Reader(path, session.writer.fd).snapshot()
        assert found.identity["attempt"] == 2 and found.steps_done == 2, n
        assert "resumed" in [event.kind for event in found.events]
        session.stop("finished")
        session.writer.close()
    assert capsys.readouterr().err == ""


def test_call_that_is_always_interrupted_is_given_up(prepare, monkeypatch):
    session, tries = prepare(0), []

    def always(_number, _frame):
        raise TimeoutError("the user's")

    def resolve(*_):
        tries.append(1)
        signal.raise_signal(signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, always)
    monkeypatch.setattr("goodput.sdk.startup.session.resolve_identity", resolve)
    try:
        with pytest.raises(TimeoutError, match="the user's"):
            session.start(**FIELDS)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert len(tries) == INTERRUPTS_MAX and session.recorder.state == State.NOT_STARTED


def test_message_names_an_error_without_text(tmp_path, monkeypatch, capsys):
    def resolve(*_):
        raise LookupError

    monkeypatch.setattr("goodput.sdk.startup.session.resolve_identity", resolve)
    Session(environ={"GOODPUT_DIR": str(tmp_path)}).start()
    assert capsys.readouterr().err == "goodput: cannot start, this process is not measured: LookupError\n"
