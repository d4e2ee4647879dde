"""The whole agent: the golden exposition, polling with pushes, two agents on one directory."""

import fcntl
import inspect
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.core_wait import within
from support.metrics import client_model
from support.node.agents import agent_on
from support.node.hostile_pages import plant_hostile
from support.node.node_rank import PID, Rank
from support.node.node_tree import wait_until
from support.paths import TESTS

from goodput.metrics.protobuf_format import ProtobufWriter
from goodput.rank_page import page
from goodput_exporters.agent import COLLECT_SECONDS_MAX, Agent
from goodput_exporters.collector_runner import CollectorRunner
from goodput_exporters.directory_lock import NAME, DirectoryInUse

MS = 1_000_000
WAIT_SECONDS = 20.0  # for collectors, which on a busy machine take longer than a scrape waits by default
GOLDEN = str(TESTS / "exporters" / "golden" / "node_exposition.txt")
# What differs from run to run.
VOLATILE = ("goodput_node_collector_seconds", "goodput_node_cpu_seconds_total", "goodput_node_memory_bytes")


def write_two_ranks(directory) -> list[Rank]:
    first, second = Rank(directory, rank=0), Rank(directory, rank=1, attempt=2, device_uuid="GPU-2", stage=1)
    first.outside({"restore": 2500 * MS, "compile": 500 * MS})
    for number in range(3):
        first.step({"loader": (number + 1) * MS, "forward": 20 * MS, "backward": 40 * MS}, samples=8)
    first.event("checkpoint_committed", 2)
    first.enter("communication")
    second.define("tokenize", "loader")
    second.step({"tokenize": 700 * MS, "forward": 20 * MS}, step=40, samples=8)
    second.end("finished")
    second.words[page.W_DROPS] = 4
    second.words[page.W_COST] = 12_000
    return [first, second]


def masked(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(re.sub(r" \S+$", " *", line) if line.startswith(VOLATILE) else line for line in lines)


def test_golden_exposition(tree, clock):
    """GOODPUT_GOLDEN=1 rewrites the file."""
    pages = write_two_ranks(tree / "pages")
    (tree / "pages" / "bad.page").write_bytes(b"nonsense" * 100)
    clock.seconds = 10.0
    text = masked(agent_on(tree, clock).once())
    assert pages
    if os.environ.get("GOODPUT_GOLDEN"):
        with open(GOLDEN, "w") as file:
            file.write(text)
    with open(GOLDEN) as file:
        assert text == file.read()


def test_promtool_accepts_the_exposition(tree, clock):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not on PATH (Debian package prometheus)")
    write_two_ranks(tree / "pages")
    plant_hostile(tree / "pages")
    agent = agent_on(tree, clock, aggregator="http://127.0.0.1:1")
    text = agent.once()
    agent.stop(0.0)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=300
    )
    complaints = checked.stdout + checked.stderr
    assert checked.returncode == 0 and not complaints, complaints


def test_labels_are_escaped(tree, clock):
    from prometheus_client.parser import text_string_to_metric_families

    run = 'a"b\\c{},= é'
    Rank(tree / "pages", run=run).step({"forward": MS})
    families = text_string_to_metric_families(agent_on(tree, clock).once())
    (steps,) = [family for family in families if family.name == "goodput_steps"]
    assert steps.samples[0].labels["run"] == run


def test_once_changes_nothing(tree, clock):
    rank = Rank(tree / "pages")
    (tree / "proc" / str(PID) / "stat").unlink()
    clock.seconds = 1e6
    before = os.listdir(tree / "pages")
    agent = agent_on(tree, clock, grace_seconds=0.0)
    agent.once()
    agent.once()
    assert os.listdir(tree / "pages") == before == [os.path.basename(rank.path)]


def test_family_of_two_collectors_is_written_once(tree, clock):
    class Second:
        name = "second"

        def collect(self, families):
            labels = {"device": "mlx5_0", "direction": "receive"}
            families.add("goodput_network_bytes_total", labels, 5)

    agent = agent_on(tree, clock)
    agent.runners["second"] = CollectorRunner(Second())
    text = agent.once()
    assert text.count("# TYPE goodput_network_bytes_total counter") == 1
    assert 'goodput_network_bytes_total{device="mlx5_0",direction="receive"} 5.0' in text
    assert 'goodput_network_bytes_total{device="eth0",direction="receive"} 0.0' in text


class Hanging:
    """A collector that hangs from its second run on."""

    name = "hanging"

    def __init__(self):
        self.runs, self.release = 0, threading.Event()

    def collect(self, families):
        families.add("goodput_host_load1_ratio", {}, 0.25)
        self.runs += 1
        if self.runs > 1:
            self.release.wait(120)


