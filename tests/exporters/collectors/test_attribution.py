"""Whose ranks and GPU processes are: control groups, environments, PID namespaces, and what must never leak."""

import contextlib
import os
import pwd
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node import node_rank
from support.node.attribution_tree import CONTAINER, OTHER, PLACES, UID, add_process
from support.node.node_rank import PID, TICKS, Rank
from support.node.node_tree import Clock, samples, wait_until
from support.other_users import as_root

from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, NoData, ParseError, Settings
from goodput_exporters.collectors.attribution.collector import Attribution
from goodput_exporters.collectors.attribution.pods import Pods
from goodput_exporters.collectors.ranks.collector import Ranks
from goodput_exporters.gpu.sample import Gpu
from goodput_exporters.system import processes
from goodput_exporters.system.cgroup import parse_cgroup
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.processes import Processes, parse_environment, parse_stat
from goodput_exporters.system.ranks import RankProcess

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "TOKEN": "hunter2",
    "XPOD_NAME": "hunter2",
    "pod_name": "hunter2",
}


def attribution_on(settings, ranks, gpus=(), clock=None) -> Attribution:
    clock_ns = (clock or Clock()).monotonic_ns
    attribution = Attribution(
        settings, Processes(settings.procfs, Pods(settings.container_logs, clock_ns), clock_ns)
    )
    attribution.ranks, attribution.gpus = ranks.processes, lambda: gpus
    return attribution


def collect(attribution, problem: str = "") -> dict:
    """The series; `problem` is in the text of the error that it raises after them."""
    families = Families("node")
    with pytest.raises(CollectorError, match=problem) if problem else contextlib.nullcontext():
        attribution.collect(families)
    return samples(families)


def rows(attribution, series: str) -> list[dict]:
    families = Families("node")
    attribution.collect(families)
    return [sample.labels for family in families for sample in family.samples if sample.name == series]


def only(attribution, series: str = "goodput_rank_process_info") -> dict:
    (labels,) = rows(attribution, series)
    return labels


@pytest.fixture
def rank(tree, ranks):
    """A living rank of pid PID; its process is given by each test."""
    rank = Rank(tree / "pages")
    rank.step({"forward": 1000})
    add_process(tree, PID, TICKS)
    ranks.poll()
    return rank


# -- control groups


@pytest.mark.parametrize("name", PLACES)
def test_places(name):
    text, *expected = PLACES[name]
    found = parse_cgroup(text)
    assert [found.container_id, found.pod_uid, found.slurm_job, found.slurm_step] == expected
    assert len(found.path) == max(len(line.split(":", 2)[2]) for line in text.splitlines())


@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from([*"/:-_\n0", "job_1", "step_0", "slurm", "pod" + UID, CONTAINER, ".scope", "::"])
        ).map("".join),
    )
)
def test_any_cgroup_text_parses(text):
    found = parse_cgroup(text)
    assert all(isinstance(value, str) and len(value) <= 512 and value.isprintable() for value in found)


# -- processes


def test_this_process():
    own, files = Processes("/proc"), CounterFiles()
    stat = own.stat(os.getpid(), files)
    with open("/proc/self/comm") as file:
        assert stat.comm == file.read().rstrip("\n")
    assert 0 <= stat.processor < os.cpu_count()
    owner = own.owner(os.getpid(), files)
    assert owner.user == pwd.getpwuid(os.getuid()).pw_name
    me = RankProcess("r", 0, "n", os.getpid(), stat.start_ticks)
    assert own.find([me]) == {me: os.getpid()}
    assert own.owner(1 << 22, files) is None
    assert files.problems == []


@given(st.one_of(st.text(), st.lists(st.sampled_from([*"(): SZ", "1", "x", "1" * 30])).map(" ".join)))
def test_any_stat_text_parses_or_raises(text):
    try:
        parse_stat(text)
    except ParseError:
        pass


@given(st.binary())
def test_any_environment_parses(text):
    assert set(parse_environment(text.decode("utf-8", "replace"))) == set(processes.ENVIRONMENT)


def test_stat_with_brackets_and_zombie():
    numbers = "1 " * 18 + "777 " + "0 " * 16 + "5 0 0"
    assert parse_stat(f"7 (a ) (b) S {numbers}") == ("a ) (b", 777, 5)
    assert parse_stat(f"7 (a) Z {numbers}") is None


# -- ranks


