"""docs/reliability.md names the tests that are marked `faults`, and no others."""

import re

from support.paths import ROOT, TESTS


def test_table_and_marked_tests_agree():
    marked = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        marked |= set(re.findall(r"@pytest\.mark\.(?:slow_)?faults\n(?:@.*\n|[ )\]].*\n)*def (\w+)", text))
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
    assert named == marked
