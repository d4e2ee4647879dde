"""The draws of the suite do not depend on which modules were imported before."""

import subprocess
import sys

from support.paths import TESTS

DRAWS = """
import sys
sys.path.insert(0, sys.argv[1])
from hypothesis import given, settings, strategies as st
from support import hypothesis_profiles
hypothesis_profiles.load("suite")
{more}
drawn = []

@settings(max_examples=200)
@given(st.integers(), st.text(max_size=8))
def draw(number, text):
    drawn.append((number, text))

draw()
print(hash(tuple(map(repr, drawn))))
"""


def draws(more: str) -> str:
    command = [sys.executable, "-c", DRAWS.format(more=more), str(TESTS)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env={"PYTHONHASHSEED": "0"}
    ).stdout


def test_draws_are_the_same_whatever_is_imported():
    more = "import goodput.account, goodput.runlog, goodput.trace, support.account.account_oracle"
    assert draws("") == draws(more) != ""
