"""A new agent and aggregators of other report versions: it sends what both support, and loses nothing."""

import msgspec
import pytest
from support.aggregator.serve_process import serving
from support.node.report_rows import event, report, row

from goodput.aggregator.api import ingest_route
from goodput.aggregator.api.app import create_app
from goodput.metrics import Families
from goodput.wire import schema
from goodput_exporters.check import _aggregator
from goodput_exporters.push import pusher as pusher_module
from goodput_exporters.push.client import Answer, report_versions
from goodput_exporters.push.credentials import NONE_NEEDED
from goodput_exporters.push.pusher import Pusher


@pytest.fixture
def pusher(aggregator):
    pusher = Pusher(aggregator.url, "n0", timeout_seconds=5.0)
    yield pusher
    pusher.stop(0.0)


def add(pusher: Pusher, first: int, last: int, ranks: int = 2) -> None:
    rows = [row(number, number - 1) for number in range(first, last + 1)]
    events = [event(last, "mark", last)]
    pusher.add([report(rows, events, sequence=last, rank=rank) for rank in range(ranks)])


def failures(pusher: Pusher) -> dict[str, float]:
    families = Families("node")
    pusher.collect(families)
    rows = families.rows["goodput_node_push_failures_total"]
    return {reason: count for ((reason,), count) in rows if count}


class NewerSchema:
    """The schema of an agent of the next release, which sends versions that this aggregator does not know."""

    VERSION, VERSIONS = 4, (3, 4)

    def __getattr__(self, name: str):
        return getattr(schema, name)


def logged(caplog) -> list:
    """What goodput has logged: other tests may let httpx log too."""
    return [record for record in caplog.records if record.name.startswith("goodput")]


@pytest.mark.faults
def test_newer_agent_keeps_all_until_the_aggregator_is_updated(tmp_path, monkeypatch, caplog):
    """With the aggregator's own code: more than its backlog holds is thinned, nothing else is lost."""
    monkeypatch.setattr(pusher_module, "schema", NewerSchema())
    app = create_app(f"sqlite:///{tmp_path}/ledger.db")
    with serving(app) as client:
        pusher = Pusher(str(client.base_url), "n0")
        pusher._backlog.rows_max = 64
        for first in range(1, 802, 100):
            add(pusher, first, first + 99)
            assert pusher.push() == "rejected"
        assert failures(pusher) == {"version": 9} and len(pusher.warnings()) == 1
        assert 0 < pusher._backlog.rows <= 2 * 64 and not pusher._backlog.events_dropped
        monkeypatch.setattr(schema, "VERSIONS", (2, 3, 4))
        monkeypatch.setattr(ingest_route, "_VERSIONS", (schema.VERSIONS_HEADER.encode(), b"2, 3, 4"))
        assert pusher.push() == "accepted" and not pusher.warnings() and not pusher._backlog.rows
        account = client.get("/api/v1/runs/r1").json()
        pusher.stop(0.0)
    assert account["steps"]["kept"] == 2 * 900


def test_used_up_token_waits_as_long_as_the_answer_says(pusher, monkeypatch):
    answer = Answer(429, b"", "token team has pushed more bytes than it may", (1, 2), 17.0)
    monkeypatch.setattr(pusher.client, "post", lambda *_, **__: answer)
    add(pusher, 1, 2)
    assert pusher.push() == "rejected" and failures(pusher) == {"quota": 1}
    assert 17.0 <= pusher._wait_seconds(1) <= 1.5 * 17.0 and pusher._backlog.rows == 4


def versions_sent(aggregator) -> list[int]:
    return [sent.version for sent in aggregator.reports]


def test_steps_are_sent_in_blocks(aggregator, pusher, monkeypatch):
    bodies = []
    take = aggregator.take
    monkeypatch.setattr(aggregator, "take", lambda body: bodies.append(body) or take(body))
    add(pusher, 1, 10)
    assert pusher.push() == "accepted"
    found = msgspec.msgpack.decode(bodies[0])
    assert found["version"] == 2 and all("steps" not in rank for rank in found["ranks"])
    assert aggregator.rows() == {("r1", rank, 1): list(range(1, 11)) for rank in (0, 1)}


