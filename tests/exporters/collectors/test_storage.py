"""File systems: what is watched, one that does not answer, and the statistics of NFS and Lustre clients."""

import logging
import os
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node.broken_files import parse_or_raise
from support.node.node_tree import collect, of, wait_until
from support.node.storage_tree import LLITE_NEW, LLITE_OLD, MOUNTINFO, MOUNTSTATS, ScriptedProbes, Unkillable

from goodput.metrics import Families
from goodput_exporters.collector import NoData, ParseError, Settings
from goodput_exporters.collectors.storage import filesystem_probe, lustre
from goodput_exporters.collectors.storage.collector import MOUNTS_MAX, Storage
from goodput_exporters.collectors.storage.filesystem_probe import (
    FilesystemProbe,
    FilesystemUsage,
    ProbeFailure,
)
from goodput_exporters.system import mounts

PARSERS = {
    mounts.parse_mountinfo: MOUNTINFO,
    mounts.parse_mountstats: MOUNTSTATS,
    lustre.parse_llite: LLITE_OLD + LLITE_NEW,
    filesystem_probe.parse_result: "3 0.25 4096 1000 400 50 20 0 50",
}
WORDS = """device mounted on with fstype nfs4 bytes: per-op statistics READ: - 0:50 / /a rw \\040 1 -1 x
samples [bytes] [usecs] read_bytes error""".split()  # noqa: SIM905


@pytest.fixture
def probes():
    probes = ScriptedProbes()
    yield probes
    probes.end()


@pytest.fixture
def clock():
    """Seconds that pass only when advanced."""

    class Clock:
        seconds = 0.0

        def __call__(self) -> float:
            return self.seconds

    return Clock()


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def storage_on(tmp_path, probes=None, paths=(), **given) -> Storage:
    settings = Settings(directory="", procfs=str(tmp_path / "proc"), sysfs=str(tmp_path / "sys"), paths=paths)
    return Storage(settings, FilesystemProbe(start=probes or ScriptedProbes(), **given))


# -- parsers


def test_mountinfo():
    found = {mount.path: mount for mount in mounts.parse_mountinfo(MOUNTINFO)}
    assert found["/my scratch"] == mounts.Mount("0:51", "/my scratch", "lustre", "10.0.0.2@o2ib:/scratch")
    assert found["/bucket"].source == "https://host/bucket"  # Without the password.
    assert {path for path, mount in found.items() if mount.is_remote} == {
        *("/data", "/var/lib/kubelet/pods/a/volumes/data", "/my scratch", "/bucket"),
    }


def test_mountstats():
    mount = mounts.parse_mountstats(MOUNTSTATS)["/data"]
    assert mount.read == (1207640230 + 2000, 1210214218) and mount.written == (50 + 7, 55)
    assert mount.operations["READ"] == mounts.Calls(1298, 1301, 2, 7.0, 79.386, 79.407, 3)
    assert mount.operations["GETATTR"].errors is None  # Before 1.1 they were not counted.
    assert set(mounts.parse_mountstats(MOUNTSTATS)) == {"/data", "/var/lib/kubelet/pods/a/volumes/data"}


def test_lustre_text():
    old, new = lustre.parse_llite(LLITE_OLD), lustre.parse_llite(LLITE_NEW)
    assert old["read_bytes"] == (25673, "bytes", 145121869) and old["open"] == (91, "regs", None)
    assert new["read"] == (11, "usecs", 2500000)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
def test_any_text_parses_or_raises(parse):
    words = st.sampled_from([*WORDS, "1" * 30])
    lines = st.lists(st.lists(words, max_size=14).map(" ".join), max_size=6).map("\n".join)
    cut = st.integers(0, len(PARSERS[parse])).map(lambda end: PARSERS[parse][:end])

    @given(st.one_of(st.text(), lines, cut))
    def run(text):
        parse_or_raise(parse, text)

    run()


