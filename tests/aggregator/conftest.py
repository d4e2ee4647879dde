"""The aggregator's tests use the rank processes that the account's tests describe (account_history.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "account"))
