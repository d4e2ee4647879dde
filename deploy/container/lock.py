"""Write the lock files of the images: every package that they install, by version and the hashes of its files.

An image's extras are those that its Containerfile names. Versions that a lock file has stay as long as pyproject.toml
allows them; with --upgrade all become the newest. Asks pypi.org, by uv.

    python deploy/container/lock.py [--upgrade]       # make lock
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What builds the wheel; the versions that the extra `packages` has. The base image has no C compiler.
BUILD = "setuptools==83.0.0\nziglang==0.15.2\n"
OPTIONS = ["--generate-hashes", "--no-annotate", "--custom-compile-command", "make lock"]
# Hashes are of all files of a release, so they are good for arm64 too.
PLATFORM = ["--python-platform", "x86_64-manylinux_2_28"]


def extras(containerfile: str) -> list[str]:
    """The extras that an image installs. Raises ValueError where it says none."""
    found = re.search(r"'goodput-telemetry\[([\w,]+)\]'", containerfile)
    if found is None:
        raise ValueError("no 'goodput-telemetry[...]' is installed")
    return found[1].split(",")


def python(containerfile: str) -> str:
    """The version of Python of the base image, without its last part."""
    return re.findall(r"^ARG PYTHON=python:(\d+\.\d+)\.", containerfile, re.M)[0]


def main() -> None:
    compile_ = ["uv", "pip", "compile", "--quiet", *OPTIONS, *PLATFORM, *sys.argv[1:]]
    version = ""
    for path in sorted(HERE.glob("*.Containerfile")):
        text = path.read_text(encoding="utf-8")
        version, output = python(text), path.with_suffix(".lock").name
        options = [word for extra in extras(text) for word in ("--extra", extra)]
        into = ["--python-version", version, "--output-file", f"deploy/container/{output}"]
        subprocess.run([*compile_, *into, *options, "pyproject.toml"], cwd=ROOT, check=True)
    into = ["--python-version", version, "--output-file", "deploy/container/build.lock"]
    subprocess.run([*compile_, *into, "-"], cwd=ROOT, check=True, input=BUILD, text=True)


if __name__ == "__main__":
    main()