@pytest.mark.parametrize(
    "parse, text",
    [
        (mounts.parse_mountinfo, "1 2 0:1 / /a rw nfs4\n"),
        (mounts.parse_mountinfo, "1 2 0:1 / - nfs4 s:/a rw\n"),
        (mounts.parse_mountstats, "device a b mounted on /c with fstype nfs\n"),
        (mounts.parse_mountstats, "device a mounted on /c with fstype nfs\n\tbytes: 1 2 3\n"),
        (
            mounts.parse_mountstats,
            "device a mounted on /c with fstype nfs\n\tper-op statistics\n READ: 1 2 3 4 5 6 7\n",
        ),
        (lustre.parse_llite, "nonsense\n"),
        (lustre.parse_llite, "read_bytes x samples [bytes] 1 2 3\n"),
        (filesystem_probe.parse_result, "1 x 1 1 1 1 1 1 1"),
        (filesystem_probe.parse_result, "1 0.5 1"),
    ],
)
def test_malformed_texts_raise(parse, text):
    with pytest.raises(ParseError):
        parse(text)


# -- asking file systems


def test_this_machines_own_file_systems(tmp_path):
    probe = FilesystemProbe(first_wait_seconds=20.0)
    missing = str(tmp_path / "missing")
    found = probe.poll([str(tmp_path), missing])
    here, device = os.statvfs(tmp_path), os.stat(tmp_path).st_dev
    answer = found[str(tmp_path)]
    assert found[missing] == ProbeFailure(2)
    assert (answer.size_bytes, answer.inodes) == (here.f_blocks * here.f_frsize, here.f_files)
    assert answer.available_bytes == pytest.approx(here.f_bavail * here.f_frsize, rel=0.2)
    assert answer.device == f"{os.major(device)}:{os.minor(device)}" and 0 < answer.seconds < 10
    assert probe.problems == []
    wait_until(lambda: probe.poll([missing]) and not probe._workers)  # It was waited for: no zombie.


def test_probe_worker_imports_only_stdlib():
    with open(filesystem_probe.WORKER_FILE) as file:
        imported = {line.split()[1].split(".")[0] for line in file if line.startswith(("import ", "from "))}
    assert imported <= set(sys.stdlib_module_names)


def test_hanging_path_delays_no_other(probes, clock):
    probes.answers["/good"] = "0.5 10 100 50 7 3 0 9"
    probe = FilesystemProbe(start=probes, monotonic=clock, first_wait_seconds=0.1, wait_seconds=0.0)
    found = wait_until(lambda: probe.poll(["/dead", "/good"]))
    assert found == {"/good": FilesystemUsage(0.5, 1000, 500, 7, 3, "0:9")}
    clock.seconds = 4.9
    assert "/dead" not in probe.poll(["/dead", "/good"])
    clock.seconds = 5.0
    begun = time.monotonic()
    assert probe.poll(["/dead", "/good"])["/dead"] == ProbeFailure(None)
    assert time.monotonic() - begun < 4  # One that is overdue is not waited for.
    assert probes.started == [["/dead", "/good"]]


def test_unkillable_probe_is_not_repeated(clock):
    started = []

    def start(paths):
        started.append((paths, Unkillable()))
        return started[-1][1]

    probe = FilesystemProbe(start=start, monotonic=clock, first_wait_seconds=0.0, wait_seconds=0.0)
    for clock.seconds in (0.0, 5.0, 10.0, 100.0, 1000.0):
        found = probe.poll(["/dead"])
    assert found == {"/dead": ProbeFailure(None)} and len(started) == 1 and started[0][1].kills >= 1
    started[0][1].end()
    clock.seconds = 1001.0
    assert probe.poll(["/dead"]) == {"/dead": ProbeFailure(None)}  # Until it answers.
    assert [paths for paths, _ in started] == [["/dead"], ["/dead"]] and probe.problems == []
    started[1][1].end()
    probe.close()


def test_unkillable_probe_does_not_slow_later_polls(probes, clock):
    probes.answers["/good"] = "0.5 10 100 50 7 3 0 9"
    dead = Unkillable()
    probe = FilesystemProbe(
        start=lambda paths: dead if paths == ["/dead"] else probes(paths),
        monotonic=clock, first_wait_seconds=0.0, wait_seconds=5.0,
    )  # fmt: skip
    probe.poll(["/dead"])
    clock.seconds = 5.0
    begun = time.monotonic()
    assert probe.poll(["/dead"]) == {"/dead": ProbeFailure(None)} and time.monotonic() - begun < 4.0
    wait_until(lambda: "/good" in probe.poll(["/dead", "/good"]))
    clock.seconds = 15.0
    begun = time.monotonic()
    assert len(probe.poll(["/dead", "/good"])) == 2 and len(probes.started) == 2
    assert time.monotonic() - begun < 4.0
    dead.end()


