"""Which connections of which ranks are reported: of those that wait for communication, every ten seconds."""

import os
import socket
import time

import pytest
from support.rank_page.page_maker import Rank as PageRank

from goodput.rank_page import page
from goodput.rank_page.reader import Reader
from goodput.sdk.recorder.phase import Phase
from goodput.wire.connections import CONNECTIONS_MAX, ConnectionRow, Connections
from goodput_exporters.collector import CollectorError, Settings
from goodput_exporters.collectors.ranks import reported_connections
from goodput_exporters.collectors.ranks.node_links import NodeLinks
from goodput_exporters.collectors.ranks.rank import Rank
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks
from goodput_exporters.collectors.ranks.reported_collectives import AFTER_NS
from goodput_exporters.collectors.ranks.reported_connections import (
    PAUSE_TIMES,
    STEPS_MIN,
    WINDOW_NS,
    WINDOW_NS_MAX,
    ReportedConnections,
)
from goodput_exporters.system.tcp_diag import Connection


def connection(number: int = 1, remote: str = "10.0.0.2:50", **given) -> Connection:
    figures = {
        "retransmits": 0, "unacked": 0, "silent_ms": 5, "rtt_us": 700, "bytes_acked": 1000, "segments": 10,
        "retransmitted": 1, "busy_us": 400, "limited_us": 100, **given,
    }  # fmt: skip
    return Connection(f"10.0.0.1:4{number:03}", remote, **figures)


class Node:
    """One rank on a node, whose kernel has `connections` for its sockets. Times are from its last boundary on."""

    def __init__(self, directory, monkeypatch, phase: str = "communication"):
        self.page = PageRank(directory).train(3)
        if phase:
            Phase(self.page.recorder, phase, page.PHASES.index(phase)).__enter__()
        self.began_ns = time.perf_counter_ns()
        self.rank = Rank(
            self.page.path.name,
            Reader(str(self.page.path)),
            "/proc",
            ReachedPeaks("", lambda: 0),
            NodeLinks("", lambda: 0),
        )
        self.rank.poll(self.began_ns, 1)
        self.connections: dict[int, Connection] = {}
        self.dumps, self.error = 0, ""
        self.reported = ReportedConnections(Settings(str(directory)))
        monkeypatch.setattr(reported_connections, "socket_inodes", lambda pid, procfs: set(self.connections))
        monkeypatch.setattr(reported_connections, "dump", self.dump)

    def dump(self, pid: int, inodes: set[int], procfs: str) -> dict[int, Connection]:
        if self.error:
            raise CollectorError(self.error)
        assert pid == os.getpid() and inodes == set(self.connections)
        self.dumps += 1
        return dict(self.connections)

    def poll(self, after_ns: int) -> Connections | None:
        """What the rank reports so long after its last boundary."""
        self.reported.poll([self.rank], self.began_ns + after_ns)
        report = self.rank.poll(self.began_ns + after_ns, 2)
        assert report is not None
        return report.live.connections


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path, monkeypatch)
    yield made
    made.rank.reader.close()


def test_waiting_rank_reports_what_its_connections_did_in_the_window(node):
    node.connections = {7: connection(), 8: connection(2, "10.0.0.1:50")}
    assert node.poll(0) is None and node.dumps == 0, "nothing is known of a window yet"
    first = node.poll(WINDOW_NS)
    assert first is not None and first.window_ns == 0 and len(first.rows) == 1
    assert node.poll(WINDOW_NS + 1) is None and node.dumps == 1
    node.connections[7] = connection(
        bytes_acked=6000, segments=30, retransmitted=4, busy_us=1900, limited_us=600, unacked=2, rtt_us=900
    )
    found = node.poll(2 * WINDOW_NS)
    assert found is not None and found.window_ns == WINDOW_NS
    assert found.rows == (
        ConnectionRow("10.0.0.1:4001", "10.0.0.2:50", 1_000_000, 5000, 20, 3, 900_000, 2, 0, 5_000_000),
    )
    assert node.reported.outcomes == {"read": 2, "failed": 0}


