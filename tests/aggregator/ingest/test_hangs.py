"""HangDetector: verdicts from reports, and which stacks are requested when."""

import asyncio
import time

import msgspec
import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import body_of, node_report, rank_report
from support.aggregator.serve_process import serving
from support.servers import servers

from goodput.account.stall_threshold import PlannedLimits
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest import hangs as hangs_module
from goodput.aggregator.ingest.hangs import (
    STACK_AGE_SECONDS,
    STACKS_KEPT_MAX,
    SUSPECTS_PER_HANG,
    HangDetector,
)
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.slices import result_of
from goodput.wire import schema
from goodput.wire.collectives import CallRow, Collectives, GroupRow

NOW, MINUTE, WORLD = ns(5000), ns(60), 8


class Clock:
    def __init__(self):
        self.now_ns = NOW

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def hangs(store, clock):
    made = HangDetector(store, stall_seconds=60, stale_seconds=30, clock_ns=clock)
    made._began_ns = 0
    return made


def stuck(
    rank: int, phase: str, *, seconds: float = 100, steps: int = 5, ahead: float = 0, **given
) -> Process:
    """A rank on a host whose clock is ahead, that entered `phase` so many seconds before its report."""
    start = NOW / 1e9 + ahead - seconds - steps
    one = Process(rank, 1, start, world_size=WORLD, **given).steps(steps, forward=1)
    one.phase = phase
    return one.silent(after=seconds)


def merge(store: Store, *processes: Process, now_ns: int = NOW, run: str = "r1") -> list[schema.RankReport]:
    reports = [rank_report(one, run) for one in processes]
    for report in reports:
        store.merge(report, now_ns)
    return reports


def evaluate(hangs: HangDetector, now_ns: int = NOW, run: str = "r1"):
    return hangs.evaluate(run, now_ns, MINUTE, WORLD)


def stack_of(report: schema.RankReport, text: str = "main (train.py:1)", time_ns: int = NOW) -> schema.Stack:
    return schema.Stack(schema.stack_request(report.identity), time_ns, text)


# ---- The verdict


def test_verdict_is_independent_of_host_clocks(store, hangs):
    merge(
        store,
        stuck(0, "communication", ahead=4000),
        stuck(1, "loader", ahead=-900),
        stuck(2, "communication"),
    )
    found = evaluate(hangs)
    assert (found.culprit.rank, found.culprit.host, found.culprit.phase, found.culprit.step) == (
        1,
        "n1",
        "loader",
        4,
    )
    assert (found.seconds, found.victims) == (100.0, 2)


def test_user_phase_counts_as_its_state(store, hangs):
    merge(
        store,
        stuck(0, "ring", user={"ring": "communication"}),
        stuck(1, "tokenize", user={"tokenize": "none"}),
    )
    found = evaluate(hangs)
    assert (found.culprit.rank, found.victims) == (1, 1)
    merge(store, stuck(0, "communication"), stuck(1, "val", user={"val": "evaluation"}), run="r2")
    assert evaluate(hangs, run="r2") is None


def test_planned_time_since_last_step_is_excused(store, hangs):
    one = (
        Process(0, 1, 4000, world_size=1)
        .steps(3, forward=1)
        .between(checkpoint=80, loader=50)
        .silent(after=0)
    )
    merge(store, replace_phase(one, "loader"))
    (process,) = store.newest["r1"].values()
    assert hangs._seen(process, PlannedLimits()).planned["checkpoint"] == ns(80)
    assert evaluate(hangs) is None
    merge(store, replace_phase(one.silent(after=61), "loader"))
    assert evaluate(hangs).culprit.rank == 0


def replace_phase(one: Process, phase: str) -> Process:
    one.phase = phase
    return one


def test_only_newest_process_of_rank_counts(store, hangs):
    merge(store, stuck(0, "loader").killed(), stuck(1, "communication"))
    assert evaluate(hangs).culprit.kind == "dead"
    again = (
        Process(0, 2, NOW / 1e9 - 80, world_size=WORLD).steps(2, forward=1).begun(loader=1).silent(after=70)
    )
    merge(store, again)
    found = evaluate(hangs)
    assert (found.culprit.rank, found.culprit.attempt, found.culprit.kind) == (0, 2, "elsewhere")


