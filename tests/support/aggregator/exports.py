"""The account that the aggregator computes, and the one of the exported run log."""

from __future__ import annotations

from goodput.account import compute, document
from goodput.causes import explain
from goodput.runlog import replay
from goodput.runlog.export import export

STALE = 30.0


def live_document(ingest, run: str, now_ns: int) -> dict:
    """The aggregator's account at `now_ns`."""
    account = compute(ingest._store.runs[run], now_ns, stale_seconds=STALE, known_only=True)
    for rank in account.ranks:
        assert sum(rank.states) == rank.wall_ns
    return with_integers(account)


def replayed_document(ledger, run: str, now_ns: int, path) -> dict:
    path.write_bytes(b"".join(export(ledger, run, now_ns)))
    (one,) = replay(str(path))
    assert not one.problems.listed, one.problems.listed
    return with_integers(one.account)


def with_integers(account) -> dict:
    """The account document and the integers it is computed from."""
    states = {rank.rank: (rank.states, rank.kept_ns, rank.wall_ns) for rank in account.ranks}
    return {
        **document(account, explain(account)),
        "ns": states,
        "end_ns": account.end_ns,
        "start_ns": account.start_ns,
    }


def assert_export_equals_live(ledger, ingest, tmp_path, now_ns: int, run: str = "r1") -> None:
    # The ledger has no time of reception: as after a restart, the rank's own clock counts.
    for process in ingest._store.processes.values():
        process.attempt.received_ns = 0
    want, found = (
        live_document(ingest, run, now_ns),
        replayed_document(ledger, run, now_ns, tmp_path / "run.jsonl"),
    )
    assert {key: found[key] for key in want if found[key] != want[key]} == {}
    assert found == want
