"""POST /api/v1/runs/RUN/end on the real app: answers, authorisation, effect and persistence."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.account.account_history import Process, ns
from support.aggregator.ledgers import contents
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving
from support.aggregator.shapes import assert_shape
from support.servers.servers import wait_until

from goodput import web
from goodput.access import token_file
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.account import FINAL_STATUSES, EndMark
from goodput.aggregator.accounts.accounts import Accounts, RunDocument
from goodput.aggregator.accounts.result_cache import ResultCache
from goodput.aggregator.api.app import create_app
from goodput.aggregator.api.exposition import Exposition
from goodput.aggregator.http.authentication import RequestAuthenticator
from goodput.aggregator.ingest import run_end
from goodput.aggregator.ledger.ledger import Ledger, LedgerError
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema

RANKS = 8
PAUSE_SECONDS_MAX = 60
END = "/api/v1/runs/r1/end"
IS_FRESH = Accounts._is_fresh


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Compute the account for every request."""
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def made(monkeypatch):
    """The accounts of each app, as they are made."""
    found, begin = [], Accounts.__init__

    def begun(self, *given, **named) -> None:
        found.append(self)
        begin(self, *given, **named)

    monkeypatch.setattr(Accounts, "__init__", begun)
    return found


@pytest.fixture
def client(url, made):
    with serving(create_app(url)) as client:
        yield client


def began(seconds_ago: float = 300, ranks: int = RANKS, number: int = 1) -> list[Process]:
    """Ranks of one GPU each, in the middle of a step two steps after a checkpoint."""
    start = time.time() - seconds_ago
    found = [Process(rank, number, start, world_size=ranks) for rank in range(ranks)]
    for one in found:
        one.steps(20, forward=1).saved().steps(2, forward=1).begun(forward=0.5)
    return found


def push(client, *ranks: Process, run: str = "r1", **given) -> None:
    reports = [rank_report(one, run, **given) for one in ranks]
    answer = client.post("/api/v1/ingest", content=body_of(*reports))
    assert answer.status_code == 200 and not schema.decode_ack(answer.content).rejected


def killed(client, **given) -> list[Process]:
    ranks = [one.killed(after=2) for one in began(**given)]
    push(client, *ranks)
    return ranks


