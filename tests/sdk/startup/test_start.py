"""`goodput.start`: who the process is, where its page lies, and what happens where it cannot lie there."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check

from goodput.rank_page import page

STEPS = "\nfor i in goodput.steps(range(3)): work()\n"


def identity(outcome) -> dict:
    return check(outcome.snapshot()).identity


@pytest.mark.parametrize(
    ("variables", "launcher", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "job"}, "torchrun", (3, 8, 1, 1, "job")),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29400",
             "TORCHELASTIC_RESTART_COUNT": "2"},
            "torchrun", (0, 2, 0, 3, "torchrun-29400"),
        ),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "5", "SLURM_JOB_ID": "4711",
             "SLURM_RESTART_COUNT": "1"},
            "slurm", (5, 16, 5, 2, "4711"),
        ),
        # A torchrun inside a Slurm allocation, one task per node, is torchrun's.
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, "torchrun", (9, 16, 0, 1, None)),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
            "openmpi", (2, 4, 2, 1, None),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, "pmi", (1, 4, 1, 1, None)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"}, "mvapich", (1, 4, 0, 1, None)),
        ({"JOB_COMPLETION_INDEX": "6", "JOB_COMPLETIONS": "8", "JOB_NAME": "train"}, "kubernetes", (6, 8, 0, 1, "train")),
        ({"GOODPUT_RANK": "1", "GOODPUT_WORLD_SIZE": "3", "GOODPUT_RUN": "mine", "GOODPUT_ATTEMPT": "7", "RANK": "0"},
         "goodput", (1, 3, 0, 7, "mine")),
        ({"GOODPUT_RUN": "none", "RANK": "1", "WORLD_SIZE": "2"}, "torchrun", (1, 2, 0, 1, "none")),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "torchrun", (5, 6, 0, 1, None)),  # A world holds its rank.
        ({}, "none", (0, 1, 0, 1, None)),
    ],
)  # fmt: skip
def test_the_launchers_environment(sdk, variables, launcher, expected):
    found = identity(sdk("goodput.start()", **variables))
    *numbers, run = expected
    assert found["launcher"] == launcher
    assert [found[name] for name in ("rank", "world_size", "local_rank", "attempt")] == numbers
    assert found["run"] == (run if run is not None else f"python-{found['pid']}")
    assert found["host"] == socket.gethostname()


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "-1"}, {"RANK": "three"}, {"RANK": "99999999"}, {"RANK": "1" * 5000}, {"RANK": "²"},
        {"RANK": "0", "WORLD_SIZE": "0"}, {"RANK": "0", "WORLD_SIZE": "99999999"},
        {"TORCHELASTIC_RESTART_COUNT": "9999999"}, {"GOODPUT_ATTEMPT": "0"}, {"RANK": "0", "LOCAL_RANK": "x"},
    ],
)  # fmt: skip
def test_invalid_variable_is_ignored_and_reported(sdk, variables):
    out = sdk("goodput.start()" + STEPS, **variables)
    snapshot = check(out.snapshot())
    assert (snapshot.identity["rank"], snapshot.identity["attempt"], snapshot.steps_done) == (0, 1, 3)
    (output,) = out.messages()
    assert list(variables)[-1] in output and snapshot.drops["error"] == 1


def test_arguments_win_over_the_environment(sdk):
    theirs = {"RANK": "1", "WORLD_SIZE": "9", "TORCHELASTIC_RUN_ID": "theirs", "GOODPUT_ATTEMPT": "2"}
    code = """
        goodput.start("mine", 2, 4, attempt=5, device="H100", device_uuid="GPU-1", devices=2, group="dp1",
                      stage=3, flops_per_step=1e12, peak_flops_per_second=10 ** 15, gpu_hour_cost=2.5)
    """
    found = identity(sdk(code, **theirs))
    expected = {
        "run": "mine", "rank": 2, "world_size": 4, "attempt": 5, "device": "H100", "device_uuid": "GPU-1",
        "devices": 2, "group": "dp1", "stage": 3, "flops_per_step": 1e12, "peak_flops_per_second": 1e15,
        "gpu_hour_cost": 2.5,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("argument", "default"),
    [
        ("rank=-1", 0), ("rank='2'", 0), ("rank=True", 0), ("rank=1 << 24", 0), ("rank=1.5", 0), ("rank=10 ** 5000", 0),
        ("world_size=0", 1), ("attempt=0", 1), ("attempt=1 << 30", 1), ("devices=100_000", 1), ("devices=0", 1),
        ("stage=-1", None), ("flops_per_step=-1.0", None), ("flops_per_step=float('nan')", None),
        ("gpu_hour_cost='free'", None), ("peak_flops_per_second=float('inf')", None),
        ("peak_flops_per_second=10 ** 400", None),
    ],
)  # fmt: skip
def test_invalid_argument_becomes_its_default(sdk, argument, default):
    out = sdk(f"goodput.start(run='r', {argument})" + STEPS)
    snapshot = check(out.snapshot())
    assert snapshot.identity[argument.split("=")[0]] == default and snapshot.steps_done == 3
    assert len(out.messages()) == 1 and argument.split("=")[0] in out.errors and len(out.errors) < 400


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "../../etc/x",
        "with space",
        "späte Läufe ☃",
        "\U0001f600" * 200,
        "x" * 5000,
        ".",
        "..",
        "a.0.1",
        "%2f,",
        "\n\t",
        "~",
    ],
)
def test_any_name_of_a_run(sdk, name):
    out = sdk(f"goodput.start(run={name!r}, group={name!r}, device={name!r}, device_uuid={name!r})" + STEPS)
    snapshot = check(out.snapshot())
    assert snapshot.steps_done == 3 and not out.errors
    assert snapshot.identity["run"] == name[:128].replace("\n", "?").replace("\t", "?")
    assert [path.parent for path in out.paths()] == [out.directory]


def test_distinct_runs_have_distinct_files():
    names = [
        "a/b",
        "a%2f,b",
        "a.b",
        "a b",
        "a",
        "A",
        "",
        "a.0.1",
        "ä" * 100,
        "ä" * 101,
        "☃" * 127 + "a",
        "☃" * 127 + "b",
    ]
    files = {page.file_name(name, 0, 1) for name in names}
    assert len(files) == len(names) and all(len(file.encode()) < 200 and "/" not in file for file in files)


def test_the_default_run_is_named_after_the_script(tmp_path, directory, pure):
    script = tmp_path / "train model.py"
    script.write_text("import goodput\ngoodput.start()\n")
    done = subprocess.run(
        [*sdk_process.command("")[:2], str(script)],
        env=sdk_process.environment(directory, pure, {}),
        timeout=300,
    )
    (snapshot,) = sdk_process.Outcome(directory, done.returncode, [], "").snapshots()
    assert snapshot.identity["run"] == f"train model-{snapshot.identity['pid']}"


def test_start_reaches_back_to_the_start_of_the_process(sdk):
    out = sdk("""
        time.sleep(0.3)
        emit(time.perf_counter_ns())
        goodput.start()
    """)
    snapshot = check(out.snapshot())
    assert (
        out.emitted[0] - snapshot.identity["start_mono_ns"] >= 290_000_000
        and snapshot.totals[0] >= 290_000_000
    )


def test_second_start_changes_nothing(sdk):
    out = sdk("""
        goodput.start(run="one", rank=1, world_size=2)
        goodput.start()
        goodput.start(run="one", rank=1, world_size=2)
        with goodput.step(): pass
        goodput.start(run="two", rank=1)
        goodput.start(rank=0, run=object())
        with goodput.step(): pass
    """)
    snapshot = check(out.snapshot())
    assert snapshot.identity["run"] == "one" and snapshot.steps_done == 2
    assert len(out.messages()) == 1 and "already measured" in out.errors and snapshot.drops["error"] == 2


@pytest.mark.parametrize(
    "first",
    ["for i in goodput.steps([1]): pass", "with goodput.step(): pass", "with goodput.phase('h2d'): pass",
     "goodput.mark('hello')", "goodput.resumed(3)", "goodput.checkpoint(3)"],
)  # fmt: skip
def test_the_first_call_starts(sdk, first):
    assert check(sdk(first, RANK="2", WORLD_SIZE="4").snapshot()).identity["rank"] == 2


@pytest.mark.parametrize(
    "alone", ["pass", "goodput.stop()", "goodput.report()", "goodput.phase('h2d')", "goodput.steps([1])"]
)
def test_calls_that_measure_nothing_do_not_start(sdk, alone):
    assert sdk(alone).paths() == []


def test_stop_and_start_again(sdk):
    out = sdk("""
        goodput.start(run="r", attempt=3)
        with goodput.step(8): pass
        goodput.stop("failed")
        goodput.stop()
        for i in goodput.steps(range(2)): work()
        with goodput.phase("h2d"): pass
        goodput.mark("nobody hears this")
        goodput.checkpoint(3); goodput.resumed(3)
        goodput.start(run="r", attempt=3)
        with goodput.step(): pass
        goodput.stop("nonsense")
        goodput.start(run="other")
    """)
    other, first, second = map(check, out.snapshots())
    assert (first.ended, first.steps_done, first.events) == ("failed", 1, [])
    assert (second.ended, second.steps_done, second.identity["attempt"]) == ("finished", 1, 4)
    assert out.messages() == ['goodput: stop(\'nonsense\'): want "finished" or "failed"; taken as finished']
    assert second.steps[0].step == 0 and second.identity["start_mono_ns"] >= first.end_ns
    assert other.identity["run"] == "other"


def test_a_restart_many_times_leaks_no_descriptor(sdk):
    out = sdk("""
        def open_files(): return len(os.listdir("/proc/self/fd"))
        goodput.start(run="r"); before = open_files()
        for i in range(50):
            goodput.stop(); goodput.start(run="r")
        emit(open_files() - before)
    """)
    assert out.emitted == [0] and len(out.paths()) == 51


def test_attempt_continues_from_pages_of_dead_processes(directory, pure):
    for attempt in (1, 2, 3):
        out = sdk_process.run("goodput.start(run='r', rank=1)\nos._exit(0)", directory, pure)
        assert len(out.paths()) == attempt
    for name in (
        "r.1.99999999.page",
        "r.1.².page",
        "r.1.-7.page",
        "r.1.page",
        "r.1.x.page",
        "r.1.0000000000000007.page",
    ):
        (directory / name).write_bytes(b"")
    out = sdk_process.run(
        "goodput.start(run='r', rank=1)\nemit(snapshot().identity['attempt'])", directory, pure
    )
    assert out.emitted == [4] and not out.errors


@pytest.mark.parametrize("value", ["1", "yes"])
def test_disabled_process_creates_nothing(sdk, value):
    out = sdk(
        """
        goodput.start(run="r", rank="bad")
        for i in goodput.steps(range(3), samples="bad"):
            with goodput.step("bad"), goodput.phase(5), goodput.phase("forward"): pass
        with goodput.checkpoint("bad"): pass
        goodput.checkpoint(3); goodput.checkpoint(wait=False).commit()
        goodput.resumed("bad"); goodput.resumed(3); goodput.mark(5)
        @goodput.phase("mine")
        def f(): return 7
        emit([f(), goodput.report().account, str(goodput.report())])
        goodput.stop(); goodput.start()
        """,
        GOODPUT_DISABLE=value,
    )
    assert out.emitted == [[7, {}, "goodput: nothing is measured in this process"]]
    assert not out.errors and not out.directory.exists()


def test_disable_0_does_not_disable(sdk):
    assert check(sdk(STEPS, GOODPUT_DISABLE="0").snapshot()).steps_done == 3


@pytest.mark.parametrize("place", ["under a file", "/proc/nowhere", "a file", "a\udcffb\0c", "5"])
def test_report_works_without_a_writable_directory(sdk, tmp_path, place):
    (tmp_path / "file").write_text("")
    paths = {"under a file": str(tmp_path / "file" / "pages"), "a file": str(tmp_path / "file"), "5": 5}
    out = sdk(f"""
        goodput.start(run="r", directory={paths.get(place, place)!r})
        {STEPS.strip()}
        goodput.resumed(0)  # backwards: a new attempt, in memory too
        with goodput.step(): pass
        emit([goodput.report().account["steps"], snapshot().identity["attempt"], snapshot().steps_done])
    """)
    assert out.emitted == [[{"kept": 1, "lost": 0}, 2, 1]] and out.paths() == []
    (output,) = out.messages()
    assert "only goodput.report() will see this process" in output


def test_second_process_of_a_rank_is_reported(directory, pure):
    first = subprocess.Popen(
        sdk_process.command("goodput.start(run='r', rank=1)\nwith goodput.step(): pass\nemit(1)\nsys.stdin.read()"),
        env=sdk_process.environment(directory, pure, {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        first.stdout.readline()
        code = "goodput.start(run='r', rank=1)\nfor i in goodput.steps(range(5)): pass\nemit(snapshot().steps_done)"
        seconds = [sdk_process.run(code, directory, pure) for _ in range(2)]
        other = sdk_process.run(code.replace("rank=1", "rank=2"), directory, pure)
    finally:
        first.communicate(timeout=300)
    for second in seconds:
        assert second.emitted == [5] and second.status == 0
        assert len(second.messages()) == 1 and "already writes this rank's page" in second.errors
    assert other.emitted == [5] and not other.errors
    one, two = map(check, other.snapshots())
    assert one.drops["claim"] == 2 and one.steps_done == 1 and one.ended == "finished"
    assert two.drops["claim"] == 0


def test_foreign_file_under_a_page_name_is_not_written(tmp_path, directory, pure):
    """A claim is counted in the other's page, which must be one: not where a link points to."""
    directory.mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"\1" * page.FILE_BYTES)
    (directory / "r.0.1.page").symlink_to(victim)
    os.mkfifo(directory / "r.1.1.page")
    (directory / "r.2.1.page").mkdir()
    for rank in (0, 1, 2):
        out = sdk_process.run(
            f"goodput.start(run='r', rank={rank})\nemit(snapshot().identity['attempt'])", directory, pure
        )
        assert out.emitted == [1] and not out.errors
    page.bump_drop(str(directory / f"r.0.1~{os.geteuid()}.page"), "claim")
    for name in ("r.0.1.page", "r.2.1.page"):
        with pytest.raises(OSError):
            page.bump_drop(str(directory / name), "claim")
    page.bump_drop(str(victim), "claim")
    assert victim.read_bytes() == b"\1" * page.FILE_BYTES


