"""A wheel that runs on older distributions than the one that builds it.

zig compiles the libraries for GLIBC or later; auditwheel refuses symbols of later ones and names the wheel by what it needs;
abi3audit refuses a wheel for several versions of Python with symbols that an earlier of them lacks. All three are in the
extra `packages`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLIBC = "2.28"  # that of RHEL 8; Ubuntu 22.04 has 2.35


def run(*command: str | Path, **given) -> str:
    return subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **given
    ).stdout


def git(*words: str) -> str:
    """Of this checkout, under any owner."""
    return run("git", "-C", ROOT, "-c", "safe.directory=*", *words)


def copy_sources(folder: Path) -> None:
    """The files under version control, with modes that depend on no umask."""
    for name in git("ls-files", "-z").split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def build_wheel(folder: Path, python: str | Path = sys.executable, architecture: str = "") -> Path:
    """Build the wheel of a copy of the sources: what earlier builds left in the tree is not in it.

    `python` has setuptools and ziglang; the wheel is for its version, or from Python 3.12 on for all later ones too.
    `architecture` is x86_64 or aarch64, this machine's by default. Raises CalledProcessError where the wheel cannot be
    built, and RuntimeError where a library was left out or needs more than it may.
    """
    architecture = architecture or platform.machine()
    with tempfile.TemporaryDirectory(prefix="goodput-wheel-") as scratch:
        sources, built, named = (Path(scratch) / name for name in ("sources", "built", "named"))
        copy_sources(sources)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", built]
        target = f"target={architecture}-linux-gnu.{GLIBC}"
        run(python, "-m", "pip", "wheel", *options, "--config-settings", target, sources)
        (wheel,) = built.iterdir()
        _check_libraries(wheel)
        _check("auditwheel", "repair", "--plat", "auto", "--only-plat", "--wheel-dir", named, wheel)
        (wheel,) = named.iterdir()
        if "-abi3-" in wheel.name:
            _check("abi3audit", "--strict", wheel)
        return Path(shutil.copy(wheel, folder))


def _check_libraries(wheel: Path) -> None:
    """Raises RuntimeError where an extension of pyproject.toml is missing: setuptools goes on without an optional one."""
    wanted = re.findall(
        r'(?m)^name = "(goodput\..+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    with zipfile.ZipFile(wheel) as archive:
        built = {
            name.partition(".")[0].replace("/", ".") for name in archive.namelist() if name.endswith(".so")
        }
    if missing := sorted(set(wanted) - built):
        raise RuntimeError(f"{wheel.name} has no {', '.join(missing)}: its Python needs its headers")


def _check(module: str, *words: str | Path) -> None:
    """Run a tool of the extra `packages`; those find each other by PATH."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path})
    if done.returncode:
        raise RuntimeError(f"{module} refuses {Path(words[-1]).name}:\n{done.stdout}{done.stderr}")
