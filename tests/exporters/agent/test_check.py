"""`goodput node --check` on a healthy node, an empty one and a broken one."""

from __future__ import annotations

import json
import os
import socket

import pytest
from support.node import amd_tree
from support.paths import TESTS
from support.servers.certificates import Authority

from goodput.access.certificate import Certificate
from goodput.cli import main
from goodput_exporters.agent import Agent
from goodput_exporters.check import FAILED, NONE, OK, UNAVAILABLE, _compare, check, text
from goodput_exporters.directory_lock import DirectoryLock
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.server.authentication import NodeAuthenticator
from goodput_exporters.server.server import Server

ANYWHERE = ("127.0.0.1", 0)


def agent(tree, **given) -> Agent:
    roots = {"directory": str(tree / "pages"), "sysfs": str(tree / "sys"), "procfs": str(tree / "proc")}
    return Agent(**{**roots, "drivers": (), **given})


def by_name(findings) -> dict:
    found = {finding.what: finding for finding in findings}
    assert len(found) == len(findings)
    return found


def test_node_without_gpus_passes(tree):
    before = sorted(os.listdir(tree / "pages"))
    found = by_name(check(agent(tree), ANYWHERE, None))
    assert {what for what, finding in found.items() if finding.status == FAILED} == set()
    assert found["host"].status == found["ethernet"].status == found["listen"].status == OK
    assert found["infiniband"].status == found["GPUs"].status == found["ranks"].status == NONE
    assert "class/infiniband" in found["infiniband"].detail
    assert sorted(os.listdir(tree / "pages")) == before


def test_missing_gpus_fail_the_check(tree):
    found = by_name(check(agent(tree, gpus_expected=8), ANYWHERE, None))
    assert found["GPUs"].status == FAILED and "0 found, 8 expected" in found["GPUs"].detail


@pytest.mark.parametrize(
    "kinds, expected, status, words",
    [
        ({"expected": 8, "seen": 8}, None, OK, "8 found, 8 expected"),
        ({"expected": 8, "seen": 7}, None, FAILED, "7 found, 8 expected"),
        ({"expected": 8, "seen": 8}, 8, OK, "8 found, 8 expected"),
        # An empty bus does not tell how many GPUs are expected.
        ({"expected": 0, "seen": 2}, None, OK, "2 found, expected unknown: the PCI bus shows none (declare the number with --gpus)"),
        ({"seen": 2}, None, OK, "2 found, expected unknown: no PCI bus is visible (declare the number with --gpus)"),
        ({"seen": 0}, None, NONE, "none found, expected unknown: no PCI bus is visible"),
        ({"expected": 1, "seen": 2}, None, OK, "2 found, 1 expected: more than the PCI bus shows (declare the number with --gpus)"),
        ({"expected": 1, "seen": 2}, 1, FAILED, "2 found, 1 expected: more than --gpus declares; a lost GPU would go unnoticed"),
        ({"expected": 0, "seen": 2}, 0, FAILED, "2 found, 0 expected: more than --gpus declares; a lost GPU would go unnoticed"),
        ({"expected": 0, "seen": 0}, 0, OK, "0 found, 0 expected"),
    ],
)  # fmt: skip
def test_found_gpus_are_compared_with_expected(kinds, expected, status, words):
    assert _compare(kinds, expected, True) == (status, words)