def end(client, **request) -> dict:
    answer = client.post(END, json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()


def account(client, part: str = "") -> dict:
    answer = client.get(f"/api/v1/runs/r1{part}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def series(client) -> dict[tuple, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def states(found: dict) -> dict:
    return {state: value for state, value in found["states"].items() if value}


CANCELLED = {"run": "r1", "reason": "cancelled", "ended": RANKS, "known": 0, "alive": 0, "already": 0}
STOOD = {"productive": 20.0 * RANKS, "lost": 4.5 * RANKS}


def assert_over(client) -> dict:
    found = account(client)
    assert_shape(found, RunDocument)
    assert found["status"] == "cancelled" and states(found) == pytest.approx(STOOD, abs=1e-3)
    assert {(one["alive"], one["ended"]) for one in found["live"]} == {(False, "cancelled")}
    return found


def assert_over_everywhere(client) -> None:
    found = assert_over(client)
    assert states(account(client, "/account")) == states(found), "the history's"
    lifetime = account(client, "/rolling")["windows"][-1]
    assert lifetime["states"]["down"] == 0
    timeline = account(client, "/timeline?points=10")
    assert timeline["status"] == "cancelled" and timeline["end"] == found["end"]
    (row,) = client.get("/api/v1/runs").json()["runs"]
    assert (row["status"], row["end"], row["hang"]) == ("cancelled", found["end"], False)


# ---- Effects


def test_cancelled_run_accrues_nothing_anywhere(client):
    killed(client)
    before = series(client)
    assert before["goodput_run_info", "", "r1", "failed"] == 1 and before["goodput_run_gpus", "r1"] == RANKS
    assert end(client) == CANCELLED
    assert_over_everywhere(client)
    found = series(client)
    of_run = [key for key in found if key[0] in ("goodput_run_info", "goodput_run_gpus")]
    assert [set(key) for key in of_run] == [{"goodput_run_info", "r1", "", "cancelled"}]
    assert found["goodput_gpu_seconds", "r1", "down"] == found["goodput_gpu_seconds", "r1", "stall"] == 0
    assert found["goodput_progress_age_seconds", "r1"] == found["goodput_hang_seconds", "r1"] == 0
    assert not any(key[0].startswith("goodput_checkpoint_age") for key in found)


@pytest.fixture
def no_hangs(monkeypatch):
    """The server looks for none, nor renders series beforehand: no account is computed but for a request."""

    def nothing(_accounts):
        return
        yield

    async def never(_exposition):
        return

    monkeypatch.setattr(Accounts, "detecting_hangs", nothing)
    monkeypatch.setattr(Exposition, "keep_fresh", never)


class PausedReader:
    """The next request that computes an account waits after so many of its parts, while others are served."""

    def __init__(self, monkeypatch, parts: int):
        self._parts, self._is_next = parts, True
        self._reached, self._goes_on = threading.Event(), threading.Event()
        self._pool, computing = ThreadPoolExecutor(1), Accounts.computing

        def paused(accounts, name, now_ns=None):
            slices = computing(accounts, name, now_ns)
            if self._is_next:
                self._is_next = False
                for _ in range(self._parts):
                    yield next(slices)
                self._reached.set()
                while not self._goes_on.is_set():
                    yield
            return (yield from slices)

        monkeypatch.setattr(Accounts, "computing", paused)

    def __enter__(self) -> PausedReader:
        return self

    def __exit__(self, *_) -> None:
        self._goes_on.set()
        self._pool.shutdown()

    def read(self, client) -> None:
        """Request the run; returns once the request waits."""
        self._answer = self._pool.submit(account, client)
        assert self._reached.wait(PAUSE_SECONDS_MAX), self._answer

    def answer(self) -> dict:
        self._goes_on.set()
        return self._answer.result()


@pytest.mark.parametrize("parts", [1, 5, 8, 11, 14])
def test_end_is_seen_by_readers_while_an_account_is_computed(no_hangs, client, monkeypatch, parts):
    """An account is computed in slices, between which a run may be ended."""
    killed(client)
    assert account(client)["status"] != "cancelled"
    with PausedReader(monkeypatch, parts) as reader:
        reader.read(client)
        end(client)
        assert_over_everywhere(client)
        assert series(client)["goodput_gpu_seconds", "r1", "down"] == 0
        assert reader.answer()["status"] == "cancelled", "what is computed for others goes on with the end"


@pytest.mark.parametrize("is_large", [False, True])
def test_end_is_seen_by_readers_of_a_costly_account(client, made, monkeypatch, is_large):
    monkeypatch.setattr(Accounts, "_is_fresh", IS_FRESH)
    monkeypatch.setattr(ResultCache, "__init__", partialmethod(ResultCache.__init__, lambda _: 600.0))
    killed(client)
    (accounts,) = made
    accounts._rolling = ResultCache()
    assert account(client)["status"] != "cancelled"
    for view in ("/rolling", "/timeline?points=10", "/story"):
        account(client, view)
    accounts._cached["r1"] = accounts._cached["r1"]._replace(cost_ns=60 * 10**9)
    monkeypatch.setattr(Accounts, "is_large", lambda _: is_large)
    end(client)
    (row,) = client.get("/api/v1/runs").json()["runs"]
    assert row["status"] == "cancelled"
    assert_over_everywhere(client)
    again = accounts._cached["r1"]
    assert end(client)["ended"] == 0 and accounts._cached["r1"] is again, "nothing was marked"


def test_end_mark_survives_repeated_pushes_and_restart(client, url):
    ranks = killed(client)
    end(client)
    for one in ranks:
        # Their pages remain until the agent removes them; only the time of reading changes.
        push(client, one, rows=[])
        one.now_ns += ns(250)
        push(client, one)
    assert_over(client)
    with serving(create_app(url)) as again:
        assert_over(again)
        push(again, *ranks)
        assert_over_everywhere(again)
        assert end(again) == {**CANCELLED, "ended": 0, "already": RANKS}


def test_exported_run_log_has_the_end_mark(client, url, tmp_path):
    killed(client)
    end(client)
    (tmp_path / "run.jsonl").write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (found,) = replay(str(tmp_path / "run.jsonl"))
    assert found.account.status == "cancelled" and not found.problems.listed and not found.problems.ignored
    assert found.account.end_ns / 1e9 == account(client)["end"]
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    ends = [line for line in lines if line["kind"] == "end"]
    assert [(line["reason"], line["over"]) for line in ends] == [("killed", "cancelled")] * RANKS


def test_new_attempt_continues_an_ended_run(client, url, tmp_path):
    """Its GPUs were nobody's in between: the account, its history, the timeline and a replay of its log leave that out."""
    killed(client)
    end(client)
    again = [one.killed() for one in began(seconds_ago=30, number=2)]
    push(client, *again)
    found = account(client)
    assert (found["status"], found["restarts"][0]["attempt"]) == ("failed", 2)
    assert found["restarts"][0]["down_seconds"] == 0
    assert found["gpu_seconds"] < (found["end"] - found["start"] - 200) * RANKS, (
        "the time from 24.5 s to 270 s"
    )
    assert found["end"] == pytest.approx(again[0].now_ns / 1e9)
    part = account(client, f"/account?end={again[0].now_ns / 1e9}")
    assert (
        part["gpu_seconds"] == pytest.approx((24.5 + 22.5) * RANKS, abs=1e-3) and part["states"]["down"] == 0
    )
    buckets = account(client, "/timeline?points=10")["buckets"]
    assert [bucket["gpu_seconds"] for bucket in buckets].count(0) >= 6
    (tmp_path / "run.jsonl").write_bytes(b"".join(export(Ledger(url), "r1", again[0].now_ns)))
    (replayed,) = replay(str(tmp_path / "run.jsonl"))
    assert replayed.account.restarts[0].down_gpu_ns == 0


@pytest.mark.parametrize("reason", ["finished", "failed"])
def test_reason_decides_which_steps_count(client, reason, monkeypatch):
    monkeypatch.undo()  # The account of a final run is cached until a report.
    killed(client)
    assert end(client, reason=reason)["reason"] == reason
    wait_until(lambda: account(client)["status"] == reason, 60, "the first reason")
    found = account(client)
    assert found["steps"] == ({"kept": 176, "lost": 0} if reason == "finished" else {"kept": 160, "lost": 16})
    # The last request wins. A finished run's rows were dropped, so it is folded again from the ledger.
    assert end(client)["ended"] == RANKS
    wait_until(lambda: account(client)["status"] == "cancelled", 60, "the last reason")


def test_ranks_end_at_given_or_last_seen_time(client):
    ranks = killed(client)
    seen = ranks[0].end_ns / 1e9
    end(client, at=seen - 100)
    assert account(client)["end"] == pytest.approx(seen)
    end(client, at=seen + 100)
    found = account(client)
    assert found["end"] == pytest.approx(seen + 100) and found["states"]["down"] == pytest.approx(
        100 * RANKS, abs=1
    )


def test_ranks_own_reported_end_stays(client):
    failed, finished, dead = began(ranks=3)
    push(client, failed.failed(), finished.finished(), dead.killed(after=2))
    found = end(client)
    assert (found["ended"], found["known"]) == (1, 2)
    found = account(client)
    assert [one["ended"] for one in found["live"]] == ["failed", "finished", "cancelled"]
    assert found["status"] == "cancelled"
    assert end(client)["already"] == 3


def test_page_has_texts_for_every_ended_status():
    words = (web.FOLDER / "scripts/text/states.js").read_text()
    statuses = words[words.index("STATUSES = {") :].partition("};")[0]
    assert [status for status in FINAL_STATUSES if f"\n  {status}: " not in statuses] == []


# ---- Live ranks


def test_running_run_is_not_ended(client, url):
    push(client, *[one.silent(after=270) for one in began()])
    before = contents(url)
    answer = client.post(END)
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith(
        "run 'r1' is running: 8 ranks are alive as last reported (0, 1, 2,"
    )
    assert account(client)["status"] == "running" and contents(url) == before


def test_forced_end_keeps_later_deaths_of_ranks(client):
    ranks = [one.silent(after=270) for one in began()]
    push(client, *ranks)
    assert end(client, force=True) == {**CANCELLED, "alive": RANKS}
    assert account(client)["status"] == "cancelled"
    for one in ranks:
        push(client, one.silent(after=10))
        assert account(client)["status"] == "cancelled", "ranks that are being killed"
        push(client, one.killed(after=5))
    assert account(client)["status"] == "cancelled"
    assert account(client)["end"] == pytest.approx(ranks[0].end_ns / 1e9)


def test_ranks_alive_after_the_slack_continue(client):
    ranks = [one.silent(after=270) for one in began()]
    push(client, *ranks)
    end(client, force=True)
    push(client, *[one.silent(after=run_end.SLACK_SECONDS + 20) for one in ranks])
    found = account(client)
    assert found["status"] == "running" and all(one["alive"] for one in found["live"])


def test_silent_ranks_are_not_alive(url):
    """Their node may be gone with its agent; they ended when they were last seen alive."""
    with serving(create_app(url, stale_seconds=0.0)) as client:
        ranks = [one.silent(after=2) for one in began()]
        push(client, *ranks)
        assert end(client) == CANCELLED
        assert account(client)["end"] == pytest.approx(ranks[0].now_ns / 1e9)


@pytest.mark.parametrize("behind", [-3600, 0, 3600])
def test_mark_time_is_on_the_ranks_clock(client, behind):
    """Whatever their host's clock shows, only activity after the mark continues a rank."""
    ranks = [one.silent(after=250) for one in began(seconds_ago=300 + behind)]
    push(client, *ranks)
    end(client, force=True)
    push(client, *[one.silent(after=run_end.SLACK_SECONDS - 5) for one in ranks])
    assert {one["alive"] for one in account(client)["live"]} == {False}
    push(client, *[one.silent(after=10) for one in ranks])
    assert {one["alive"] for one in account(client)["live"]} == {True}


# ---- Invalid requests


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"{", 400, "want a JSON object or an empty body"),
        (b"\xff", 400, "want a JSON object"),
        (b'{"at": ' + b"[" * 3000, 422, "$.at"),
        (b"[]", 422, "Expected `object`"),
        (
            b'{"reason": "because"}',
            422,
            "Invalid enum value 'because' - at `$.reason`; want one of finished, failed, cancelled",
        ),
        (b'{"reason": 1}', 422, "$.reason"),
        (b'{"why": "failed"}', 422, "unknown field `why`"),
        (b'{"at": "now"}', 422, "$.at"),
        (b'{"at": NaN}', 400, "want a JSON object"),
        (b'{"at": -1}', 422, "at -1.0: want unix seconds in the past"),
        (b'{"at": 1e300}', 422, "want unix seconds"),
        (b'{"at": 3999999999}', 422, "want unix seconds in the past"),
        (b'{"force": 1}', 422, "$.force"),
        (b" " * 5000, 413, "larger than 4096 bytes"),
    ],
)
def test_invalid_body_changes_nothing(endless, body, status, detail):
    answer = endless.post(END, content=body)
    assert answer.status_code == status and detail in answer.json()["detail"], answer.text
    assert account(endless)["status"] == "failed"


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """An aggregator with a run that no request ends."""
    with serving(create_app(f"sqlite:///{tmp_path_factory.mktemp('endless')}/ledger.db")) as client:
        killed(client)
        yield client