def test_many_ranks_are_evaluated_in_slices(store, hangs, monkeypatch):
    """A run that hangs is evaluated every other second, and 24 000 ranks took 0.2 s of the event loop each time."""
    monkeypatch.setattr(hangs_module, "AT_A_TIME", 4)
    merge(store, stuck(0, "loader"), *(stuck(rank, "communication") for rank in range(1, 40)))
    looked = []
    monkeypatch.setattr(hangs, "_seen", lambda *of, seen=hangs._seen: looked.append(1) or seen(*of))

    def evaluating():
        return hangs.evaluating("r1", NOW, MINUTE, 40)

    parts, counts = evaluating(), []
    with pytest.raises(StopIteration) as over:
        while True:
            looked.clear()
            next(parts)
            counts.append(len(looked))
    assert over.value.value == hangs.evaluate("r1", NOW, MINUTE, 40) and hangs.is_hanging("r1")
    assert over.value.value.culprit.rank == 0 and sum(counts) == 40 and max(counts) == 4
    parts = evaluating()
    next(parts)
    store.forget("r1")
    assert result_of(parts) is None and not hangs.is_hanging("r1"), "it was deleted meanwhile"


def test_recent_step_means_no_evaluation(store, hangs):
    one = stuck(0, "loader")
    merge(store, one)
    assert hangs.may_hang("r1", NOW) and evaluate(hangs) is not None
    merge(store, one.step(forward=1), now_ns=NOW + ns(5))
    assert not hangs.may_hang("r1", NOW + ns(5)) and evaluate(hangs, NOW + ns(5)) is None
    assert hangs.may_hang("r1", NOW + ns(36))
    assert hangs.may_hang("r1", NOW - ns(3600)), "a clock that was set back does not hide a hang"


def test_late_steps_do_not_delay_the_verdict(store, hangs):
    """Progress is dated by when the rows ended, not by when they were pushed."""
    merge(store, stuck(0, "loader", seconds=100))
    assert hangs.may_hang("r1", NOW + 1)
    assert store.progress_ns["r1"] == NOW - ns(100)


def test_restored_processes_are_not_blamed_at_first(store, clock):
    """Their reports were received by an earlier process; the next push of a live rank decides."""
    waits, culprit = stuck(0, "communication"), stuck(1, "loader")
    for one in (waits, culprit):
        store.merge(rank_report(one), 0)
    hangs = HangDetector(store, stall_seconds=60, stale_seconds=30, clock_ns=clock)
    assert evaluate(hangs) is None
    merge(store, waits.silent(after=5), now_ns=NOW + ns(5))
    assert evaluate(hangs, NOW + ns(30)) is None, (
        "the other may have progressed while the aggregator was down"
    )
    merge(store, waits.silent(after=26), now_ns=NOW + ns(31))
    assert evaluate(hangs, NOW + ns(31)).culprit.kind == "silent"
    merge(store, culprit.silent(after=32), now_ns=NOW + ns(32))
    assert evaluate(hangs, NOW + ns(32)).culprit.kind == "elsewhere"


def test_ended_or_unobserved_run_is_no_hang(store, monkeypatch):
    accounts = Accounts(store, history=History(None), stall_seconds=60, stale_seconds=30)
    accounts.hangs._began_ns = 0
    merge(store, stuck(0, "communication"), stuck(1, "loader"))
    assert accounts.hang("r1", NOW).culprit.rank == 1
    assert asyncio.run(accounts.document("r1"))["hang"] is None, (
        "by the wall clock its last report is years old"
    )
    computed, computing = [], accounts.computing
    monkeypatch.setattr(accounts, "computing", lambda *given: computed.append(1) or computing(*given))
    result_of(accounts.detecting_hangs())
    assert not computed
    merge(store, stuck(0, "communication"), now_ns=NOW)
    result_of(accounts.detecting_hangs())
    assert computed, "a report leads to another evaluation"


# ---- Stacks


def requested_ranks(hangs: HangDetector, reports) -> list[int]:
    """Ranks whose stack is requested from the agent that pushed these reports."""
    return [request.rank for request in hangs.stack_requests(reports)]


def test_suspects_stack_is_requested_until_it_arrives(store, hangs, clock):
    one, two = merge(store, stuck(0, "communication"), stuck(1, "loader"))
    assert requested_ranks(hangs, [one, two]) == [], "not evaluated yet"
    evaluate(hangs)
    assert requested_ranks(hangs, [one]) == [] and requested_ranks(hangs, [two]) == [1], (
        "only the agent that reports it"
    )
    assert hangs.stack_requests([two]) == [schema.StackRequest("r1", 1, "n1", 1001, two.identity.start_ns)]
    assert requested_ranks(hangs, [two]) == [1], "the response may have been lost"
    hangs.add_stacks([stack_of(two, "first")])
    assert requested_ranks(hangs, [two]) == []
    clock.now_ns += ns(STACK_AGE_SECONDS) - 1
    assert requested_ranks(hangs, [two]) == []
    clock.now_ns += 1
    assert requested_ranks(hangs, [two]) == [1]
    hangs.add_stacks([stack_of(two, "second", NOW + 5)])
    document = hangs.document("r1", evaluate(hangs))
    assert (document["stack"], document["stack_rank"], document["stack_time"]) == (
        "second",
        1,
        (NOW + 5) / 1e9,
    )
    assert hangs.counts == {"accepted": 2, "ignored": 0}


