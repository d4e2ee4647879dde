"""Slurm's prolog, epilog and task prolog in a made-up environment, with a real agent; and a linter's view of them."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from support.deploy.deploy_words import DEPLOY
from support.other_users import ATTACKER, as_root, start_as
from support.servers import servers

SLURM = DEPLOY / "slurm"
SCRIPTS = sorted([*SLURM.glob("*.sh"), *SLURM.glob("*.sbatch")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_linter_finds_nothing(path):
    program = Path(sysconfig.get_path("scripts")) / "shellcheck"
    command = [str(program), "--external-sources", "--severity=style", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=servers.REPOSITORY)
    assert (done.returncode, done.stdout) == (0, "")


class Node:
    """A node with a folder for everything that the scripts touch, and no systemd."""

    def __init__(self, folder: Path):
        self.folder, self.pages, self.state = folder, folder / "pages", folder / "state"
        self.defaults, self.program = folder / "defaults", folder / "goodput"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("sh", "mkdir", "chmod", "chown", "id", "flock", "setsid", "setpriv", "true"):
            (programs / name).symlink_to(shutil.which(name))
        for name in ("dirname", "readlink", "env", "stat", "grep"):
            (programs / name).symlink_to(shutil.which(name))
        (programs / "logger").write_text(f'#!/bin/sh\necho "$*" >>{folder}/syslog\n')
        # Between two looks for the agent, of which there are fifty, five times as long: it may start on a busy machine.
        (programs / "sleep").write_text(
            f'#!/bin/sh\n[ "$1" != 0.1 ] || set -- 0.5\nexec {shutil.which("sleep")} "$@"\n'
        )
        self.program.write_text(
            f'#!/bin/sh\necho "$*" >>{folder}/calls\nexec {sys.executable} -m goodput "$@"\n'
        )
        for script in (programs / "logger", programs / "sleep", self.program):
            script.chmod(0o755)
        self.defaults.write_text(f'GOODPUT_DIR={self.pages}\nGOODPUT_NODE_OPTIONS="--listen 127.0.0.1:0"\n')
        self.environ = {
            "PATH": str(programs),
            "GOODPUT_DEFAULTS": str(self.defaults),
            "GOODPUT_STATE": str(self.state),
            "GOODPUT_PROGRAM": str(self.program),
            "GOODPUT_USER": "root" if os.getuid() == 0 else str(os.getuid()),
        }

    def run(self, script: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(SLURM / script)], env=self.environ, capture_output=True, text=True, timeout=300
        )

    def pid(self) -> int:
        return int((self.state / "agent.pid").read_text())

    def is_locked(self) -> bool:
        """Whether an agent holds the lock by which the scripts know that it runs.

        Of a process that was killed it is released after its first thread is a zombie, by its last thread.
        """
        command = [
            "flock",
            "--nonblock",
            "--conflict-exit-code",
            "75",
            str(self.state / "agent.lock"),
            "true",
        ]
        return subprocess.run(command, timeout=60).returncode == 75

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def syslog(self) -> str:
        path = self.folder / "syslog"
        return path.read_text() if path.exists() else ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node whose agent, if one was started, is ended by its pid."""
    servers_missing = [name for name in ("flock", "setsid", "setpriv") if shutil.which(name) is None]
    if servers_missing:
        pytest.skip(f"not installed: {', '.join(servers_missing)} (Debian package util-linux)")
    node = Node(tmp_path_factory.mktemp("slurm"))
    yield node
    if (node.state / "agent.pid").exists() and alive(node.pid()):
        os.kill(node.pid(), signal.SIGTERM)
        servers.wait_until(lambda: not alive(node.pid()), 60, "the agent to end")


