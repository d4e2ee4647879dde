"""Installing where neither a C compiler nor Python's headers are: zig compiles the core, and the SDK's hot path is Python's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.deploy.deploy_words import DEPLOY
from support.servers import servers

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root hides the headers, in a mount namespace"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="not installed: ziglang"),
    pytest.mark.skipif(not (servers.REPOSITORY / ".git").exists(), reason="not a checkout"),
]
# An account of two steps by the core, in a process of its own.
TRAINER = """
import goodput, goodput._core
from goodput.sdk.recorder.hot_path import extension

goodput._core.library()
for _ in goodput.steps(range(2)):
    with goodput.phase("forward"):
        pass
print(extension)
"""


@pytest.fixture
def without_compiler(tmp_path) -> list[str]:
    """A command's beginning: Python's headers are an empty folder, and PATH has everything but compilers."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "git", "uname"):
        (tools / name).symlink_to(shutil.which(name))
    headers = {sysconfig.get_path(name) for name in ("include", "platinclude")}
    hidden = [f"mount -t tmpfs none '{path}' &&" for path in sorted(headers) if Path(path).is_dir()]
    assert hidden, "this Python has no headers"
    script = f"{' '.join(hidden)} export PATH='{tools}'; unset CC; exec \"$@\""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    done = subprocess.run([*command, sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return command


WITHOUT = """
import os, shutil, sysconfig

assert not any(map(shutil.which, ("cc", "gcc", "clang", sysconfig.get_config_var("CC").split()[0])))
assert not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
"""


def test_installation_without_compiler_and_headers(without_compiler, tmp_path):
    sys.path.insert(0, str(DEPLOY / "packages"))
    try:
        from portable_wheel import copy_sources
    finally:
        sys.path.remove(str(DEPLOY / "packages"))
    copy_sources(tmp_path / "sources")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", tmp_path]
    run(*without_compiler, sys.executable, "-m", "pip", "wheel", *options, tmp_path / "sources")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = sorted(name for name in archive.namelist() if name.endswith(".so"))
    assert libraries == ["goodput/_core/_library.so", "goodput/nccl/_profiler.so"]
    python = tmp_path / "environment" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel)
    pages = os.environ | {"GOODPUT_DIR": str(tmp_path / "pages")}
    assert run(python, "-c", TRAINER, env=pages, cwd=tmp_path).splitlines()[-1] == "None"


def run(*command: str | Path, **given) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, **given
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