def test_gpus_missing_from_the_pci_bus(tree, monkeypatch):
    """For example in a virtual machine, or on a system on a chip."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    (tree / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    one = agent(tree)
    one.gpus._modules = {"normal": "support.node.fake_drivers:Normal"}
    found = by_name(check(one, ANYWHERE, None))
    assert found["GPUs"].status == OK and "8 found, expected unknown" in found["GPUs"].detail, found


def test_drivers_present_and_absent(tree, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    one = agent(tree, gpus_expected=2)
    one.gpus._modules = {name: f"support.node.fake_drivers:{name.title()}" for name in ("normal", "absent")}
    found = by_name(check(one, ANYWHERE, None))
    assert found["driver normal"].status == OK, found
    assert found["driver absent"].status == NONE
    assert not one.gpus.statuses()


def test_unavailable_subjects_fit_80_columns(tree, monkeypatch, tmp_path):
    """AMD GPUs without a library, and an accelerator that nothing reads."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "nowhere"))
    amd_tree.write_tree(tree)
    amd_tree.write(
        tree / "sys/bus/pci/devices/0000:aa:00.0",
        {"class": "0x120000", "vendor": "0x1da3", "device": "0x1020"},
    )
    findings = check(agent(tree, drivers=("amd",)), ANYWHERE, None)
    found = by_name(findings)
    assert found["driver amd"].status == OK and ", by sysfs (" in found["driver amd"].detail
    assert found["amd, by sysfs: resets, hangs and memory faults"] == (
        "amd, by sysfs: resets, hangs and memory faults",
        UNAVAILABLE,
        "need amdsmi; XIDs are NVIDIA's",
    )
    assert "amd, by sysfs: utilization" not in found
    assert found["no driver: 1 Intel Gaudi 1da3:1020"].status == UNAVAILABLE
    lines = text(findings, False).splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []
    at = lines.index("Not available here, and why:")
    assert lines[at + 1 :][:3] == [
        "  amd, by sysfs",
        "    activity by unit: AMD's driver counts only whether the GPU and its memory",
        "      controller are busy",
    ]
    assert "    1 Intel Gaudi 1da3:1020: seen on the PCI bus, and nothing else is read of it" in lines


def test_names_of_dcgm_without_a_value(tree, monkeypatch, tmp_path):
    names = ("DEV_GPU_TEMP", "DEV_POWER_USAGE", *(f"DEV_X{at}" for at in range(10)))
    lines = [f"DCGM_FI_{name}, gauge, x\n" for name in names]
    (tmp_path / "c.csv").write_text("".join(lines))
    for readings, status, words in (
        (
            {"temperature/core": 54.0},
            OK,
            "1 of dcgm-exporter's names; without a value: DCGM_FI_DEV_POWER_USAGE, ",
        ),
        ({}, NONE, "0 of dcgm-exporter's names; without a value: DCGM_FI_DEV_GPU_TEMP, "),
    ):
        one = agent(tree, compat="dcgm", dcgm_fields=str(tmp_path / "c.csv"))
        gpus = [MergedGpu("GPU-1", known_by=["nvml"], readings=readings)] if readings else []
        monkeypatch.setattr(one.gpus, "current", lambda gpus=gpus: gpus)
        found = by_name(check(one, ANYWHERE, None))["--compat"]
        assert found.status == status and found.detail.startswith(words)
        assert found.detail.endswith(f"DCGM_FI_DEV_X{8 if readings else 7} and {1 if readings else 2} more")
    assert "--compat" not in by_name(check(agent(tree), ANYWHERE, None))


def test_port_and_directory_in_use(tree):
    lock = DirectoryLock(str(tree / "pages"))
    assert lock.hold()
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = by_name(check(agent(tree), server.getsockname(), None))
    lock.release()
    assert found["listen"].status == FAILED and "in use" in found["listen"].detail
    assert found["rank pages"].status == FAILED and "another agent" in found["rank pages"].detail


@pytest.mark.parametrize("secured", [False, True])
def test_running_agent_of_this_node_passes(tree, tmp_path, secured):
    authenticator = NodeAuthenticator()
    if secured:
        authority = Authority(tmp_path)
        certificate = Certificate(*map(str, (*authority.issue("node"), authority.cert)))
        authenticator = NodeAuthenticator(None, certificate)
    lock = DirectoryLock(str(tree / "pages"))
    server = Server(lambda format: b"", lambda: "ill", authenticator=authenticator)
    assert lock.hold()
    server.start()
    found = by_name(check(agent(tree), server.address, None))
    here = f"in use by the running agent, pid {os.getpid()}"
    assert found["rank pages"] == ("rank pages", OK, f"{tree}/pages: {here}")
    assert found["listen"] == ("listen", OK, f"127.0.0.1:{server.address[1]}: {here}")
    # An agent of another folder is a conflict.
    lock.release()
    found = by_name(check(agent(tree), server.address, None))
    assert found["listen"].status == FAILED and found["rank pages"].status == OK
    server.stop()


