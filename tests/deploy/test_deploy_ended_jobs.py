"""The controller that ends runs whose pods are gone: against an API server's list of pods, and a real aggregator."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from datetime import datetime, timezone

import pytest
from support.account.account_history import Process
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.deploy.deploy_words import DEPLOY
from support.servers.certificates import Authority
from support.servers.kubernetes_api import TOKEN, KubernetesApi
from support.servers.servers import wait_until

from goodput.aggregator.accounts.accounts import Accounts
from goodput.aggregator.api.app import create_app
from goodput_exporters.push.client import AggregatorClient

PROGRAM = DEPLOY / "kubernetes" / "components" / "ended-jobs" / "ended_jobs.py"


@pytest.fixture(scope="module")
def ended_jobs():
    spec = importlib.util.spec_from_file_location("ended_jobs", PROGRAM)
    sys.modules["ended_jobs"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ended_jobs"]


@pytest.fixture
def aggregator(tmp_path, monkeypatch):
    """It computes the account for every request."""
    monkeypatch.setattr(Accounts, "_is_fresh", lambda *_: False)
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        yield client


@pytest.fixture
def api(tmp_path):
    """With the files of a pod's service account in the folder `account`."""
    authority, account = Authority(tmp_path), tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(authority.cert.read_bytes())
    (account / "token").write_text(f"{TOKEN}\n")
    with KubernetesApi(*map(str, authority.issue("server"))) as api:
        yield api
    assert api.problems == []


class Cluster:
    """An API server, an aggregator, and the controller at moments of the test's choice."""

    def __init__(self, ended_jobs, api, aggregator, account):
        self.api, self._aggregator, self._ended_jobs = api, aggregator, ended_jobs
        self.jobs = ended_jobs.EndedJobs()
        self.lists = ended_jobs.PodLists(f"https://127.0.0.1:{api.port}", account, ["ml"])
        self.client = AggregatorClient(str(aggregator.base_url))
        self.now = time.time() - 1000

    def died(self, run: str, now: float) -> None:
        """Its rank, at `now`."""
        one = Process(start=now - 65).steps(60, forward=1).saved().steps(5, forward=1).killed()
        push(self._aggregator, rank_report(one, run))

    def poll(self, later: float = 15.0) -> None:
        self.now += later
        self._ended_jobs.poll(self.lists, self.client, self.jobs, self.now)

    def account(self, run: str) -> dict:
        return self._aggregator.get(f"/api/v1/runs/{run}").json()

    def status(self, run: str) -> str:
        return self.account(run)["status"]


@pytest.fixture
def cluster(ended_jobs, api, aggregator, tmp_path):
    cluster = Cluster(ended_jobs, api, aggregator, tmp_path / "account")
    yield cluster
    cluster.client.close()


def test_deleted_job_ends_its_run(cluster):
    """A minute after its last pod has gone, with the time at which it was seen to be gone."""
    for at in range(3):  # More than a page of them.
        cluster.api.pods[f"train-{at}"] = cluster.api.pod("train", "Running")
    cluster.api.pods["other"] = {**cluster.api.pod("other", "Running")}
    cluster.poll()
    died = cluster.now
    cluster.died("train", died), cluster.died("other", died)
    cluster.poll(100)
    for at in range(3):
        del cluster.api.pods[f"train-{at}"]
    cluster.poll()
    gone = cluster.now
    for _ in range(3):
        cluster.poll()
        assert cluster.status("train") == "failed", "its pods may be about to be replaced"
    cluster.poll()
    found = cluster.account("train")
    assert (found["status"], found["end"]) == ("cancelled", pytest.approx(gone))
    assert found["states"]["down"] == pytest.approx(115), "allocated until its pods were gone"
    assert cluster.status("other") == "failed" and cluster.jobs.runs.keys() == {"train", "other"}
    cluster.poll()
    assert cluster.jobs.runs.keys() == {"other"}, "it is forgotten"


def test_replaced_pods_continue_the_run(cluster):
    cluster.api.pods["train-a"] = cluster.api.pod("train", "Running")
    cluster.poll()
    cluster.died("train", cluster.now)
    del cluster.api.pods["train-a"]
    cluster.poll()
    cluster.api.pods["train-b"] = cluster.api.pod("train", "Pending")
    for _ in range(10):
        cluster.poll()
    assert cluster.status("train") == "failed"


