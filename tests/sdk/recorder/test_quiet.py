"""What the SDK does not do in the trainer: no thread, no socket, no garbage, no heavy import; and a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.sdk import sdk_process
from support.sdk.checks import check

from goodput.rank_page import page

LOOP = """
def train(turns):
    for i in goodput.steps(range(turns), samples=4):
        with goodput.phase("h2d"): pass
        with goodput.phase("forward"):
            with goodput.phase("communication"): pass
    with goodput.step(): pass
"""


def test_training_starts_no_thread_socket_or_process(sdk):
    out = sdk(f"""
{LOOP}
sys.dont_write_bytecode = True  # in a fresh checkout the interpreter would write its caches
seen = []
sys.addaudithook(lambda name, arguments: seen.append((name, str(arguments))))
threads = len(os.listdir("/proc/self/task"))
def open_files():
    found = [f"/proc/self/fd/{{fd}}" for fd in os.listdir("/proc/self/fd")]
    return {{os.readlink(fd) for fd in found if os.path.lexists(fd)}}  # not that of the listing itself
files = open_files()
goodput.start(run="r")
train(50)
with goodput.checkpoint(): pass
goodput.mark("here"); goodput.resumed(3); goodput.resumed(500)
is_lean = "ctypes" not in sys.modules
goodput.report()
emit([is_lean, [arguments for name, arguments in seen if name == "ctypes.dlopen"]])
emit([len(os.listdir("/proc/self/task")) - threads, sorted(open_files() - files)])
names = {{name.split(".")[0] for name, _ in seen}}
emit(sorted(names & {{"socket", "subprocess", "_thread", "signal", "shutil", "urllib", "http"}}))
emit(sorted(name for name in {{name for name, _ in seen}} if name.startswith("os.")))
emit([arguments for name, arguments in seen if name == "open" and "'w" in arguments])
""")
    (is_lean, libraries), (threads, opened), noisy, os_calls, written = out.emitted
    # The report loads the core, and ctypes the program itself; before it nothing is loaded.
    (core,) = (one for one in libraries if one != "(None,)")
    assert is_lean and "goodput/_core/_library.so" in core
    assert threads == 0 and noisy == [] and written == []
    assert len(opened) == 1, opened
    (opened_page,) = opened  # of the attempt that runs; its first name is that of the draft
    assert os.path.dirname(opened_page) == str(out.directory) and ".r.0.2.page" in opened_page
    assert set(os_calls) <= {"os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.truncate"}


def test_hundred_thousand_steps_leak_nothing(sdk):
    """Neither blocks of memory nor objects for the collector, nor more of the page than the ring and the bins."""
    out = sdk(f"""
import gc
{LOOP}
def resident():
    '''KiB of the page's mapping, which the kernel knows by the name of the draft.'''
    of_page = False
    for line in open("/proc/self/smaps"):
        if ".r.0.1.page" in line: of_page = True
        elif of_page and line.startswith("Rss:"): return int(line.split()[1])
goodput.start(run="r")
train(2000)
gc.collect(); gc.disable()
blocks, counts = sys.getallocatedblocks(), gc.get_count()[0]
for _ in range(10): train(10_000)
more, tracked = sys.getallocatedblocks() - blocks, gc.get_count()[0] - counts
emit([more, tracked, gc.collect(), resident()])
""")
    ((blocks, tracked, collected, resident_kib),) = out.emitted
    assert check(out.snapshot()).steps_done == 102_000 + 11
    assert abs(blocks) < 200 and abs(tracked) < 200 and collected == 0
    assert 0 < resident_kib <= 2048


def test_a_page_takes_little_of_the_disk(sdk):
    out = sdk(f"{LOOP}\ngoodput.start(run='r')\ntrain(3000)")
    (path,) = out.paths()
    info = os.stat(path)
    assert info.st_size == page.FILE_BYTES and info.st_blocks * 512 <= 2 << 20


def imported(code: str, pure: bool, directory) -> set[str]:
    """Modules that a bare interpreter has loaded in the end."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True,
        env=sdk_process.environment(directory, pure, {}), timeout=300, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


PACKAGES = {
    f"goodput.{name}"
    for name in ("histograms", "sdk", "sdk.startup", "sdk.recorder", "sdk.reports", "rank_page", "wire")
}


