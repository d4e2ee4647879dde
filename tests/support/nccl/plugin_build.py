"""Builds NCCL's profiler plugin and the host program that calls it, with or without sanitizers, and runs the host."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

SOURCES = ROOT / "src" / "goodput" / "nccl"
HOST = ROOT / "tests" / "support" / "nccl" / "host.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
OURS = ("GOODPUT_", "NCCL_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "MV2_", "JOB_", "PBS_", "LSB_")


class Built(NamedTuple):
    plugin: Path
    host: Path


def build(folder: Path, *flags: str) -> Built:
    """Both, compiled with these flags, in this folder."""
    built = Built(folder / "plugin.so", folder / "host")
    common = [
        str(COMPILER),
        "-std=gnu11",
        "-Werror",
        "-Wall",
        "-Wextra",
        "-Wno-format-truncation",
        "-pthread",
        *flags,
    ]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete"]
    subprocess.run([*common, *shared, "-o", built.plugin, *sorted(SOURCES.glob("*.c"))], check=True)
    subprocess.run([*common, f"-I{SOURCES}", "-o", built.host, HOST, "-ldl"], check=True)
    return built


def environment(directory, **given: str) -> dict[str, str]:
    """That of a process that no launcher has started, with its pages in this folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS) and k not in ("RANK", "WORLD_SIZE")}
    return {**kept, "GOODPUT_DIR": str(directory), **given}


def run_host(
    built: Built, directory, version: int, what: str, *, seed: int = 1, rounds: int = 200, **given: str
) -> subprocess.CompletedProcess[str]:
    command = [built.host, built.plugin, str(version), what, str(seed), str(rounds)]
    return subprocess.run(
        command, env=environment(directory, **given), capture_output=True, text=True, timeout=300
    )