def test_a_plain_process(tree, settings, ranks, rank):
    add_process(tree, PID, TICKS, comm="train.py", cgroup="0::/user.slice/session-2.scope\n")
    labels = only(attribution_on(settings, ranks))
    assert labels == {
        "run": "r1", "rank": "0", "pid": str(PID), "host": "n0", "user": "root", "comm": "train.py",
        "container": "", "container_id": "", "pod": "", "namespace": "", "pod_uid": "", "slurm_job": "", "slurm_step": "",
        "cgroup": "/user.slice/session-2.scope",
    }  # fmt: skip


@as_root
def test_a_slurm_step(tree, settings, ranks, rank):
    os.chown(rank.path, 3_999_999_999, -1)
    add_process(
        tree, PID, TICKS, uid=3_999_999_999, cgroup=PLACES["Slurm v2"][0],
        environ={**SECRETS, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "9", "SLURM_JOB_USER": "ada"},
    )  # fmt: skip
    labels = only(attribution_on(settings, ranks))
    assert (labels["slurm_job"], labels["slurm_step"], labels["user"]) == ("4711", "interactive", "ada")


@as_root
def test_slurm_job_from_environment(tree, settings, ranks, rank):
    os.chown(rank.path, 3_999_999_999, -1)
    add_process(tree, PID, TICKS, uid=3_999_999_999, environ={"SLURM_JOBID": "12", "SLURM_STEPID": "0"})
    labels = only(attribution_on(settings, ranks))
    assert (labels["slurm_job"], labels["slurm_step"], labels["user"]) == ("12", "0", "3999999999")


def test_inherited_slurm_step_is_ignored(tree, settings, ranks, rank):
    environ = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "9"}
    add_process(tree, PID, TICKS, cgroup=PLACES["Slurm, job alone"][0], environ=environ)
    labels = only(attribution_on(settings, ranks))
    assert (labels["slurm_job"], labels["slurm_step"]) == ("4711", "")


SLUID, SLUID_STEP = "s5K1KKYAYG5D00", PLACES["Slurm 26.05"][0]


@as_root
@pytest.mark.parametrize(
    ("declared", "stepd", "expected"),
    [
        (SLUID, None, ("4711", "0", "ada")),
        ("sEKNKTV3WPV500", None, ("", "0", "3999999999")),
        (None, None, ("", "0", "3999999999")),
        (None, ("slurmstepd: [12.0]", SLUID), ("12", "0", "3999999999")),
        ("sEKNKTV3WPV500", ("slurmstepd: [12.batch]", SLUID), ("12", "0", "3999999999")),
        (None, ("slurmstepd: [12.0]", "sEKNKTV3WPV500"), ("", "0", "3999999999")),
        (None, ("python train.py", SLUID), ("", "0", "3999999999")),
    ],
)
def test_slurm_job_of_a_sluid(tree, settings, ranks, rank, declared, stepd, expected):
    """Variables count where they are of the group's job; else its number is in the title of the slurmstepd above."""
    os.chown(rank.path, 3_999_999_999, -1)
    environ = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "9", "SLURM_JOB_USER": "ada"}
    environ |= {"SLURM_JOB_SLUID": declared} if declared else {}
    add_process(tree, PID, TICKS, uid=3_999_999_999, parent=70, cgroup=SLUID_STEP, environ=environ)
    if stepd is not None:
        add_process(tree, 70, TICKS - 5, comm="bash", parent=60, cgroup=SLUID_STEP)
        title, sluid = stepd
        group = f"0::/system.slice/slurmstepd.scope/{sluid}/step_0/slurm\n"
        add_process(tree, 60, TICKS - 9, comm="slurmstepd", cgroup=group, cmdline=title)
    labels = only(attribution_on(settings, ranks))
    assert (labels["slurm_job"], labels["slurm_step"], labels["user"]) == expected


def test_parents_in_a_circle_end(tree, settings, ranks, rank):
    add_process(tree, PID, TICKS, parent=70, cgroup=SLUID_STEP)
    add_process(tree, 70, TICKS, parent=PID, cgroup=SLUID_STEP)
    assert only(attribution_on(settings, ranks))["slurm_job"] == ""


def test_pod_from_downward_api(tree, settings, ranks, rank):
    environ = {
        "POD_NAME": "train-0",
        "POD_NAMESPACE": "ml",
        "HOSTNAME": "not-the-pod",
        "K8S_CONTAINER_NAME": "main",
    }
    add_process(tree, PID, TICKS, cgroup=PLACES["v2 systemd containerd"][0], environ=environ)
    labels = only(attribution_on(settings, ranks))
    assert (labels["pod"], labels["namespace"], labels["pod_uid"]) == ("train-0", "ml", UID)
    assert (labels["container"], labels["container_id"]) == ("main", CONTAINER)


