"""The errors of a user's training have the tracebacks that they have without goodput."""

import sys

import pytest
from support.frameworks.script_process import IMPLEMENTATIONS, run_implementation
from support.installed import need

need("torch")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 adds the frame of the wrapper")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_tracebacks_have_no_frames_of_goodput(implementation, tmp_path):
    """Frames, their lines and contexts: before the first step, in the common case, and in a loader's worker."""
    found, _ = run_implementation("tracebacks.py", tmp_path, implementation, forked="torch")
    assert found["steps"] > 0 and len(found["without"]) >= 30
    assert found["measured"].keys() == found["without"].keys()
    for name, chain in found["without"].items():
        assert found["measured"][name] == chain, name
