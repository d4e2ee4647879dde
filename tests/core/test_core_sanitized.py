"""The core under ASan with UBSan, and under TSan, called at random in two threads; `CORE_SEEDS` runs more."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "tests/support/core/wild_calls.c", *sorted((ROOT / "src/goodput/_core").glob("*.c"))]
SEEDS = int(os.environ.get("CORE_SEEDS", "5"))
COMPILER = shutil.which("cc") or shutil.which("gcc") or ""


@pytest.mark.skipif(not COMPILER, reason="needs a C compiler")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    program = tmp_path / "wild_calls"
    flags = ["-std=gnu11", "-g1", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread"]
    paths = ["-I", ROOT / "src/goodput/_core", "-o", program, *SOURCES, "-lm"]
    subprocess.run([COMPILER, *flags, *paths], check=True)
    for seed in range(1, SEEDS + 1):
        done = subprocess.run([program, str(seed), "1500"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (seed, done.stderr)