def test_failed_job_ends_its_run_when_it_is_deleted(cluster):
    cluster.api.pods["train-a"] = cluster.api.pod("train", "Running")
    cluster.poll()
    cluster.died("train", cluster.now)
    failed = int(cluster.now) + 5
    at = datetime.fromtimestamp(failed, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.api.pods["train-a"] = cluster.api.pod("train", "Failed", at)
    for _ in range(10):
        cluster.poll()
    assert cluster.status("train") == "failed", "someone is to hear of it, and it may be tried again"
    del cluster.api.pods["train-a"]
    cluster.poll()
    found = cluster.account("train")
    assert (found["status"], found["end"]) == ("failed", pytest.approx(failed)), "when its containers ended"


def test_list_that_fails_ends_no_run(cluster, tmp_path):
    cluster.api.pods["train-a"] = cluster.api.pod("train", "Running")
    cluster.poll()
    cluster.died("train", cluster.now)
    for status in (500, 403, 410):
        cluster.api.status = status
        for _ in range(10):
            cluster.poll()
    cluster.api.status = 200
    (tmp_path / "account" / "token").write_text("expired")
    for _ in range(10):
        cluster.poll()
    assert cluster.status("train") == "failed" and cluster.jobs.runs["train"].gone == 0


def test_only_its_namespaces_are_listed(cluster):
    """A pod elsewhere, or without the labels of the selector, says nothing of a run."""
    cluster.lists.selector = "team=vision"
    cluster.api.pods["a"] = cluster.api.pod("train", "Running", team="vision")
    cluster.api.pods["b"] = cluster.api.pod("other", "Running", team="speech")
    cluster.api.pods["c"] = cluster.api.pod("third", "Running", namespace="web", team="vision")
    cluster.poll()
    assert cluster.jobs.runs.keys() == {"train"}


def test_namespace_without_a_right_holds_back_its_own_runs_alone(cluster, caplog):
    cluster.lists.namespaces += ["speech"]
    cluster.api.allowed = {"ml", "speech"}
    cluster.api.pods["a"] = cluster.api.pod("train", "Running")
    cluster.api.pods["b"] = cluster.api.pod("talk", "Running", namespace="speech")
    cluster.poll()
    cluster.died("train", cluster.now), cluster.died("talk", cluster.now)
    cluster.api.pods.clear()
    cluster.poll()
    cluster.api.allowed = {"ml"}
    for _ in range(8):
        cluster.poll()
    assert cluster.status("train") == "cancelled"
    assert cluster.status("talk") == "failed", "new pods of it may be there"
    assert "pods of namespace speech cannot be listed: HTTP Error 403" in caplog.text
    cluster.api.allowed = {"ml", "speech"}
    cluster.poll()
    assert cluster.status("talk") == "cancelled"


def test_end_is_tried_again(cluster, monkeypatch, ended_jobs):
    """While the aggregator does not answer, or ranks are alive as last reported."""
    cluster.api.pods["train-a"] = cluster.api.pod("train", "Running")
    cluster.poll()
    alive = Process(start=time.time() - 60).steps(59, forward=1)
    push(cluster._aggregator, rank_report(alive, "train"))
    del cluster.api.pods["train-a"]
    for _ in range(8):
        cluster.poll()
    assert cluster.status("train") == "running" and not cluster.jobs.runs["train"].has_ended
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "client", AggregatorClient("http://127.0.0.1:1"))
        cluster.poll()
    assert not cluster.jobs.runs["train"].has_ended
    push(cluster._aggregator, rank_report(alive.killed(), "train"))
    cluster.poll()
    assert cluster.status("train") == "cancelled"


def test_hopeless_runs_are_given_up(cluster):
    """The aggregator never heard of it, or never answers."""
    cluster.api.pods["web"] = cluster.api.pod("never-reported", "Succeeded", "2026-01-01T00:00:00Z")
    cluster.poll()
    assert cluster.jobs.runs["never-reported"].has_ended
    cluster.api.pods["web"] = cluster.api.pod("other", "Succeeded", "2026-01-01T00:00:00Z")
    cluster.client = AggregatorClient("http://127.0.0.1:1")
    for hours, is_over in ((0, False), (5.9, False), (0.2, True)):
        cluster.poll(hours * 3600)
        assert cluster.jobs.runs["other"].has_ended is is_over


def test_program_ends_a_completed_job(api, aggregator, tmp_path):
    """As its pod starts it: one list, and the run of a job whose pods have succeeded is over."""
    one = Process(start=time.time() - 65).steps(60, forward=1).saved().killed()
    push(aggregator, rank_report(one, "train"))
    api.pods["train"] = api.pod("train", "Succeeded", "2026-01-01T00:00:00Z")
    environ = {
        "GOODPUT_AGGREGATOR": str(aggregator.base_url),
        "KUBERNETES_ACCOUNT": str(tmp_path / "account"),
        "GOODPUT_NAMESPACES": "web,ml",
    }
    environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([sys.executable, PROGRAM], env={**os.environ, **environ}, stderr=log)
    try:
        wait_until(
            lambda: aggregator.get("/api/v1/runs/train").json()["status"] == "finished",
            60,
            "run that is finished",
        )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        log.close()
    log = (tmp_path / "log").read_text()
    assert "run train, finished: HTTP 200" in log and "pods of namespace web cannot be listed" in log


def test_program_needs_namespaces():
    done = subprocess.run(
        [sys.executable, PROGRAM], env={**os.environ, "GOODPUT_NAMESPACES": " "}, capture_output=True
    )
    assert done.returncode == 1 and b"GOODPUT_NAMESPACES" in done.stderr