def test_leftover_draft_does_not_block_a_new_page(directory, pure):
    directory.mkdir()
    code = f"""
        open(os.path.join({str(directory)!r}, f".{{os.getpid()}}.r.0.1.page"), "w").close()
        goodput.start(run="r")
        with goodput.step(): pass
    """
    out = sdk_process.run(code, directory, pure)
    assert check(out.snapshot()).steps_done == 1 and not out.errors
    assert len(list(directory.glob(".*.page"))) == 1  # its own draft is gone


def test_the_directory_is_made_open_to_all_users(sdk):
    out = sdk("goodput.start()")
    assert out.directory.stat().st_mode & 0o7777 == 0o1777


def test_messages_are_bounded(sdk):
    out = sdk("""
        for i in range(100):
            with goodput.step(samples=f"bad {i}" + "x" * 10_000): pass
    """)
    assert len(out.messages()) == 20 and len(out.errors) < 20 * 420
    assert check(out.snapshot()).drops["error"] == 100


def test_closed_standard_error(sdk):
    out = sdk("""
        sys.stderr = None
        goodput.phase(5)
        class Broken:
            def write(self, text): raise OSError
        sys.stderr = Broken()
        goodput.phase(6)
        sys.stderr = sys.__stderr__
        with goodput.step(): pass
    """)
    assert check(out.snapshot()).steps_done == 1
