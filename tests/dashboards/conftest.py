"""Rank processes and reports for simulated runs, as the tests of the account and of the aggregator describe them."""

import sys
from pathlib import Path

# Their names are unique among the tests, so appending hides nothing.
sys.path += [str(Path(__file__).parents[1] / room) for room in ("account", "aggregator")]
