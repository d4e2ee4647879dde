"""Runs that nobody ends: abandoned after the limit, on the real app and in every account of them."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process, ns
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving
from support.servers.servers import wait_until

from goodput import cli
from goodput.aggregator.accounts import abandonment
from goodput.aggregator.accounts.abandonment import Abandonment
from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.accounts.history import History
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.run_end import RunEnder
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger.ledger import Ledger
from goodput.runlog import replay
from goodput.runlog.export import export

RANKS, LIMIT, STALE, DAY = 4, 600.0, 30.0, 86_400


def ranks_of(seconds_ago: float, number: int = 1) -> list[Process]:
    """Ranks of one GPU that made 20 steps of a second, a checkpoint and two more steps."""
    start = time.time() - seconds_ago
    found = [Process(rank, number, start, world_size=RANKS) for rank in range(RANKS)]
    for one in found:
        one.steps(20, forward=1).saved().steps(2, forward=1).begun(forward=0.5)
    return found


def push(client, *ranks: Process) -> None:
    answer = client.post("/api/v1/ingest", content=body_of(*[rank_report(one, "r1") for one in ranks]))
    assert answer.status_code == 200


def account(client, part: str = "") -> dict:
    answer = client.get(f"/api/v1/runs/r1{part}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def series(client) -> dict[tuple, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (s.name, *(s.labels[name] for name in sorted(s.labels))): s.value for f in families for s in f.samples
    }


def _has_marks(url: str) -> bool:
    log = b"".join(export(Ledger(url), "r1", time.time_ns()))
    return log.count(b'"over":"abandoned"') == RANKS


def states(found: dict) -> dict:
    return {state: value for state, value in found["states"].items() if value}


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A ledger, for aggregators that look for abandoned runs all the time."""
    for name, seconds in (("START_SECONDS", 0.0), ("REPORTED_SECONDS", 0.0), ("EVERY_SECONDS", 0.05)):
        monkeypatch.setattr(abandonment, name, seconds)
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    return f"sqlite:///{tmp_path}/ledger.db"


def test_silent_run_is_abandoned_everywhere(url, tmp_path, stale=0.2):
    """The same end and states live, in history, timeline, list, series, after a restart and in a replay of its log."""
    ranks = [one.silent(after=2) for one in ranks_of(1000)]
    with serving(create_app(url, abandoned_seconds=LIMIT, stale_seconds=stale)) as client:
        push(client, *ranks)
        wait_until(lambda: account(client)["status"] == "abandoned", 60, "the run to be abandoned")
        found = account(client)
        assert found["end"] == pytest.approx(ranks[0].now_ns / 1e9 + LIMIT)
        assert found["states"]["unobserved"] == pytest.approx(LIMIT * RANKS)
        assert found["states"]["productive"] == pytest.approx(24.5 * RANKS)
        assert states(account(client, "/account")) == states(found)
        timeline = account(client, "/timeline?points=10")
        assert (timeline["status"], timeline["end"]) == ("abandoned", found["end"])
        (row,) = client.get("/api/v1/runs").json()["runs"]
        assert (row["status"], row["end"]) == ("abandoned", found["end"])
        exposed = series(client)
        assert [key[1:] for key in exposed if key[0] == "goodput_run_info"] == [("", "r1", "abandoned")]
        assert ("goodput_run_gpus", "r1") not in exposed and exposed["goodput_ranks", "alive", "r1"] == 0
        assert exposed["goodput_rank_last_report_age_seconds", "r1"] == 0
        assert exposed["goodput_progress_age_seconds", "r1"] == 0
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (replayed,) = replay(str(log))
    assert replayed.account.status == "abandoned" and not replayed.problems.listed
    assert (replayed.account.end_ns / 1e9, replayed.account.gpu_ns()[0] / 1e9) == (
        found["end"],
        found["states"]["productive"],
    )
    with serving(create_app(url, abandoned_seconds=LIMIT, stale_seconds=stale)) as again:
        assert (account(again)["status"], states(account(again))) == ("abandoned", states(found))


def test_failed_run_is_exposed_until_it_is_abandoned(url):
    """Somebody may start it again until then, and hears of it; its end stays where its processes ended."""
    ranks = [one.killed(after=2) for one in ranks_of(1800)]
    shown = ("goodput_run_info", "", "r1", "failed")
    with serving(create_app(url, abandoned_seconds=10 * LIMIT)) as client:
        push(client, *ranks)
        found = account(client)
        assert (found["status"], found["end"]) == ("failed", pytest.approx(ranks[0].now_ns / 1e9))
        assert states(found) == pytest.approx({"productive": 20 * RANKS, "lost": 4.5 * RANKS})
        exposed = series(client)
        assert exposed[shown] == 1 and ("goodput_run_gpus", "r1") not in exposed, "after half an hour"
    with serving(create_app(url, abandoned_seconds=LIMIT)) as client:
        wait_until(lambda: shown not in series(client), 60, "the run to be abandoned")
        assert account(client) | {"live": []} == found | {"live": []}


