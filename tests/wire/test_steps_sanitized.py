"""What is compiled of the wire format under ASan and UBSan: its tests again, with changed and cut-off bytes among them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.paths import ROOT

COMPILER = shutil.which("gcc")
SOURCES = sorted((ROOT / "src" / "goodput" / "wire").glob("*.c"))
TESTS = (
    "tests/wire/test_compiled_steps.py",
    "tests/aggregator/ingest/test_known_ranks.py",
    "tests/aggregator/test_column_attempt.py",
)


def runtime(name: str) -> str | None:
    """The path of a sanitizer's library; the compiler returns the name where it has none."""
    found = subprocess.run([str(COMPILER), f"-print-file-name={name}"], capture_output=True, text=True).stdout
    return os.path.realpath(found.strip()) if Path(found.strip()).is_absolute() else None


def test_sanitizers_find_nothing(tmp_path):
    libraries = [runtime(name) for name in ("libasan.so", "libubsan.so")] if COMPILER else [None]
    include = sysconfig.get_path("include")
    if None in libraries or not Path(include, "Python.h").is_file():
        pytest.skip("needs gcc with its sanitizers, and Python's headers")
    built = tmp_path / "_steps.so"
    flags = ["-O1", "-g1", "-shared", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([str(COMPILER), *flags, f"-I{include}", "-o", built, *SOURCES], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself ends without freeing all.
        "PYTHONMALLOC": "malloc",  # Else small objects have no borders that ASan knows.
        "PYTHONPATH": str(ROOT / "tests"),
        "GOODPUT_TEST_STEPS": str(built),
    }
    pytest_call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*pytest_call, "-p", "support.aggregator.sanitized_steps", *TESTS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " passed" in done.stdout or "100%" in done.stdout
