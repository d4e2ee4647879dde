"""The build backend: setuptools, and a C compiler for the core where the machine has none.

The core (src/goodput/_core) is a shared library without anything of Python, loaded by ctypes: it is compiled whether or not
Python's headers are there, and one file serves every Python. Without a compiler it is compiled by zig's, which comes
from the package index for the build alone. The other extensions stay optional.

A wheel has the man pages of all commands, which are written from their parsers before it is built.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import build_meta
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# The other hooks of a backend.
build_sdist, build_editable = build_meta.build_sdist, build_meta.build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

CORE = "goodput._core._library"
ZIG = "ziglang==0.15.2"
MAN_PROGRAM, MAN_FOLDER = (
    Path("deploy/packages/man_pages.py"),
    Path("build/man"),
)  # of pyproject.toml's data files


def compiler() -> list[str] | None:
    """The command of the machine's C compiler; None without one."""
    for given in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = shlex.split(given or "")
        if command and shutil.which(command[0]):
            return command
    return None


def _and_zig(requires: list[str]) -> list[str]:
    return requires if compiler() else [*requires, ZIG]


def get_requires_for_build_wheel(config_settings=None) -> list[str]:
    return _and_zig(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings=None) -> list[str]:
    return _and_zig(build_meta.get_requires_for_build_editable(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None) -> str:
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
    """Builds the core by a compiler alone, the other extensions as setuptools does."""

    def get_ext_filename(self, fullname: str) -> str:
        # Without the name of a Python in it.
        if fullname in (CORE, CORE.rsplit(".", 1)[-1]):
            return str(Path(*fullname.split(".")).with_suffix(".so"))
        return super().get_ext_filename(fullname)

    def build_extension(self, ext) -> None:
        if ext.name != CORE:
            super().build_extension(ext)
            return
        into = Path(self.get_ext_fullpath(ext.name))
        into.parent.mkdir(parents=True, exist_ok=True)
        command = compiler() or [sys.executable, "-m", "ziglang", "cc"]
        flags = ["-shared", "-fPIC", "-s", *ext.extra_compile_args, "-o", str(into), *ext.sources, "-lm"]
        try:
            subprocess.run([*command, *flags], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"goodput's core cannot be compiled: {error}") from error