def test_rank_that_computes_is_not_looked_at(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, "forward")
    node.connections = {7: connection()}
    for at in range(3):
        assert node.poll(at * AFTER_NS // 3) is None
    assert node.dumps == 0
    assert node.poll(AFTER_NS + WINDOW_NS) is not None, "it may hang"
    node.rank.reader.close()


def test_window_of_long_steps_grows_until_two_have_ended(node):
    """In ten seconds of a step of a minute all may wait for one connection, with nothing to compare it with."""
    windows = []
    for at in range(1, 12):
        node.connections = {7: connection(bytes_acked=1000 * at)}
        found = node.poll(at * WINDOW_NS)
        windows += [(found.window_ns // WINDOW_NS, found.rows[0].bytes)] if found else []
    assert windows[:7] == [(0, 1000), *((n, 1000 * n) for n in range(1, 7))]
    assert WINDOW_NS_MAX == 6 * WINDOW_NS
    assert windows[7:] == [(n, 1000 * n) for n in range(1, 5)], "the next one"


def test_rank_that_waits_no_more_says_so_once(node):
    node.connections = {7: connection()}
    node.poll(0)
    assert node.poll(WINDOW_NS)
    node.page.train(STEPS_MIN)  # It goes on.
    node.began_ns = time.perf_counter_ns()
    node.reported._due_ns = 0
    node.rank.poll(node.began_ns, 3)
    node.reported._seen = {
        key: one._replace(at_ns=node.began_ns - WINDOW_NS, waited_ns=1 << 60)
        for key, one in node.reported._seen.items()
    }
    assert node.poll(0) == Connections(0)
    assert node.poll(WINDOW_NS // 2) is None


def test_connections_between_two_interfaces_are_one_row(node):
    node.connections = {n: connection(n, f"10.0.0.2:{50 + n}", busy_us=100 * n + 100) for n in range(1, 5)}
    node.connections[9] = connection(
        9, "10.0.0.3:50", unacked=1, retransmits=3, silent_ms=700, bytes_acked=1, busy_us=100
    )
    node.poll(0)
    found = node.poll(WINDOW_NS)
    assert found is not None
    stalled, four = found.rows
    assert (stalled.remote, stalled.retransmits, stalled.silent_ns) == ("10.0.0.3:50", 3, 700 * 10**6)
    assert (four.local, four.remote, four.busy_ns) == ("10.0.0.1:4004", "10.0.0.2:54", 400_000)
    assert (four.bytes, four.segments, four.retransmitted) == (4000, 40, 4)


def test_rows_are_bounded_the_busiest_first(node):
    node.connections = {n: connection(n, f"10.0.1.{n}:50", busy_us=100 + n) for n in range(1, 20)}
    node.poll(0)
    found = node.poll(WINDOW_NS)
    assert found is not None and len(found.rows) == CONNECTIONS_MAX
    assert [row.busy_ns for row in found.rows] == [1000 * n for n in range(19, 19 - CONNECTIONS_MAX, -1)]


def test_inode_that_was_used_again_counts_from_its_opening(node):
    node.connections = {7: connection(bytes_acked=9000)}
    node.poll(0), node.poll(WINDOW_NS)
    node.connections = {7: connection(5, bytes_acked=300)}
    found = node.poll(2 * WINDOW_NS)
    assert found is not None and found.rows[0].bytes == 300


def test_failure_is_counted_and_reports_nothing(node):
    node.connections, node.error = {7: connection()}, "refused"
    assert node.poll(0) is None and node.poll(WINDOW_NS) is None
    assert node.reported.outcomes == {"read": 0, "failed": 1}
    node.error = ""
    assert node.poll(2 * WINDOW_NS) is not None


def test_cost_is_bounded_by_a_pause(node, monkeypatch):
    node.connections = {7: connection()}
    times = iter(range(0, 10**12, 50 * 10**6))  # Each reading takes 50 ms of CPU.
    monkeypatch.setattr(reported_connections.time, "thread_time_ns", lambda: next(times))
    node.poll(0), node.poll(WINDOW_NS + 50 * 10**6 * PAUSE_TIMES)
    done = node.dumps
    node.poll(2 * WINDOW_NS + 50 * 10**6 * PAUSE_TIMES)
    assert node.dumps == done == 1


def test_own_sockets_are_read_for_real(tmp_path):
    """Without stand-ins: the sockets of this process, of which none leaves its host."""
    page_rank = PageRank(tmp_path).train(1)
    Phase(page_rank.recorder, "communication", page.PHASES.index("communication")).__enter__()
    rank = Rank(
        page_rank.path.name,
        Reader(str(page_rank.path)),
        "/proc",
        ReachedPeaks("", lambda: 0),
        NodeLinks("", lambda: 0),
    )
    now_ns, reported = time.perf_counter_ns(), ReportedConnections(Settings(str(tmp_path)))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        for after_ns in (0, WINDOW_NS):
            rank.poll(now_ns, 1)
            reported.poll([rank], now_ns + after_ns)
    assert rank.connections is not None and reported.outcomes == {"read": 1, "failed": 0}
    assert all(not row.remote.startswith("127.") for row in rank.connections.rows)
    rank.reader.close()
