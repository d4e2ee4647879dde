"""Start-up: what answers while the ledger is read, its progress, and a ledger that cannot be read."""

import asyncio
import threading
import time

from support.account.account_history import Process
from support.aggregator import old_ledgers
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import push, serving

from goodput.aggregator.api import app as app_module
from goodput.aggregator.api.app import create_app
from goodput.aggregator.api.startup import Startup
from goodput.aggregator.ledger.ledger import LedgerError
from goodput.aggregator.ledger.migrations import conversion

RANKS = 4


def test_older_ledger_is_converted_while_listening(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/ledger.db"
    old_ledgers.make(url, RANKS, 100)
    monkeypatch.setattr(app_module, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(conversion, "PROGRESS_SECONDS", 0.0)
    app, held, begun = create_app(url), threading.Event(), threading.Event()
    startup = app.state.startup
    set_converted = startup.set_converted

    def hold(done: int, to_do: int) -> None:
        set_converted(done, to_do)
        begun.set()
        held.wait(120)

    startup.set_converted = hold
    with serving(app, whole=False) as client:
        assert begun.wait(120)
        assert client.get("/healthz").text == "ok\n"
        ready = client.get("/readyz")
        assert ready.status_code == 503 and ready.json()["status"].startswith("converting the ledger, ")
        assert 0 < ready.json()["rows_to_convert"] <= 2 * RANKS * 100
        assert client.get("/api/v1/runs").status_code == 503
        held.set()
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        assert client.get("/api/v1/runs/r1").json()["steps"]["kept"] == RANKS * 100


def test_requests_wait_until_the_runs_are_whole(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/ledger.db"
    ranks = [Process(rank, 1, 1000.0, world_size=RANKS).steps(3, forward=1) for rank in range(RANKS)]
    with serving(create_app(url)) as client:
        push(client, *map(rank_report, ranks))
    monkeypatch.setattr(app_module, "WAIT_SECONDS", 0.01)
    app, held, half = create_app(url), threading.Event(), threading.Event()
    startup = app.state.startup

    def set_restored(processes: int) -> None:
        startup.restored = processes
        if processes == RANKS // 2:
            half.set()
            held.wait(120)

    startup.set_restored = set_restored
    seen = {}

    def ask(client) -> None:
        half.wait(120)
        assert client.get("/healthz").text == "ok\n"
        ready = client.get("/readyz")
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "5")
        seen.update(ready.json())
        for path in ("/api/v1/runs", "/api/v1/runs/r1", "/metrics"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), path
            assert "starting, 50 %" in answer.text
        assert client.get("/").status_code == 200
        assert client.post("/api/v1/ingest", content=body_of(rank_report(ranks[0]))).status_code == 503

    with serving(app, whole=False) as client:
        ask(client)
        held.set()
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        assert client.get("/readyz").json()["status"] == "ready"
        assert client.get("/api/v1/runs/r1").json()["world_size"] == RANKS
        assert push(client, rank_report(ranks[0])).accepted == 1
        refused = 'goodput_aggregator_requests_refused_total{reason="starting"} 4'
        assert refused in client.get("/metrics").text
    assert seen == {"status": "starting, 50 %", "processes_restored": 2, "processes_known": 4}


def test_liveness_follows_the_progress_of_a_start():
    """However long it takes: a start fails its probe when it has not advanced for ten minutes, and no sooner."""
    now = [0.0]
    startup = Startup(lambda _: None, clock=lambda: now[0])
    now[0] = 1e6  # A migration, whose statements may take hours.
    assert startup.stall() is None
    startup.begin_reading(known=100)
    for processes in range(1, 40):
        now[0] += 599
        assert startup.stall() is None
        startup.set_restored(processes)
    now[0] += 601
    assert startup.stall() == "starting, 39 %: no progress for 601 s"
    asyncio.run(startup.run(then=lambda: None))
    assert startup.stall() is None


def test_stalled_start_fails_the_liveness_probe(tmp_path, monkeypatch):
    monkeypatch.setattr(app_module, "WAIT_SECONDS", 0.01)
    app, held, reading = create_app(f"sqlite:///{tmp_path}/ledger.db"), threading.Event(), threading.Event()
    startup, begin = app.state.startup, app.state.startup.begin_reading

    def hold(known: int) -> None:
        begin(known)
        reading.set()
        held.wait(120)

    startup.begin_reading = hold
    with serving(app, whole=False) as client:
        assert reading.wait(120) and client.get("/healthz").status_code == 200
        startup._clock = lambda: time.monotonic() + 700
        answer = client.get("/healthz")
        assert answer.status_code == 503 and answer.text.startswith("starting, 0 %: no progress for 70")
        held.set()
        while client.get("/healthz").text != "ok\n":
            time.sleep(0.01)


def test_unreadable_ledger_ends_the_server(tmp_path):
    app, ended = create_app(f"sqlite:///{tmp_path}/ledger.db"), threading.Event()
    startup = app.state.startup

    def fail(_startup) -> None:
        raise LedgerError("ledger: cannot be read")

    startup._restore, startup.on_failure = fail, ended.set
    with serving(app, whole=False) as client:
        assert ended.wait(120) and str(startup.error) == "ledger: cannot be read"
        assert client.get("/readyz").status_code == 503
