"""The agent with files of NCCL's profiler plugin: beside the page of a process with the SDK, or as a rank by itself."""

import time

import pytest
from support.nccl.plugin_build import COMPILER, Built, build
from support.nccl.plugin_process import PluginProcess
from support.node.node_tree import samples, wait_until

from goodput.account.collective_verdict import verdict
from goodput.account.collectives.calls import Call, GroupCalls, RankCalls
from goodput.account.collectives.operation_sums import rows_of
from goodput.metrics import Families
from goodput.rank_page import page
from goodput.sdk.reports.local_accounts import runs_in
from goodput.wire.operation_row import UNKNOWN
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks.collector import Ranks
from goodput_exporters.collectors.ranks.reported_collectives import AFTER_NS

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
SDK = "import goodput; goodput.start(run='r', rank=0, world_size=2)"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    return build(tmp_path_factory.mktemp("nccl"), "-O1")


class Agent:
    """The ranks of a folder, at a time that can be moved on."""

    def __init__(self, pages):
        self.later_ns = 0
        settings = Settings(directory=str(pages), monotonic_ns=lambda: time.monotonic_ns() + self.later_ns)
        self.ranks = Ranks(settings)

    def poll(self, later_ns: int = 0) -> list:
        self.later_ns += later_ns
        return self.ranks.poll()

    def series(self) -> dict:
        families = Families("node")
        self.ranks.collect(families)
        return {key: value for key, value in samples(families).items() if "nccl" in key[0]}


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


@pytest.fixture
def agent(pages):
    made = Agent(pages)
    yield made
    made.ranks.close()


@pytest.fixture
def start(built, pages):
    started = []

    def make(**given) -> PluginProcess:
        started.append(PluginProcess(built, pages, **given))
        return started[-1]

    yield make
    for process in started:
        process.kill()


RANK_0 = {"GOODPUT_RUN": "r", "RANK": "0", "WORLD_SIZE": "2"}


def test_process_without_the_sdk_is_a_rank(agent, start):
    process = start(**RANK_0)
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
    process.issue()
    process.send(500)
    (report,) = agent.poll()
    assert (report.identity.run, report.identity.rank, report.identity.role) == ("r", 0, "nccl-profiler")
    assert report.live.alive and report.live.phase == "none" and report.live.collectives is None
    found = agent.series()
    assert found["goodput_nccl_calls_total", ("all_reduce", "0", "r")] == 1
    assert found["goodput_nccl_bytes_total", ("all_reduce", "0", "r")] == 400
    assert found["goodput_nccl_device_seconds_total", ("all_reduce", "0", "r")] == 2.0
    assert found["goodput_nccl_network_bytes_total", ("send", "0", "r")] == 500
    assert found["goodput_nccl_network_wait_seconds_total", ("send", "0", "network", "r")] > 0
    assert found["goodput_nccl_dropped_total", ("0", "r", "call")] == 0


def test_open_call_is_reported_and_names_who_is_missing(agent, start):
    """Rank 0 waits in its second call, which rank 1 has not entered; both have left the first on the device."""
    processes = [start(**{**RANK_0, "RANK": str(rank)}) for rank in (0, 1)]
    for rank, process in enumerate(processes):
        process.do(f"context, mask = call.init(hash=1, size=2, rank={rank})")
        process.issue()
    processes[0].issue("ReduceScatter", 50, ends=False)
    assert [one.live.collectives for one in agent.poll()] == [None, None]
    reports = {one.identity.rank: one for one in agent.poll(later_ns=2 * AFTER_NS)}
    assert [reports[rank].live.phase for rank in (0, 1)] == ["communication", "none"]
    ranks = []
    for rank, report in reports.items():
        found = report.live.collectives
        groups = tuple(
            GroupCalls(
                *(one.name, one.description, one.backend, one.size, one.ranks, one.calls),
                tuple(Call(*[getattr(call, name) for name in Call._fields]) for call in one.recent),
            )
            for one in found.groups
        )
        ranks.append(RankCalls(rank, "n0", report.live.phase, "", 1, 1, groups, found.is_whole))
    found = verdict(ranks)
    assert found is not None
    assert (found.kind, found.culprits, found.sequence, found.operation) == (
        "missing",
        (1,),
        2,
        "reduce_scatter",
    )


def test_file_beside_a_page_is_no_rank_of_its_own(agent, start, pages):
    process = start(**RANK_0)
    process.do(SDK)
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
    process.issue(ends=False)
    assert sorted(path.suffix for path in pages.iterdir()) == [".nccl", ".page"]
    (report,) = agent.poll()
    assert report.identity.role == "" and len(agent.ranks.followed()) == 1
    assert agent.series()["goodput_nccl_calls_total", ("all_reduce", "0", "r")] == 1
    (report,) = agent.poll(later_ns=2 * AFTER_NS)  # The page has no process group: the plugin's are judged.
    assert [one.backend for one in report.live.collectives.groups] == ["nccl-profiler"]
    assert agent.ranks.sweep(lambda key: True) == []


def test_records_of_the_page_win(agent, start):
    process = start(**RANK_0)
    process.do(SDK)
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
    process.issue()
    process.do(
        "from goodput.rank_page import collective_records as c, page;"
        "words = goodput._session.recorder.words;"
        "page.reserve(goodput._session.writer.fd, 8 * page.W_COLLECTIVES, 8 * c.WORDS);"
        "c.write_group(words, 0, '0', 'default', 'nccl', 0, [0, 1])"
    )
    agent.poll()
    (report,) = agent.poll(later_ns=2 * AFTER_NS)
    assert [one.backend for one in report.live.collectives.groups] == []  # It has a group, and no call of it.


