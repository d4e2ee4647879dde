"""Fixtures of the SDK's tests: every one of them runs on both implementations of the hot path."""

from __future__ import annotations

import importlib.util

import pytest
import sdk_process

IMPLEMENTATIONS = ("compiled", "python")


@pytest.fixture(params=IMPLEMENTATIONS)
def pure(request) -> bool:
    """Whether the Python implementation is to be used."""
    if request.param == "compiled" and importlib.util.find_spec("goodput.sdk._fast") is None:
        pytest.skip("goodput.sdk._fast is not compiled here")
    return request.param == "python"


@pytest.fixture
def sdk(tmp_path, pure):
    """Run code with a page directory of its own: sdk(code, RANK="3"). It must end well unless status is given."""

    def run(code: str, status: int = 0, **given) -> sdk_process.Outcome:
        outcome = sdk_process.run(code, tmp_path / "pages", pure, **given)
        assert outcome.status == status, outcome.errors
        return outcome

    return run