def test_pod_from_kubelet_links(tree, settings, ranks, rank):
    logs = tree / "containers"
    logs.mkdir()
    (logs / f"train-worker-3_ml-team_main-loop-{CONTAINER}.log").symlink_to("/nowhere")
    (logs / f"other_ml_side-{OTHER}.log").symlink_to("/nowhere")
    (logs / "notes.txt").write_text("")
    add_process(
        tree, PID, TICKS, cgroup=PLACES["v2 systemd containerd"][0], environ={"POD_NAME": "set-by-the-user"}
    )
    settings = Settings(directory=settings.directory, procfs=settings.procfs, container_logs=str(logs))
    labels = only(attribution_on(settings, ranks))
    assert (labels["pod"], labels["namespace"], labels["container"]) == (
        "train-worker-3",
        "ml-team",
        "main-loop",
    )


def test_late_pod_name_is_used(tree, settings, ranks, rank):
    clock, logs = Clock(), tree / "containers"
    add_process(tree, PID, TICKS, cgroup=PLACES["docker, v2"][0])
    settings = Settings(directory=settings.directory, procfs=settings.procfs, container_logs=str(logs))
    attribution = attribution_on(settings, ranks, clock=clock)
    assert only(attribution)["pod"] == ""
    logs.mkdir()
    (logs / f"a_b_c-{CONTAINER}.log").symlink_to("/nowhere")
    clock.seconds = 30.0
    assert only(attribution)["pod"] == ""
    clock.seconds = 60.0
    assert only(attribution)["pod"] == "a"


def test_only_listed_variables_are_exposed(tree, settings, ranks, rank, caplog):
    secrets = {**SECRETS, "POD_NAMEX": "hunter2", "A": "POD_NAME=hunter2\nPOD_NAME=hunter2"}
    add_process(tree, PID, TICKS, environ=secrets)
    attribution = attribution_on(settings, ranks)
    assert "hunter2" not in str(collect(attribution)) + caplog.text
    kept = str(vars(attribution._processes)) + str(vars(attribution._processes._pods))
    assert "python (x) y" in kept and "hunter2" not in kept


def test_values_are_cleaned_and_cut(tree, settings, ranks, rank):
    environ = {"POD_NAME": "a\nb\x1b[31m" + "x" * 1000}
    add_process(tree, PID, TICKS, comm="c\x01d", environ=environ, cgroup="0::/" + "g" * 5000)
    labels = only(attribution_on(settings, ranks))
    assert labels["pod"].startswith("a?b?[31m") and len(labels["pod"]) == 255
    assert labels["comm"] == "c?d" and len(labels["cgroup"]) == 512


def test_a_process_is_read_once(tree, settings, ranks, rank):
    attribution = attribution_on(settings, ranks)
    before = only(attribution)
    for name in ("status", "cgroup", "environ"):
        (tree / "proc" / str(PID) / name).unlink()
    assert only(attribution) == before


@pytest.mark.parametrize("name", ["status", "cgroup", "environ"])
def test_unreadable_files_leave_other_labels(tree, settings, ranks, rank, name):
    add_process(tree, PID, TICKS, cgroup=PLACES["v2 systemd containerd"][0], environ={"POD_NAME": "a"})
    path = tree / "proc" / str(PID) / name
    path.unlink()
    path.mkdir()  # Reading it fails, for root too.
    labels = only(attribution_on(settings, ranks))
    assert labels["comm"] == "python (x) y"
    assert labels["pod"] == ("" if name == "environ" else "a")
    assert labels["container_id"] == ("" if name == "cgroup" else CONTAINER)


def test_reused_pid_is_not_the_rank(tree, settings, ranks, rank):
    """As in an agent that has another PID namespace than the trainer."""
    attribution = attribution_on(settings, ranks)
    assert rows(attribution, "goodput_rank_process_info")
    add_process(tree, PID, TICKS + 1, comm="somebody", environ={"POD_NAME": "somebody"})
    found = collect(attribution)
    assert found["goodput_rank_process_known", ("0", "r1")] == 0
    assert "somebody" not in str(found)
    assert not rows(attribution, "goodput_rank_process_info")


def test_namespaced_process_found_by_inner_pid(tree, settings, ranks, rank):
    add_process(tree, PID, TICKS + 1, comm="somebody")
    add_process(tree, 90001, TICKS, comm="other", pids=(90001, 3))
    add_process(tree, 90002, TICKS + 9, comm="later", pids=(90002, PID))
    add_process(tree, 90003, TICKS, comm="trainer", pids=(90003, 17, PID))
    attribution = attribution_on(settings, ranks)
    labels = only(attribution)
    assert (labels["pid"], labels["comm"]) == ("90003", "trainer")
    assert collect(attribution)["goodput_rank_process_known", ("0", "r1")] == 1


