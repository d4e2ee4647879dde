"""The result of a deep look as text."""

from support.node.deep_looks import LOOK, SEEN

from goodput.account.text import COLUMNS
from goodput.sdk.reports.deep_look_text import deep_look_lines


def text_of(more: dict, now_ns: int = 90 * 10**9, reached: float | None = None) -> str:
    """Of a look whose step has `more`, 90 s after it."""
    return "\n".join(
        deep_look_lines({**LOOK, "seen": {**SEEN, "h2d_bytes": 0, "h2d_ns": 0, **more}}, now_ns, reached)
    )


def test_text_has_time_place_and_cost():
    text = text_of(
        {
            "slowdown_ns": 1500,
            "top": [{"name": "aten::mm", "kind": "operator", "count": 3, "ns": 400_000}],
            "cause": {"state": "loader", "gain": 1.54, "advice": "More workers."},
        }
    )
    whole = text.replace("\n      ", " ")
    assert "deep look of rank 0 at step 3, 90 s ago: 10 ms (1.5 µs of it by being traced)" in whole
    assert "compute 40.0 %, communication 10.0 %, loader 50.0 %" in whole
    assert "communication 3 ms, 67 % hidden" in text
    assert "longest: aten::mm (3 times, 400 µs)" in text
    assert "largest cause: loader. More workers." in text
    assert "2 deep looks cost 20 ms in all, at most one each 10 min (1 skipped)" in whole
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_text_of_a_failed_look_has_the_reason():
    failed = {**LOOK, "seen": None, "looks": 0, "failed": 3, "why": "no room"}
    (line,) = deep_look_lines(failed, 0)
    assert "last failure: no room" in line.replace("\n      ", " ")


def test_text_says_copies_beside_what_the_node_reached():
    copies = {"h2d_bytes": 154_000_000, "h2d_ns": 6_829_000}
    assert "to the device: 154 MB at 22.6 GB/s, 41% of what this node can do" in text_of(copies, 5, 55e9)
    assert "22.6 GB/s\n" in text_of(copies, 5)
