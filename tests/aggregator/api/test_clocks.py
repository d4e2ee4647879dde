"""Clocks that are wrong: the aggregator's own is stepped, a node's is off; ages, statuses and what is reported of it."""

import time

import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import node_report, rank_report
from support.aggregator.serve_process import samples, serving

from goodput.account import document
from goodput.aggregator.api.app import create_app
from goodput.aggregator.clock import SteadyClock, since_boot_ns
from goodput.aggregator.ingest.pushed_steps import in_version_2
from goodput.aggregator.ledger.ledger import Ledger
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema


class Machine:
    """The aggregator's machine, whose clocks the test moves."""

    def __init__(self):
        self.stepped_ns = self.passed_ns = 0
        self.clock = SteadyClock(
            lambda: time.time_ns() + self.passed_ns + self.stepped_ns,
            lambda: since_boot_ns() + self.passed_ns,
        )

    def now(self) -> float:
        """The right time."""
        return time.time() + self.passed_ns / 1e9

    def pass_(self, seconds: float) -> None:
        self.passed_ns += ns(seconds)

    def step(self, seconds: float) -> None:
        self.stepped_ns = ns(seconds)


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def client(machine, tmp_path):
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db", clock=machine.clock)) as client:
        yield client


def push(client, node: str, sent: float, *ranks: schema.RankReport) -> None:
    """A push without ranks, as an agent begins, and one that says how long that took."""
    began_ns = time.monotonic_ns()
    _post(client, node_report(node=node, sent_ns=ns(sent)))
    took_ns = time.monotonic_ns() - began_ns
    answered = {"previous_sent_ns": ns(sent), "previous_took_ns": took_ns}
    _post(client, node_report(*map(in_version_2, ranks), node=node, sent_ns=ns(sent) + took_ns, **answered))


def _post(client, report: schema.NodeReport) -> None:
    assert client.post("/api/v1/ingest", content=schema.encode(report)).status_code == 200


def read_at(one: Process, seconds: float) -> schema.RankReport:
    """Its report, of a page that was read then by the node's clock."""
    return replace(rank_report(one), sequence=ns(seconds))


