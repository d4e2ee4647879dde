"""NCCL's profiler plugin: what its events leave in the file beside the page, by each version of the interface."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from support.nccl.plugin_build import COMPILER, SOURCES, Built, build, environment, run_host
from support.paths import PYTHONPATH

from goodput.rank_page import collective_records, page
from goodput.rank_page.reader import Reader
from goodput.wire.identity import from_environment

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
VERSIONS = (4, 5, 6)
START = """
import ctypes, os, sys
from support.nccl.tables import Table
PLUGIN = ctypes.CDLL({plugin!r})
call = Table(PLUGIN, {version})
"""
# A process that never heard of goodput: one all-reduce of two ranks, in two channels, one of them on the network.
ALL_REDUCE = """
context, mask = call.init(hash=0xabc, size=2, rank=1, name=b"dp")
api = None
if call.version > 4:
    api = call.start(context, "collApi", func=b"AllReduce", count=100, datatype=b"ncclFloat32", graphCaptured=False)
    call.stop(api)
work = call.start(context, "coll", api, func=b"AllReduce", count=100, datatype=b"ncclFloat32", nChannels=2)
call.stop(work)
kernels = [call.start(context, "kernelCh", work, channelId=i, pTimer=1000 + i) for i in range(2)]
send = call.start(context, "proxyOp", work, pid=os.getpid(), isSend=1)
step = call.start(context, "proxyStep", send)
for state in ("SendGPUWait", "SendPeerWait_v4", "SendWait"):
    call.state(step, state, 400)
call.stop(step)
call.stop(send)
"""
END = """
for i, kernel in enumerate(kernels):
    call.state(kernel, "KernelChStop", 5000 + i)
    call.stop(kernel)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    return build(tmp_path_factory.mktemp("nccl"), "-O1")


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder


