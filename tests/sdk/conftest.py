"""Fixtures of the SDK's tests: every one of them runs on both implementations of the hot path."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path

import pytest
from support.sdk import sdk_process

from goodput.rank_page.page import default_directory

IMPLEMENTATIONS = ("compiled", "python")


@pytest.fixture(params=IMPLEMENTATIONS)
def pure(request) -> bool:
    """Whether the Python implementation is to be used."""
    if request.param == "compiled" and importlib.util.find_spec("goodput.sdk.recorder._fast") is None:
        pytest.skip("goodput.sdk.recorder._fast is not compiled here")
    return request.param == "python"


@pytest.fixture
def directory():
    """An empty page directory, in memory where pages lie by default."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(default_directory({}))) as made:
        yield Path(made, "pages")


@pytest.fixture
def sdk(directory, pure):
    """Run code with a page directory of its own: sdk(code, RANK="3"). It must end well unless status is given."""

    def run(code: str, status: int = 0, **given) -> sdk_process.Outcome:
        outcome = sdk_process.run(code, directory, pure, **given)
        assert outcome.status == status, outcome.errors
        return outcome

    return run