def shown(client) -> dict:
    """Statuses and ages of all runs, in seconds as whole numbers of ten."""
    found = samples(client)
    names = ("progress_age_seconds", "rank_last_report_age_seconds", "checkpoint_age_seconds", "hang_seconds")
    rows = client.get("/api/v1/runs").json()["runs"]
    ages = {
        (name, row["run"]): found.get((f"goodput_{name}", row["run"]), -1) // 10
        for row in rows
        for name in names
    }
    return ages | {row["run"]: (row["status"], row["hang"], row["gpu_seconds"] // 10) for row in rows}


@pytest.mark.faults
@pytest.mark.parametrize("step", (-3600, 3600))
def test_a_step_of_our_clock_changes_no_age(client, machine, step):
    """One run is alive, one has been silent for five minutes, one hangs."""
    start = machine.now() - 1005
    ranks = {
        run: Process(0, 1, start).steps(count, forward=1).saved()
        for run, count in (("alive", 1000), ("silent", 1000), ("hung", 700))
    }
    ranks["hung"].begun(communication=300)
    for run, one in ranks.items():
        push(client, run, machine.now(), rank_report(one, run, host=run))
    machine.pass_(305)
    for run in ("alive", "hung"):
        one = ranks[run]
        _ = one.steps(305, forward=1) if run == "alive" else one.begun(communication=305)
        push(client, run, machine.now(), rank_report(one, run, host=run))
    before = shown(client)
    assert [before[run][0] for run in ("alive", "silent", "hung")] == ["running", "unobserved", "running"]
    assert before["progress_age_seconds", "silent"] == before["rank_last_report_age_seconds", "silent"] == 30
    assert before["hang_seconds", "hung"] == 60 and before["hung"][1]
    machine.step(step)
    assert shown(client) == before
    assert client.get("/api/v1/runs/silent").json()["live"][0]["report_age_seconds"] == pytest.approx(
        305, abs=5
    )
    found = samples(client)
    assert found["goodput_aggregator_clock_step_seconds",] == pytest.approx(step, abs=0.5)
    # An end is declared on the steady clock too.
    answer = client.post("/api/v1/runs/silent/end", json={"at": machine.now()})
    assert answer.status_code == 200 and answer.json()["ended"] == 1


@pytest.mark.parametrize("ahead", (-300, -0.5, 0.5, 300))
def test_skew_of_a_node_is_in_no_age_and_named(client, machine, ahead):
    """Two ranks of a run, one of whose hosts has a wrong clock. The others' ages are right, and the skew is named."""
    start = machine.now() - 100
    right = Process(0, 1, start, world_size=2).steps(90, forward=1).saved()
    wrong = Process(1, 1, start + ahead, world_size=2).steps(90, forward=1).saved()
    for one, skew in ((right, 0), (wrong, ahead)):
        one.begun(forward=5)
        push(client, f"n{one.rank}", machine.now() + skew, rank_report(one))
    machine.pass_(20)
    found = samples(client)
    assert found["goodput_progress_age_seconds", "r1"] == pytest.approx(25, abs=2)
    assert found["goodput_checkpoint_age_seconds", "r1"] == pytest.approx(25, abs=2)
    assert found["goodput_node_clock_offset_seconds", "n0"] == pytest.approx(0, abs=0.4)
    assert found["goodput_node_clock_offset_seconds", "n1"] == pytest.approx(ahead, abs=0.4)
    clocks = client.get("/api/v1/runs/r1").json()["clocks"]
    assert [one["host"] for one in clocks] == (["n1"] if abs(ahead) > 5 else [])
    assert all(one["ahead_seconds"] == pytest.approx(ahead, abs=0.4) for one in clocks)
    skew = "clocks more than 5 s off: 1 nodes\n" if abs(ahead) > 5 else ""
    assert client.get("/healthz").text == "ok\n" + skew


@pytest.mark.parametrize("ahead", (-300, -0.5, 0.5, 300))
def test_accounts_agree_whatever_the_skew(client, machine, tmp_path, ahead):
    """Live, window and replay are one account, and states of phases are as long as without skew.

    Only what is less than five seconds stays in it.
    """
    start = machine.now() - 1000
    ranks = [Process(rank, 1, start + ahead * rank, world_size=2) for rank in (0, 1)]
    for one in ranks:
        for _ in range(3):
            one.steps(20, forward=1, loader=0.5)
            push(client, f"n{one.rank}", machine.now() + ahead * one.rank, rank_report(one))
        push(client, f"n{one.rank}", machine.now() + ahead * one.rank, rank_report(one.finished()))
    machine.pass_(60)
    found = client.get("/api/v1/runs/r1").json()
    assert found["status"] == "finished"
    assert (found["states"]["productive"], found["states"]["loader"]) == (120, 60)
    assert sum(found["states"].values()) == pytest.approx(2 * (90 + abs(ahead) % 300), abs=0.5)
    assert client.get("/api/v1/runs/r1/account").json()["states"] == found["states"]
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(export(Ledger(f"sqlite:///{tmp_path}/ledger.db"), "r1", machine.clock())))
    (replayed,) = replay(str(log))
    assert document(replayed.account)["states"] == found["states"]


def test_skew_is_in_no_age_after_a_restart(machine, tmp_path):
    """What the ledger has is the host's time; the node's next push says how far that is off."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    one = Process(0, 1, machine.now() + 300 - 100).steps(90, forward=1).begun(forward=10)
    with serving(create_app(url)) as client:
        push(client, "n0", machine.now() + 300, rank_report(one))
    machine.pass_(20)
    with serving(create_app(url, clock=machine.clock)) as client:
        push(client, "n0", machine.now() + 300)
        found = samples(client)
    assert found["goodput_progress_age_seconds", "r1"] == pytest.approx(30, abs=3)
    assert found["goodput_rank_last_report_age_seconds", "r1"] == pytest.approx(20, abs=3)


@pytest.mark.parametrize("ahead", (-300, 0, 300))
def test_a_late_report_is_no_new_progress(client, machine, ahead):
    """An hour passes between the reading of a page and the push that gets through."""
    died = machine.now() + ahead - 3600
    one = Process(0, 1, died - 100).steps(90, forward=1).saved().begun(forward=10)
    push(client, "n0", machine.now() + ahead, read_at(one, died))
    found = samples(client)
    assert found["goodput_progress_age_seconds", "r1"] == pytest.approx(3610, abs=2)
    assert found["goodput_checkpoint_age_seconds", "r1"] == pytest.approx(3610, abs=2)


@pytest.mark.faults
def test_a_node_stepped_during_a_run_keeps_its_ages(client, machine):
    """A process goes on by the clock it has read at its start, while the agent's reports have the new one."""
    one = Process(0, 1, machine.now() - 100).steps(90, forward=1).saved()
    push(client, "n0", machine.now(), read_at(one, machine.now()))
    for ahead in (3600, -3600):
        machine.pass_(60)
        one.steps(60, forward=1)
        sent = machine.now() + ahead
        push(client, "n0", sent, read_at(one.begun(forward=5), sent))
        found = samples(client)
        assert found["goodput_progress_age_seconds", "r1"] == pytest.approx(5, abs=2)
        assert found["goodput_node_clock_offset_seconds", "n0"] == pytest.approx(ahead, abs=1)
        one.begun(forward=-5)
    assert client.get("/api/v1/runs/r1").json()["status"] == "running"
