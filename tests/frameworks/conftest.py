"""Fixtures that several files of these tests share."""

import gc
import multiprocessing
import os
import tempfile

import pytest

from goodput.rank_page import page


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir=os.path.dirname(page.default_directory({}))) as made:
        yield made


@pytest.fixture
def trainer(directory):
    """A training loop in this process that has only the loader patches."""
    from support.frameworks.loader_trainer import UNPATCHED, Trainer, patched

    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)  # Workers of another kind take long to start.
    made = Trainer(directory)
    yield made
    multiprocessing.set_start_method(before, force=True)
    made.auto.patches.restore()
    made.session.stop("finished")
    gc.collect()  # An iterator in a traceback would be shut down in a later test's worker, which takes 5 s.
    assert patched() == UNPATCHED
    assert made.session.messages.written == set()