def test_ambiguous_process_is_unknown(tree, settings, ranks, rank):
    add_process(tree, PID, TICKS + 1)
    for pid in (90001, 90002):
        add_process(tree, pid, TICKS, pids=(pid, PID))
    assert collect(attribution_on(settings, ranks))["goodput_rank_process_known", ("0", "r1")] == 0


def test_process_that_ends_during_read_has_no_owner(tree, settings):
    class Ending(Processes):
        def status(self, pid, *arguments):
            add_process(tree, 88, 6, comm="somebody")
            return super().status(pid, *arguments)

    add_process(tree, 88, 5)
    own = Ending(settings.procfs)
    assert own.owner(88, CounterFiles()) is None and own._owners == {}


def test_scans_are_rate_limited(tree, settings, ranks, rank):
    clock = Clock()
    add_process(tree, PID, TICKS + 1)
    attribution = attribution_on(settings, ranks, clock=clock)
    known = "goodput_rank_process_known", ("0", "r1")
    assert collect(attribution)[known] == 0
    add_process(tree, 90003, TICKS, pids=(90003, PID))
    clock.seconds = 59.0
    assert collect(attribution)[known] == 0
    clock.seconds = 60.0
    assert collect(attribution)[known] == 1
    clock.seconds = 61.0
    assert collect(attribution)[known] == 1  # It is kept.


def test_page_without_start_time_has_no_process(tree, settings, ranks):
    rank = Rank(tree / "pages", pid_start_ticks=None)
    rank.step({"forward": 1000})
    add_process(tree, PID, TICKS, pids=(PID,))
    ranks.poll()
    for process in ranks._ranks.values():
        process.alive = True
    assert collect(attribution_on(settings, ranks))["goodput_rank_process_known", ("0", "r1")] == 0


def test_lock_holder_identifies_the_process(tmp_path, processes):
    """A page whose pid is wrong, as from another namespace: the kernel names its owner."""
    process = processes(tmp_path, pid=99, pid_start_ticks=None)
    ranks = Ranks(Settings(directory=str(tmp_path)))
    wait_until(lambda: ranks.poll())
    (found,) = ranks.processes()
    assert found.pid == 99 and found.holder == process.process.pid
    real = Processes("/proc")
    ticks = real.stat(found.holder, CounterFiles()).start_ticks
    assert real.find([found._replace(start_ticks=ticks)]) == {
        found._replace(start_ticks=ticks): process.process.pid
    }
    assert real.find([found._replace(start_ticks=ticks + 1)]) == {}
    ranks.close()


def test_trainer_in_its_own_pid_namespace(tmp_path):
    """As in a pod without hostPID: its page says pid 1 or 2, which is another process here."""
    unshare = [*("unshare", "--pid", "--fork", "--mount-proc"), sys.executable, node_rank.__file__]
    environ = {**os.environ, "PYTHONPATH": node_rank.PYTHONPATH}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*unshare, str(tmp_path), "{}"], env=environ, **pipes) as process:
        if not process.stdout.readline():
            pytest.skip("this user may not make a PID namespace")
        ranks = Ranks(Settings(directory=str(tmp_path)))
        ranks.poll()
        (rank,) = ranks.processes()
        assert rank.pid < 10 and rank.holder > rank.pid
        pid = Processes("/proc").find([rank])[rank]
        assert pid == rank.holder and Processes("/proc").owner(pid, CounterFiles()).comm.startswith("python")
        # Where the lock says nothing, the process is found by its innermost pid.
        hidden = rank._replace(holder=0)
        assert Processes("/proc").find([hidden]) == {hidden: pid}
        ranks.close()
        process.stdin.close()


def test_a_dead_rank_has_no_process(tree, settings, ranks, rank, clock):
    other = Rank(tree / "pages", rank=1, pid=77, pid_start_ticks=5)
    other.step({"forward": 1000})
    ranks.poll()
    assert [process.rank for process in ranks.processes()] == [0]


# -- GPUs


