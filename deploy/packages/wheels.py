"""Build the wheels that are released: one for each version of Python before 3.12, and one for 3.12 and all later ones.

    python deploy/packages/wheels.py [--into FOLDER] python3.10 python3.11 python3.12      # make wheels

Each Python needs its headers; the last wheel is built for aarch64 too. Needs the extra `packages` and pip's index.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path

from portable_wheel import ROOT, build_wheel, git, run

ARCHITECTURES = ("x86_64", "aarch64")


def make_environment(folder: Path, python: str) -> Path:
    """A virtual environment with what builds the wheel; its Python."""
    extra = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = [re.findall(rf'"({name}==[\d.]+)"', extra)[0] for name in ("setuptools", "ziglang")]
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", *pins)
    return folder / "bin" / "python"


def is_for_later(python: Path) -> bool:
    """Whether a wheel of this Python is for the later versions too."""
    return run(python, "-c", "import sys; print(sys.version_info >= (3, 12))").strip() == "True"


def build_wheels(folder: Path, python: str) -> list[Path]:
    with tempfile.TemporaryDirectory(prefix="goodput-environment-") as scratch:
        builder = make_environment(Path(scratch), python)
        # The extensions' files are named by the architecture of the machine, unless they are for several versions.
        architectures = ARCHITECTURES if is_for_later(builder) else ("",)
        return [build_wheel(folder, builder, architecture) for architecture in architectures]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--into", type=Path, default=ROOT / "dist" / "wheels", metavar="FOLDER")
    options.add_argument(
        "python", nargs="+", help="one of each version before 3.12, and one of 3.12 or later"
    )
    given = options.parse_args()
    if "SOURCE_DATE_EPOCH" not in os.environ:
        os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct").strip()
    os.umask(0o022)  # setuptools writes the modes of files into the wheel.
    given.into.mkdir(parents=True, exist_ok=True)
    for path in given.into.glob("goodput_telemetry-*.whl"):
        path.unlink()
    for python in given.python:
        for wheel in build_wheels(given.into, python):
            print(wheel)


if __name__ == "__main__":
    main()
