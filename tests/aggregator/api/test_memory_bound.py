"""`goodput serve --memory`: resident memory stays below the bound, and nothing that was acknowledged is lost."""

import asyncio
import re
import time
from contextlib import contextmanager

import httpx
import pytest
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.reports import body_of, node_report, rank_report
from support.aggregator.serve_command import ServeCommand
from support.aggregator.serve_process import samples, serving

from goodput.access.responses import Refusal
from goodput.aggregator.accounts.run_summaries import PENDING
from goodput.aggregator.api.app import create_app
from goodput.aggregator.ingest.checks import merged_bytes
from goodput.aggregator.ingest.pushed_steps import in_version_2
from goodput.aggregator.memory_bound import MemoryBound, TooSmall, cgroup_limit_bytes
from goodput.cli import parser
from goodput.wire import schema

MIB = 1 << 20
RUNS, RANKS, STEPS = 45, 128, 3
BOUND_MIB = 138
# Accounts that are computed on request are not refused for memory.
TOLERATED = 1.05
# Runs that are over may leave at once.
SETUP = "from goodput.aggregator.api import run_memory; run_memory.OVER_SECONDS = 0.05"


class Memory:
    """A bound of 1000 MiB over a process that takes 100 MiB, and has `taken` MiB more."""

    def __init__(self):
        self.taken = 0
        self.bound = MemoryBound(1000 * MIB, resident=lambda: (100 + self.taken) * MIB, trim=lambda: None)
        self.order: list[str] = []

    def way(self, name: str, count: int, each: int = 10):
        """`count` things of `each` MiB that can leave."""
        left = count

        async def free(is_enough) -> int:
            nonlocal left
            before, _ = left, self.order.append(name)
            while left and not is_enough():
                left, self.taken = left - 1, self.taken - each
            return before - left

        self.bound.ways[name] = free

    def reserve(self, mebibytes: int):
        async def reserve():
            with self.bound.reservation() as one:
                await one.add(mebibytes * MIB, "it")

        return reserve()


def test_ways_are_used_in_order_until_enough():
    memory = Memory()
    memory.way("rows", 5)
    memory.way("runs", 50)
    memory.way("results", 50)
    memory.taken = 740
    asyncio.run(memory.reserve(40))
    assert not memory.order, "880 of 1000 would be relieved, 950 refused"
    memory.taken = 840
    asyncio.run(memory.reserve(20))
    assert memory.order == ["rows", "runs"]
    assert memory.bound.freed == {"rows": 5, "runs": 11} and memory.taken == 680


def test_refused_where_nothing_can_leave(caplog):
    memory = Memory()
    memory.way("runs", 3)
    memory.taken = 840
    for _ in range(3):
        with pytest.raises(
            Refusal, match="it may take 100 MiB, but of 1000 MiB of memory 40 MiB are left"
        ) as refused:
            asyncio.run(memory.reserve(100))
    assert refused.value.status == 503 and memory.bound._reserved == 0
    assert len(caplog.records) == 2, "once each: freed, refused"
    memory.taken = 0
    asyncio.run(memory.reserve(100))


def test_request_that_never_fits_is_refused_as_such():
    memory = Memory()
    memory.taken = 500
    with pytest.raises(Refusal, match="may take 400 MiB of memory, of which one may take 212 MiB") as refused:
        asyncio.run(memory.reserve(400))
    assert refused.value.status == 413


def test_reservations_add_up():
    memory = Memory()

    async def scenario():
        with memory.bound.reservation() as first, memory.bound.reservation() as second:
            for one in (first, second) * 2:
                await one.add(200 * MIB, "it")
            with pytest.raises(Refusal):
                await second.add(100 * MIB, "it")
        await memory.reserve(100)

    asyncio.run(scenario())


def test_free_objects_of_python_count_as_free(monkeypatch):
    """Their memory stays resident; runs leave only while much is in use."""
    objects = 20_000_000
    monkeypatch.setattr("sys.getallocatedblocks", lambda: objects)
    memory = Memory()
    memory.way("runs", 50, each=0)
    memory.taken = 780
    asyncio.run(memory.bound._relieve())
    assert memory.bound.freed["runs"] == 50
    objects = 0
    memory.bound._not_before = 0.0
    memory.order.clear()
    asyncio.run(memory.bound._relieve())
    assert not memory.order


def test_bound_below_its_own_needs_is_refused():
    with pytest.raises(TooSmall, match="120 MiB of memory is too little: the aggregator takes 100 MiB"):
        MemoryBound(120 * MIB, resident=lambda: 100 * MIB)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("512MiB", 512 * MIB),
        ("2G", 2 << 30),
        ("1.5 gib", 3 << 29),
        ("0", 0),
        ("1048576", MIB),
        ("64m", 64 * MIB),
    ],
)
def test_sizes(text, want):
    assert parser().parse_args(["serve", "--memory", text]).memory == want


@pytest.mark.parametrize("text", ["lots", "-1", "1 X", "12 34", "", "MiB", "٣G"])
def test_wrong_sizes_are_named(text, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["serve", "--memory", text])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "--memory" in error
    assert not text or f"{text!r}: expected a size such as 512MiB or 2G" in error


