"""A pytest plugin: goodput.wire._steps is the build that $GOODPUT_TEST_STEPS names, with sanitizers."""

from __future__ import annotations

import os
import sys
from importlib.util import spec_from_file_location

NAME = "goodput.wire._steps"


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(NAME, os.environ["GOODPUT_TEST_STEPS"]) if name == NAME else None


sys.meta_path.insert(0, _Finder)


def pytest_collection_finish() -> None:
    assert sys.modules[NAME].__file__ == os.environ["GOODPUT_TEST_STEPS"]