def test_both_files_are_removed_when_their_process_is_gone(agent, start, pages):
    process = start(**RANK_0)
    process.do(SDK)
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
    agent.poll()
    process.kill()
    wait_until(lambda: [one.live.alive for one in agent.poll()] == [False])
    assert agent.poll() == []
    agent.later_ns += int(1e9 * (agent.ranks._settings.grace_seconds + 1))
    agent.poll()
    assert len(agent.ranks.sweep(lambda key: True)) == 2
    assert list(pages.iterdir()) == [] and agent.poll() == []


def test_file_of_another_user_joins_no_page(agent, start, pages):
    """Any user may name a process; files are joined only within one user."""
    process = start(**RANK_0)
    process.do(SDK)
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
    agent.poll()
    files = {one.is_plugin: one for one in agent.ranks._ranks.values()}
    ours, theirs = files[False], files[True]
    assert theirs.joined and ours.plugin is theirs.reader
    theirs.owner += 1
    assert len(agent.poll()) == 2 and not theirs.joined and ours.plugin is None


@pytest.mark.parametrize("at", ["GROUPS", "AT_NETWORK", "AT_SUMS"])
def test_hostile_file_is_counted(agent, start, pages, at):
    from goodput.rank_page import collective_records

    process = start(**RANK_0)
    process.do("context, mask = call.init(hash=1, size=2, rank=0)")
    process.issue()
    (path,) = pages.iterdir()
    word = page.W_COLLECTIVES + getattr(collective_records, at) + (4 + 3 if at == "AT_SUMS" else 0)
    with open(path, "r+b") as file:
        file.seek(8 * word)
        file.write(b"\xff" * 8)
    agent.poll()
    families = Families("node")
    agent.ranks.collect(families)
    assert samples(families)["goodput_node_page_errors_total", ("value",)] >= 1


WITH_GROUP = (
    SDK,
    "from goodput.rank_page import collective_records as c, page",
    "words = goodput._session.recorder.words",
    "page.reserve(goodput._session.writer.fd, 8 * page.W_COLLECTIVES, 8 * c.WORDS)",
    "c.write_group(words, 0, '0', 'default_pg', 'nccl', 0, [0, 1])",
    "sums = page.W_COLLECTIVES + c.AT_SUMS + 4 * c.OPERATIONS.index('all_reduce')",
    "context, mask = call.init(hash=1, size=2, rank=0)",
)
EXPECTED = ("default_pg", "all_reduce", 2, 800, 0, 2.0, 400)


def test_device_time_reaches_the_report_and_a_local_account(agent, start, pages):
    """A call before the first step and one in it, of 2 s on the device each; the page has both, and no exposed time."""
    process = start(**RANK_0)
    for line in WITH_GROUP:
        process.do(line)
    process.issue()
    process.do("words[page.W_STEP_START] = 1")
    process.issue(at_seconds=5)
    process.do("words[sums], words[sums + 1] = 2, 800")
    (report,) = agent.poll()
    (row,) = report.live.operations
    assert (
        row.group,
        row.operation,
        row.calls,
        row.bytes,
        row.exposed_ns,
        row.device_ns / 1e9,
        row.device_bytes,
    ) == EXPECTED
    assert row.queued == 1
    ((run,), errors) = runs_in(str(pages), time.monotonic_ns())
    (attempt,) = run.attempts.values()
    (local,) = rows_of(attempt.collectives)
    assert not errors and (local.device_ns, local.device_bytes, local.queued) == (2 * 10**9, 400, 1)


def test_report_in_the_process_keeps_the_lock(start, pages):
    """It reads the plugin's file by the plugin's own descriptor: to close another one would drop the lock."""
    process = start(**RANK_0)
    for line in WITH_GROUP:
        process.do(line)
    process.do("words[page.W_STEP_START] = 1")
    process.issue()
    process.do("words[sums], words[sums + 1] = 1, 400")
    process.do("found = goodput.report().account")
    process.do("(row,) = [row for row in found['collectives'] if row['operation'] == 'all_reduce']")
    process.do("assert row['device_gpu_seconds'] == 2.0, row")
    (file,) = pages.glob("*.nccl")
    assert page.is_locked(str(file))


def test_file_of_an_earlier_process_is_not_joined(start, pages):
    """Beside the page of a process lies a file of another one."""
    process = start(**RANK_0)
    for line in WITH_GROUP:
        process.do(line)
    process.do("words[page.W_STEP_START] = 1")
    process.issue()
    process.do("words[sums], words[sums + 1] = 1, 400")
    process.kill()
    (file,) = pages.glob("*.nccl")
    data = file.read_bytes()
    pid = str(process.process.pid).encode()
    file.write_bytes(data.replace(b'"pid":' + pid, b'"pid":' + b"9" * len(pid), 1))
    ((run,), _) = runs_in(str(pages), time.monotonic_ns())
    (attempt,) = run.attempts.values()
    (local,) = rows_of(attempt.collectives)
    assert (local.calls, local.device_ns) == (1, UNKNOWN)
