"""The core under ASan with UBSan, and under TSan, called at random in two threads; `CORE_SEEDS` runs more.

Snapshots that were changed and have the right checksum may hold any numbers, so no overflow is looked for in them.
"""

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
@pytest.mark.parametrize(
    ("sanitizer", "calls", "more"),
    [
        ("address,undefined", 1500, ()),
        ("thread", 1500, ()),
        ("address,bounds", 500, ("-DFORGED", "-fwrapv")),
    ],
)
def test_sanitizers_find_nothing(sanitizer, calls, more, tmp_path):
    program = tmp_path / "wild_calls"
    flags = [
        "-std=gnu11",
        "-g1",
        "-O1",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        "-pthread",
        *more,
    ]
    paths = ["-I", ROOT / "src/goodput/_core", "-o", program, *SOURCES, "-lm"]
    subprocess.run([COMPILER, *flags, *paths], check=True)
    for seed in range(1, SEEDS + 1):
        done = subprocess.run([program, str(seed), str(calls)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (seed, done.stderr)
