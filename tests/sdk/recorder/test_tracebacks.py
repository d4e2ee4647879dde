"""Errors that pass through goodput.steps, goodput.loader and phases have only the user's frames."""

from __future__ import annotations

import sys

import pytest

CODE = """
    import os, traceback
    from types import SimpleNamespace

    class Broken:
        def __iter__(self):
            raise LookupError("iter")

    def one():
        yield 1
        raise OSError("next")

    @goodput.phase("forward")
    def forward():
        raise ValueError("phase")

    def body():
        for x in goodput.steps([1, 2]):
            raise KeyError("body")

    def inside():
        with goodput.checkpoint(1):
            raise RuntimeError("checkpoint")

    own = os.path.dirname(goodput.__file__)
    calls = {
        "iter": lambda: list(goodput.steps(Broken())),
        "next": lambda: list(goodput.steps(one())),
        "loader iter": lambda: list(goodput.loader(Broken())),
        "loader next": lambda: list(goodput.loader(one())),
        "phase": forward,
        "body": body,
        "checkpoint": inside,
        "not iterable": lambda: list(goodput.steps(5)),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            emit([name, type(error).__name__, [f for f in frames if f.startswith(own)], error.__context__ is None])
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 adds the frame of the wrapper")
def test_errors_have_no_frames_of_goodput(sdk):
    reported = sdk(CODE).emitted
    assert len(reported) == 8
    for name, _, frames, is_alone in reported:
        assert frames == [] and is_alone, name