def test_end_of_an_unknown_run_is_404(endless):
    answer = endless.post("/api/v1/runs/r2%2Fend/end")
    assert (answer.status_code, answer.json()) == (404, {"detail": "no run 'r2/end'"})
    assert endless.get(END).status_code == 404, "a GET reads the run of that name"
    assert endless.post("/api/v1/runs/r1").status_code == 405


def test_failed_ledger_write_changes_nothing(client, monkeypatch):
    killed(client)

    def fail(*_):
        raise LedgerError("ledger: disk full")

    monkeypatch.setattr(Ledger, "end", fail)
    answer = client.post(END)
    assert (answer.status_code, answer.json()) == (503, {"detail": "ledger: disk full"})
    assert account(client)["status"] == "failed"


def test_cross_site_request_ends_nothing(endless):
    answer = endless.post(END, headers={"Origin": "https://elsewhere.example"})
    assert answer.status_code == 403 and account(endless)["status"] == "failed"


def test_openapi_describes_the_end_request(endless):
    document = endless.get("/api/v1/openapi.json").json()
    found = document["paths"]["/api/v1/runs/{run}/end"]["post"]
    body = found["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/EndRequest"}
    reasons = document["components"]["schemas"]["EndRequest"]["properties"]["reason"]["enum"]
    assert sorted(reasons) == ["cancelled", "failed", "finished"]
    assert set(found["responses"]) >= {"200", "400", "403", "404", "409", "413", "422", "503"}


