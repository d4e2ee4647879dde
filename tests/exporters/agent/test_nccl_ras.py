"""The agent asks NCCL's RAS about ranks that hang, against a server of recorded answers: also slow, cut and damaged ones."""

import itertools
import os
import time

import msgspec
import pytest
from support.nccl_ras import RasServer, answer, missing, rank, recorded
from support.node.node_command import run
from support.node.node_tree import collect, wait_until
from support.rank_page.page_maker import Rank as PageRank

from goodput.rank_page.reader import Reader
from goodput.trace.stream import TraceError
from goodput.wire.ras import RasAnswer, RasCommunicator, RasRank
from goodput_exporters import nccl_ras
from goodput_exporters.collectors.ranks.node_links import NodeLinks
from goodput_exporters.collectors.ranks.rank import Rank
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks
from goodput_exporters.nccl_ras import AFTER_NS, AGAIN_NS, AGAIN_NS_MAX, RasQueries
from goodput_exporters.nccl_ras import query as query_module

PID = os.getpid()  # of the page
OWN = {**rank(0), "pid": PID}


class Node:
    """A node with one rank, whose last step ended at `ended_ns`."""

    def __init__(self, directory, number: int = 0, world_size: int = 4):
        self.page = PageRank(directory, rank=number, world_size=world_size).train(3)
        self.rank = Rank(
            self.page.path.name,
            Reader(str(self.page.path)),
            "/proc",
            ReachedPeaks("", lambda: 0),
            NodeLinks("", lambda: 0),
        )
        self.rank.poll(time.perf_counter_ns(), 1)
        self.ended_ns = self.rank.progress_ns()

    def ask(self, queries: RasQueries, after_ns: int = AFTER_NS) -> dict:
        """The outcomes of the query that is begun so long after the last step, once it has ended."""
        before = sum(queries.outcomes.values())
        now_ns = self.ended_ns + after_ns
        wait_until(lambda: queries.poll([self.rank], now_ns) or sum(queries.outcomes.values()) > before)
        return dict(queries.outcomes)


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.rank.reader.close()


@pytest.fixture
def serve():
    """A function that serves these answers and returns queries of them."""
    started = []

    def make(*answers: bytes, **given) -> RasQueries:
        server = RasServer(*answers, **given)
        queries = RasQueries(server.address, between_seconds=0)
        started.extend([server.close, queries.stop])
        return queries

    yield make
    for end in reversed(started):
        end()


def test_answer_is_reported_once_by_the_rank(node, serve):
    stuck = answer(OWN, rank(1, calls=38), rank(2), gone=(missing(3, dead=True),))
    queries = serve(*recorded(stuck, stuck))
    assert node.ask(queries) == {"answered": 1, "failed": 0}
    named = RasRank(3, "172.16.64.246", 7, "is dead")
    found = RasAnswer(1, (RasCommunicator("0xae94423cfbb2ef4a", 4, "missing", 1, (named,)),))
    reports = [node.rank.poll(node.ended_ns + AFTER_NS, sequence) for sequence in (2, 3)]
    assert [report.live.ras for report in reports] == [found, None]
    assert collect(queries) == {
        ("goodput_node_ras_queries_total", ("answered",)): 1,
        ("goodput_node_ras_queries_total", ("failed",)): 0,
    }


def test_rank_behind_has_its_calls_in_the_answer(node, serve):
    stuck = answer(OWN, rank(1, calls=38), rank(2), rank(3))
    queries = serve(*recorded(stuck, stuck))
    node.ask(queries)
    (one,) = node.rank.ras.suspicious
    assert (one.kind, one.count, one.ranks[0].rank) == ("behind", 1, 1)
    assert one.ranks[0].problem == "has made 38 calls of all_reduce, others 40"


def test_ranks_that_call_are_no_finding(node, serve):
    queries = serve(*recorded(answer(OWN, rank(1, calls=38)), answer(OWN, rank(1, calls=39))))
    assert node.ask(queries)["answered"] == 1
    assert node.rank.ras == RasAnswer(1)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (recorded(answer(OWN, rank(1)))[0][:-40], "no answer of NCCL's RAS"),
        (b"", "no JSON"),
        (b"OK\n" + b'{"a":' * 100_000, "no answer of NCCL's RAS"),
        (b"OK\n\x00\xff{]", "no answer of NCCL's RAS"),
        (b'OK\n{"communicators": [{"hash": "0x1", "size": 1, "ranks": [{"rank": {}}]}]}', "TypeError"),
        # With an id, since each process of the tests has another PID.
        pytest.param(
            recorded(answer(rank(0), rank(1)))[0],
            f"has the process {PID}: another job's RAS",
            id="another_job",
        ),
        (recorded(answer(OWN, rank(1 << 40, calls=1)))[0], "out of range"),
        (recorded(answer(OWN, {**rank(1, calls=1), "rank": -7}))[0], "out of range"),
    ],
)
def test_answer_that_is_cut_or_damaged_fails(node, serve, caplog, raw, words):
    """Each is counted and logged, and the rank reports nothing."""
    queries = serve(raw, raw)
    assert node.ask(queries) == {"answered": 0, "failed": 1}
    assert node.rank.ras is None and words in caplog.text and caplog.text.isascii()