def test_limits_of_control_groups(tmp_path):
    def limit(cgroup: str, **files: str) -> int | None:
        for name, text in {"proc/self/cgroup": cgroup, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return cgroup_limit_bytes(tmp_path)

    assert cgroup_limit_bytes(tmp_path) is None
    assert limit("0::/\n") is None
    files = {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000\n"}
    assert limit("0::/a/b\n", **files) == 1000
    version_1 = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "900\n"}
    version_1["sys/fs/cgroup/memory/pod/memory.limit_in_bytes"] = "9223372036854771712\n"
    assert limit("4:cpu,memory:/pod\n0::/x\n", **version_1) == 900


def test_hostile_claims_of_steps_are_bounded():
    report = in_version_2(rank_report(Process().steps(1, forward=1)))
    (block,) = report.blocks
    claims = replace(report, steps=[], blocks=[replace(block, count=10**18)] * 3)
    assert merged_bytes(node_report(claims)) < 5 * 8 * schema.STEPS_MAX * 100
    assert merged_bytes(node_report(replace(report, blocks=[replace(block, count=-(10**18))]))) < MIB


@pytest.mark.faults
def test_pushes_beyond_the_bound_over_http(tmp_path):
    memory = Memory()
    app = create_app(f"sqlite:///{tmp_path}/ledger.db", memory=memory.bound)
    body = body_of(rank_report(Process().steps(3, forward=1).finished()))
    with serving(app) as client:
        memory.taken = 850
        answer = client.post("/api/v1/ingest", content=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert re.search("a report.* may take .* are left; send it again later", answer.text)
        seen = samples(client)
        assert seen["goodput_aggregator_requests_refused_total", "memory"] == 1
        assert seen["goodput_aggregator_memory_limit_bytes",] == 1000 * MIB
        assert seen["goodput_aggregator_bound_used_ratio", "memory"] == 0.95
        assert seen["goodput_aggregator_runs",] == 0
        memory.taken = 0
        assert client.post("/api/v1/ingest", content=body).status_code == 200
        large = body_of(*(rank_report(Process(rank).steps(2500, forward=1)) for rank in range(8)))
        memory.taken, memory.bound.bytes_max = 50, 170 * MIB
        answer = client.post("/api/v1/ingest", content=large)
        assert answer.status_code == 413 and "a report of 8 ranks of node 'n' may take" in answer.text


def pushes() -> list[bytes]:
    """One of each run, which is over."""
    processes = [
        Process(rank).steps(STEPS, loader=0.25, forward=1 + rank / 64).finished() for rank in range(RANKS)
    ]
    reports = [in_version_2(rank_report(one, world_size=RANKS)) for one in processes]

    def of_run(number: int) -> bytes:
        return body_of(
            *(replace(one, identity=replace(one.identity, run=f"r{number:02}")) for one in reports)
        )

    return [of_run(number) for number in range(RUNS)]


@contextmanager
def served(folder, *options: str):
    url = f"sqlite:///{folder}/ledger.db"
    with (
        ServeCommand(folder, url, *options, setup=SETUP) as command,
        httpx.Client(base_url=command.url, timeout=60, trust_env=False) as client,
    ):
        while client.get("/readyz").status_code != 200:
            time.sleep(0.02)
        yield client, command.process.pid


def highest_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        (found,) = (line.split()[1] for line in file if line.startswith("VmHWM:"))
    return int(found) / 1024


def answers(client) -> dict:
    """The list of all runs, once all have an account, and the accounts of some."""
    found, deadline = {"list": client.get("/api/v1/runs").json()}, time.monotonic() + 60
    while any(row["status"] == PENDING for row in found["list"]["runs"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        found["list"] = client.get("/api/v1/runs").json()
    for number in range(0, RUNS, 11):
        found[number] = client.get(f"/api/v1/runs/r{number:02}/account").raise_for_status().json()
    return found


def test_process_stays_below_its_bound(tmp_path):
    """All runs are accepted, and read as of an aggregator without a bound, also after a restart."""
    bodies, options = pushes(), ("--memory", f"{BOUND_MIB}MiB")
    with serving(create_app(f"sqlite:///{tmp_path}/free.db")) as client:
        for body in bodies:
            client.post("/api/v1/ingest", content=body).raise_for_status()
        want = answers(client)
    with served(tmp_path, *options) as (client, pid):
        for body in bodies:
            client.post("/api/v1/ingest", content=body).raise_for_status()
        assert answers(client) == want and len(want["list"]["runs"]) == RUNS
        assert highest_mib(pid) < TOLERATED * BOUND_MIB
        log = (tmp_path / "serve.log").read_text()
        assert len(re.findall("memory is full: freed .* [1-9][0-9]* runs", log)) == 1, "logged once"
    with served(tmp_path, *options) as (client, pid):
        assert answers(client) == want and highest_mib(pid) < TOLERATED * BOUND_MIB
