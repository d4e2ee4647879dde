"""What `goodput top` says of the collective that hangs."""

import pytest

from goodput.top import collective

CALL = {"rank": 0, "operation": "all_reduce", "dtype": "float32", "bytes": 4096}


def verdict(kind: str, **fields) -> dict:
    """Of all-reduce 8 of a group of four."""
    return {
        "kind": kind, "group": "0", "description": "dp", "ranks": "0-3", "size": 4, "sequence": 8,
        "operation": "all_reduce", "culprits": [], "entered": 3, "seconds": 75.0, "reason": "", "calls": [], "cycle": [],
        **fields,
    }  # fmt: skip


def test_missing_rank():
    one = verdict("missing", culprits=[3], calls=[{**CALL, "rank": rank} for rank in range(3)])
    assert collective.of_run(one) == (
        "all_reduce 8 of dp (ranks 0-3): 3 of 4 ranks have entered it, 75 s ago; missing: rank 3"
    )
    assert collective.of_rank(one, 3) == (
        "has not come to all_reduce 8 of dp (ranks 0-3), in which 3 ranks wait for 75 s"
    )
    assert collective.of_rank(one, 1) == "waits in all_reduce 8 of dp (ranks 0-3)"
    assert collective.of_rank(one, 9) == "" == collective.short(one, 1)
    assert collective.short(one, 3) == "not in all_reduce"


def test_missing_sender():
    calls = [{**CALL, "rank": 2, "operation": "recv"}]
    one = verdict("missing", culprits=[1], calls=calls, operation="recv", entered=1)
    assert collective.of_run(one) == (
        "recv 8 of dp (ranks 0-3): rank 2 has entered it, 75 s ago; missing: rank 1"
    )


def test_different_calls():
    calls = [CALL, {**CALL, "rank": 1}, {"rank": 2, "operation": "broadcast", "dtype": "", "bytes": 0}]
    one = verdict("operation", culprits=[2], calls=calls)
    assert collective.of_run(one) == (
        "all_reduce 8 of dp (ranks 0-3): ranks call different operations; named: rank 2"
    )
    assert collective.of_rank(one, 2) == "calls broadcast as all_reduce 8 of dp (ranks 0-3)"
    assert collective.of_rank(one, 0) == (
        "calls all_reduce (4,096 bytes, float32) as all_reduce 8 of dp (ranks 0-3), rank 2 otherwise"
    )
    assert collective.short(one, 2) == "calls broadcast"
    assert collective.short(verdict("size", culprits=[2]), 2) == "other size"


def test_cycle():
    cycle = [
        {"rank": 0, "group": "tp", "operation": "all_gather", "sequence": 5, "waits_for": 1},
        {"rank": 1, "group": "dp", "operation": "all_reduce", "sequence": 8, "waits_for": 0},
    ]
    one = verdict("deadlock", cycle=cycle)
    assert collective.of_run(one).endswith(": a cycle, rank 0 waits for 1, which waits for 0")
    assert collective.of_rank(one, 0) == "waits in all_gather 5 of tp for rank 1, in a cycle"


@pytest.mark.parametrize(
    ("kind", "culprits", "text"),
    [
        ("network", [], "all ranks have entered it, 75 s ago"),
        ("stopped", [1, 2], "all ranks have entered it, 75 s ago; stopped or gone: ranks 1, 2"),
        (
            "missing",
            list(range(9)),
            "3 of 4 ranks have entered it, 75 s ago; missing: ranks 0, 1, 2, 3, 4, 5 and 3 more",
        ),
    ],
)
def test_others(kind, culprits, text):
    assert collective.of_run(verdict(kind, culprits=culprits)) == f"all_reduce 8 of dp (ranks 0-3): {text}"