# ---- Authorisation


def test_end_requires_an_ingest_token_of_the_run(url, tmp_path, caplog):
    kinds = {
        "node": ("ingest", {}),
        "mine": ("ingest", {"runs": ("r1",)}),
        "others": ("ingest", {"runs": ("x*",)}),
        "reader": ("read", {}),
    }
    made = {name: make(name, scope, **given) for name, (scope, given) in kinds.items()}
    with token_file.changing(tmp_path / "tokens.json") as tokens:
        tokens += [token for _, token in made.values()]
    bearer = {name: {"Authorization": f"Bearer {text}"} for name, (text, _) in made.items()}
    with serving(
        create_app(url, authenticator=RequestAuthenticator(TokenCache(tmp_path / "tokens.json")))
    ) as client:
        body = body_of(*[rank_report(one.killed()) for one in began()])
        assert client.post("/api/v1/ingest", content=body, headers=bearer["node"]).status_code == 200
        assert client.post(END).status_code == 401
        answer = client.post(END, headers=bearer["reader"])
        assert answer.status_code == 403
        assert answer.json()["detail"] == "token reader has scope read; this requires scope ingest"
        for run in ("r1", "nothing"):
            answer = client.post(f"/api/v1/runs/{run}/end", headers=bearer["others"])
            detail = f"token others is not for run {run!r}"
            assert (answer.status_code, answer.json()) == (403, {"detail": detail})
        # A browser that signed in reads.
        client.post("/login", data={"token": made["reader"][0]})
        assert client.get("/api/v1/runs/r1").json()["status"] == "failed"
        assert client.post(END).status_code == 401
        with caplog.at_level(logging.INFO, "goodput.aggregator"):
            assert client.post(END, headers=bearer["mine"]).status_code == 200
        (line,) = [record.getMessage() for record in caplog.records if "ended as" in record.getMessage()]
        assert re.match(r"run 'r1' ended as cancelled by mine: 8 ranks ended, 0 had", line), line
        text = client.get("/metrics", headers=bearer["reader"]).text
        assert 'goodput_aggregator_requests_total{code="200",route="end"} 1.0' in text


# ---- The ledger, on both databases


class TestLedger:
    @pytest.fixture
    def url(self, new_url):
        return new_url()

    def test_it_keeps_the_last_declaration(self, ledger):
        one, other = (rank_report(process).identity for process in began(ranks=2))
        ledger.end([(one, EndMark("failed", 1, 2)), (other, EndMark("failed", 0, 1 << 61))], set_ns=10)
        ledger.end([(one, EndMark("cancelled", 3, 4))], set_ns=11)
        ledger.end([(one, EndMark("finished", 5, 6))], set_ns=9)
        assert ledger.ends("r1") == {
            schema.stack_request(one): EndMark("cancelled", 3, 4),
            schema.stack_request(other): EndMark("failed", 0, 1 << 61),
        }
        assert ledger.ends("r2") == {}