@pytest.mark.parametrize("pause_seconds", [0.02, 300])
def test_slow_answer_is_given_up(node, serve, monkeypatch, pause_seconds):
    """Drop by drop, or never: the query is killed, and no poll waits for it."""
    monkeypatch.setattr(nccl_ras, "SECONDS_MAX", 0.0)
    queries = serve(b"OK\n" + b" " * 10**6, pause_seconds=pause_seconds)
    began = time.monotonic()
    queries.poll([node.rank], node.ended_ns + AFTER_NS)
    child = queries._child
    assert time.monotonic() - began < 5 and node.ask(queries) == {"answered": 0, "failed": 1}
    assert child.returncode == -9 and node.rank.ras is None


def test_nobody_listens(node, caplog):
    queries = RasQueries("127.0.0.1:1", between_seconds=0)
    assert node.ask(queries) == {"answered": 0, "failed": 1}
    assert "no answer of NCCL's RAS" in caplog.text


def test_answer_over_the_bound_is_none(serve, monkeypatch):
    monkeypatch.setattr(query_module, "BYTES_MAX", 1 << 20)
    queries = serve(b"OK\n" + b" " * (1 << 20))
    with pytest.raises(TraceError, match="more than 1 MiB"):
        query_module.query(queries._address, PID, 0)


def test_largest_answer_fits_into_the_pipe(serve):
    """So that the child ends although nobody reads meanwhile."""
    text = "é" * 1000
    ranks = [{**rank(number, calls=1), "host": text, "pid": 1 << 30} for number in range(1, 21)]
    many = answer(OWN, *ranks)
    one = many["communicators"][0]
    many["communicators"] = [{**one, "hash": text + str(number)} for number in range(20)]
    address = serve(*recorded(many, many))._address
    found = query_module.query(address, PID, 0)
    assert len(found.suspicious) == 8 and {len(one.ranks) for one in found.suspicious} == {16}
    assert found.communicators == 20 and found.suspicious[0].count == 20
    assert len(msgspec.json.encode(found)) < nccl_ras.OUTPUT_BYTES_MAX


def test_only_the_first_and_last_rank_ask(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(RasQueries, "_begin", lambda self, one, now_ns: begun.append(one.identity.rank))
    for number in range(4):
        one = Node(tmp_path / str(number), number)
        RasQueries("a:1").poll([one.rank], one.ended_ns + AFTER_NS - 1)
        assert begun == [0] * (number > 0)
        RasQueries("a:1").poll([one.rank], one.ended_ns + AFTER_NS)
        one.rank.reader.close()
    assert begun == [0, 3]


def test_pauses_double_until_the_rank_goes_on(node, monkeypatch):
    queries, begun = RasQueries("a:1"), []

    def popen(*arguments, **given):
        begun.append(queries_now[0])
        raise OSError(2, "nothing is run")

    monkeypatch.setattr(nccl_ras.subprocess, "Popen", popen)
    queries_now = [0]
    for second in range(0, 4000, 5):
        queries_now[0] = second
        queries.poll([node.rank], node.ended_ns + second * 10**9)
    pauses = [b - a for a, b in itertools.pairwise(begun)]
    assert begun[0] == AFTER_NS // 10**9
    assert pauses[:4] == [AGAIN_NS // 10**9 * times for times in (1, 2, 4, 8)]
    assert set(pauses[4:]) == {AGAIN_NS_MAX // 10**9}
    node.page.train(1)
    node.rank.poll(time.perf_counter_ns(), 9)
    begun.clear()
    queries.poll([node.rank], node.rank.progress_ns() + AFTER_NS)
    assert len(begun) == 1


def test_option_needs_an_aggregator_and_an_address():
    done = run("--nccl-ras")
    assert (done.returncode, "--nccl-ras needs --aggregator" in done.stderr) == (2, True)
    done = run("--nccl-ras", "nowhere", "--aggregator", "http://127.0.0.1:1")
    assert (done.returncode, "expected ADDRESS:PORT" in done.stderr) == (2, True)