def test_result_of_dropped_path_is_discarded(clock):
    late = Unkillable()
    probe = FilesystemProbe(start=lambda paths: late, monotonic=clock, first_wait_seconds=0.0)
    assert probe.poll(["/data"]) == {}
    os.write(late.other_end, b"0 0.5 10 100 50 7 3 0 9\n")
    assert probe.poll([]) == {} and probe._results == {}
    late.end()


def test_failed_path_recovers(probes, clock):
    probe = FilesystemProbe(start=probes, monotonic=clock, first_wait_seconds=0.0, wait_seconds=0.0)
    for clock.seconds in (0.0, 5.0):
        found = probe.poll(["/data"])
    assert found == {"/data": ProbeFailure(None)}
    probes.processes[0].wait()  # Killed.
    probes.answers["/data"] = "0.5 10 100 50 7 3 0 9"
    probe._wait = 20.0
    clock.seconds = 10.0
    assert isinstance(probe.poll(["/data"])["/data"], FilesystemUsage)


def test_probes_are_rate_limited(probes, clock):
    probes.answers["/data"] = "0.5 10 100 50 7 3 0 9"
    probe = FilesystemProbe(
        start=probes, monotonic=clock, every_seconds=10.0, first_wait_seconds=20.0, wait_seconds=20.0
    )
    for clock.seconds in (0.0, 1.0, 9.9, 10.0, 11.0):
        assert probe.poll(["/data"])["/data"].inodes == 7
    assert len(probes.started) == 2
    assert probe.poll([]) == {} and probe._probed_at == {} and probe._results == {}


def test_dead_probe_is_a_problem_not_a_failure(clock):
    import subprocess

    def start(paths):
        return subprocess.Popen(["sh", "-c", "echo nonsense; exit 3"], stdout=subprocess.PIPE)

    probe = FilesystemProbe(start=start, monotonic=clock, first_wait_seconds=20.0)
    assert probe.poll(["/data"]) == {}
    assert "nonsense" in probe.problems[0] and "status 3" in probe.problems[1]


def test_unstartable_probe_is_a_problem():
    def start(paths):
        raise OSError(12, "no memory")

    probe = FilesystemProbe(start=start)
    assert probe.poll(["/data"]) == {} and "no memory" in probe.problems[0]


# -- the collector


def test_a_tree(tmp_path, probes):
    write(tmp_path, {"proc/self/mountinfo": MOUNTINFO, "proc/self/mountstats": MOUNTSTATS})
    probes.answers = {
        "/data": "0.25 4096 1000 400 50 20 0 50",
        "/my scratch": "0.5 4096 2000 300 0 0 0 51",
        "/bucket": "0.5 4096 2000 300 0 0 0 99",  # Another file system lies at this path here.
        "/checkpoints": "0.125 4096 10 5 6 4 254 0",
    }
    storage = storage_on(tmp_path, probes, paths=("/checkpoints",), first_wait_seconds=20.0)
    found = collect(storage)
    assert set(of(found, "goodput_filesystem_info")) == {
        ("nfs4", "/data", "server:/export/data"), ("lustre", "/my scratch", "10.0.0.2@o2ib:/scratch"),
        ("fuse.gcsfuse", "/bucket", "https://host/bucket"), ("ext4", "/checkpoints", "/dev/vda"),
    }  # fmt: skip
    mine = {("/data",): 1.0, ("/my scratch",): 1.0, ("/checkpoints",): 1.0}
    assert of(found, "goodput_filesystem_up") == mine
    assert of(found, "goodput_filesystem_size_bytes")[("/data",)] == 4_096_000
    assert of(found, "goodput_filesystem_available_bytes")[("/checkpoints",)] == 5 * 4096
    assert of(found, "goodput_filesystem_response_seconds")[("/my scratch",)] == 0.5
    assert of(found, "goodput_filesystem_inodes") == {
        ("total", "/data"): 50, ("free", "/data"): 20, ("total", "/checkpoints"): 6, ("free", "/checkpoints"): 4,
    }  # fmt: skip
    assert of(found, "goodput_nfs_bytes_total")[("write", "/data", "application")] == 57
    assert of(found, "goodput_nfs_bytes_total")[("read", "/data", "server")] == 1210214218
    assert of(found, "goodput_nfs_operations_total") == {
        ("/data", "read"): 1298, ("/data", "write"): 10, ("/data", "getattr"): 5,
    }  # fmt: skip
    assert of(found, "goodput_nfs_transmissions_total")[("/data", "read")] == 1301
    assert of(found, "goodput_nfs_timeouts_total")[("/data", "read")] == 2
    assert of(found, "goodput_nfs_errors_total") == {("/data", "read"): 3, ("/data", "write"): 0}
    seconds = of(found, "goodput_nfs_operation_seconds_total")
    assert [seconds["/data", "read", part] for part in ("queue", "response", "total")] == [
        7.0,
        79.386,
        79.407,
    ]
    assert "secret" not in str(found)


