"""What the aggregator makes of the TCP connections that agents report: a slow link in the document, a stalled one in a hang."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import rank_report

from goodput.account.text import slow_link_text
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.health_costs import HealthCosts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api.run_series import RunSeries
from goodput.aggregator.ingest.health_log import HealthLog
from goodput.aggregator.ingest.store import Store
from goodput.metrics import Families
from goodput.slices import result_of
from goodput.top.collective import of_rank, of_run, short
from goodput.top.trouble import troubles
from goodput.wire import schema
from goodput.wire.collectives import CallRow, Collectives, GroupRow
from goodput.wire.connections import CONNECTIONS_MAX, ConnectionRow, Connections

NOW, WORLD, SECOND = ns(5000), 4, 10**9


def row(rank: int, busy_ns: int = SECOND // 20, **given) -> ConnectionRow:
    """A ring: what the rank sent the next one in a second."""
    figures = {"unacked": 0, "retransmits": 0, "silent_ns": 0, **given}
    ends = f"10.0.0.{rank}:4000", f"10.0.0.{(rank + 1) % WORLD}:5000"
    return ConnectionRow(*ends, busy_ns, 10**8, 10**5, 0, 10**6, **figures)


def reports(rows: dict[int, ConnectionRow], seconds: float = 100, sequences=(8,) * WORLD, steps=None):
    """Ranks that have waited in an all-reduce of this number for so long."""
    made = []
    for rank in range(WORLD):
        count = 5 if steps is None else steps[rank]
        one = Process(rank, 1, NOW / 1e9 - seconds - count, world_size=WORLD).steps(count, forward=1)
        one.phase = "communication"
        report = rank_report(one.silent(after=seconds))
        call = CallRow(
            sequences[rank], "all_reduce", "float32", 4096, -1, report.live.now_ns - ns(seconds), 0
        )
        group = GroupRow("0", "default_pg", "gloo", WORLD, ((0, 1, WORLD),), sequences[rank], (call,))
        sent = Connections(SECOND, (rows.get(rank, row(rank)),))
        live = replace(report.live, collectives=Collectives((group,)), connections=sent)
        made.append(replace(report, live=live))
    return made


def accounts_of(made) -> Accounts:
    store = Store()
    for report in made:
        schema.check(report)
        store.merge(report, NOW)
    accounts = Accounts(
        store, history=History(None), stall_seconds=60, stale_seconds=30, clock_ns=lambda: NOW
    )
    accounts.hangs._began_ns = 0
    return accounts


def document_of(accounts: Accounts) -> dict:
    return msgspec.json.decode(msgspec.json.encode(asyncio.run(accounts.document("r1"))))


def slow_link_series(accounts: Accounts) -> list[tuple[dict, float]]:
    families = Families("aggregator")
    series = RunSeries(accounts, HealthCosts(HealthLog(), accounts))
    result_of(series.add_present(families, accounts.account("r1"), NOW))
    name = "goodput_straggler_slow_link_bytes_per_second"
    return [(one.labels, one.value) for family in families for one in family.samples if one.name == name]


DEAD = {"unacked": 3, "retransmits": 6, "silent_ns": 35 * SECOND}


def test_slow_link_is_in_the_document_while_the_run_goes_on():
    accounts = accounts_of(reports({1: row(1, 9 * SECOND // 10)}, seconds=5))
    found = document_of(accounts)
    link = found["straggler"]["slow_link"]
    assert (link["rank"], link["sender"], link["receiver"], link["flows"]) == (1, 1, 2, 1)
    assert troubles(found)[1].text == "slow: its link"
    assert found["hang"] is None
    labels = {"run": "r1", "rank": "1", "host": "n1", "address": "10.0.0.1"}
    of, others = ({**labels, "of": name} for name in ("link", "others"))
    rates = [(of, link["bytes_per_second"]), (others, link["usual_bytes_per_second"])]
    assert slow_link_series(accounts) == rates
    (last,) = [one for one in reports({}, seconds=5) if one.identity.rank == 1]
    live = replace(last.live, connections=Connections(0))
    accounts.store.merge(replace(last, sequence=last.sequence + 1, live=live), NOW)
    assert document_of(accounts)["straggler"]["slow_link"] is None, "the rank does not wait any more"
    assert slow_link_series(accounts) == []


def test_report_without_connections_keeps_the_last():
    accounts = accounts_of(reports({1: row(1, 9 * SECOND // 10)}, seconds=5))
    for one in reports({}, seconds=5):
        bare = replace(one, sequence=one.sequence + 1, live=replace(one.live, connections=None))
        assert accounts.store.merge(bare, NOW).report.live.connections is None
    assert document_of(accounts)["straggler"]["slow_link"]["rank"] == 1


def test_hang_names_the_rank_whose_link_is_stalled():
    """All are in one call; what rank 2 sends and what it is sent is not acknowledged."""
    accounts = accounts_of(reports({1: row(1, **DEAD), 2: row(2, **DEAD)}))
    hang = document_of(accounts)["hang"]
    collective = hang["collective"]
    assert (collective["kind"], collective["culprits"], hang["culprit"]) == ("network", [2], 2)
    assert collective["slow_link"]["rank"] == 2 and collective["slow_link"]["silent_seconds"] == 35
    text = slow_link_text(collective["slow_link"])
    assert text.startswith("nothing comes through the link of rank 2 on n2 (10.0.0.2): ")
    assert hang["reason"].startswith(text) and "all ranks have entered all_reduce" in hang["reason"]
    assert of_run(collective).endswith("; nothing comes through the link of: rank 2")
    assert "nothing comes through its link" in of_rank(collective, 2)
    assert short(collective, 2) == "link stalled in all_reduce" and short(collective, 1) == ""


def test_rank_kept_in_the_last_call_is_not_named():
    """The others have gone on to the next call, since what they needed had come through."""
    made = reports({2: row(2, **DEAD)}, sequences=(8, 8, 8, 7), steps=(5, 5, 5, 4))
    hang = document_of(accounts_of(made))["hang"]
    assert (hang["collective"]["kind"], hang["collective"]["culprits"]) == ("network", [2])
    assert hang["culprit"] == 2 and "rank 3 on n3 has not come to" in hang["reason"]


def test_missing_rank_stays_named_where_links_are_stalled_too():
    """It is in no call: a link explains nothing of that."""
    made = reports({0: row(0, **DEAD)}, sequences=(8, 8, 8, 7))
    live = replace(made[3].live, phase="forward", connections=Connections(SECOND))
    hang = document_of(accounts_of([*made[:3], replace(made[3], live=live)]))["hang"]
    assert (hang["collective"]["kind"], hang["collective"]["culprits"], hang["culprit"]) == (
        "missing",
        [3],
        3,
    )
    assert "nothing comes through the link of rank 0" in hang["reason"]


def test_hang_without_stalled_links_is_as_before():
    hang = document_of(accounts_of(reports({})))["hang"]
    assert (hang["collective"]["kind"], hang["collective"]["culprits"]) == ("network", [])
    assert hang["collective"]["slow_link"] is None and hang["culprit"] is None


def test_older_versions_ignore_or_lack_connections():
    class OlderLive(msgspec.Struct):
        now_ns: int

    live = reports({})[0].live
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(live), type=OlderLive).now_ns == live.now_ns
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(live), type=schema.Live) == live
    assert b"connections" not in msgspec.msgpack.encode(replace(live, connections=None))


@pytest.mark.parametrize(
    "wrong",
    [
        Connections(-1),
        Connections(0, (row(0),) * (CONNECTIONS_MAX + 1)),
        Connections(0, (replace(row(0), local=""),)),
        Connections(0, (replace(row(0), remote="x" * 65),)),
        Connections(0, (replace(row(0), local="\x1b[31m:1"),)),
        Connections(0, (replace(row(0), busy_ns=-1),)),
        Connections(0, (replace(row(0), silent_ns=1 << 62),)),
    ],
)
def test_impossible_connections_are_left_out(wrong):
    report = reports({})[0]
    report = replace(report, live=replace(report.live, connections=wrong))
    with pytest.raises(schema.SchemaError):
        schema.check(report)
    right = schema.without_wrong_options(report)
    assert right.live.connections is None and right.live.collectives is not None


def test_addresses_that_are_none_do_no_harm():
    """They are texts of another machine."""
    odd = replace(row(1, 9 * SECOND // 10), local="no address", remote="[:")
    assert document_of(accounts_of(reports({1: odd}, seconds=5)))["straggler"]["slow_link"] is None