def test_stacks_of_few_live_suspects_are_requested(store, hangs):
    dead = stuck(7, "loader").killed()
    reports = merge(store, *(stuck(rank, "loader", seconds=100 + rank) for rank in range(7)), dead)
    evaluate(hangs)
    assert sorted(requested_ranks(hangs, reports)) == [6, 5, 4, 3][::-1] and SUSPECTS_PER_HANG == 4


def test_stack_of_a_rank_behind_is_requested(store, hangs):
    reports = merge(store, stuck(0, "communication"), stuck(1, "communication", steps=4))
    assert evaluate(hangs).culprit.kind == "behind" and requested_ranks(hangs, reports) == [1]


def test_document_prefers_the_culprits_stack(store, hangs):
    reports = merge(store, stuck(0, "loader", seconds=104), stuck(1, "loader", seconds=102))
    found = evaluate(hangs)
    assert [one.rank for one in found.suspects] == [0, 1]
    assert hangs.document("r1", found)["stack"] is hangs.document("r1", found)["stack_time"] is None
    hangs.add_stacks([stack_of(reports[1], "of one")])
    assert hangs.document("r1", found)["stack_rank"] == 1
    hangs.add_stacks([stack_of(reports[0], "of none")])
    assert hangs.document("r1", found)["stack_rank"] == 0


def test_unrequested_stacks_are_ignored_and_counted(store, hangs):
    one, two = merge(store, stuck(0, "communication"), stuck(1, "loader"))
    hangs.add_stacks([stack_of(two)])
    found = evaluate(hangs)
    wrong = stack_of(two).of
    others = [
        replace(wrong, **change) for change in ({"pid": 1}, {"run": "r2"}, {"start_ns": 0}, {"host": ""})
    ]
    hangs.add_stacks([stack_of(one), *(schema.Stack(other, NOW, "text") for other in others)])
    for text in ("\x00", "a\rb", "\x1b[31m", "\u202e", "x" * (schema.STACK_CHARS_MAX + 1)):
        hangs.add_stacks([stack_of(two, text)])
    hangs.add_stacks([stack_of(two, time_ns=-1)])
    assert hangs.document("r1", found)["stack"] is None
    hangs.add_stacks([stack_of(two, "x" * schema.STACK_CHARS_MAX)])
    assert hangs.counts == {"accepted": 1, "ignored": 1 + 5 + 5 + 1}
    hangs.add_stacks([stack_of(two)] * (schema.STACKS_MAX + 3))
    assert hangs.counts["accepted"] == 1 + schema.STACKS_MAX and hangs.counts["ignored"] == 15


def test_stacks_are_dropped_with_their_hang(store, hangs):
    one = stuck(0, "loader")
    (report,) = merge(store, one)
    evaluate(hangs)
    hangs.add_stacks([stack_of(report)])
    merge(store, one.step(forward=1), now_ns=NOW)
    assert evaluate(hangs) is None
    assert not hangs._stacks and not hangs._answered_ns and requested_ranks(hangs, [report]) == []
    one.phase = "loader"
    merge(store, one.silent(after=100), now_ns=NOW)
    assert hangs.document("r1", evaluate(hangs))["stack"] is None and requested_ranks(hangs, [report]) == [0]


def test_stacks_of_many_runs_are_bounded(store, hangs, monkeypatch):
    monkeypatch.setattr(hangs_module, "STACKS_KEPT_MAX", 3)
    assert STACKS_KEPT_MAX * schema.STACK_CHARS_MAX <= 1 << 24
    for number in range(5):
        (report,) = merge(store, stuck(0, "loader"), run=f"run {number}")
        evaluate(hangs, run=f"run {number}")
        hangs.add_stacks([stack_of(report)])
        assert requested_ranks(hangs, [report]) == []
    assert [process.run for process in hangs._stacks] == ["run 2", "run 3", "run 4"]


# ---- The wire


