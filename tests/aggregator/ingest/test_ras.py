"""What agents report of NCCL's RAS is in the verdict of the hang, and not in the ledger; hostile answers are left out."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.ingest.store import Store
from goodput.wire import schema
from goodput.wire.ras import COMMUNICATORS_MAX, RANKS_MAX, TEXT_MAX, RasAnswer, RasCommunicator, RasRank

NOW, WORLD = ns(5000), 4
# Of rank 2, whose pid tests.support gives.
DEAD = RasRank(2, "10.0.0.2", 1002, "is dead")
ONE = RasCommunicator("0xae", WORLD, "missing", 1, (DEAD,))


def report(rank: int, steps: int = 5, seconds: float = 100, ras: RasAnswer | None = None):
    """A rank that has waited in communication for so long."""
    one = Process(rank, 1, NOW / 1e9 - seconds - steps, world_size=WORLD).steps(steps, forward=1)
    one.phase = "communication"
    made = rank_report(one.silent(after=seconds))
    return replace(made, live=replace(made.live, ras=ras))


def hang_of(*reports) -> dict | None:
    store = Store()
    for one in reports:
        schema.check(one)
        assert store.merge(one, NOW).report.live.ras is None, "the ledger needs none"
    accounts = Accounts(
        store, history=History(None), stall_seconds=60, stale_seconds=30, clock_ns=lambda: NOW
    )
    accounts.hangs._began_ns = 0
    return msgspec.json.decode(msgspec.json.encode(asyncio.run(accounts.document("r1"))))["hang"]


def test_hang_names_the_rank_of_the_answer():
    hang = hang_of(report(0, ras=RasAnswer(1, (ONE,))), *map(report, range(1, WORLD)))
    assert (hang["culprit"], hang["host"], hang["ras"]["kind"]) == (2, "n2", "missing")
    assert hang["ras"]["ranks"] == [
        {"rank": 2, "number": 2, "host": "10.0.0.2", "pid": 1002, "problem": "is dead"}
    ]
    assert hang["reason"].startswith("NCCL's RAS, of a communicator of 4 ranks: rank 2 on 10.0.0.2")


def test_without_an_answer_the_verdict_is_as_before():
    hang = hang_of(*map(report, range(WORLD)))
    assert (hang["culprit"], hang["ras"]) == (None, None)
    assert hang_of(report(0, ras=RasAnswer(3)), *map(report, range(1, WORLD))) == hang


def test_answer_from_before_a_step_does_not_count():
    """It hung, went on, and hangs again."""
    first = report(0, steps=4, seconds=101, ras=RasAnswer(1, (ONE,)))
    first = replace(first, sequence=first.sequence - 10)
    hang = hang_of(first, *map(report, range(WORLD)))
    assert hang["ras"] is None
    kept = replace(report(0), sequence=first.sequence + 1, live=replace(first.live, ras=None), steps=[])
    assert hang_of(first, kept, *map(report, range(1, WORLD)))["ras"]["kind"] == "missing"


def test_older_versions_ignore_or_lack_the_answer():
    class OlderLive(msgspec.Struct):
        now_ns: int

    live = report(0, ras=RasAnswer(1, (ONE,))).live
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(live), type=OlderLive).now_ns == live.now_ns
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(live), type=schema.Live) == live
    assert b"ras" not in msgspec.msgpack.encode(replace(live, ras=None))


@pytest.mark.parametrize(
    "wrong",
    [
        RasAnswer(-1),
        RasAnswer(1, (ONE,) * (COMMUNICATORS_MAX + 1)),
        RasAnswer(1, (replace(ONE, ranks=(DEAD,) * (RANKS_MAX + 1)),)),
        RasAnswer(1, (replace(ONE, kind="ok"),)),
        RasAnswer(1, (replace(ONE, size=1 << 31),)),
        RasAnswer(1, (replace(ONE, hash="x" * (TEXT_MAX + 1)),)),
        RasAnswer(1, (replace(ONE, ranks=(replace(DEAD, problem="\x1b[31m"),)),)),
        RasAnswer(1, (replace(ONE, ranks=(replace(DEAD, pid=-1),)),)),
    ],
)
def test_impossible_answers_are_left_out(wrong):
    one = report(0, ras=wrong)
    with pytest.raises(schema.SchemaError, match="NCCL's RAS"):
        schema.check(one)
    right = schema.without_wrong_options(one)
    assert right.live.ras is None and right.live.totals == one.live.totals
