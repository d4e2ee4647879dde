"""Coverage-guided fuzzing of the targets, by atheris (libFuzzer).

    python -m support.fuzz.guided .fuzz 600            # with tests/ on PYTHONPATH: all targets, 600 s together
    python -m support.fuzz.guided .fuzz 60 run_log     # one

The folder's corpus grows over runs. What breaks a promise is written there as TARGET-crash-…, which ends the run; it
belongs into PINNED of tests/fuzz/test_fuzz_targets.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("rank_page", "step_blocks", "report", "stream", "run_log", "trace", "dcgm", "flight", "ras")
RSS_MIB_MAX = 4096
INPUT_SECONDS_MAX = 25
BYTES_MAX = 16_384


def fuzz(folder: str, seconds: str, name: str) -> None:
    """Does not return: the process ends with status 0 after these seconds, or with another at once."""
    import atheris

    with atheris.instrument_imports(include=["goodput", "goodput_exporters"]):
        from support.fuzz.targets import SEEDS, TARGETS

    corpus = Path(folder) / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]()):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-timeout={INPUT_SECONDS_MAX}"]
    options += [f"-rss_limit_mb={RSS_MIB_MAX}", "-print_final_stats=1", "-verbosity=0"]
    target = TARGETS[name]

    def one(data: bytes) -> None:
        target(data)

    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/{name}-", str(corpus)], one)
    atheris.Fuzz()


def fuzz_all(folder: str, seconds: str) -> int:
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed here: no coverage-guided fuzzing")
        return 0
    for name in NAMES:
        print(f"fuzzing {name}", flush=True)
        command = [sys.executable, "-m", "support.fuzz.guided", folder, str(int(seconds) // len(NAMES)), name]
        if status := subprocess.run(command).returncode:
            return status
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(fuzz_all(*sys.argv[1:]))
    fuzz(*sys.argv[1:])
