"""Fixtures. The rank processes of these tests are those that the account's tests describe (account_history.py)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "account"))


@pytest.fixture
def url(tmp_path):
    """Of a ledger that is not there yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url):
    from goodput.aggregator.ledger import Ledger

    opened = Ledger(url)
    yield opened
    opened.close()