def test_scrape_serves_last_result_of_hanging_collectors(tree, clock):
    """The scrape waits as long as it may; more than by default, for the others to return on a busy machine."""
    assert inspect.signature(Agent.exposition).parameters["seconds_max"].default == COLLECT_SECONDS_MAX
    agent, hanging, scrapes = agent_on(tree, clock), Hanging(), []
    (tree / "proc" / "loadavg").unlink()
    agent.runners["hanging"] = CollectorRunner(hanging)
    try:
        with agent:
            for scrape in (1, 2, 3):
                with within(1.25) as took:
                    text = agent.exposition(1.0)
                scrapes += took
                assert b"goodput_host_load1_ratio 0.25" in text
                assert b'goodput_node_collector_up{collector="hanging"} 0.0' in text
                assert (
                    f'goodput_node_collector_errors_total{{collector="hanging"}} {scrape}.0'.encode() in text
                )
                assert b'goodput_node_collector_up{collector="host"} 1.0' in text
            assert hanging.runs == 2
            # That of the second scrape, which waited for nobody; the first did.
            seconds = float(re.search(rb"^goodput_node_scrape_seconds (\S+)$", text, re.MULTILINE)[1])
            assert 0 < seconds <= scrapes[1]
    finally:
        hanging.release.set()


def test_concurrent_scrapes_share_one_result(tree, clock):
    agent, hanging = agent_on(tree, clock), Hanging()
    hanging.runs = 1
    agent.runners["hanging"] = CollectorRunner(hanging)
    texts = []
    first = threading.Thread(target=lambda: texts.append(agent.exposition(30.0)))
    others = [threading.Thread(target=lambda: texts.append(agent.exposition())) for _ in range(4)]
    first.start()
    wait_until(lambda: hanging.runs == 2)
    for other in others:
        other.start()
    assert not texts
    hanging.release.set()
    for thread in (first, *others):
        thread.join(60)
    assert len(texts) == 5 and len(set(map(id, texts))) == 1 and hanging.runs == 2


def test_formats_of_one_scrape_have_the_same_samples(tree, clock):
    Rank(tree / "pages").step({"loader": 200 * MS, "forward": 300 * MS})
    agent = agent_on(tree, clock)
    agent.ranks.poll()
    parsed = text_string_to_metric_families(agent.exposition(WAIT_SECONDS).decode())
    text = {(s.name, frozenset(s.labels.items())): s.value for family in parsed for s in family.samples}
    body = agent._write(ProtobufWriter)  # as for a scraper that waited for another's scrape
    assert client_model.values(body) == text
    step = "goodput_step_duration_seconds", frozenset({("run", "r1"), ("rank", "0")})
    assert client_model.counts_of(client_model.natives(body)[step]) == {-16: 1}, "0.5 s, which is 2**(-16/16)"


def test_directory_created_after_the_start(tree, clock):
    (tree / "pages").rmdir()
    with agent_on(tree, clock, interval_seconds=0.01) as agent:
        text = agent.exposition(WAIT_SECONDS)
        assert b'goodput_node_pages{state="live"} 0.0' in text
        assert b'goodput_node_collector_up{collector="ranks"} 1.0' in text
        (tree / "pages").mkdir()
        Rank(tree / "pages").step({"forward": MS})
        wait_until(lambda: b'goodput_steps_total{rank="0",run="r1"} 1.0' in agent.exposition())
        wait_until(lambda: _is_locked(tree / "pages" / NAME))
        with pytest.raises(DirectoryInUse):
            agent_on(tree, clock).start()


def test_second_agent_is_refused(tree, clock):
    first = agent_on(tree, clock)
    first.start()
    second = agent_on(tree, clock)
    with pytest.raises(DirectoryInUse, match="another agent already uses"):
        second.start()
    assert second.once()  # looking alone is no conflict
    first.stop()
    third = agent_on(tree, clock)
    third.start()
    third.stop()


