"""A node whose clock is minutes off: the times of its ranks are moved, and the run's account is the one without offset."""

import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from support.account.account_history import Process, ns
from support.aggregator.reports import health_event, rank_report
from support.aggregator.serve_process import push, samples, serving

from goodput.account import document
from goodput.account.text import render
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ledger.ledger import Ledger
from goodput.runlog import replay
from goodput.runlog.export import export
from goodput.wire import schema
from goodput_exporters.push.pusher import Pusher

OFF = (-600.0, 600.0)


class Node:
    """A node's agent, whose clock is so far off, and the processes of its ranks."""

    def __init__(self, client, name: str, off: float = 0.0):
        self.off_ns = ns(off)
        self.pusher = Pusher(
            str(client.base_url), name, unix_ns=lambda: time.time_ns() + self.off_ns, interval_seconds=0.05
        )
        self.name, self.sequence = name, 0

    def push(self, *ranks: schema.RankReport) -> None:
        """Each page was read when its process had come so far, by the node's clock."""
        for report in ranks:
            self.sequence = max(report.live.now_ns, self.sequence + 1)
            self.pusher.add([replace(report, sequence=self.sequence)])
        assert self.pusher.push(probe=True) in ("accepted", "nothing")


def run_with(tmp_path, off: float, name: str):
    """The run's documents: live, of the API's window, after a restart and replayed; one of two nodes is off."""
    url = f"sqlite:///{tmp_path}/{name}.db"
    start = time.time() - 1000
    offs = (0.0, off)
    found = SimpleNamespace()
    with serving(create_app(url)) as client:
        nodes = [Node(client, f"n{rank}", off) for rank, off in enumerate(offs)]
        ranks = [Process(rank, 1, start + off, world_size=2) for rank, off in enumerate(offs)]
        for node in nodes:
            node.push()
        for _ in range(3):
            for node, one in zip(nodes, ranks, strict=True):
                one.steps(100, forward=1, loader=0.5)
                one.saved()
                node.push(rank_report(one, host=node.name))
        for node, one in zip(nodes, ranks, strict=True):
            node.push(rank_report(one.finished(), host=node.name))
        found.live = client.get("/api/v1/runs/r1").json()
        found.window = client.get(
            "/api/v1/runs/r1/account", params={"from": start + 100, "to": start + 200}
        ).json()
    with serving(create_app(url)) as client:
        found.restarted = client.get("/api/v1/runs/r1").json()
    log = tmp_path / f"{name}.jsonl"
    log.write_bytes(b"".join(export(Ledger(url), "r1", time.time_ns())))
    (replayed,) = replay(str(log))
    found.replayed = document(replayed.account)
    return found


@pytest.mark.parametrize("off", OFF)
def test_account_is_the_one_without_offset(tmp_path, off):
    """Live, in a window, after a restart and replayed from a run log; the document and the text say what was moved."""
    right, wrong = run_with(tmp_path, 0.0, "right"), run_with(tmp_path, off, "wrong")
    for name in ("live", "window", "restarted", "replayed"):
        expected, found = getattr(right, name), getattr(wrong, name)
        assert found["states"] == pytest.approx(expected["states"], abs=0.5), name
        assert found["steps"] == expected["steps"]
        assert expected["moved_clocks"] == []
        (moved,) = found["moved_clocks"]
        assert moved["host"] == "n1" and moved["seconds"] == pytest.approx(-off, abs=0.25)
    assert wrong.live["states"]["unobserved"] + wrong.live["states"]["down"] < 1
    assert wrong.live["states"] == wrong.restarted["states"] == pytest.approx(wrong.replayed["states"])
    text = render(wrong.live, full=True)
    assert (
        f"clocks were off: times of n1 by {wrong.live['moved_clocks'][0]['seconds']:+.3f} s were moved"
        in text
    )