def test_push_carries_stacks_and_ack_requests_them(store, ledger, hangs):
    ingest = Ingest(store, ledger, lambda: NOW, hangs)
    two = rank_report(stuck(1, "loader"))
    body = body_of(rank_report(stuck(0, "communication")), two)
    assert asyncio.run(ingest.accept(body)).wanted == []
    found = evaluate(hangs)
    (request,) = asyncio.run(ingest.accept(body)).wanted
    assert request == schema.stack_request(two.identity)
    with_stack = schema.encode(replace(node_report(two), stacks=[stack_of(two, "here")]))
    assert asyncio.run(ingest.accept(with_stack)).wanted == []
    assert hangs.document("r1", found)["stack"] == "here"
    assert asyncio.run(Ingest(store, ledger, lambda: NOW).accept(with_stack)).wanted == []


def test_stacks_are_requested_without_any_reader(url):
    start = time.time() - 305
    one = Process(0, 1, start, world_size=1).steps(5, forward=1)
    one.phase = "loader"
    body = body_of(rank_report(one.silent(after=300)))
    with serving(create_app(url)) as client:

        def requests():
            return schema.decode_ack(client.post("/api/v1/ingest", content=body).content).wanted

        (request,) = servers.wait_until(requests, 60, "the aggregator's own evaluation")
    assert (request.run, request.rank) == ("r1", 0)


def test_peers_without_stacks_are_understood():
    two = rank_report(stuck(1, "loader"))
    old = msgspec.msgpack.decode(body_of(two))
    del old["stacks"]
    assert schema.decode(msgspec.msgpack.encode(old)).stacks == []
    assert schema.decode_ack(msgspec.msgpack.encode({"accepted": 1})) == schema.Ack(1)
    newer = {"accepted": 1, "rejected": [], "wanted": [], "more": 5}
    assert schema.decode_ack(msgspec.msgpack.encode(newer)) == schema.Ack(1)


def test_hang_start_is_stable_over_evaluations(store, hangs):
    one, other = stuck(0, "loader"), stuck(1, "communication")
    merge(store, one, other)
    first = evaluate(hangs)
    # The agent reads the two pages at other moments.
    merge(store, one.silent(after=4.7), other.silent(after=4.2), now_ns=NOW + ns(5))
    second = evaluate(hangs, NOW + ns(5))
    assert second.since_ns == first.since_ns and second.seconds > first.seconds
    hangs.clear("r1")
    assert evaluate(hangs, NOW + ns(5)).since_ns != first.since_ns


def with_collectives(report: schema.RankReport, sequence: int, is_open: bool) -> schema.RankReport:
    """The report of a rank of one group of all ranks, whose last all-reduce has this number."""
    entered_ns = report.live.now_ns - ns(90)
    call = CallRow(sequence, "all_reduce", "float32", 4096, -1, entered_ns, 0 if is_open else entered_ns + 1)
    group = GroupRow("0", "default_pg", "gloo", WORLD, ((0, 1, WORLD),), sequence, (call,))
    return replace(report, live=replace(report.live, collectives=Collectives((group,))))


def test_collectives_name_the_rank_that_phases_cannot(store, hangs):
    """All wait in communication after the same step: only the calls tell who has not come."""
    for rank in range(WORLD):
        report = rank_report(stuck(rank, "communication"))
        store.merge(with_collectives(report, 7 if rank == 3 else 8, rank != 3), NOW)
    found = evaluate(hangs)
    assert found.culprit.rank == 3 and found.victims == WORLD - 1
    collective = hangs.document("r1", found)["collective"]
    assert (collective["kind"], collective["culprits"], collective["sequence"]) == ("missing", [3], 8)
    assert collective["reason"] == found.reason and "rank 3 on" in found.reason


def link_event(
    number: int, kind: str, device: str, seconds: float, rank: int = 2, run: str = "r1", text: str = ""
):
    """An event of a link that the rank uses, so many seconds before now."""
    time_ns = NOW - ns(seconds)
    return schema.Health(number, kind, device, time_ns, severity="warning", text=text, hits=[(run, rank)])


