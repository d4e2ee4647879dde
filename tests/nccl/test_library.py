"""When `goodput run` lets NCCL load the profiler plugin: it was built, NCCL is here, and no other profiler is chosen."""

import sys

import pytest

from goodput.nccl import library as nccl

PLUGIN = "/opt/goodput/_profiler.so"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of packages with NVIDIA's wheel, as the only one; and the plugin."""
    libraries = tmp_path / "nvidia" / "nccl" / "lib"
    libraries.mkdir(parents=True)
    (libraries / "libnccl.so.2").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(nccl, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(nccl.sysconfig, "get_paths", lambda: {"platlib": str(tmp_path)})
    monkeypatch.setattr(nccl, "library", lambda: PLUGIN)
    return tmp_path


def test_plugin_is_set_where_nccl_is(here):
    assert nccl.variables({}) == {"NCCL_PROFILER_PLUGIN": PLUGIN}
    assert nccl.variables({"GOODPUT_NCCL": "calls"}) == {"NCCL_PROFILER_PLUGIN": PLUGIN}


@pytest.mark.parametrize(
    "environ", [{"NCCL_PROFILER_PLUGIN": "inspector"}, {"NCCL_PROFILER_PLUGIN": ""}, {"GOODPUT_NCCL": "0"}]
)
def test_choice_of_the_user_stays(here, environ):
    assert nccl.variables(environ) == {}


def test_profiler_under_the_default_name_stays(here):
    """NCCL loads libnccl-profiler.so by itself, where the linker finds it."""
    (here / "libnccl-profiler.so").touch()
    assert nccl.variables({"LD_LIBRARY_PATH": f"/nowhere:{here}"}) == {}


def test_nothing_is_set_without_nccl(here):
    (here / "nvidia" / "nccl" / "lib" / "libnccl.so.2").unlink()
    assert nccl.variables({}) == {}
    (here / "libnccl.so.2.27.3").touch()
    assert nccl.variables({"LD_LIBRARY_PATH": str(here)}) == {"NCCL_PROFILER_PLUGIN": PLUGIN}


def test_pytorch_that_was_built_with_nccl_counts(here):
    (here / "nvidia" / "nccl" / "lib" / "libnccl.so.2").unlink()
    (here / "torch" / "lib").mkdir(parents=True)
    (here / "torch" / "lib" / "libtorch_cuda.so").touch()
    assert nccl.variables({}) == {"NCCL_PROFILER_PLUGIN": PLUGIN}


def test_nothing_is_set_without_the_plugin(here, monkeypatch):
    monkeypatch.setattr(nccl, "library", lambda: None)
    assert nccl.variables({}) == {}
    monkeypatch.setattr(nccl, "library", lambda: "/" + "x" * 254)  # NCCL would cut its name.
    assert nccl.variables({}) == {}