@pytest.mark.faults
def test_a_clock_set_right_during_a_run(tmp_path):
    """A process goes on by the clock that it began with, and is moved by that; the next one begins with the right clock.

    The aggregator is restarted meanwhile, and its node is first seen again after its clock was set.
    """
    url, start = f"sqlite:///{tmp_path}/ledger.db", time.time() - 1000
    right, wrong = (Process(rank, 1, start + off, world_size=2) for rank, off in ((0, 0), (1, -600)))
    with serving(create_app(url)) as client:
        nodes = [Node(client, "n0"), Node(client, "n1", -600)]
        for node, one in zip(nodes, (right, wrong), strict=True):
            node.push()
            node.push(rank_report(one.steps(200, forward=1), host=node.name))
    with serving(create_app(url)) as client:
        nodes = [Node(client, "n0"), Node(client, "n1")]
        for node, one in zip(nodes, (right, wrong), strict=True):
            node.push()
            node.push(rank_report(one.steps(100, forward=1), host=node.name))
            node.push(rank_report(one.failed(), host=node.name))
        again = [Process(rank, 2, start + 310, world_size=2) for rank in (0, 1)]
        for node, one in zip(nodes, again, strict=True):
            node.push(rank_report(one.resumed(299).steps(100, forward=1).finished(), host=node.name))
        found = client.get("/api/v1/runs/r1").json()
    assert found["status"] == "finished"
    assert found["moved_clocks"] == [{"host": "n1", "seconds": pytest.approx(600, abs=0.25)}]
    assert found["states"]["down"] == pytest.approx(2 * 10, abs=1)
    assert found["states"]["unobserved"] == pytest.approx(0, abs=1)
    assert found["gpu_seconds"] == pytest.approx(2 * 410, abs=1)


def test_one_late_push_moves_nothing(tmp_path):
    """A push is 60 s old when it arrives, a node's first one: no offset is shown, and no time is moved."""
    start = time.time() - 200
    one = Process(0, 1, start).steps(100, forward=1)
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        report = replace(rank_report(one), sequence=one.now_ns)
        push(client, report, node="n0", sent_ns=time.time_ns() - ns(60))
        assert ("goodput_node_clock_offset_seconds", "n0") not in samples(client)
        found = client.get("/api/v1/runs/r1").json()
        assert found["clocks"] == found["moved_clocks"] == []
        assert found["start"] == pytest.approx(start)
        assert client.get("/healthz").text == "ok\n"


def test_stacks_of_moved_processes_are_requested_as_their_agent_knows_them(tmp_path):
    """A hang of a run of which one rank is moved: its agent is asked for the process that it reports, and answers."""
    start = time.time() - 400
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db", stall_seconds=30)) as client:
        node = Node(client, "n1", -600)
        one = Process(0, 1, start - 600).steps(100, forward=1).begun(forward=300)
        node.push()
        report = replace(rank_report(one, host="n1"), sequence=one.now_ns)
        sent_ns = time.time_ns() + node.off_ns
        push(client, report, node="n1", sent_ns=sent_ns)
        assert client.get("/api/v1/runs/r1").json()["hang"]
        repeated = replace(report, sequence=report.sequence + 1)
        (wanted,) = push(client, repeated, node="n1", sent_ns=sent_ns + ns(1)).wanted
        assert wanted.start_ns == one.start_ns
        stack = schema.Stack(wanted, sent_ns, "train.py:7")
        push(client, node="n1", sent_ns=sent_ns + ns(2), stacks=[stack])
        assert client.get("/api/v1/runs/r1").json()["hang"]["stack"] == "train.py:7"


def test_health_events_of_a_node_are_moved(tmp_path):
    """They are told beside the steps of the node's ranks, whose times are moved."""
    with serving(create_app(f"sqlite:///{tmp_path}/ledger.db")) as client:
        node, at_ns = Node(client, "n1", 600), time.time_ns()
        node.push()
        event = replace(health_event(1, 0), time_ns=at_ns + node.off_ns)
        push(client, node="n1", sent_ns=time.time_ns() + node.off_ns, health=[event])
        (found,) = client.get("/api/v1/health").json()["events"]
        assert found["time"] == pytest.approx(at_ns / 1e9, abs=0.5)