def test_live_procfs_mounts_need_no_device_match(tmp_path, probes):
    """There the list is that of the reader, /proc/self is a link, and a device number may differ (GPFS)."""
    write(tmp_path, {"proc/7/mountinfo": MOUNTINFO})
    (tmp_path / "proc/self").symlink_to("7")
    probes.answers = dict.fromkeys(("/data", "/my scratch", "/bucket"), "0.5 4096 2000 300 0 0 0 99")
    found = collect(storage_on(tmp_path, probes, first_wait_seconds=20.0))
    assert len(of(found, "goodput_filesystem_up")) == 3


def test_unresponsive_file_system_is_down(tmp_path, probes, clock, caplog):
    write(tmp_path, {"proc/self/mountinfo": MOUNTINFO})
    probes.answers = {"/my scratch": "error 116", "/bucket": "error 13"}
    storage = storage_on(tmp_path, probes, ("/gone",), monotonic=clock, first_wait_seconds=0.1)
    probes.answers["/gone"] = "error 2"
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: len(of(collect(storage), "goodput_filesystem_up")) == 2)
        clock.seconds = 5.0
        found = collect(storage)
    # A stale handle is a failure; what this user may not see is none, and a path that was configured must be there.
    assert of(found, "goodput_filesystem_up") == {("/data",): 0.0, ("/my scratch",): 0.0, ("/gone",): 0.0}
    assert of(found, "goodput_filesystem_size_bytes") == {}
    collect(storage)
    assert [record.message for record in caplog.records].count("file system /data: does not answer") == 1


def test_unmounted_file_system_has_no_series(tmp_path, probes, caplog):
    storage = storage_on(tmp_path, probes, first_wait_seconds=20.0)
    probes.answers = dict.fromkeys(("/data", "/my scratch", "/bucket"), "error 5")
    with caplog.at_level(logging.WARNING):
        for text in (MOUNTINFO, "", MOUNTINFO):
            write(tmp_path, {"proc/self/mountinfo": text})
            try:
                storage.collect(Families("node"))
            except NoData:
                assert not text and not storage._down
    assert sum("/data: " in record.message for record in caplog.records) == 2


def test_dead_mount_is_identified_by_mountinfo(tmp_path, probes):
    write(tmp_path, {"proc/self/mountinfo": MOUNTINFO})
    probes.answers = {"/data": "error 116", "/my scratch": "error 5", "/bucket": "error 5"}
    found = collect(storage_on(tmp_path, probes, ("/data",), first_wait_seconds=20.0))
    assert ("nfs4", "/data", "server:/export/data") in of(found, "goodput_filesystem_info")
    assert of(found, "goodput_filesystem_up")[("/data",)] == 0 and len(probes.started[0]) == 3


def test_mounts_of_pid_1_are_not_probed(tmp_path, probes):
    write(
        tmp_path,
        {
            "proc/self/mountinfo": "27 1 0:9 / / rw - overlay overlay rw\n",
            "proc/1/mountinfo": MOUNTINFO,
            "proc/1/mountstats": MOUNTSTATS,
        },
    )
    found = collect(storage_on(tmp_path, probes))
    assert probes.started == [] and len(of(found, "goodput_filesystem_info")) == 3
    assert {labels[0] for labels in of(found, "goodput_nfs_operations_total")} == {"/data"}


