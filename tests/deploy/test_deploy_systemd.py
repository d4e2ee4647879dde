"""The units are what systemd takes, are hardened, and start goodput with options that exist."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.deploy.deploy_words import DEPLOY, parsed

from goodput.access import listening

UNITS = ("goodput-node.service", "goodput-aggregator.service", "goodput-ingest.service")
# systemd's own measure, 0 safe to 10 exposed; what a unit without a word of hardening gets is 9.6.
EXPOSURE_MAX = {"goodput-node.service": 2.6, "goodput-aggregator.service": 1.6, "goodput-ingest.service": 1.6}
PROGRAM = "/opt/goodput/bin/goodput"


def unit(name: str, section: str = "Service") -> dict[str, str]:
    """A section of a unit; of a key that is repeated the last value."""
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return dict(parser[section])


@pytest.fixture
def analyze(tmp_path):
    """A function that runs systemd-analyze on a unit whose program exists here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("not installed: systemd-analyze (Debian package systemd)")

    def run(name: str, *words: str) -> subprocess.CompletedProcess:
        path = tmp_path / name
        path.write_text((DEPLOY / "systemd" / name).read_text().replace(PROGRAM, sys.executable))
        command = ["systemd-analyze", *words, str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_every_line(analyze, name):
    done = analyze(name, "verify", "--man=no")
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.mark.parametrize("name", UNITS)
def test_little_is_exposed(analyze, name):
    done = analyze(name, "security", "--offline=true", "--no-pager")
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure, done.stdout + done.stderr
    assert float(exposure[1]) <= EXPOSURE_MAX[name]


@pytest.mark.parametrize("name", UNITS)
def test_it_is_bounded_and_starts_again(name):
    service = unit(name)
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes" and service["CapabilityBoundingSet"] == ""
    assert service["Restart"] == "on-failure"
    assert {"MemoryMax", "TasksMax"} <= service.keys()
    # The agent yields to the training, and is never stopped for the rest of a period.
    assert {"CPUWeight", "CPUQuota"} & service.keys() == {
        "CPUWeight" if name == "goodput-node.service" else "CPUQuota"
    }
    assert service.get("DynamicUser") == "yes" or service["User"] == "goodput"


@pytest.mark.parametrize("name", UNITS)
def test_refused_system_call_fails_and_kills_nothing(name):
    """NumPy's OpenBLAS calls mbind, which is in @resources, and goes on where it fails."""
    service = unit(name)
    assert service["SystemCallErrorNumber"] == "EPERM" and "SystemCallFilter" in service


def test_drop_in_opens_the_kernels_log(analyze, tmp_path):
    """Whatever the unit denies of it, and nothing else."""
    drop_in = tmp_path / "goodput-node.service.d" / "kernel-log.conf"
    drop_in.parent.mkdir()
    drop_in.write_text((DEPLOY / "systemd" / "kernel-log.conf").read_text())
    done = analyze("goodput-node.service", "verify", "--man=no")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    done = analyze("goodput-node.service", "security", "--offline=true", "--no-pager")
    assert re.search(r"✗ ProtectKernelLogs=", done.stdout) and re.search(
        r"✗ CapabilityBoundingSet=~CAP_SYSLOG", done.stdout
    )
    assert len(re.findall(r"✗ CapabilityBoundingSet=", done.stdout)) == 1
    assert unit("kernel-log.conf").keys() == {
        "ProtectKernelLogs",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
    }


@pytest.mark.parametrize("name", UNITS)
def test_the_command_is_one_that_goodput_knows(name):
    words = unit(name)["ExecStart"].split()
    assert words[0] == PROGRAM
    parsed(*(word for word in words[1:] if not word.startswith("$GOODPUT_")))


def test_the_agent_sees_gpus_and_the_folders_of_pages():
    service = unit("goodput-node.service")
    assert not {"PrivateDevices", "ProtectClock", "DevicePolicy", "ProtectProc"} & service.keys()
    # The state of the kernel's clock, by system calls that are not of the group.
    assert {"adjtimex", "clock_adjtime"} <= {*service["SystemCallFilter"].split()}
    # With RemoveIPC a stopped agent would take what its user owns in /dev/shm with it.
    assert "DynamicUser" not in service and "RemoveIPC" not in service
    writable = {path.lstrip("-") for path in service["ReadWritePaths"].split()}
    made = {
        words[1]: words[2:5]
        for line in (DEPLOY / "systemd" / "goodput.tmpfiles.conf").read_text().splitlines()
        if (words := line.split()) and words[0] == "d"
    }
    assert made == {path: ["1777", "goodput", "goodput"] for path in writable}
    assert service["Environment"].removeprefix("GOODPUT_DIR=") in made


def test_folder_of_pages_is_a_mount_with_bounds():
    mount = unit("run-goodput.mount", "Mount")
    folder = unit("goodput-node.service")["Environment"].removeprefix("GOODPUT_DIR=")
    assert (mount["Where"], mount["Type"]) == (folder, "tmpfs")
    options = mount["Options"].split(",")
    assert {"mode=1777", "nosuid", "nodev", "noexec"} < {*options}
    assert {option.partition("=")[0] for option in options} > {"size", "nr_inodes"}
    assert "run-goodput.mount" in unit("goodput-node.service", "Unit")["After"].split()
    # The prolog does the same where there is no systemd.
    assert f"mount -t tmpfs -o {mount['Options']} " in (DEPLOY / "slurm" / "agent.sh").read_text()


def test_systemd_accepts_users_and_folders(tmp_path):
    for program, file in (("systemd-sysusers", "sysusers"), ("systemd-tmpfiles", "tmpfiles")):
        if shutil.which(program) is None:
            pytest.skip(f"not installed: {program} (Debian package systemd)")
        text = (DEPLOY / "systemd" / f"goodput.{file}.conf").read_text()
        # In a root of its own: for tmpfiles a user that this machine has.
        path = tmp_path / f"{file}.conf"
        path.write_text(re.sub(r"(?<=1777 )goodput goodput", "- -", text))
        flags = ["--dry-run"] if file == "sysusers" else ["--create", f"--root={tmp_path}"]
        done = subprocess.run([program, *flags, str(path)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "Unknown" not in done.stderr and "nvalid" not in done.stderr
        if file == "sysusers" and "goodput" not in Path("/etc/passwd").read_text():
            assert "Creating user 'goodput'" in done.stderr
    for folder in ("dev/shm/goodput", "run/goodput"):
        assert (tmp_path / folder).stat().st_mode & 0o7777 == 0o1777


def test_defaults_parse_alike_in_systemd_and_shell(tmp_path):
    """systemd takes quotes off as a shell does; without them a shell would run the second word."""
    files = [DEPLOY / "systemd" / f"goodput-{name}.default" for name in ("node", "aggregator", "ingest")]
    options = [line for file in files for line in re.findall(r"^#?(GOODPUT_\w+=.*)$", file.read_text(), re.M)]
    (tmp_path / "options.toml").write_text("")
    assert len(options) == 14
    for line in options:
        assert len(shlex.split(line)) == 1, line
        name, _, value = shlex.split(line)[0].partition("=")
        value = re.sub(r"/etc/goodput/\w+\.toml", str(tmp_path / "options.toml"), value)
        if name == "GOODPUT_NODE_OPTIONS":
            arguments = parsed("node", *value.split())
            listening.check_options(arguments, arguments.listen[0], only_metrics=True)
        if name == "GOODPUT_SERVE_OPTIONS":
            arguments = parsed("serve", *value.split())
            listening.check_options(arguments, arguments.listen[0])
