"""What `make test` runs: the tests beside each other, then those marked `alone`; arguments are those of pytest.

A few tests that fail are run once more, in one process with nothing beside them. If they pass there, so does the suite,
and its last line names them: they depend on their order or on a quiet machine, which has to be mended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from unittest import mock
from xml.etree import ElementTree

REPEATED_MAX = 5
FAILED, NOTHING_SELECTED = 1, 5  # Exit statuses of pytest.
# Options that leave tests out after a failure: to pass once more says nothing about those.
STOPS_EARLY = re.compile(r"--maxfail|--exitfirst|-[a-z]*x")


class Stage(NamedTuple):
    marks: str
    options: tuple[str, ...]


MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 4 << 30  # The tests hold a fifth of that at a time.

FILES_BESIDE_EACH_OTHER = ("--dist", "loadfile", "--no-loadscope-reorder")
STAGES = (
    Stage(
        "not alone and not mutation and not more_seeds and not slow_faults",
        ("-n", "5", *FILES_BESIDE_EACH_OTHER),
    ),
    Stage("alone and not more_seeds", ("-n", "3", *FILES_BESIDE_EACH_OTHER)),
)


class Result(NamedTuple):
    status: int
    failed_once: tuple[str, ...] = ()  # Tests that passed when they were repeated.


def environment() -> dict[str, str]:
    """That of all processes of the tests: they write byte code, since each would otherwise compile what it imports."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def pytest(*options: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], env=environment()).returncode


def has_byte_code(file: Path) -> bool:
    """Whether pytest has written what it makes of this file as it is now; False where it does not hash files."""
    written = f"{file.stem}.{sys.implementation.cache_tag}-pytest-{version('pytest')}.pyc"
    try:
        found = (file.parent / "__pycache__" / written).read_bytes()[8:16]
    except OSError:
        return False
    return found == importlib.util.source_hash(file.read_bytes())


def write_byte_code(tests: Path) -> None:
    """Collect those tests that have none in two processes that run no test, half of the files in each.

    Without it each of five processes, which begin together, rewrites the assertions of all files and compiles them: 6 s
    of CPU time each. What fails here fails in the stages too, which print it.
    """
    files = [str(file) for file in sorted(tests.rglob("test_*.py")) if not has_byte_code(file)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    started = [
        subprocess.Popen(
            [*command, *some], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for some in (files[::2], files[1::2])
        if some
    ]
    for process in started:
        process.wait()


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Inside, temporary files of all processes lie in memory, if there is enough of it.

    Hundreds of tests write ledgers, rank pages and data of servers; on a disk they take up to four times as much CPU
    time, and wait for it besides.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tests-", dir=MEMORY) as folder:
        os.chmod(folder, 0o1777)  # As /tmp: servers and tests run as other users.
        with mock.patch.dict(os.environ, TMPDIR=folder):
            yield


def failed_tests(cache: str) -> tuple[str, ...]:
    """Of the last run with this cache; no test if it could not write there."""
    file = Path(cache, "v/cache/lastfailed")
    return tuple(json.loads(file.read_text())) if file.exists() else ()


def pass_alone(stage: Stage, arguments: list[str], cache: str) -> bool:
    """Whether all tests that failed pass in a process of their own; a skipped one has not passed."""
    report = Path(cache, "repeated.xml")
    once_more = ("-n", "0", "-o", f"cache_dir={cache}", "--lf", "--lfnf=none", f"--junitxml={report}")
    if pytest("-m", stage.marks, *arguments, *once_more):
        return False
    return not ElementTree.parse(report).findall(".//skipped")


def run_stage(stage: Stage, arguments: list[str]) -> Result:
    with tempfile.TemporaryDirectory() as cache:  # Its own, so that no failures of other runs are repeated.
        status = pytest(*stage.options, "-m", stage.marks, *arguments, "-o", f"cache_dir={cache}")
        failed = failed_tests(cache)
        # A file or a process that failed to collect is no test: to repeat it would run all of them.
        may_repeat = (
            status == FAILED and 0 < len(failed) <= REPEATED_MAX and all("::" in name for name in failed)
        )
        if not may_repeat or any(map(STOPS_EARLY.match, arguments)):
            return Result(status)
        print(f"\n{len(failed)} failed beside other tests, once more alone:", flush=True)
        return Result(0, failed) if pass_alone(stage, arguments, cache) else Result(status)


def run(arguments: list[str], stages: tuple[Stage, ...] = STAGES) -> int:
    """Run all stages, print one line about them, and return the exit status, of which 0 means that all tests passed."""
    results = [run_stage(stage, arguments) for stage in stages]
    statuses = {result.status for result in results}
    if statuses == {NOTHING_SELECTED}:
        print("\ntests: none selected")
        return NOTHING_SELECTED
    accepted = {0, NOTHING_SELECTED} if arguments else {0}  # Arguments may select tests of one stage only.
    if statuses - accepted:
        wrong = [
            f"{stage.marks}: pytest exit {result.status}"
            for stage, result in zip(stages, results, strict=True)
            if result.status not in accepted
        ]
        print(f"\ntests: FAILED ({', '.join(wrong)})")
        return FAILED
    failed_once = [test for result in results for test in result.failed_once]
    if failed_once:
        print(f"\ntests: passed, but {len(failed_once)} only alone; mend these:", *failed_once)
    else:
        print("\ntests: passed")
    return 0


if __name__ == "__main__":
    with temporary_files():
        if not sys.argv[1:]:
            write_byte_code(Path(__file__).parents[1])
        status = run(sys.argv[1:])
    sys.exit(status)
