"""The wheel and the packages: built once, installed and removed in a root of their own.

They have goodput's own files alone, so that nothing is downloaded. The wheel is built twice and compared.
"""

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.deploy.deploy_words import DEPLOY
from support.servers import servers

BUILD = DEPLOY / "packages" / "build.py"
PACKAGES = ("goodput", "goodput-aggregator", "goodput-node")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"opt/goodput/lib/{PYTHON}/site-packages"
UNITS = [f"usr/lib/systemd/system/{name}.service" for name in PACKAGES[1:]]

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("cyclonedx_py", "setuptools")),
        reason="not installed: the extra 'packages'",
    ),
    pytest.mark.skipif(shutil.which("git") is None, reason="not installed: git"),
    pytest.mark.skipif(not (servers.REPOSITORY / ".git").exists(), reason="not a checkout"),
]
# A trainer and what the aggregator loads.
ALL_LIBRARIES = """
import ctypes, goodput, goodput._core, goodput.nccl.library
from goodput.sdk.recorder import _fast
from goodput.wire import compiled

goodput._core.library()
plugin = ctypes.CDLL(goodput.nccl.library.library())
goodput.start(run="clean")
with goodput.phase("forward") as phase:
    pass
print(isinstance(phase, _fast.Phase), compiled.steps is not None, type(phase).__name__)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """(folder of wheel and packages, folder of a second wheel), from trees of different paths, times and modes."""
    first, second = (tmp_path_factory.mktemp(name) for name in ("dist", "again"))
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    environment.pop("PYTHONPATH", None)
    calls = [
        ([sys.executable, BUILD, "--without-libraries", first], 0o022),
        ([sys.executable, BUILD, "--only-wheel", second], 0o077),
    ]
    running = [
        subprocess.Popen(
            command, env=environment, umask=umask, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for command, umask in calls
    ]
    for process in running:
        text, _ = process.communicate(timeout=300)
        assert process.returncode == 0, text
    return first, second


def test_two_builds_give_the_same_wheel(built):
    first, second = (next(folder.glob("*.whl")) for folder in built)
    assert first.name == second.name
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    names = zipfile.ZipFile(first).namelist()
    assert {"goodput/py.typed", "goodput_exporters/agent.py", "goodput/web/page.css"} <= set(names)


def test_wheel_runs_where_nothing_can_be_compiled(built, tmp_path):
    """In an environment of its own, with an empty PATH: all four libraries load, and a phase is recorded by the extension."""
    (wheel,) = built[1].glob("*.whl")
    needed = re.findall(rf"manylinux_2_(\d+)_{platform.machine()}", wheel.name)
    assert needed and int(needed[0]) <= 28
    python = tmp_path / "environment" / "bin" / "python"
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel)
    done = subprocess.run(
        [python, "-c", ALL_LIBRARIES],
        env={"PATH": "", "GOODPUT_DIR": str(tmp_path / "pages")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("True True Phase\n", 0), done.stderr


def test_bill_of_materials_is_cyclonedx(built):
    (path,) = built[0].glob("*.cdx.json")
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] >= "1.6"
    own = bill["metadata"]["component"]
    assert (own["name"], own["licenses"][0]["license"]["id"]) == ("goodput-telemetry", "Apache-2.0")
    assert f'version = "{own["version"]}"' in (servers.REPOSITORY / "pyproject.toml").read_text()


@pytest.fixture
def debian(tmp_path) -> list[str]:
    """dpkg on an empty root in which only Python is installed."""
    if shutil.which("dpkg") is None:
        pytest.skip("not installed: dpkg")
    state = tmp_path / "var" / "lib" / "dpkg"
    (state / "info").mkdir(parents=True)
    (state / "updates").mkdir()
    (state / "status").write_text(
        f"Package: {PYTHON}\nStatus: install ok installed\nMaintainer: nobody\nArchitecture: all\nVersion: 3\n"
        "Description: stands for Python\n"
    )
    forced = ["--force-script-chrootless", "--force-unsafe-io"]
    return ["dpkg", f"--root={tmp_path}", *forced, "--log=/dev/null"]


@needs_root
def test_debian_packages_install_and_remove(built, debian, tmp_path):
    files = sorted(built[0].glob("*.deb"), key=lambda path: path.name.partition("_")[0])
    assert [path.name.partition("_")[0] for path in files] == list(PACKAGES)
    call(*debian, "--install", *files)
    check_installed(tmp_path)
    changed = tmp_path / "etc" / "default" / "goodput-node"
    changed.write_text("GOODPUT_NODE_OPTIONS=mine\n")
    call(*debian, "--install", *files)
    assert changed.read_text() == "GOODPUT_NODE_OPTIONS=mine\n"
    refused = subprocess.run([*debian, "--remove", "goodput"], capture_output=True, text=True)
    assert refused.returncode and "depends on goodput" in refused.stderr
    call(*debian, "--remove", *PACKAGES)
    assert changed.read_text() == "GOODPUT_NODE_OPTIONS=mine\n"
    call(*debian, "--purge", *PACKAGES)
    assert left_over(tmp_path) == []


@needs_root
def test_rpm_packages_install_and_remove(built, tmp_path):
    if shutil.which("rpm") is None:
        pytest.skip("not installed: rpm")
    make_shell(tmp_path)
    before = left_over(tmp_path)
    program, *rest = sorted(built[0].glob("*.rpm"))
    rpm = ["rpm", "--root", tmp_path]
    refused = subprocess.run([*rpm, "--install", *rest], capture_output=True, text=True)
    assert refused.returncode and "goodput = " in refused.stderr
    # Python is not among the packages of this root.
    call(*rpm, "--install", "--nodeps", program)
    call(*rpm, "--install", *rest)
    check_installed(tmp_path)
    assert call(*rpm, "--query", "--configfiles", "goodput-node").split() == ["/etc/default/goodput-node"]
    requires = call("rpm", "--query", "--requires", "--package", program)
    assert f"/usr/bin/{PYTHON}" in requires.splitlines()
    call(*rpm, "--erase", *PACKAGES)
    assert left_over(tmp_path) == before


def call(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_shell(root: Path) -> None:
    """/bin/sh and what it is linked with: rpm runs scripts in the root."""
    shell = Path("/bin/sh").resolve()
    for path in ["/bin/sh", *re.findall(r"(/\S+)", call("ldd", shell))]:
        target = root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(path).resolve(), target)


def left_over(root: Path) -> list[Path]:
    """Files outside of the package managers' own state."""
    own = ("var", "root")
    found = (path.relative_to(root) for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    return sorted(path for path in found if path.parts[0] not in own)


def check_installed(root: Path) -> None:
    """The units' program is there and runs, with the files of the package and no others."""
    for unit in UNITS:
        (program,) = re.findall(r"(?m)^ExecStart=/(\S+)", (root / unit).read_text())
        assert (root / program).stat().st_mode & 0o111
    assert (root / "usr/bin/goodput").readlink() == Path("/opt/goodput/bin/goodput")
    assert (root / "opt/goodput/bin/python").readlink() == Path(f"/usr/bin/{PYTHON}")
    assert (root / "etc/default/goodput-aggregator").is_file()
    manual = (root / "usr/share/man/man1/goodput-serve.1").read_text()
    assert manual.startswith('.TH "GOODPUT-SERVE"') and (root / "usr/share/man/man1/goodput.1").is_file()
    assert (root / "usr/share/goodput/slurm/prolog.sh").stat().st_mode & 0o111
    assert (root / "opt/goodput/share/goodput/deploy/prometheus/alerts_runs.yml").is_file()
    script = "import sys, goodput_exporters.agent, goodput.cli; print(goodput.__file__); goodput.cli.main(['--version'])"
    environment = {"PYTHONPATH": str(root / SITE), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    place, version = done.stdout.split("\n", 1)
    assert place == str(root / SITE / "goodput" / "__init__.py") and version.startswith("goodput ")
