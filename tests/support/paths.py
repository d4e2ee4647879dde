"""Where tests find the tree and each other's files."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
# What a process started by a test needs in PYTHONPATH to import the product and `support`.
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in ("src", "exporters", "tests"))