def run(built: Built, pages, code: str, version: int = 5, returncode: int = 0, **given: str) -> str:
    """Standard output of a process that has loaded the plugin and does this."""
    env = environment(pages, PYTHONPATH=PYTHONPATH, **given)
    command = [sys.executable, "-c", START.format(plugin=str(built.plugin), version=version) + code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == returncode, done.stderr
    return done.stdout


def only(pages):
    """The one file in the folder: (snapshot, collectives)."""
    (path,) = pages.glob("*.nccl")
    with Reader(str(path)) as reader:
        return reader.snapshot(), reader.collectives(since=0)


def test_layout_is_that_of_the_page():
    """layout.h has the numbers of page.py and collective_records.py."""
    found = dict(re.findall(r"#define (\w+) (\(?\w[^/\n]*)", (SOURCES / "layout.h").read_text()))
    found = {name: int(eval(re.sub(r"(?<=[\da-f])ull", "", text))) for name, text in found.items()}
    ours = {
        **{name: value for name, value in vars(page).items() if isinstance(value, int)},
        **{name: value for name, value in vars(collective_records).items() if isinstance(value, int)},
        "PAGE_MAGIC": page.MAGIC,
        "PAGE_VERSION": page.VERSION,
        "PHASE_NONE": 0,
        "LIVE_BYTES": 8 * 1536,
        "PHASE_COMMUNICATION": page.PHASES.index("communication"),
        "END_FINISHED": page.END_REASONS.index("finished"),
        "END_FAILED": page.END_REASONS.index("failed"),
        "IDENTITY_OFFSET_ODD": page.IDENTITY_PLACES[1][0],
        "IDENTITY_BYTES_ODD": page.IDENTITY_PLACES[1][1],
    }
    assert len(found) > 60
    assert {name: ours[name] for name in found} == found


@pytest.mark.parametrize("version", VERSIONS)
def test_one_call_of_each_version(built, pages, version):
    run(built, pages, ALL_REDUCE + END, version)
    snapshot, found = only(pages)
    (group,), (record,), (sums,), (network,) = found.groups, found.records, found.sums, found.network
    assert (group.name, group.description, group.backend) == ("0000000000000abc", "dp", "nccl-profiler")
    assert (group.size, group.rank, group.ranks, group.calls) == (2, 1, ((0, 1, 2),), 1)
    assert (record.operation, record.dtype, record.bytes, record.sequence) == (
        "all_reduce",
        "float32",
        400,
        1,
    )
    assert record.enter_ns < record.return_ns < record.exit_ns
    assert (record.device_ns, record.network_bytes) == (5001 - 1000, 400)
    assert record.network_ns == network.send_peer_ns + network.send_network_ns > 0
    assert (sums.calls, sums.bytes, sums.device_ns) == (1, 400, 4001)
    assert (network.send_bytes, network.receive_bytes, network.receive_network_ns) == (400, 0, 0)
    assert snapshot.phase == "none" and snapshot.ended == "finished"
    assert (found.lost, found.dropped) == (0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_call_stays_open_after_a_kill(built, pages, version):
    code = ALL_REDUCE + "import signal; os.kill(os.getpid(), signal.SIGKILL)"
    run(built, pages, code, version, returncode=-signal.SIGKILL)
    snapshot, found = only(pages)
    assert (found.records[0].exit_ns, snapshot.phase, snapshot.ended) == (0, "communication", "")


@pytest.mark.parametrize("version", VERSIONS)
def test_threads_lose_nothing(built, pages, version):
    """4 communicators, each with a thread that issues calls and one that works on them."""
    rounds = 1000
    assert run_host(built, pages, version, "orderly", rounds=rounds).returncode == 0
    _, found = only(pages)
    assert (found.written, found.lost, found.dropped) == (4 * rounds, 0, 0)
    for group in range(4):
        of = {one.operation: one for one in found.sums if one.group == group}
        calls, sends = rounds * 3 // 4, rounds // 4
        assert (of["all_reduce"].calls, of["all_reduce"].bytes) == (calls, 400 * calls)
        assert (of["send"].calls, of["send"].bytes) == (sends, 20 * sends)
        assert of["all_reduce"].device_ns == 500 * calls and of["send"].device_ns == 500 * sends
        assert found.network[group].send_bytes == found.network[group].receive_bytes == rounds * 1000
    assert [one.number for one in found.records] == list(range(4 * rounds - 511, 4 * rounds + 1))
    assert all(one.exit_ns >= one.enter_ns and one.device_ns == 500 for one in found.records)


CALLS = [  # function, count, datatype: operation, dtype, bytes of a group of 4
    ("AllReduce", 10, "ncclFloat64", "all_reduce", "float64", 80),
    ("Broadcast", 10, "ncclInt8", "broadcast", "int8", 10),
    ("Reduce", 10, "ncclBfloat16", "reduce", "bfloat16", 20),
    ("AllGather", 10, "ncclFloat16", "all_gather", "float16", 20),
    ("ReduceScatter", 10, "ncclInt64", "reduce_scatter", "int64", 80),
    ("AlltoAll", 10, "ncclUint32", "all_to_all", "uint32", 160),
    ("Gather", 10, "ncclFloat8e4m3", "gather", "float8_e4m3fn", 10),
    ("Scatter", 10, "ncclUint64", "scatter", "uint64", 80),
    ("AllReduce", 10, "Unknown", "all_reduce", "", 10),
    ("AllReduce", 1 << 62, "ncclInt32", "all_reduce", "int32", 0),
]


def test_operations_and_sizes(built, pages):
    lines = ["context, mask = call.init(hash=1, size=4, rank=0)"]
    for function, count, datatype, *_ in CALLS:
        fields = f"func={function.encode()}, count={count}, datatype={datatype.encode()}, root=2"
        lines.append(f"call.start(context, 'coll', None, {fields})")
    lines.append("assert call.start(context, 'coll', None, func=b'PutSignal') is None")
    run(built, pages, "\n".join(lines))
    found = only(pages)[1].records
    assert [(one.operation, one.dtype, one.bytes) for one in found] == [tuple(one[3:]) for one in CALLS]
    rooted = ("broadcast", "reduce", "gather", "scatter")
    assert all(one.peer == (2 if one.operation in rooted else None) for one in found)
    assert [one.sequence for one in found] == list(range(1, len(CALLS) + 1))


def test_point_to_point_has_its_peer_and_numbers(built, pages):
    code = """
context, mask = call.init(hash=1, size=4, rank=0)
for function in (b"Send", b"Recv"):
    api = call.start(context, "p2pApi", func=function, count=5, datatype=b"ncclInt32")
    call.stop(api)
    call.stop(call.start(context, "p2p", api, func=function, count=5, datatype=b"ncclInt32", peer=3))
"""
    run(built, pages, code)
    found = only(pages)[1]
    assert [(one.operation, one.sequence, one.peer, one.bytes) for one in found.records] == [
        ("send", 1, 3, 20),
        ("recv", 2, 3, 20),
    ]
    assert (found.groups[0].calls, found.groups[0].point_to_point) == (0, 2)


def test_captured_graph_records_each_launch(built, pages):
    code = """
context, mask = call.init(hash=1, size=2, rank=0)
fields = dict(func=b"AllReduce", count=1, datatype=b"ncclInt8")
assert call.start(context, "collApi", graphCaptured=True, **fields) is None
for _ in range(3):
    call.stop(call.start(context, "coll", None, **fields))
api = call.start(context, "collApi", graphCaptured=False, **fields)
for _ in range(2):  # The second time its call has its work already.
    call.stop(call.start(context, "coll", api, **fields))
"""
    run(built, pages, code)
    found = only(pages)[1]
    assert found.written == 5 and all(one.exit_ns for one in found.records)


def test_copy_engine_collective_is_one_call(built, pages):
    code = """
context, mask = call.init(hash=1, size=2, rank=0)
fields = dict(func=b"AllGather", count=8, datatype=b"ncclFloat32")
api = call.start(context, "collApi", **fields)
copy = call.start(context, "ceColl", api, **fields)
call.stop(copy)
call.stop(api)
"""
    run(built, pages, code, version=6)
    (record,) = only(pages)[1].records
    assert (record.operation, record.bytes) == ("all_gather", 32) and record.exit_ns


def test_calls_whose_end_is_unknown_are_not_open(built, pages):
    """One rank alone, no bytes, and an all-to-all, which NCCL makes of sends and receives."""
    code = """
for size, function, count in ((1, b"AllReduce", 8), (2, b"AllReduce", 0), (2, b"AlltoAll", 8)):
    context, mask = call.init(hash=size, size=size, rank=0)
    call.stop(call.start(context, "collApi", func=function, count=count, datatype=b"ncclFloat32"))
"""
    run(built, pages, code)
    snapshot, found = only(pages)
    assert all(one.exit_ns for one in found.records) and len(found.records) == 3
    assert snapshot.phase == "none"


def test_destroyed_communicator_leaves_no_open_call(built, pages):
    code = ALL_REDUCE + "call.finalize(context)\n" + END
    run(built, pages, code)
    snapshot, found = only(pages)
    assert found.records[0].exit_ns and snapshot.phase == "none"


def test_stale_handles_and_contexts_lead_nowhere(built, pages):
    code = (
        ALL_REDUCE
        + END
        + """
for _ in range(5000):
    last = call.start(context, "coll", None, func=b"Reduce", count=1, datatype=b"ncclInt8", nChannels=1)
call.stop(work)
call.state(kernels[0], "KernelChStop", 99)
call.stop(kernels[0])
call.stop(step)
for wrong in (None, 0, 1, 2**64 - 1, 0x676f6eff, 0x676f6f00):
    assert call.start(wrong, "coll", None, func=b"Reduce", count=1) is None
    call.stop(wrong)
    call.finalize(wrong)
"""
    )
    run(built, pages, code)
    found = only(pages)[1]
    assert (found.written, found.lost, found.dropped) == (5001, 5, 6)


def test_made_up_parents_write_nothing(built, pages):
    """A handle has a communicator in 8 bits, of which the table has half."""
    code = """
context, mask = call.init(hash=1, size=2, rank=0)
for communicator in (1, 127, 128, 255):
    operation = 4 | communicator << 4 | 77 << 12  # HANDLE_PROXY
    step = call.start(context, "proxyStep", operation)
    call.state(step, "RecvWait", 0)
    call.state(step, "RecvFlushWait", 2**40)
    call.stop(step)
"""
    run(built, pages, code)
    found = only(pages)[1]
    assert (found.groups[0].point_to_point, found.groups[0].last, sum(found.network[0])) == (0, 0, 0)


def test_communicators_beyond_the_table_are_counted(built, pages):
    code = """
contexts = [call.init(hash=i, size=2, rank=0)[0] for i in range(130)]
for context in contexts:
    call.start(context, "coll", None, func=b"AllReduce", count=1, datatype=b"ncclInt8")
"""
    run(built, pages, code)
    found = only(pages)[1]
    assert (len(found.groups), found.written, found.dropped) == (128, 128, 2)


def test_several_ranks_of_one_process_are_not_compared(built, pages):
    run(built, pages, "[call.init(hash=7, size=2, rank=rank) for rank in (0, 1)]")
    names = [one.name for one in only(pages)[1].groups]
    assert names == ["0000000000000007", "0000000000000007.1"]


# -- the file


def test_process_without_launcher_is_named_by_its_communicator(built, pages):
    run(built, pages, "call.init(hash=0xabc, size=2, rank=1)")
    snapshot, _ = only(pages)
    identity = snapshot.identity
    assert (identity["run"], identity["rank"], identity["world_size"]) == ("nccl-0000000000000abc", 1, 2)
    assert identity["role"] == "nccl-profiler" and identity["host"] == os.uname().nodename
    assert 0 < snapshot.end_ns - identity["start_mono_ns"] < 60e9


LAUNCHES = [
    {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job/é", "TORCHELASTIC_RESTART_COUNT": "2"},
    {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "2951", "LOCAL_RANK": "1"},
    {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "JOB_NAME": 'a "b"\\c'},
    {"GOODPUT_RANK": "1", "GOODPUT_WORLD_SIZE": "2", "RANK": "9", "GOODPUT_ATTEMPT": "4", "GOODPUT_RUN": "x"},
    {"RANK": "-1", "JOB_COMPLETION_INDEX": "1", "JOB_COMPLETIONS": "3", "PBS_JOBID": "y" * 200},
]


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda one: next(iter(one)))
def test_identity_is_that_of_the_sdk(built, pages, launch):
    run(built, pages, "call.init(hash=1, size=2, rank=0)", **launch)
    identity = only(pages)[0].identity
    wanted = from_environment(launch)
    del wanted["ignored"]
    wanted["run"] = wanted["run"].replace("é", "??")  # UTF-8 is not taken apart
    assert {name: identity[name] for name in wanted} == wanted
    name = page.file_name(identity["run"], identity["rank"], identity["attempt"])
    assert next(pages.iterdir()).name == name.removesuffix(page.SUFFIX) + ".nccl"


def test_file_has_the_identity_of_the_sdk_page(built, pages):
    """Also one that declared fields have changed; and the page's lock, which closing it would release, stays."""
    code = """
import goodput
goodput.start(run="with sdk", rank=2, world_size=4)
goodput.start(device="H100")
call.init(hash=1, size=4, rank=2)
(ours,) = [name for name in os.listdir(os.environ["GOODPUT_DIR"]) if name.endswith(".page")]
import subprocess
from goodput.rank_page import page
path = os.path.join(os.environ["GOODPUT_DIR"], ours)
locked = f"from goodput.rank_page import page; print(page.is_locked({path!r}))"
print(subprocess.run([sys.executable, "-c", locked], capture_output=True, text=True).stdout)
"""
    assert run(built, pages, code).split() == ["True"]
    snapshot, found = only(pages)
    (theirs,) = pages.glob("*.page")
    with Reader(str(theirs)) as reader:
        assert snapshot.identity == reader.identity
    assert next(pages.glob("*.nccl")).stem == theirs.stem
    assert snapshot.identity["device"] == "H100" and found.groups[0].ranks == ((0, 1, 4),)


# A process with the SDK's page, whose words say which step runs, and calls with a kernel in one channel each.
STEPS = """
import goodput
goodput.start(run="r", rank=0, world_size=2)
from goodput.rank_page import page
words = goodput._session.recorder.words
context, mask = call.init(hash=1, size=2, rank=0)

def begin(operation="coll", function=b"AllReduce", count=100):
    return call.start(context, operation, None, func=function, count=count, datatype=b"ncclFloat32", nChannels=1)

def end(work, first, last):
    kernel = call.start(context, "kernelCh", work, pTimer=first)
    call.stop(work)
    call.state(kernel, "KernelChStop", last)
    call.stop(kernel)
"""


def test_device_time_of_steps_is_apart(built, pages):
    """The first call waits 10 s for a rank that comes late, before the first step; it ends in that step, as the second does."""
    code = """
first = begin()
words[page.W_STEP_START] = 1
second = begin()
end(first, 1000, 10_000_001_000)
end(second, 10_000_002_000, 10_000_002_500)
words[page.W_STEP_START], words[page.W_STEPS] = 0, 1
end(begin(count=50), 10_000_003_000, 10_000_003_100)
end(begin(function=b"Broadcast"), 10_000_004_000, 10_000_004_001)
"""
    run(built, pages, STEPS + code)
    _, found = only(pages)
    sums = {one.operation: (one.calls, one.bytes, one.device_ns) for one in found.sums}
    assert sums["all_reduce"] == (3, 1000, 10_000_000_600)
    assert found.of_steps == {(0, "all_reduce"): (2, 600, 600), (0, "broadcast"): (1, 400, 1)}
    assert found.hidden == {}


def test_sends_and_receives_of_a_group_count_each_moment_once(built, pages):
    """Three that run side by side from 1000 to 1900, then one from 2000 to 2100."""
    code = """
words[page.W_STEP_START] = 1
for operation, first, last in ((b"Send", 1000, 1500), (b"Recv", 1000, 1900), (b"Send", 1200, 1800), (b"Recv", 2000, 2100)):
    end(begin("p2p", operation), first, last)
"""
    run(built, pages, STEPS + code)
    _, found = only(pages)
    assert found.of_steps == {(0, "send"): (2, 800, 500), (0, "recv"): (2, 800, 500)}
    assert {one.operation: one.device_ns for one in found.sums} == {"send": 1100, "recv": 1000}


def test_without_the_sdk_no_call_is_of_a_step(built, pages):
    run(built, pages, ALL_REDUCE + END)
    assert only(pages)[1].of_steps == {}


def test_device_times_have_room_for_some_operations(built, pages):
    """Those beyond the table are in the sums alone."""
    code = f"""
words[page.W_STEP_START] = 1
for i in range({collective_records.HIDDEN_MAX + 2}):
    context, mask = call.init(hash=i + 2, size=2, rank=0)
    end(begin(), 1000, 1100)
    end(begin(), 2000, 2100)
"""
    run(built, pages, STEPS + code)
    _, found = only(pages)
    assert found.of_steps == {
        (i + 1, "all_reduce"): (2, 800, 200) for i in range(collective_records.HIDDEN_MAX)
    }
    assert len(found.sums) == collective_records.HIDDEN_MAX + 2


def test_restart_has_the_next_attempt_and_a_second_process_no_file(built, pages):
    launch = {"RANK": "0", "WORLD_SIZE": "2", "GOODPUT_RUN": "r"}
    second = """
import subprocess
context, mask = call.init(hash=1, size=2, rank=0)
if len(sys.argv) == 1:
    code = open("/proc/self/cmdline").read().split("\\0")[2]
    done = subprocess.run([sys.executable, "-c", code, "second"], capture_output=True, text=True)
    print(done.stdout)
else:
    print(context, mask)
"""
    run(built, pages, "call.init(hash=1, size=2, rank=0)", **launch)
    assert run(built, pages, second, **launch).split() == ["None", "0"]
    assert sorted(path.name for path in pages.iterdir()) == ["r.0.1.nccl", "r.0.2.nccl"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_files_of_others_and_empty_ones_move_no_attempt(built, pages):
    launch = {"RANK": "0", "WORLD_SIZE": "2", "GOODPUT_RUN": "r"}
    for name in ("r.0.1.nccl", "r.0.2.nccl"):
        (pages / name).touch()
        os.chown(pages / name, 54_321, 54_321)
    (pages / "r.1.1.nccl").touch()
    initialize = "call.init(hash=1, size=2, rank=0)"
    for variables in (launch, launch, launch | {"RANK": "1"}):
        run(built, pages, initialize, **variables)
    made = {path.name: path for path in pages.iterdir() if path.stat().st_size}
    assert set(made) == {"r.0.1~0.nccl", "r.0.2~0.nccl", "r.1.1.nccl"}
    for name, path in made.items():
        with Reader(str(path)) as reader:
            assert reader.identity["attempt"] == int(name[4])


@pytest.mark.parametrize(
    ("variables", "bits"),
    [
        ({"GOODPUT_NCCL": "0"}, 0),
        ({"GOODPUT_DISABLE": "1"}, 0),
        ({"GOODPUT_NCCL": "calls"}, 2 | 4 | 64 | 512 | 1024),
        ({}, 2 | 4 | 8 | 16 | 64 | 512 | 1024),
    ],
)
def test_events_that_are_requested(built, pages, variables, bits):
    assert run(built, pages, "print(call.init(hash=1, size=2, rank=0)[1])", **variables).split() == [
        str(bits)
    ]
    assert bool(list(pages.iterdir())) == bool(bits)


NOTHING = """
context, mask = call.init(hash=1, size=2, rank=0)
assert (context, mask) == (None, 0), (context, mask)
assert call.start(context, "coll", None, func=b"AllReduce") is None
call.stop(None); call.finalize(context)
print("alive")
"""


def test_host_survives_without_a_file(built, pages, tmp_path):
    (tmp_path / "file").write_text("")
    assert "alive" in run(built, tmp_path / "file" / "pages", NOTHING)
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    assert "alive" in run(built, pages, small + "import signal; signal.signal(signal.SIGXFSZ, 0)\n" + NOTHING)
    assert list(pages.iterdir()) == []


def test_host_survives_a_full_file_system(built, pages):
    code = START.format(plugin=str(built.plugin), version=5) + NOTHING
    mount = f'mount -t tmpfs -o size=64k none "{pages}" || exit 77; exec "$0" "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, sys.executable, "-c", code]
    env = environment(pages, PYTHONPATH=PYTHONPATH)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    if done.returncode in (1, 77) and "alive" not in done.stdout and "Traceback" not in done.stderr:
        pytest.skip("needs the right to mount a tmpfs")
    assert done.stdout.split() == ["alive"], done.stderr


def test_host_survives_a_page_that_others_have_written(built, pages):
    code = """
context, mask = call.init(hash=1, size=2, rank=0)
(name,) = os.listdir(os.environ["GOODPUT_DIR"])
size = os.stat(path := os.path.join(os.environ["GOODPUT_DIR"], name)).st_size
for pattern in (b"\\xff", b"\\x7f", b"\\x01", b"\\0"):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, pattern * size, 0)
    for i in range(600):
        work = call.start(context, "coll", None, func=b"AllReduce", count=1, datatype=b"ncclInt8", nChannels=1)
        kernel = call.start(context, "kernelCh", work, pTimer=1)
        operation = call.start(context, "proxyOp", work, pid=os.getpid())
        step = call.start(context, "proxyStep", operation)
        call.state(step, "RecvWait", 1)
        call.stop(step); call.stop(operation); call.stop(kernel); call.stop(work)
print("alive")
"""
    assert "alive" in run(built, pages, code)


def test_forked_child_writes_nothing(built, pages):
    code = """
context, mask = call.init(hash=1, size=2, rank=0)
if os.fork() == 0:
    assert call.start(context, "coll", None, func=b"AllReduce", count=1, datatype=b"ncclInt8") is None
    assert call.init(hash=2, size=2, rank=0) == (None, 0)
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
"""
    run(built, pages, code)
    snapshot, found = only(pages)
    assert found.written == 0 and len(found.groups) == 1 and snapshot.ended == "finished"


def test_failed_exit_is_noted(built, pages):
    run(built, pages, "call.init(hash=1, size=2, rank=0); sys.exit(5)", returncode=5)
    assert only(pages)[0].ended == "failed"


def test_library_stays_when_nccl_closes_it(built, pages):
    """NCCL closes it with the last communicator and opens it again with the next: the file is still written."""
    code = """
import _ctypes
context, mask = call.init(hash=1, size=2, rank=0)
_ctypes.dlclose(PLUGIN._handle)
again = Table(ctypes.CDLL(PLUGIN._name), 5)
context, mask = again.init(hash=2, size=2, rank=0)
again.start(context, "coll", None, func=b"AllReduce", count=1, datatype=b"ncclInt8")
"""
    run(built, pages, code)
    assert [one.calls for one in only(pages)[1].groups] == [0, 1]


def test_mask_is_printed_by_the_host(built, pages):
    """NCCL 2.27 asks for the proxy's and kernel's events, 2.28 for the API's too, 2.29 for the copy engine's."""
    masks = [json.loads(run_host(built, pages, v, "wild", rounds=1).stdout)["mask"] for v in VERSIONS]
    assert [mask - masks[0] for mask in masks] == [0, 512 + 1024, 512 + 1024 + 4096]


def test_phase_is_communication_while_any_call_is_open(built, pages):
    """Of several communicators; also when an open one is given up because too many came after it."""
    code = """
from goodput.rank_page.reader import Reader
contexts = [call.init(hash=i, size=2, rank=0)[0] for i in range(3)]
(name,) = os.listdir(os.environ["GOODPUT_DIR"])
reader = Reader(os.path.join(os.environ["GOODPUT_DIR"], name))
def begin(i):
    work = call.start(contexts[i], "coll", None, func=b"AllReduce", count=1, datatype=b"ncclInt8", nChannels=1)
    return call.start(contexts[i], "kernelCh", work, pTimer=1)
phases = []
def see():
    phases.append(reader.snapshot().phase[:4])
see()
first = begin(0); see()
second = begin(1); call.stop(first); see()
call.stop(second); see()
never = begin(2)
for _ in range(4095):
    call.stop(begin(0))
see()
call.stop(begin(1)); see()
print(*phases)
"""
    assert run(built, pages, code).split() == ["none", "comm", "comm", "none", "comm", "none"]