def test_shared_mounts_appear_once(tmp_path, probes):
    for process in ("self", "1"):
        write(tmp_path, {f"proc/{process}/mountinfo": MOUNTINFO, f"proc/{process}/mountstats": MOUNTSTATS})
    probes.answers = dict.fromkeys(("/data", "/my scratch", "/bucket"), "error 5")
    found = collect(storage_on(tmp_path, probes))
    assert len(of(found, "goodput_filesystem_info")) == 3


def test_names_with_equal_labels_are_one_series(tmp_path, probes):
    line = "1 2 0:{0} / {1} rw - nfs4 s:/{0} rw\n"
    long = "/" + "x" * 300
    names = ("/a\\001", "/a\\002", long + "1", long + "2")
    text = "".join(line.format(60 + at, name) for at, name in enumerate(names))
    write(tmp_path, {"proc/self/mountinfo": text})
    probes.answers = dict.fromkeys(("/a\x01", "/a\x02", "/a\x03", long + "1", long + "2"), "error 5")
    found = collect(
        storage_on(tmp_path, probes, ("/a\x03",))
    )  # samples() asserts that nothing is there twice.
    assert len(of(found, "goodput_filesystem_info")) == 1


def test_mounts_are_bounded(tmp_path, probes):
    text = "".join(f"1 2 0:{n} / /m{n} rw - nfs s:/{n} rw\n" for n in range(1, 2 * MOUNTS_MAX))
    write(tmp_path, {"proc/self/mountinfo": text})
    probes.answers = {f"/m{n}": "error 5" for n in range(1, 2 * MOUNTS_MAX)}
    found = collect(storage_on(tmp_path, probes), problem=f"{2 * MOUNTS_MAX - 1} file systems")
    assert len(of(found, "goodput_filesystem_info")) == MOUNTS_MAX == len(probes.started[0])


@pytest.mark.parametrize("root", ["sys/kernel/debug/lustre", "proc/fs/lustre", "sys/fs/lustre"])
def test_lustre(tmp_path, root):
    write(
        tmp_path,
        {
            f"{root}/llite/scratch-ffff88003b2d8000/stats": LLITE_OLD,
            f"{root}/llite/scratch-ffff88003b2d9000/stats": LLITE_OLD,
            f"{root}/llite/home-ffff88003b2da000/stats": LLITE_NEW,
        },
    )
    found = collect(storage_on(tmp_path))
    assert of(found, "goodput_lustre_bytes_total") == {
        ("read", "scratch"): 2 * 145121869, ("write", "scratch"): 2 * 468230469, ("read", "home"): 1000,
    }  # fmt: skip
    operations = of(found, "goodput_lustre_operations_total")
    assert operations["scratch", "read"] == 2 * 25673 and operations["scratch", "open"] == 182
    assert operations["home", "read"] == 11
    assert of(found, "goodput_lustre_operation_seconds_total") == {
        ("home", "read"): 2.5, ("home", "open"): 0.00008,
    }  # fmt: skip


def test_a_broken_file_costs_its_own_series_alone(tmp_path, probes):
    write(
        tmp_path,
        {
            "proc/self/mountinfo": MOUNTINFO,
            "proc/self/mountstats": "device a b mounted on /c with fstype nfs\n",
            "proc/fs/lustre/llite/a-ffff88003b2d8000/stats": "nonsense",
            "proc/fs/lustre/llite/b-ffff88003b2d8000/stats": LLITE_OLD,
        },
    )
    probes.answers = dict.fromkeys(("/data", "/my scratch", "/bucket"), "error 5")
    storage = storage_on(tmp_path, probes, first_wait_seconds=20.0)
    found = collect(storage, problem=r"mountstats: .*llite/a-")
    assert len(of(found, "goodput_filesystem_up")) == 3
    assert ("read", "b") in of(found, "goodput_lustre_bytes_total")


@pytest.mark.parametrize("name", ["mountinfo", "mountstats"])
def test_malformed_mounts_of_process_1_are_an_error(tmp_path, probes, name):
    """Only that this user may not read them is none."""
    files = {"proc/self/mountinfo": MOUNTINFO, "proc/1/mountinfo": MOUNTINFO, f"proc/1/{name}": "nonsense\n"}
    write(tmp_path, files)
    collect(storage_on(tmp_path, probes), problem=rf"1/{name}: no mount in 'nonsense")


def test_nothing_is_no_data(tmp_path):
    with pytest.raises(NoData):
        storage_on(tmp_path).collect(Families("node"))
