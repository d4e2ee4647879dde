"""A rank that trains for as long as a file is there, without pausing, and says how far it is.

secured_rank.py FOLDER    writes the number of steps done to FOLDER/steps; ends when FOLDER/stop is there
"""

import sys
import time
from pathlib import Path

import goodput

folder = Path(sys.argv[1])
goodput.start()
slowest_seconds, before = 0.0, None
for number, _ in enumerate(goodput.steps(iter(int, 1)), start=1):
    with goodput.phase("forward"):
        time.sleep(0.005)
    now = time.perf_counter()
    slowest_seconds, before = max(slowest_seconds, now - (before or now)), now
    (folder / "steps").write_text(f"{number} {slowest_seconds}")
    if (folder / "stop").exists():
        break
