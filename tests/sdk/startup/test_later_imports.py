"""Modules that are imported after their package was, and callbacks' methods: neither is seen by who imports or calls."""

import sys
from types import SimpleNamespace

import pytest

from goodput.sdk.automatic.import_hook import ImportHook
from goodput.sdk.automatic.trainer_progress import callback
from goodput.sdk.recorder.recorder import State


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose module `part` is imported by any code, as frameworks do it."""
    (tmp_path / "lazy_one").mkdir()
    (tmp_path / "lazy_one" / "__init__.py").write_text("whole = 1\n")
    (tmp_path / "lazy_one" / "part.py").write_text("import lazy_one\nvalue = lazy_one.whole + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lazy_one"
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_one"]:
        del sys.modules[name]


@pytest.mark.parametrize("first", ["before", "after"])
def test_submodule_import_is_seen_after_its_package(package, first):
    seen = []
    watch = ImportHook()
    if first == "before":
        __import__(package)
    watch.on_import("lazy_one.part", lambda module: seen.append(module.value))
    watch.install()
    try:
        __import__(package)
        assert seen == []
        __import__("lazy_one.part")
        assert seen == [2]
    finally:
        watch.remove()


class Callback:
    def __init__(self, state):
        self.warnings = []
        recorder = SimpleNamespace(state=state)
        self.session = SimpleNamespace(recorder=recorder, warn=self.warnings.append)

    @callback
    def on_step(self, value):
        self.value = value
        raise ValueError("planted")


def test_import_callback_never_raises():
    callback = Callback(State.RECORDING)
    assert callback.on_step(7) is None and callback.value == 7
    assert len(callback.warnings) == 1 and "on_step: ValueError: planted" in callback.warnings[0]


def test_a_callback_does_nothing_where_goodput_is_disabled():
    callback = Callback(State.DISABLED)
    assert callback.on_step(7) is None and not hasattr(callback, "value")
