"""Servers that fork, outside of a test run."""

import os
import subprocess
import sys

from support.forks import FOLDER
from support.paths import PYTHONPATH

PROGRAM = """
import os
from support.forks import FOLDER, ForkServer
server = ForkServer("json")
(ended,) = server.run((["-c", "print(6 * 7)"], dict(os.environ)), seconds=30)
server.close()
print(ended.stdout, os.environ[FOLDER])
"""


def test_a_benchmark_has_a_folder_of_its_own():
    """Which is removed with the benchmark."""
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "PYTHONPATH": PYTHONPATH},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer, folder = done.stdout.split()
    assert answer == "42" and not os.path.exists(folder)