def test_unreachable_aggregator_fails(tree):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = by_name(check(agent(tree), ANYWHERE, f"http://127.0.0.1:{port}"))
    assert found["aggregator"].status == FAILED and "refused" in found["aggregator"].detail


def test_unreadable_counter_file_is_named(tree):
    (tree / "proc/loadavg").write_text("much\n")
    found = by_name(check(agent(tree), ANYWHERE, None))
    assert found["host"].status == FAILED and "loadavg" in found["host"].detail


@pytest.mark.parametrize("as_json", [False, True])
def test_command_prints_text_or_json(tree, capsys, as_json):
    where = ["--directory", str(tree / "pages"), "--sysfs", str(tree / "sys"), "--procfs", str(tree / "proc")]
    flags = ["--check", "--listen", "127.0.0.1:0", *(["--json"] if as_json else [])]
    assert main(["node", *where, *flags]) == 0
    out = capsys.readouterr().out
    if as_json:
        assert {"what": "listen", "status": "ok", "detail": "127.0.0.1:0 is free"} in json.loads(out)
    else:
        assert "Nothing failed." in out and "\033" not in out
    assert main(["node", *where, *flags, "--gpus", "4"]) == 1


def test_colours_are_optional():
    from goodput_exporters.check import Finding

    findings = [Finding("a", OK, "b"), Finding("c", FAILED, "d")]
    assert "\033[31m" in text(findings, True) and "1 of 2 failed" in text(findings, False)


def test_page_directory_that_is_a_file_fails(tree):
    (tree / "file").write_text("")
    found = by_name(check(agent(tree, directory=str(tree / "file")), ANYWHERE, None))
    assert found["rank pages"].status == found["ranks"].status == FAILED
    assert "Not a directory" in found["rank pages"].detail


def test_missing_paths_fail(tree):
    one = agent(tree, sysfs=str(tree / "x"), procfs=str(tree / "y"), paths=("/no/such",))
    found = by_name(check(one, ANYWHERE, None))
    assert {found[what].status for what in ("procfs", "sysfs", "path")} == {FAILED}
    assert "/no/such" in found["path"].detail


@pytest.mark.parametrize(
    "flags", [["--once", "--check"], ["--json"], ["--gpu-interval", "0.01"], ["--gpu-interval", "61"]]
)
def test_contradicting_options_exit_with_2(tree, flags, capsys):
    try:
        status = main(["node", "--directory", str(tree / "pages"), *flags])
    except SystemExit as error:
        status = error.code
    assert status == 2 and capsys.readouterr().err


def test_empty_variables_and_readable_tokens_give_warnings(tree, tmp_path, capsys, monkeypatch):
    token = tmp_path / "token"
    token.write_text("secret")
    monkeypatch.setenv("GOODPUT_AGGREGATOR", "")
    monkeypatch.setenv("GOODPUT_CA_FILE", "")
    where = ["--directory", str(tree / "pages"), "--sysfs", str(tree / "sys"), "--procfs", str(tree / "proc")]
    for mode in (0o644, 0o600):
        token.chmod(mode)
        assert main(["node", *where, "--check", "--listen", "127.0.0.1:0", "--token-file", str(token)]) == 0
        err = capsys.readouterr().err
        assert "GOODPUT_AGGREGATOR is empty and treated as unset" in err and "GOODPUT_CA_FILE is" in err
        assert ("every user of this machine may read it (mode 0644)" in err) == (mode == 0o644)
        assert "secret" not in err
    monkeypatch.delenv("GOODPUT_CA_FILE")
    assert main(["node", *where, "--once", "--aggregator", "http://127.0.0.1:1"]) == 0
    assert capsys.readouterr().err == ""


def test_empty_option_error_text(capsys):
    for words, advice in (
        (["serve", "--tokens", ""], "is a variable unset?"),
        (["serve", "--listen", ""], "omit it for its default"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert f"empty value; {advice}" in capsys.readouterr().err