def test_prolog_starts_only_one_agent(node):
    # Two jobs at once: the second waits for the first and finds the agent running.
    both = [
        subprocess.Popen([str(SLURM / "prolog.sh")], env=node.environ, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [(one.communicate(timeout=300)[1], one.returncode) for one in both] == [(b"", 0)] * 2
    assert node.calls() == [f"node --directory {node.pages} --listen 127.0.0.1:0"]
    assert alive(node.pid())
    assert node.pages.stat().st_mode & 0o7777 == 0o1777
    done = node.run("prolog.sh")
    assert (done.returncode, done.stdout, done.stderr, len(node.calls())) == (0, "", "", 1)


def test_the_epilog_starts_an_agent_that_died(node):
    before = node.pid()
    assert node.run("epilog.sh").returncode == 0
    assert node.pid() == before
    os.kill(before, signal.SIGKILL)
    servers.wait_until(lambda: not node.is_locked(), 60, "the agent to die")
    done = node.run("epilog.sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert node.pid() != before and alive(node.pid())
    assert len(node.calls()) == 2


def test_tasks_get_the_folder_of_pages(node):
    done = node.run("task_prolog.sh")
    assert (done.returncode, done.stdout) == (0, f"export GOODPUT_DIR={node.pages}\n")


def test_task_uses_the_prologs_folder_by_default(tmp_path):
    environ = {"PATH": os.environ["PATH"], "GOODPUT_DEFAULTS": str(tmp_path / "none")}
    done = subprocess.run([str(SLURM / "task_prolog.sh")], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "export GOODPUT_DIR=/run/goodput\n")
    assert "GOODPUT_DIR:-/run/goodput}" in (SLURM / "agent.sh").read_text()


@pytest.mark.parametrize("trouble", ["no program", "symbolic link", "no folder"])
def test_trouble_never_fails_a_job(tmp_path, trouble):
    """A prolog that fails drains the node."""
    node = Node(tmp_path)
    if trouble == "no program":
        node.program.unlink()
        want = f"{node.program} is not there"
    elif trouble == "symbolic link":
        (tmp_path / "elsewhere").mkdir()
        node.pages.symlink_to(tmp_path / "elsewhere")
        want = "is a symbolic link"
    else:
        node.state.write_text("")
        want = ""
    done = node.run("prolog.sh")
    assert done.returncode == 0
    assert want in node.syslog() and want in done.stderr
    assert not (tmp_path / "calls").exists()


def test_a_unit_that_is_installed_is_preferred(tmp_path):
    node = Node(tmp_path)
    systemctl = tmp_path / "bin" / "systemctl"
    # As the unit would: take the lock of the folder of pages, and hold it for a while.
    systemctl.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/systemctl\n[ "$1" != is-active ] || [ -e {tmp_path}/started ] || exit 3\n'
        f'[ "$1" = start ] || exit 0\n>{tmp_path}/started\n'
        f"setsid flock {node.pages}/.agent.lock sleep 3 >/dev/null 2>&1 9>&- &\n"
    )
    systemctl.chmod(0o755)
    done = node.run("prolog.sh")
    assert (done.returncode, done.stderr) == (0, "")
    calls = [line for line in (tmp_path / "systemctl").read_text().splitlines() if not line.startswith("cat")]
    before, start, *after = calls
    assert start == "start --no-block goodput-node.service"
    assert {before, *after} == {"is-active --quiet goodput-node.service"}
    assert not (tmp_path / "calls").exists()


# -- another user of the node


@pytest.fixture
def shared(tmp_path):
    """A node whose pages lie in a folder that everybody may write to, and a folder of root beside it."""
    node = Node(tmp_path)
    node.program.write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm").chmod(0o1777)
    (tmp_path / "precious").mkdir(mode=0o755)
    node.pages = tmp_path / "shm" / "goodput"
    node.defaults.write_text(f"GOODPUT_DIR={node.pages}\n")
    node.environ["GOODPUT_USER"] = "nobody"
    return node


def untouched(node: Node) -> bool:
    found = (node.folder / "precious").stat()
    return (found.st_uid, found.st_mode & 0o7777) == (0, 0o755)


@as_root
@pytest.mark.parametrize("before", ["chmod", "chown", "stat"])
def test_swapped_folder_gives_root_folders_to_nobody(shared, before):
    """An attacker's folder becomes a link to root's after the checks, at the worst moment."""
    run_as_attacker = f"setpriv --reuid {ATTACKER} --regid {ATTACKER} --clear-groups"
    real = (shared.folder / "bin" / before).resolve()
    (shared.folder / "bin" / before).unlink()
    (shared.folder / "bin" / before).write_text(
        f"#!/bin/sh\nhere=$(pwd -P); cd {shared.folder}/shm\n{run_as_attacker} "
        f'/bin/sh -c "/bin/rmdir goodput; /bin/ln -s ../precious goodput" 2>/dev/null\ncd "$here"\nexec {real} "$@"\n'
    )
    (shared.folder / "bin" / before).chmod(0o755)
    shared.pages.mkdir()
    os.chown(shared.pages, ATTACKER, ATTACKER)
    assert shared.run("prolog.sh").returncode == 0
    assert untouched(shared)


def is_folder(path) -> bool:
    """Whether it is a folder, and no link at this moment."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


@as_root
def test_prolog_wins_races_for_its_folder(shared):
    """Another user swaps a folder and a link under the name as fast as it can."""

    def swap():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not os.path.exists("stop"):
            for act in (
                lambda: os.mkdir("goodput"),
                lambda: os.rmdir("goodput"),
                lambda: os.symlink("../precious", "goodput"),
                lambda: os.unlink("goodput"),
            ):
                try:
                    act()
                except OSError:
                    pass

    pid = start_as(ATTACKER, swap, shared.pages.parent)
    try:
        for _ in range(6):
            assert shared.run("prolog.sh").returncode == 0
            assert untouched(shared)
            # Else the attacker has lost once and for all.
            if is_folder(shared.pages):
                try:
                    shared.pages.rmdir()
                except OSError:
                    pass
    finally:
        (shared.pages.parent / "stop").touch()
        os.waitpid(pid, 0)


@as_root
def test_folder_of_another_user_is_left_alone(shared):
    shared.pages.mkdir(mode=0o700)
    os.chown(shared.pages, ATTACKER, ATTACKER)
    assert shared.run("prolog.sh").returncode == 0
    assert f"belongs to user {ATTACKER}" in shared.syslog()
    assert (shared.pages.stat().st_uid, shared.pages.stat().st_mode & 0o7777) == (ATTACKER, 0o700)


@as_root
def test_fresh_folder_is_the_agents(shared):
    assert shared.run("prolog.sh").returncode == 0
    owner = shared.pages.stat()
    assert (owner.st_uid, owner.st_mode & 0o7777) == (65534, 0o1777)
    assert shared.state.stat().st_mode & 0o7777 == 0o700, "nobody else can hold the prolog's locks"


@as_root
def test_no_lock_of_another_user_keeps_the_agent_away(shared):
    """Before, a flock on the file in the folder of pages meant that an agent runs."""
    shared.program.write_text(f"#!/bin/sh\n>{shared.folder}/ran\n")
    shared.pages.mkdir()
    (shared.pages / ".agent.lock").touch()
    os.chown(shared.pages / ".agent.lock", ATTACKER, -1)
    with open(shared.pages / ".agent.lock") as held:
        subprocess.run(
            ["flock", "--exclusive", "--nonblock", str(held.fileno())], pass_fds=[held.fileno()], check=True
        )
        shared.environ["GOODPUT_USER"] = "root"
        assert shared.run("prolog.sh").returncode == 0
        servers.wait_until((shared.folder / "ran").exists, 30, "the agent to be started")


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="may not mount",
)
@pytest.mark.parametrize(
    ("before", "is_mounted"),
    [("true", True), ("mkdir -m 1777 /run/goodput; touch /run/goodput/r.0.1.page", False)],
)
def test_prolog_mounts_the_folder_of_pages_with_bounds(before, is_mounted):
    """In a mount namespace with a /run of its own; not over pages, which it would hide."""
    script = f"""mount -t tmpfs run /run && {before} && . {SLURM / "agent.sh"} && goodput_mount && goodput_mount
        mountpoint -q /run/goodput; echo $? $(stat --file-system --format '%b %S %c' /run/goodput)
        grep -c ' /run/goodput ' /proc/self/mountinfo"""
    environment = {"PATH": os.environ["PATH"], "GOODPUT_DEFAULTS": "/dev/null"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    status, blocks, block_bytes, files, mounts = done.stdout.split()
    assert (status == "0", mounts) == (is_mounted, str(int(is_mounted))), done.stderr
    if is_mounted:
        assert (int(blocks) * int(block_bytes), int(files)) == (1 << 30, 16 << 10)