def test_import_loads_little_of_the_standard_library(pure, directory):
    loaded = imported("import goodput", pure, directory) - imported("", pure, directory)
    ours = {name for name in loaded if name.split(".")[0] == "goodput"}
    assert "goodput.sdk.startup.session" in ours and ("goodput.sdk.recorder._fast" in ours) is not pure
    assert {name.split(".")[0] for name in loaded - ours} <= set(sys.stdlib_module_names)
    heavy = {
        "json", "dataclasses", "logging", "asyncio", "typing", "re", "enum", "inspect", "threading", "socket",
        "subprocess", "tempfile", "pathlib", "random", "hashlib", "ctypes", "decimal", "contextlib", "ast", "argparse",
    }  # fmt: skip
    assert not loaded & heavy, sorted(loaded & heavy)
    assert not ours & {
        "goodput.account",
        "goodput.rank_page.reader",
        "goodput.wire.schema",
        "goodput.aggregator",
        "goodput.cli",
    }
    # A package here holds a docstring and nothing else. Later versions of Python load less before.
    assert len(loaded - PACKAGES) < (60 if pure else 55), sorted(loaded)


def test_a_training_loop_loads_nothing_heavy_either(pure, directory):
    code = (
        f"import goodput\n{LOOP}\ngoodput.start(run='r')\ntrain(3)\ngoodput.mark('x')\ngoodput.checkpoint()"
    )
    loaded = imported(code, pure, directory) - imported("import json", pure, directory)
    assert not loaded & {
        "dataclasses",
        "logging",
        "asyncio",
        "threading",
        "socket",
        "subprocess",
        "hashlib",
        "inspect",
    }


def test_the_extension_is_used_where_it_is(sdk, pure):
    out = sdk("""
        from goodput.sdk.recorder.hot_path import extension
        for i in goodput.steps(range(3)):
            with goodput.phase("forward"): pass
        emit([extension is None, "goodput.sdk.recorder.plain" in sys.modules])
        goodput.stop()
    """)
    assert out.emitted == [[pure, pure]] and check(out.snapshot()).steps_done == 3


# -- no room left


def in_small_tmpfs(code: str, kib: int, pure: bool, tmp_path) -> subprocess.CompletedProcess:
    """Run code in a mount namespace whose page directory is a tmpfs of that size; skip where that is not allowed."""
    place = tmp_path / "small"
    place.mkdir()
    mount = f'mount -t tmpfs -o size={kib}k none "{place}" || exit 77; exec "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, *sdk_process.command(code)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=sdk_process.environment(place, pure, {})
        )
    except FileNotFoundError:
        pytest.skip("needs unshare(1)")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("needs the right to mount a tmpfs")
    return done


FULL = """
goodput.start(run="r")
place = os.environ["GOODPUT_DIR"]
def fill():
    try:
        with open(os.path.join(place, "tensors"), "wb") as file:
            while True: file.write(bytes(4096)); file.flush()
    except OSError: pass
with goodput.step(): pass
fill()
for i in goodput.steps(range(3)):
    with goodput.phase("forward"): spin(3000)
    with goodput.phase("mine"): spin(30)
thread = threading.Thread(target=work); thread.start(); thread.join()
with goodput.step(): spin(10_000)
before = snapshot()
os.unlink(os.path.join(place, "tensors"))
for i in goodput.steps(range(3)):
    with goodput.phase("forward"): spin(3000)
after = snapshot()
emit([before.steps_done, before.drops["error"], after.steps_done, after.drops["error"],
      sum(after.totals) == after.last_ns - after.identity["start_mono_ns"]])
"""


@pytest.mark.faults
def test_full_page_directory_does_not_kill_training(pure, tmp_path):
    """A store into a hole of a full tmpfs is a SIGBUS: a loader that fills /dev/shm must not make us raise one."""
    done = in_small_tmpfs(FULL, 4096, pure, tmp_path)
    assert done.returncode == 0, (done.returncode, done.stderr)
    ((before, refused, after, refused_after, exact),) = map(json.loads, done.stdout.splitlines())
    assert (before, after) == (5, 8) and refused > 0 and refused_after == refused and exact


@pytest.mark.faults
def test_a_page_directory_that_is_full_from_the_start(pure, tmp_path):
    code = "goodput.start(run='r')\nfor i in goodput.steps(range(3)): work()\nemit(snapshot().steps_done)"
    done = in_small_tmpfs(code, 256, pure, tmp_path)
    assert done.returncode == 0 and done.stdout == "3\n", done.stderr
    assert "No space left" in done.stderr and "only goodput.report()" in done.stderr


def test_collecting_a_recorder_in_a_cycle_is_safe():
    """CPython before 3.13 crashes if the collector clears a memoryview whose buffer is still exported (gh-77894)."""
    pytest.importorskip("goodput.sdk.recorder._fast")
    code = """
import gc
from goodput.sdk.recorder._fast import Clock
class Recorder(Clock): pass
gc.disable()
for _ in range(300):
    words, clock = memoryview(bytearray(1 << 15)), Recorder()
    clock.words = words
    clock.held, clock.holder = [words, clock], {"words": words, "clock": clock}
    del words, clock
assert gc.collect() >= 300
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
