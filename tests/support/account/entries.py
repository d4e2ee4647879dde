"""One run as it is told by `goodput replay --json`, by the live account of an aggregator, and by the engine of rows."""

from __future__ import annotations

import json
from pathlib import Path

from support.account.account_history import Process, run_of
from support.aggregator.live_accounts import TwoStores, live_account
from support.aggregator.random_runs import process_after
from support.aggregator.reports import rank_report

from goodput.account import Account, Row, compute, document
from goodput.cli import main


def straggler_document(ranks: list[Process], directory: Path, capsys) -> dict:
    """The `straggler` of the account document, the same from all three; the ranks have finished."""
    account = compute(run_of(*ranks), max(one.now_ns for one in ranks))
    found = document(account)["straggler"]
    assert main(["replay", write_log(ranks, directory / "run.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["straggler"] == found
    assert document(_live(ranks))["straggler"] == found
    return found


def whatif_answers(ranks: list[Process], directory: Path, capsys) -> list[dict]:
    """What `goodput whatif --json` answers for their run log."""
    assert main(["whatif", write_log(ranks, directory / "run.jsonl"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["answers"]


def write_log(ranks: list[Process], path: Path) -> str:
    """A run log of these processes; returns its path."""
    lines = [{"kind": "run", "time": 0, "run": "r1"}]
    for one in ranks:
        lines.append({"kind": "attempt", "time": one.start_ns / 1e9, **_place(one), **_identity(one)})
        before = Row(0, -1, 0, one.start_ns, 0, (0,) * len(one.phases), ())
        for row in one.rows:
            spent = {
                phase: (now - then) / 1e9
                for phase, now, then in zip(one.phases, row.totals, before.totals, strict=True)
                if now > then and phase != "none"
            }
            count = row.number - before.number
            began_ns = row.start_ns if count == 1 else before.end_ns
            step = {"step": row.step, "count": count, "seconds": (row.end_ns - began_ns) / 1e9}
            lines.append({"kind": "step", "time": row.end_ns / 1e9, **_place(one), **step, "phases": spent})
            before = row
        lines.append({"kind": "end", "time": one.end_ns / 1e9, **_place(one), "reason": one.ended})
    lines.append({"kind": "run_end", "time": max(one.end_ns for one in ranks) / 1e9})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _place(one: Process) -> dict:
    return {"rank": one.rank, "attempt": one.number}


def _identity(one: Process) -> dict:
    known = {name: value for name, value in one.identity.items() if value is not None}
    return {"host": f"n{one.rank}", **known}


def _live(ranks: list[Process]) -> Account:
    """The live account of an aggregator that was pushed half of the steps, then all."""
    stores, half = TwoStores(), [process_after(one, len(one.rows) // 2, 0.0) for one in ranks]
    for seen in (half, ranks):
        now_ns = max(one.now_ns for one in seen)
        for one in seen:
            stores.push(rank_report(one), now_ns)
        assert stores.folding is not None
        account = live_account(stores.folding, stores.rows, now_ns)
    return account
