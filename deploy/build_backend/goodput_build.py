"""The build backend: setuptools, and a C compiler where the machine has none.

The core (src/goodput/_core) and NCCL's plugin are shared libraries without anything of Python: one file serves every Python.
The extensions need Python's headers and stay optional; from Python 3.12 on they are built for the stable ABI, and the wheel
is one for all later versions. Without a compiler all of them are compiled by zig's, which comes from the package index for
the build alone. With `--config-settings target=x86_64-linux-gnu.2.28` zig compiles for that architecture and that version
of the GNU C library, or later ones, whatever this machine has.

A wheel has the man pages of all commands, which are written from their parsers before it is built.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import build_meta
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# The other hooks of a backend.
build_sdist, build_editable = build_meta.build_sdist, build_meta.build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

CORE, PLUGIN = "goodput._core._library", "goodput.nccl._profiler"
ZIG = "ziglang==0.15.2"
MAN_PROGRAM, MAN_FOLDER = (
    Path("deploy/packages/man_pages.py"),
    Path("build/man"),
)  # of pyproject.toml's data files
LIMITED_API = (3, 12)  # The first version whose limited API has vectorcalls.
# The flags of Python's own builds that change what code means.
PYTHON_FLAGS = ["-DNDEBUG", "-fwrapv"]

# What `target` of the settings says; None for this machine.
target: str | None = None


def compiler() -> list[str] | None:
    """The command of the machine's C compiler; None without one."""
    for given in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = shlex.split(given or "")
        if command and shutil.which(command[0]):
            return command
    return None


def command() -> list[str]:
    """What compiles: zig for a target and where there is no compiler, for any processor of the architecture."""
    zig = [sys.executable, "-m", "ziglang", "cc"]
    if target:
        return [*zig, "-target", target]
    return compiler() or [*zig, "-mcpu=baseline"]


def has_stable_abi() -> bool:
    """Whether extensions for this Python are good for later ones; free-threaded ones have no stable ABI."""
    is_locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return platform.python_implementation() == "CPython" and sys.version_info >= LIMITED_API and is_locked


def _and_zig(requires: list[str], config_settings: dict | None) -> list[str]:
    is_needed = (config_settings or {}).get("target") or not compiler()
    return [*requires, ZIG] if is_needed else requires


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    return _and_zig(build_meta.get_requires_for_build_wheel(config_settings), config_settings)


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    return _and_zig(build_meta.get_requires_for_build_editable(config_settings), None)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    """Raises ValueError for a target of another architecture if the extensions are for one version of Python: their
    files' names have the architecture of this machine."""
    global target
    target = (config_settings or {}).get("target")
    if target and target.partition("-")[0] != platform.machine() and not has_stable_abi():
        raise ValueError(f"the target {target} on {platform.machine()} needs Python 3.12 or later")
    write_man_pages()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def write_man_pages() -> None:
    """Write them where the wheel's data files are taken from. Where that fails, the wheel has none, and it is said."""
    shutil.rmtree(MAN_FOLDER, ignore_errors=True)
    MAN_FOLDER.mkdir(parents=True)
    command = [sys.executable, str(MAN_PROGRAM), str(MAN_FOLDER)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": "src"}, capture_output=True, text=True)
    if done.returncode:
        print(f"no man pages: {' '.join(command)}: {done.stderr}", file=sys.stderr)
        shutil.rmtree(MAN_FOLDER)


class BuildExt(build_ext):
    """Compiles each library by one call of a compiler."""

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.rsplit(".", 1)[-1] in (CORE.rsplit(".", 1)[-1], PLUGIN.rsplit(".", 1)[-1]):
            suffix = ".so"  # Without the name of a Python in it.
        else:
            suffix = ".abi3.so" if has_stable_abi() else sysconfig.get_config_var("EXT_SUFFIX")
        return str(Path(*fullname.split("."))) + suffix

    def build_extension(self, ext) -> None:
        into = Path(self.get_ext_fullpath(ext.name))
        into.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-shared", "-fPIC", "-s", *ext.extra_compile_args]
        if ext.name in (CORE, PLUGIN):
            flags.append("-Wl,-z,defs")  # What they use is in them, or in a library that is named.
        else:
            flags += PYTHON_FLAGS + [f"-I{path}" for path in _include_folders()]
            if has_stable_abi():
                flags.append(f"-DPy_LIMITED_API=0x{LIMITED_API[0]:02x}{LIMITED_API[1]:02x}0000")
        libraries = [f"-l{name}" for name in ext.libraries]
        words = [*command(), *flags, "-o", str(into), *ext.sources, *ext.extra_link_args, *libraries]
        try:
            subprocess.run(words, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"{ext.name} cannot be compiled: {error}") from error
        for folder in {into.parent, Path(ext.sources[0]).parent}:
            _remove_earlier(folder, into)


class BdistWheel(bdist_wheel):
    """Names the wheel by what its libraries need."""

    def finalize_options(self) -> None:
        if has_stable_abi():
            self.py_limited_api = f"cp{LIMITED_API[0]}{LIMITED_API[1]}"
        if target:
            self.plat_name = f"linux_{target.partition('-')[0]}"
        super().finalize_options()


def _include_folders() -> list[str]:
    return sorted({sysconfig.get_path("include"), sysconfig.get_path("platinclude")})


def _remove_earlier(folder: Path, built: Path) -> None:
    """Remove the library's file under another name that this Python prefers, from a build of an earlier version."""
    earlier = folder / (built.name.partition(".")[0] + sysconfig.get_config_var("EXT_SUFFIX"))
    if earlier.name != built.name:
        earlier.unlink(missing_ok=True)
