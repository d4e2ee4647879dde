"""Values that a database refuses: told at start where it is the database's encoding, else left out alone."""

import subprocess
import sys

import pytest
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.ledgers import aggregator, database, stored_reports, take
from support.aggregator.reports import body_of, health_event, rank_report
from support.aggregator.serve_process import serving
from support.servers.postgresql_server import PASSWORD

from goodput.account import EndMark
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.aggregator.records import NewRecords
from goodput.wire import schema

MAIN = "import sys; from goodput.cli import main; sys.exit(main())"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "WIN1252"])
def test_database_without_utf8_is_refused_by_name(postgresql, encoding):
    """With what it cannot hold, and how to make one; reading one that is there works."""
    name = f"e_{encoding.lower()}"
    with postgresql.connect("postgres") as connection:
        connection.execute(f"create database {name} encoding '{encoding}' template template0 locale 'C'")
    url = postgresql.url(name)
    command = [
        sys.executable,
        "-c",
        MAIN,
        "serve",
        "--oldest-start",
        "36500",
        "--ledger",
        url,
        "--listen",
        "127.0.0.1:0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr and PASSWORD not in done.stderr
    assert f"database '{name}' has the encoding {encoding}, which cannot hold every text" in done.stderr
    assert "createdb -E UTF8 -T template0" in done.stderr
    with postgresql.connect(name) as connection:
        assert connection.execute(
            "select count(*) from pg_tables where schemaname = 'public'"
        ).fetchone() == (0,)


def test_ledger_of_another_encoding_can_be_read(postgresql, monkeypatch):
    """So that what was written before can be exported."""
    with postgresql.connect("postgres") as connection:
        connection.execute("create database e_old encoding 'LATIN1' template template0 locale 'C'")
    url = postgresql.url("e_old")
    monkeypatch.setattr("goodput.aggregator.ledger.database.Database.check_encoding", lambda self: None)
    ledger = Ledger(url)
    take(aggregator(ledger), body_of(rank_report(Process(), run="é")))
    ledger.close()
    monkeypatch.undo()
    ledger = Ledger(url, create=False)
    assert ledger.runs() == ["é"]
    ledger.close()


def test_client_encoding_of_the_environment_does_not_count(postgresql, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = postgresql.create_database() + "&client_encoding=LATIN1"
    ledger = Ledger(url)
    take(aggregator(ledger), body_of(rank_report(Process(), run="ō 火")))
    assert ledger.runs() == ["ō 火"]
    ledger.close()


def refuse(url: str, table: str, column: str, value: object) -> None:
    """As an administrator's constraint does."""
    wrong = f"{column} = {value!r}"
    with database(url) as connection:
        if url.startswith("postgresql"):
            connection.exec_driver_sql(f"alter table {table} add check (not ({wrong}))")
        else:
            connection.exec_driver_sql(
                f"create trigger t before insert on {table} when new.{wrong} begin select raise(abort, 'refused'); end"
            )


def pushed(rank: int, run: str, host: str = "a", events=()) -> schema.RankReport:
    """A process with one step and these events."""
    report = rank_report(Process(rank).step(forward=1.0), run=run)
    return replace(report, identity=replace(report.identity, host=host), events=list(events))


def test_one_refused_process_blocks_no_other(ledger, url, caplog):
    refuse(url, "processes", "host", "bad")
    ingest = aggregator(ledger)
    reports = [pushed(rank, run, host) for run in "xyz" for rank, host in enumerate(("a", "bad"))]
    answers = take(ingest, *map(body_of, reports))
    assert all(isinstance(answer, schema.Ack) for answer in answers)
    stored = [(one.identity.run, one.identity.host, len(one.steps)) for one in stored_reports(ledger)]
    assert stored == [(run, "a", 1) for run in "xyz"]
    assert ledger.refused.counts == {"processes": 3, "blocks": 3}
    assert ingest.counts["ledger", "error"] == 0
    text = caplog.text
    assert "refused a row of processes of 'x', which is left out" in text and PASSWORD not in text
    # They stay in memory, and later pushes go on.
    take(ingest, body_of(pushed(0, "more")))
    assert "more" in ledger.runs()


def test_one_refused_event_costs_that_event_alone(ledger, url):
    refuse(url, "events", "step", 3)
    ingest = aggregator(ledger)
    events = [schema.EventRow(n, "checkpoint_committed", 1000 * 10**9 + n, n, "") for n in range(1, 6)]
    take(ingest, body_of(pushed(0, "r1", events=events)), body_of(pushed(0, "r2")))
    (one, two) = stored_reports(ledger)
    assert [event.step for event in one.events] == [1, 2, 4, 5] and len(one.steps) == len(two.steps) == 1
    assert ledger.refused.counts == {"events": 1}


def test_refused_health_and_end_marks_are_apart(ledger, url):
    refuse(url, "health", "node", "bad")
    events = {(node, 1): health_event(1, 1.0) for node in ("a", "bad", "c")}
    reports = [pushed(0, "r1"), pushed(1, "r1")]
    ledger.append([NewRecords(report, [], []) for report in reports], events)
    assert [node for node, _ in ledger.health(10)] == ["a", "c"] and ledger.refused.counts == {"health": 1}
    marks = [
        (report.identity, EndMark("failed", 1 << shift, 2))
        for report, shift in zip(reports, (1, 70), strict=True)
    ]
    ledger.end(marks, 5)
    assert len(ledger.ends("r1")) == 1 and ledger.refused.counts == {"health": 1, "ends": 1}


@pytest.mark.parametrize(
    "wrong",
    [{"number": 1 << 70}, {"text": "\ud800"}, {"step": -(1 << 63) - 1}],
    ids=["beyond 64 bits", "half a pair", "below 64 bits"],
)
def test_values_beyond_the_types_are_left_out(ledger, wrong):
    """As the ledger's own caller might pass them: the schema of pushes refuses each before."""
    right = schema.EventRow(1, "checkpoint_committed", 10**18, 1, "nul\0 ō")
    reports = [pushed(0, "r1"), pushed(0, "r2")]
    batch = [
        NewRecords(report, [], [replace(right, **more)])
        for report, more in zip(reports, (wrong, {}), strict=True)
    ]
    ledger.append(batch)
    assert [one.identity.run for one in stored_reports(ledger)] == ["r1", "r2"]
    (left,) = [event for one in stored_reports(ledger) for event in one.events]
    assert left.text == "nul ō" and ledger.refused.counts == {"events": 1}


def test_a_database_that_fails_is_no_refused_row(ledger, url):
    with database(url) as connection:  # After the processes are written.
        connection.exec_driver_sql("alter table blocks rename to hidden")
    (answer,) = take(aggregator(ledger), body_of(pushed(0, "r1")))
    assert isinstance(answer, LedgerError) and ledger.refused.counts == {} and ledger.runs() == []


def test_refused_rows_are_a_series(url):
    ledger = Ledger(url)
    ledger.close()
    refuse(url, "processes", "host", "bad")
    with serving(create_app(url)) as client:
        for host in ("bad", "a"):
            assert (
                client.post("/api/v1/ingest", content=body_of(pushed(0, f"r{host}", host))).status_code == 200
            )
        text = client.get("/metrics").text
    assert 'goodput_aggregator_ledger_refused_rows_total{table="processes"} 1' in text
    assert "goodput_aggregator_ledger_errors_total 0" in text
