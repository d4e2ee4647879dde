"""How much of its time a rank waited for a core, from the kernel's count."""

from __future__ import annotations

from support.node.node_rank import PID, Rank
from support.node.node_tree import MS

from goodput.wire import schema
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks.collector import Ranks
from goodput_exporters.collectors.ranks.core_waits import CoreWaits

SECOND = 10**9


def test_share_since_the_first_count(tmp_path):
    """By hand; counts are read each 10 s, and changes of less than a hundredth are not reported."""
    count = tmp_path / "7" / "schedstat"
    count.parent.mkdir()
    waits, found = CoreWaits(str(tmp_path)), []
    for seconds, waited in ((0, 100), (10, 101), (15, 109), (20, 101), (100, 101.5), (200, 120), (300, 5)):
        count.write_text(f"123456 {int(waited * SECOND)} 42\n")
        waits.poll(7, seconds * SECOND)
        found.append(waits.fields()["core_wait_ratio"])
    assert found == [None, 0.1, 0.1, 0.05, 0.015, 0.1, None]


def test_counts_that_cannot_be_read_are_unknown(tmp_path):
    count = tmp_path / "7" / "schedstat"
    count.parent.mkdir()
    waits = CoreWaits(str(tmp_path))
    for seconds, text in enumerate((None, "", "1", "1 two 3", "1 -5 x")):
        if text is not None:
            count.write_text(text)
        waits.poll(7, seconds * 20 * SECOND)
        waits.poll(0, seconds * 20 * SECOND)
        assert waits.fields() == {"core_wait_ratio": None}


def test_reports_have_the_share(tree):
    """Of a process that the agent knows by its start time."""
    count, now_ns = tree / "proc" / str(PID) / "schedstat", 10**12
    rank = Rank(tree / "pages")
    ranks = Ranks(Settings(str(tree / "pages"), procfs=str(tree / "proc"), monotonic_ns=lambda: now_ns))
    reported = []
    for waited in (7, 12):
        count.write_text(f"1 {waited * SECOND} 1\n")
        rank.step({"forward": MS})
        (report,) = ranks.poll()
        schema.check(report)
        reported.append(report.identity.core_wait_ratio)
        now_ns += 20 * SECOND
    assert reported == [None, 0.25]