def test_links_are_named_where_the_network_is_to_blame(store, clock):
    """All are in the same call since 90 s; of each link the newest event counts, if it is of a rank of the group."""
    health = HealthLog()
    hangs = HangDetector(store, stall_seconds=60, stale_seconds=30, clock_ns=clock, health=health)
    hangs._began_ns = 0
    for rank in range(WORLD):
        store.merge(with_collectives(rank_report(stuck(rank, "communication")), 8, True), NOW)
    assert "look at the network" in evaluate(hangs).reason and evaluate(hangs).collective.links == ()
    for event in (
        link_event(1, "retransmits", "tcp", 80, text="900 retransmits a second"),
        link_event(2, "link_down", "mlx5_0/1", 85, text="the link is down"),
        link_event(3, "link_down", "eth0", 84, text="the link is down"),
        link_event(4, "link_up", "eth0", 83, text="the link is up again"),
        link_event(5, "link_down", "of long ago", 3000, text="the link is down"),
        link_event(6, "xid", "GPU-1", 80),
        link_event(7, "link_down", "of another run", 80, run="r2"),
        link_event(8, "link_down", "of another group", 80, rank=WORLD),
    ):
        assert health.add("n2", event, NOW)
    found = evaluate(hangs)
    assert [one.device for one in found.collective.links] == ["mlx5_0/1", "eth0", "tcp"]
    assert found.reason.endswith(
        "look at the network between them; mlx5_0/1 on n2: the link is down; eth0 on n2: the link went down and came up "
        "again; tcp on n2: 900 retransmits a second"
    )
    first = hangs.document("r1", found)["collective"]["links"][0]
    assert first == {
        "host": "n2",
        "device": "mlx5_0/1",
        "kind": "link_down",
        "text": "the link is down",
        "time": NOW / 1e9 - 85,
    }


def test_links_are_not_named_where_a_rank_is_missing(store, clock):
    health = HealthLog()
    hangs = HangDetector(store, stall_seconds=60, stale_seconds=30, clock_ns=clock, health=health)
    hangs._began_ns = 0
    for rank in range(WORLD):
        report = rank_report(stuck(rank, "communication"))
        store.merge(with_collectives(report, 7 if rank == 3 else 8, rank != 3), NOW)
    assert health.add("n2", link_event(1, "link_down", "eth0", 80), NOW)
    found = evaluate(hangs)
    assert found.collective.kind == "missing" and found.collective.links == () and "eth0" not in found.reason


def test_collectives_of_an_earlier_report_are_kept(store, hangs):
    for rank in range(WORLD):
        report = rank_report(stuck(rank, "communication"))
        store.merge(with_collectives(report, 7 if rank == 3 else 8, rank != 3), NOW)
        store.merge(replace(report, sequence=report.sequence + 1), NOW)
    assert evaluate(hangs).collective.culprits == (3,)


def test_ledger_gets_no_collectives(store):
    report = with_collectives(rank_report(stuck(0, "communication")), 8, True)
    assert store.merge(report, NOW).report.live.collectives is None


def test_sure_culprit_stays_and_the_call_is_added(store, hangs):
    for rank in range(WORLD):
        report = rank_report(stuck(rank, "forward" if rank == 5 else "communication"))
        store.merge(with_collectives(report, 7 if rank == 5 else 8, rank != 5), NOW)
    found = evaluate(hangs)
    assert found.culprit.rank == 5 and found.culprit.kind == "elsewhere"
    assert (
        found.reason.startswith("rank 5 on ") and "number 8 of group default_pg (ranks 0-7)" in found.reason
    )


def test_aggregator_of_before_ignores_collectives():
    """Both ways: an older aggregator decodes the report without them, and an older agent sends none."""

    class OlderLive(msgspec.Struct):
        now_ns: int
        phase: str

    report = with_collectives(rank_report(stuck(0, "communication")), 8, True)
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(report.live), type=OlderLive)
    assert older.phase == "communication"
    bare = replace(report.live, collectives=None)
    assert b"collectives" not in msgspec.msgpack.encode(bare)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(bare), type=schema.Live) == bare
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report.live), type=schema.Live) == report.live


@pytest.mark.parametrize(
    "given",
    [
        {"name": "x" * 65},
        {"description": "a\x1b[0m"},
        {"size": 0},
        {"size": 1 << 40},
        {"calls": -1},
        {"ranks": ((0, 0, WORLD),)},
        {"ranks": ((0, 1, 3),)},
        {"recent": (CallRow(1, "all_reduce", "f", -1, -1, 1, 0),)},
        {"recent": (CallRow(1, "all_reduce", "f", 1, -1, 1 << 63, 0),)},
        {"recent": (CallRow(1, "all_reduce", "f", 1, -1, 1, 0),) * 5},
    ],
)
def test_impossible_collectives_are_refused(given):
    report = with_collectives(rank_report(stuck(0, "communication")), 8, True)
    schema.check(report)
    group = replace(report.live.collectives.groups[0], **given)
    wrong = replace(report, live=replace(report.live, collectives=Collectives((group,))))
    with pytest.raises(schema.SchemaError):
        schema.check(wrong)
    assert schema.without_wrong_options(wrong).live.collectives is None
