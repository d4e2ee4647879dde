"""The audit log over HTTP: what is written, what never is, and how much."""

import json
import logging
import time

import pytest
from support.account.account_history import Process
from support.aggregator.reports import body_of, rank_report
from support.aggregator.serve_process import serving

from goodput.access import token_file
from goodput.access.audit import LINES_PER_MINUTE_MAX, AuditLog, file_logger
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import make
from goodput.aggregator.api.app import create_app
from goodput.aggregator.http.authentication import RequestAuthenticator


class Lines(list):
    """A logger that keeps its lines."""

    def info(self, _form: str, line: str) -> None:
        self.append(json.loads(line))

    def events(self) -> list[str]:
        return [line["event"] for line in self]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "audit.log"
    yield path
    logger = logging.getLogger("goodput.audit")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def test_events_are_written_without_secrets(tmp_path, path):
    texts, file = {}, str(tmp_path / "tokens.json")
    for scope in ("ingest", "read"):
        texts[scope], token = make(f"{scope}-team", scope)
        with token_file.changing(file) as tokens:
            tokens.append(token)
    audit = AuditLog(file_logger(str(path)))
    app = create_app(
        f"sqlite:///{tmp_path}/ledger.db",
        authenticator=RequestAuthenticator(TokenCache(file), audit=audit),
    )
    bearer = {"Authorization": f"Bearer {texts['ingest']}"}
    wrong = texts["read"][:-8] + "00000000"
    with serving(app) as client:
        client.get("/api/v1/runs")
        client.post("/login", data={"token": wrong})
        assert client.post("/login", data={"token": texts["read"]}).status_code == 303
        client.post("/logout")
        rank = rank_report(Process(0, 1, time.time() - 9, world_size=1).steps(2, forward=1), "a\x1bb")
        client.post("/api/v1/ingest", content=body_of(rank), headers=bearer)
        run = rank_report(Process(0, 1, time.time() - 9, world_size=1).steps(2, forward=1), "run")
        assert client.post("/api/v1/ingest", content=body_of(run), headers=bearer).status_code == 200
        assert client.post("/api/v1/runs/run/end", headers=bearer).status_code == 409
        assert client.post("/api/v1/runs/run/end", headers=bearer, json={"force": True}).status_code == 200
        path.rename(tmp_path / "audit.log.1")
        with token_file.changing(file) as tokens:
            del tokens[1]
        app.state.authenticator.reload()
    before, after = [
        [json.loads(line) for line in one.read_text().splitlines()]
        for one in (tmp_path / "audit.log.1", path)
    ]
    assert [(line["event"], line.get("reason")) for line in before] == [
        ("refused", "missing"), ("refused", "unknown"), ("sign_in", None), ("sign_out", None),
        ("end_refused", None), ("end", "cancelled"),
    ]  # fmt: skip
    assert [(line["event"], line["token"]) for line in after] == [("token_revoked", "read-team")]
    assert before[-1]["token"] == "ingest-team" and before[-1]["address"] == "127.0.0.1"
    everything = (tmp_path / "audit.log.1").read_text() + path.read_text()
    assert not any(text.rpartition("_")[2] in everything for text in (*texts.values(), wrong))
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_are_bounded_and_refusals_hide_nothing():
    now, lines = [0.0], Lines()
    audit = AuditLog(lines, lambda: now[0])
    for number in range(10_000):
        audit.refusal("unknown", f"10.0.{number % 200}.1", text="x" * 10_000)
    audit.event("sign_in", token="a")
    assert lines.events() == ["refused"] * LINES_PER_MINUTE_MAX + ["sign_in"]
    assert audit.dropped == {"refused": 10_000 - LINES_PER_MINUTE_MAX, "other": 0}
    assert max(len(json.dumps(line)) for line in lines) < 500
    now[0] = 60.0
    audit.refusal("unknown", "10.0.0.1")
    audit.refusal("unknown", "10.0.0.1")
    assert lines[-1]["dropped"] == 10_000 - LINES_PER_MINUTE_MAX and len(lines) == LINES_PER_MINUTE_MAX + 2


def test_a_token_hides_nothing_done_with_others():
    lines = Lines()
    audit = AuditLog(lines, lambda: 0.0)
    for _ in range(200):
        audit.event("sign_in", token="a", token_id="1")
    audit.event("sign_in", token="b", token_id="2")
    for _ in range(100):
        audit.token_event("token_created", token="c", token_id="3")
    assert lines.events() == ["sign_in"] * (LINES_PER_MINUTE_MAX + 1) + ["token_created"] * 100
    assert (
        lines[LINES_PER_MINUTE_MAX]["token"] == "b" and audit.dropped["other"] == 200 - LINES_PER_MINUTE_MAX
    )