@pytest.mark.faults
def test_old_aggregator_is_sent_rows(aggregator, pusher, caplog):
    aggregator.versions = (1,)
    for first in (1, 11, 21):
        add(pusher, first, first + 9)
        assert pusher.push() == "accepted"
    assert aggregator.rows() == {("r1", rank, 1): list(range(1, 31)) for rank in (0, 1)}
    assert versions_sent(aggregator) == [1, 1, 1] and aggregator.refused == 1
    (line,) = [record.getMessage() for record in logged(caplog)]
    assert line.endswith("supports report versions 1; reports are of version 1 now")
    events = [one.number for sent in aggregator.reports for rank in sent.ranks for one in rank.events]
    assert events == [10, 10, 20, 20, 30, 30]


@pytest.mark.faults
def test_updated_aggregator_is_sent_blocks_again(aggregator, pusher, caplog):
    aggregator.versions = (1,)
    add(pusher, 1, 2)
    assert pusher.push() == "accepted"
    aggregator.versions = schema.VERSIONS
    for number in (3, 4):
        add(pusher, number, number)
        assert pusher.push() == "accepted"
    assert versions_sent(aggregator) == [1, 1, 2] and aggregator.refused == 1
    aggregator.versions = (1,)  # taken back
    add(pusher, 5, 5)
    assert pusher.push() == "accepted"
    assert aggregator.rows() == {("r1", rank, 1): [1, 2, 3, 4, 5] for rank in (0, 1)}
    assert len(logged(caplog)) == 2, "each change is logged once"


def test_aggregator_without_common_version_keeps_everything(aggregator, pusher, caplog):
    aggregator.versions = (3, 4)
    add(pusher, 1, 2)
    assert pusher.push() == pusher.push() == "rejected"
    (line,) = [record.getMessage() for record in logged(caplog)]
    assert "this aggregator supports 3 and 4, this agent sends report versions 1 and 2" in line
    assert pusher.warnings() == [line.partition(": ")[2]]
    assert failures(pusher) == {"version": 2}
    aggregator.versions = (2, 3)
    assert pusher.push() == "accepted" and not pusher.warnings()
    assert aggregator.rows() == {("r1", rank, 1): [1, 2] for rank in (0, 1)}


def test_bad_rank_is_dropped_in_either_version(aggregator, pusher):
    """A refusal for another reason is no refusal of the version."""
    aggregator.versions = (1,)
    aggregator.answer = lambda sent, _: (
        (400, b"cannot") if any(rank.identity.rank == 1 for rank in sent.ranks) else None
    )
    add(pusher, 1, 2)
    pusher.push()
    assert aggregator.rows() == {("r1", 0, 1): [1, 2]} and pusher._version == 1


@pytest.mark.parametrize(
    ("header", "status", "text", "versions"),
    [
        ("1, 2", 200, "OK", (1, 2)),
        ("", 400, "report version 2, this aggregator supports 1", (1,)),
        ("", 400, "report version 4, this aggregator supports 1 and 2", (1, 2)),
        ("", 200, "OK", ()),
        ("", 400, "malformed report: report version 2, this aggregator supports 1", ()),
        ("x, -1, 2.5, \u0662, 7", 200, "OK", (7,)),
        ("9" * 10_000, 200, "OK", (int("9" * 64),)),
    ],
)
def test_supported_versions_are_read(header, status, text, versions):
    assert report_versions(header, status, text) == versions


def test_check_accepts_an_older_aggregator(aggregator):
    aggregator.versions = (1,)
    found = _aggregator(aggregator.url, "n0", NONE_NEEDED)
    assert found.detail.endswith("accepts this node's reports, in version 1: it is older than this agent")
