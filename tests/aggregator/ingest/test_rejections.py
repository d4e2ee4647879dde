"""What the aggregator's log says of rejected reports: once for each reason, and enough to find the sender."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.ledgers import aggregator
from support.aggregator.reports import body_of, health_event, rank_report

from goodput.access.tokens import Access
from goodput.aggregator.ingest.checks import ROWS_AT_ONCE
from goodput.wire import schema
from goodput.wire.identity import RUN_CHARACTERS_MAX

TENANT = Access("tenant", ("ingest",), ("a/*",), "0" * 12)
ONE = rank_report(Process(3).steps(2, forward=1), "r1", host="n7")


@pytest.mark.parametrize(
    ("reason", "bodies", "access"),
    [
        ("claim", [body_of(ONE), body_of(rank_report(Process(3).steps(1, forward=1), "r1", host="n8", pid=99))], None),
        ("malformed", [body_of(rank_report(Process(3).steps(2, forward=1), "r1", host="n7", world_size=-1))], None),
        ("scope", [body_of(ONE)], TENANT),
    ],
)  # fmt: skip
def test_rejected_rank_is_logged_once_with_host(ledger, caplog, reason, bodies, access):
    ingest = aggregator(ledger)

    async def push():
        for body in [*bodies, bodies[-1]]:
            ack = await (ingest.accept(body, access) if access else ingest.accept(body))
        return ack

    with caplog.at_level(logging.WARNING, "goodput.aggregator"):
        ack = asyncio.run(push())
    assert [one.reason for one in ack.rejected] == [reason]
    (record,) = caplog.records
    text = record.getMessage()
    assert f"({reason})" in text and "[run 'r1' rank 3 host 'n" in text


def test_too_long_run_name_is_malformed_for_every_token(ledger):
    """No token is for such a run, so to be told that this one is not would lead nowhere."""
    report = rank_report(Process(3).steps(2, forward=1), "b" * (RUN_CHARACTERS_MAX + 1), host="n7")
    allowed = rank_report(Process(0).steps(2, forward=1), "a/1")
    ingest = aggregator(ledger)
    ack = asyncio.run(ingest.accept(body_of(report, ONE, allowed), TENANT))
    assert sorted((one.rank, one.reason) for one in ack.rejected) == [(3, "malformed"), (3, "scope")]
    (malformed,) = (one for one in ack.rejected if one.reason == "malformed")
    assert "run" in malformed.text and str(RUN_CHARACTERS_MAX) in malformed.text
    assert (ingest.counts["rejection", "malformed"], ingest.counts["rejection", "scope"]) == (1, 1)
    assert ack.accepted == 1


def damaged(text: str, *reports: schema.RankReport, **given) -> bytes:
    """A push with an invalid byte of UTF-8 in place of the first letter of a text."""
    body, right = body_of(*reports, **given), text.encode()
    assert body.count(right) == 1
    return body.replace(right, b"\xff" + right[1:])


@pytest.mark.parametrize(
    ("fields", "run", "path"),
    [
        ({"run": "broken"}, "\ufffdroken", "identity.run"),
        ({"host": "broken"}, "r1", "identity.host"),
        ({"group": "broken"}, "r1", "identity.group"),
        ({"device": "broken"}, "r1", "identity.device"),
        ({"flops_unknown": "broken"}, "r1", "identity.flops_unknown"),
        ({"phases": "broken"}, "r1", "phases"),
        ({"phase_states": "broken"}, "r1", "phase_states.mine"),
        ({"event": "broken"}, "r1", "events[0][4]"),
        ({"live": "broken"}, "r1", "live.phase"),
    ],
)
def test_text_that_is_no_utf8_refuses_its_rank_alone(ledger, fields, run, path):
    (field, text), others = *fields.items(), (ONE, rank_report(Process(0).steps(2, forward=1), "r2"))
    bad = rank_report(Process(7, user={"mine": "loader"}).steps(2, forward=1).saved())
    if field == "phases":
        bad = replace(bad, phases=(*bad.phases[:-1], text))
    elif field == "phase_states":
        bad = replace(bad, phase_states={"mine": text})
    elif field == "event":
        bad = replace(bad, events=[replace(bad.events[0], text=text)])
    elif field == "live":
        bad = replace(bad, live=replace(bad.live, phase=text))
    else:
        bad = replace(bad, identity=replace(bad.identity, **{field: text}))
    ingest = aggregator(ledger)
    ack = asyncio.run(ingest.accept(damaged(text, others[0], bad, others[1])))
    assert ack.accepted == 2
    (rejected,) = ack.rejected
    assert (rejected.run, rejected.rank, rejected.reason) == (run, 7, "malformed")
    assert f"`$.ranks[1].{path}" in rejected.text
    assert "not UTF-8: its byte 1 is 0xff" in rejected.text
    assert sorted(ledger.starts()) == ["r1", "r2"]


@pytest.mark.parametrize("text", ["brokenkind", "brokentext", "brokendevice", "brokenrun"])
def test_damaged_health_event_loses_nothing_else(ledger, text):
    events = [health_event(1, 5), health_event(2, 6)]
    name = text.removeprefix("broken")
    events[0] = replace(events[0], **({"hits": [(text, 0)]} if name == "run" else {name: text}))
    ingest = aggregator(ledger)
    ack = asyncio.run(ingest.accept(damaged(text, ONE, health=events, sent_ns=ns(10))))
    assert (ack.accepted, ack.rejected) == (1, [])
    assert ingest.health.counts == {("xid", "warning"): 1, ("dropped", "malformed"): 1}


def test_damaged_stack_loses_nothing_else(ledger):
    stack = schema.Stack(schema.stack_request(ONE.identity), 5, "a broken text")
    ack = asyncio.run(aggregator(ledger).accept(damaged("broken text", ONE, stacks=[stack])))
    assert (ack.accepted, ack.rejected) == (1, [])


@pytest.mark.parametrize("field", ["node", "agent"])
def test_damaged_envelope_is_named(ledger, field):
    with pytest.raises(schema.SchemaError, match=r"`\$.node` or `\$.agent` is not UTF-8: its byte 1 is 0xff"):
        asyncio.run(aggregator(ledger).accept(damaged("broken", ONE, **{field: "broken"})))


def test_rejected_whole_report_is_logged_with_token(ledger, caplog):
    ingest = aggregator(ledger)
    with caplog.at_level(logging.WARNING, "goodput.aggregator"):
        for _ in range(3):
            with pytest.raises(schema.SchemaError):
                asyncio.run(ingest.accept(b"\xc1", TENANT))
    (record,) = caplog.records
    assert "a whole report by token tenant rejected (report)" in record.getMessage()


def test_event_texts_lose_control_characters():
    one = Process(0, world_size=1).steps(1, forward=1).saved()
    report = rank_report(one)
    event = replace(report.events[-1], kind="mark", text="a\x1b]0;owned\x07\x9b2J\u202e b")
    assert schema.with_printable_texts(report) is report
    (cleaned,) = schema.with_printable_texts(replace(report, events=[event])).events
    assert cleaned == replace(event, text="a?]0;owned??2J? b")


def test_rejected_part_of_large_report_rejects_the_rest(ledger):
    """The other parts of the report wait for their turn when the first one is rejected."""
    ahead = Process(0, start=1e6, world_size=2).steps(3 * ROWS_AT_ONCE, forward=1)
    other = Process(1, world_size=2).steps(3, forward=1)
    ack = asyncio.run(aggregator(ledger).accept(body_of(rank_report(other), rank_report(ahead))))
    assert [(one.rank, one.reason) for one in ack.rejected] == [(0, "time")] and ack.accepted == 1