def test_agent_losing_the_directory_lock_stops(tree, clock):
    (tree / "pages").rmdir()
    agent = agent_on(tree, clock, interval_seconds=0.01)
    agent.start()
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere" / NAME).touch(mode=0o600)
    with open(tree / "elsewhere" / NAME, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (tree / "elsewhere").rename(tree / "pages")
        wait_until(lambda: agent.failure)
        assert "another agent already uses" in agent.failure and agent.health() == agent.failure
        agent.stop()


def _is_locked(path) -> bool:
    """Whether the file is locked, by the kernel's list: trying to lock it would acquire the lock."""
    return path.exists() and f":{path.stat().st_ino} " in Path("/proc/locks").read_text()


def test_recreated_directory_is_locked_again(tree, clock):
    with agent_on(tree, clock, interval_seconds=0.01) as agent:
        shutil.rmtree(tree / "pages")
        (tree / "pages").mkdir()
        wait_until(lambda: _is_locked(tree / "pages" / NAME))
        with pytest.raises(DirectoryInUse):
            agent_on(tree, clock).start()
        assert agent.failure is None


def test_rows_reach_the_aggregator_exactly_once(tmp_path, aggregator, processes):
    """Real processes, a real SIGKILL: every row arrives once, the death is reported, and the page is removed after the grace time."""
    ranks = [processes(tmp_path, rank=rank) for rank in range(2)]
    arguments = {"interval_seconds": 0.02, "push_interval_seconds": 0.05, "grace_seconds": 0.3}
    with Agent(str(tmp_path), aggregator=aggregator.url, node="n7", **arguments) as agent:
        for _ in range(20):
            for rank in ranks:
                rank.do("step", {"forward": MS})
        ranks[1].do("event", "checkpoint_committed", 19)
        ranks[1].kill()

        def last_of(rank: int):
            lives = [r for report in aggregator.reports for r in report.ranks if r.identity.rank == rank]
            return max(lives, key=lambda r: r.sequence, default=None)

        wait_until(lambda: last_of(1) and not last_of(1).live.alive)
        wait_until(lambda: not os.path.exists(ranks[1].path))
        assert os.path.exists(ranks[0].path)
        wait_until(lambda: len(aggregator.rows().get((ranks_run := "r1", 0, 1), [])) == 20 and ranks_run)
        assert dict(aggregator.rows().items()) == {("r1", rank, 1): list(range(1, 21)) for rank in range(2)}
        events = [e for report in aggregator.reports for r in report.ranks for e in r.events]
        assert [(e.kind, e.step) for e in events] == [("checkpoint_committed", 19)]
        assert aggregator.reports[0].node == "n7"
        assert b'goodput_node_page_errors_total{reason="foreign"} 0.0' in agent.exposition(WAIT_SECONDS)
        sequences = [
            r.sequence for report in aggregator.reports for r in report.ranks if r.identity.rank == 0
        ]
        assert sequences == sorted(set(sequences))


def test_dead_page_is_kept_until_acknowledged(tree, clock, aggregator):
    refuse = threading.Event()
    refuse.set()
    aggregator.answer = lambda *_: (503, b"") if refuse.is_set() else None
    rank = Rank(tree / "pages")
    rank.many(5, {"forward": MS})
    (tree / "proc" / str(PID) / "stat").unlink()
    arguments = {"interval_seconds": 0.01, "push_interval_seconds": 0.02, "grace_seconds": 1.0}
    with agent_on(tree, clock, aggregator=aggregator.url, **arguments) as agent:
        clock.seconds = 100.0
        wait_until(lambda: b'goodput_node_pushes_total{outcome="unreachable"} 0.0' not in agent.exposition())
        assert os.path.exists(rank.path)
        assert b"goodput_node_backlog_rows 5.0" in agent.exposition()
        refuse.clear()
        wait_until(lambda: not os.path.exists(rank.path))
        assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3, 4, 5]}


def test_stop_polls_and_flushes(tree, clock, aggregator):
    arguments = {"interval_seconds": 3600.0, "push_interval_seconds": 3600.0}
    agent = agent_on(tree, clock, aggregator=aggregator.url, **arguments)
    agent.start()
    Rank(tree / "pages").many(3, {"forward": MS})
    with within(4):
        agent.stop()
    assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3]}


def test_reports_of_a_restarted_agent_supersede(tree, clock, aggregator):
    Rank(tree / "pages").many(3, {"forward": MS})
    for seconds in (1.0, 2.0):
        clock.seconds = seconds
        with agent_on(tree, clock, aggregator=aggregator.url):
            pass
    assert aggregator.rows() == {("r1", 0, 1): [1, 2, 3, 1, 2, 3]}
    sequences = [r.sequence for report in aggregator.reports for r in report.ranks]
    assert sequences == sorted(set(sequences))


def test_unexpected_poll_failure_is_counted(tree, clock, monkeypatch):
    agent = agent_on(tree, clock, interval_seconds=0.01)
    fails = iter([True, True])
    scan = agent.ranks._scan

    def broken():
        if next(fails, False):
            raise ZeroDivisionError("a bug")
        scan()

    monkeypatch.setattr(agent.ranks, "_scan", broken)
    Rank(tree / "pages").step({"forward": MS})
    with agent:
        steps = b'goodput_steps_total{rank="0",run="r1"} 1.0'
        wait_until(lambda: steps in agent.exposition(WAIT_SECONDS))
        errors = b'goodput_node_collector_errors_total{collector="ranks"} 2.0'
        assert errors in agent.exposition(WAIT_SECONDS)


def test_health_reports_stopped_polling(tree, clock):
    agent = agent_on(tree, clock)
    assert agent.health() is None
    agent._polled_ns -= int(11e9)
    assert "11 s ago" in agent.health()