def test_restart_of_a_run_makes_its_gap_down(url):
    """Also where it had been taken for abandoned: then as much of the gap as the limit."""
    ranks = [one.killed(after=2) for one in ranks_of(200)]
    with serving(create_app(url, abandoned_seconds=LIMIT)) as client:
        push(client, *ranks)
        assert account(client)["status"] == "failed" and account(client)["states"]["down"] == 0
        again = ranks_of(30, number=2)
        push(client, *again)
        found = account(client)
        gap = (again[0].start_ns - ranks[0].now_ns) / 1e9
        assert (found["status"], found["states"]["down"]) == ("running", pytest.approx(gap * RANKS))
        assert states(account(client, "/account")) == states(found)


def test_abandoned_run_that_reports_goes_on(url):
    ranks = [one.killed(after=2) for one in ranks_of(1000)]
    with serving(create_app(url, abandoned_seconds=LIMIT)) as client:
        push(client, *ranks)
        wait_until(lambda: _has_marks(url), 60, "the run to be abandoned")
        again = ranks_of(30, number=2)
        push(client, *again)
        found = account(client)
        assert (found["status"], found["restarts"][0]["attempt"]) == ("running", 2)
        assert found["states"]["down"] == pytest.approx(LIMIT * RANKS), "as before the new attempt"
        assert states(account(client, "/account")) == states(found)


def test_declared_end_of_an_abandoned_run_replaces_it(url):
    ranks = [one.silent(after=2) for one in ranks_of(1000)]
    with serving(create_app(url, abandoned_seconds=LIMIT, stale_seconds=0.2)) as client:
        push(client, *ranks)
        wait_until(lambda: account(client)["status"] == "abandoned", 60, "the run to be abandoned")
        answer = client.post("/api/v1/runs/r1/end", json={})
        assert answer.json()["ended"] == RANKS
        found = account(client)
        assert (found["status"], found["end"]) == ("cancelled", pytest.approx(ranks[0].now_ns / 1e9))


class Marked:
    """The runs of a store, which are marked at a time of the test's choice."""

    def __init__(self, tmp_path):
        self.store, ledger = Store(), Ledger(f"sqlite:///{tmp_path}/ledger.db")
        seconds = {"stall_seconds": 60.0, "stale_seconds": STALE}
        given = {"history": History(ledger), "age_seconds": 0.0, "clock_ns": lambda: time.time_ns()}
        accounts = Accounts(self.store, **seconds, **given)
        ender = RunEnder(self.store, ledger, stale_seconds=STALE)
        self.abandonment = Abandonment(accounts, ender)

    def merge(self, one: Process, run: str, received_ns: int) -> None:
        self.store.merge(rank_report(one, run), received_ns)

    def due(self, monkeypatch, now_ns: int) -> list[str]:
        monkeypatch.setattr(time, "time_ns", lambda: now_ns)
        return asyncio.run(self.abandonment.mark_due(now_ns))


def test_only_silent_unfinished_runs_are_abandoned(tmp_path, monkeypatch):
    marked, began = Marked(tmp_path), time.time()
    lives = {"dead": "killed", "gone": "silent", "done": "finished", "crashed": "failed"}
    for run, how in lives.items():
        one = getattr(Process(start=began).steps(5, forward=1), how)()
        marked.merge(one, run, one.now_ns)
    last_ns = one.now_ns
    behind = Process(start=began - 3 * DAY).steps(5, forward=1).killed()
    marked.merge(behind, "behind", last_ns)
    assert marked.due(monkeypatch, last_ns + ns(60)) == [], "a host's clock may be days behind"
    assert marked.due(monkeypatch, last_ns + ns(DAY - 1)) == ["behind"]
    assert sorted(marked.due(monkeypatch, last_ns + ns(DAY))) == ["crashed", "dead", "gone"]
    assert marked.due(monkeypatch, last_ns + ns(9 * DAY)) == [], "each once"


def test_limit_is_an_option(capsys):
    assert cli.parser().parse_args(["serve"]).abandoned == DAY
    assert cli.parser().parse_args(["serve", "--abandoned-after", "7200"]).abandoned == 7200
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["serve", "--abandoned-after", "60"])
    assert "expected 600 to" in capsys.readouterr().err
