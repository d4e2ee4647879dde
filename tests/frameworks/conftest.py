"""Fixtures that several files of these tests share."""

import gc
import os
import tempfile

import pytest

from goodput.rank_page import page

CALLBACK, AUTO, DISABLED = "callback", "auto alone", "disabled"
# The script of each framework, with its arguments.
TRAININGS = {
    ("lightning", CALLBACK): ("lightning_trainings.py", "lightning.pytorch"),
    ("lightning", AUTO): ("lightning_trainings.py", "pytorch_lightning", "auto"),
    ("lightning", DISABLED): ("lightning_trainings.py", "pytorch_lightning"),
    ("transformers", CALLBACK): ("transformers_trainings.py",),
    ("transformers", AUTO): ("transformers_trainings.py", "auto"),
    ("transformers", DISABLED): ("transformers_trainings.py",),
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The result of a framework's script, which runs once for all tests."""
    from support.frameworks.training_runs import train

    made = {}

    def get(framework: str, which: str = CALLBACK):
        for name in (
            ("torch", "accelerate", framework) if framework == "transformers" else ("torch", framework)
        ):
            pytest.importorskip(name)
        key = framework, which
        if key not in made:
            script, *arguments = TRAININGS[key]
            environ = {"GOODPUT_DISABLE": "1"} if which == DISABLED else {}
            made[key] = train(script, tmp_path_factory.mktemp(framework), *arguments, **environ)
        return made[key]

    return get


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
