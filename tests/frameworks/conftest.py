"""Fixtures that several files of these tests share."""

import gc
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

    made = Trainer(directory)
    yield made
    made.auto.patches.restore()
    made.session.stop("finished")
    gc.collect()  # An iterator in a traceback would be shut down in a later test's worker, which takes 5 s.
    assert patched() == UNPATCHED
    assert made.session.messages.written == set()