def test_processes_on_gpus(tree, settings, ranks, rank):
    add_process(tree, 5001, 1, comm="notebook", cgroup=PLACES["docker, v2"][0])
    gpus = [Gpu(uuid="GPU-1", pids=[5001, 5001, 404]), Gpu(uuid="GPU-2", pids=[PID]), Gpu(uuid="GPU-3")]
    attribution = attribution_on(settings, ranks, gpus)
    found = {(row["gpu"], row["pid"]): row for row in rows(attribution, "goodput_gpu_process_info")}
    assert set(found) == {("GPU-1", "5001"), ("GPU-2", str(PID))}
    assert found["GPU-1", "5001"]["container_id"] == CONTAINER and "cgroup" not in found["GPU-1", "5001"]
    uses = rows(attribution, "goodput_gpu_rank_info")
    # The page names the first, the driver has seen it on the second.
    assert [(row["gpu"], row["run"], row["rank"]) for row in uses] == [
        ("GPU-1", "r1", "0"),
        ("GPU-2", "r1", "0"),
    ]
    assert found["GPU-1", "5001"]["comm"] == "notebook"


def test_unknown_rank_is_on_no_gpu_by_pid(tree, settings, ranks, rank):
    add_process(tree, PID, TICKS + 1)
    uses = rows(attribution_on(settings, ranks, [Gpu(uuid="GPU-9", pids=[PID])]), "goodput_gpu_rank_info")
    assert [row["gpu"] for row in uses] == ["GPU-1"]  # By the page alone.


def test_gpu_processes_are_bounded(tree, settings, ranks, monkeypatch):
    monkeypatch.setattr("goodput_exporters.collectors.attribution.collector.GPU_PROCESSES_MAX", 8)
    add_process(tree, 1, 1)
    gpus = [Gpu(uuid=f"GPU-{at:03}", pids=[1]) for at in range(20)]
    attribution, families = attribution_on(settings, ranks, gpus), Families("node")
    with pytest.raises(CollectorError, match="20 processes on GPUs; only 8"):
        attribution.collect(families)
    assert len(samples(families)) == 8


def test_the_cache_is_bounded(tree, settings, monkeypatch):
    monkeypatch.setattr(processes, "CACHED_MAX", 8)
    own = Processes(settings.procfs)
    for pid in range(100, 150):
        add_process(tree, pid, pid, uid=pid)
        assert own.owner(pid, CounterFiles()) is not None
    assert len(own._owners) == 8 and len(own._users) == 8


# -- any tree


def test_no_ranks_and_no_gpus_is_no_data(settings):
    with pytest.raises(NoData):
        Attribution(settings).collect(Families("node"))


@pytest.mark.parametrize("name", ["stat", "status", "cgroup", "environ"])
def test_any_file_of_a_process(tree, settings, ranks, rank, name):
    path = tree / "proc" / str(PID) / name
    for text in (
        b"",
        b"\xff\x00\xfe",
        b"(" * 9000,
        b")" * 9000,
        b"0::\n" * 5000,
        b"=\0=\0POD_NAME\0POD_NAME=\0",
    ):
        add_process(tree, PID, TICKS)
        path.write_bytes(text)
        # A file without a text is another user's, or of a process that has ended; an environment has no format.
        problem = f"proc/{PID}/{name}: " if text and name != "environ" else ""
        attribution = attribution_on(settings, ranks)
        for _ in range(2):  # It is told at each collection, until it is mended.
            found = collect(attribution, problem)
            assert found["goodput_rank_process_known", ("0", "r1")] == (name != "stat")
        add_process(tree, PID, TICKS)
        assert collect(attribution)["goodput_rank_process_known", ("0", "r1")] == 1


def test_malformed_lines_of_a_status_are_problems(tree, settings, ranks, rank):
    """Of a rank in another PID namespace, which the line NSpid identifies, and of a process of another user."""
    add_process(tree, PID, TICKS + 1)
    add_process(tree, 90003, TICKS, pids=(90003, PID))
    status = tree / "proc/90003/status"
    whole = status.read_text()
    for line, known in (("NSpid", 0), ("Uid", 1)):
        clock = Clock()
        status.write_text(re.sub(rf"^{line}:.*$", f"{line}:\\tnone", whole, flags=re.MULTILINE))
        found = collect(attribution_on(settings, ranks, clock=clock), f"90003/status: {line}: 'none'")
        assert found["goodput_rank_process_known", ("0", "r1")] == known


@pytest.mark.parametrize("name", ["stat", "status", "cgroup", "environ"])
def test_unreadable_file_of_a_process_is_no_problem(tree, settings, ranks, rank, name):
    """It is hidden, or another user's; here a link to itself, which root cannot read either."""
    path = tree / "proc" / str(PID) / name
    path.unlink()
    path.symlink_to(path)
    found = collect(attribution_on(settings, ranks))
    assert found["goodput_rank_process_known", ("0", "r1")] == (name != "stat")
