"""`goodput node --once` on trees that have everything, nothing, or rubbish: it prints what is there, and only that."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.node import amd_tree, network_tree
from support.node.attribution_tree import add_process
from support.node.host_tree import FILES
from support.node.node_command import command
from support.node.node_rank import PID, TICKS, Rank
from support.node.node_tree import write_tree

from goodput.metrics import CATALOGUE

SEEDS = (1, 2, 3)
# Whatever else is in the tree.
ALWAYS = {
    "goodput_node_info",
    "goodput_node_collector_up",
    "goodput_node_cpu_seconds_total",
    "goodput_node_pages",
}
RUBBISH = (
    *(b"", b"\n", b"\0\xff\xfe" * 40, b"-1\n", b"9" * 40, b"nan\n", b"0x\n", b"4: \n", b"\xc3\x28 {}\"\\\n", b"a " * 9),
    *(b"1\n" * 5000, b"x" * 300_000),
)  # fmt: skip


def write_whole(root: Path) -> None:
    """All the fixture trees in one."""
    write_tree(root)
    network_tree.write(root, network_tree.devices())
    amd_tree.write_tree(root)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    add_process(root, PID, TICKS, cgroup="0::/user.slice\n")


def spoil(root: Path, chance: random.Random) -> None:
    """Of half of the files make rubbish, and of some what is no file at all."""
    for path in sorted(path for name in ("proc", "sys") for path in (root / name).rglob("*")):
        if not path.is_file() or path.is_symlink() or chance.random() < 0.5:
            continue
        kind = chance.choice(("text", "text", "text", "gone", "directory", "loop", "nowhere", "pipe"))
        if kind == "text":
            path.write_bytes(chance.choice(RUBBISH))
            continue
        path.unlink()
        if kind == "directory":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path.name)
        elif kind == "nowhere":
            path.symlink_to("/nowhere/at/all")
        elif kind == "pipe":
            os.mkfifo(path)
    names = [b"eth\xff", b'e"th\\', b"  ", b"net\n1"]
    for folder in (
        "sys/class/net",
        "sys/class/infiniband",
        "sys/bus/pci/devices",
        "sys/class/hwmon",
        "proc/77777",
    ):
        for name in names:
            at = os.path.join(os.fsencode(root / folder), name, b"statistics")
            os.makedirs(at, exist_ok=True)
            with open(os.path.join(at, b"rx_bytes"), "w") as file:
                file.write("5\n")


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """By tree: exit status, standard output, standard error. All run side by side."""
    folder = tmp_path_factory.mktemp("trees")
    for name in ("empty", "whole", "pipes", *(f"rubbish{seed}" for seed in SEEDS)):
        for part in ("proc", "sys", "pages"):
            (folder / name / part).mkdir(parents=True)
    ranks = []
    for name in ("whole", "pipes", *(f"rubbish{seed}" for seed in SEEDS)):
        write_whole(folder / name)
        ranks.append(Rank(folder / name / "pages", device_uuid="GPU-1"))
        ranks[-1].step({"forward": 10**6})
    for path in [
        path for path in (folder / "pipes/proc").rglob("*") if path.is_file() and path.name != "stat"
    ]:
        path.unlink()
        os.mkfifo(path)
    for seed in SEEDS:
        spoil(folder / f"rubbish{seed}", random.Random(seed))
        (folder / f"rubbish{seed}" / "pages" / "bad.page").write_bytes(b"nonsense" * 100)
    (folder / "files").mkdir()
    for part in ("proc", "sys", "pages"):
        (folder / "files" / part).write_text("a file where a directory should be\n")
    running = {}
    for name in ("empty", "whole", "files", "missing", "pipes", *(f"rubbish{seed}" for seed in SEEDS)):
        roots = (("--directory", "pages"), ("--sysfs", "sys"), ("--procfs", "proc"))
        arguments = [text for option, part in roots for text in (option, str(folder / name / part))]
        call, environ = command("--once", *arguments)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running[name] = subprocess.Popen(call, env=environ, text=True, **pipes)
    found = {}
    for name, process in running.items():
        out, output = process.communicate(timeout=300)
        found[name] = process.returncode, out, output
    return found


TREES = ("empty", "whole", "files", "missing", "pipes", *(f"rubbish{seed}" for seed in SEEDS))


@pytest.mark.parametrize("tree_name", TREES)
def test_every_series_matches_the_catalogue(shown, tree_name):
    status, text, output = shown[tree_name]
    assert status == 0 and "Traceback" not in output, output
    names = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metric = CATALOGUE.get(sample.name) or CATALOGUE[family.name]
            assert metric.exposer == "node" and metric.kind == family.type, sample.name
            assert family.documentation and set(sample.labels) - {"le"} == set(metric.labels), sample
            assert sample.value == sample.value, sample
            names.add(metric.name)
    assert names >= ALWAYS


@pytest.mark.parametrize("tree_name", TREES)
def test_promtool_accepts_the_exposition(shown, tree_name):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not on PATH (Debian package prometheus)")
    call = ["promtool", "check", "metrics"]
    checked = subprocess.run(call, input=shown[tree_name][1], capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0 and not checked.stdout + checked.stderr


def values(text: str, prefixes: tuple[str, ...]) -> set[str]:
    return {line for line in text.splitlines() if line.startswith(prefixes)}


def test_empty_tree_shows_no_device(shown):
    devices = (
        "goodput_infiniband",
        "goodput_network",
        "goodput_gpu_",
        "goodput_disk",
        "goodput_rank",
        "goodput_host",
    )
    for name in ("empty", "files", "missing"):
        assert not values(shown[name][1], devices), name
        assert "goodput_node_collector_up" in shown[name][1]


def test_complete_tree_shows_all_series(shown):
    text = shown["whole"][1]
    for line in (
        'goodput_steps_total{rank="0",run="r1"} 1.0',
        "goodput_host_cpus 2.0",
        'goodput_infiniband_bytes_total{device="mlx5_0",direction="transmit",port="1"} 4.398046511108e+012',
        'goodput_network_up{device="eth0"} 1.0',
    ):
        name = line.partition(" ")[0]
        assert name in text, name
    expected = [line for line in text.splitlines() if line.startswith('goodput_gpus{kind="expected"}')]
    assert expected and float(expected[0].split()[-1]) >= 1


def test_damaged_tree_shows_readable_series(shown):
    for seed in SEEDS:
        text = shown[f"rubbish{seed}"][1]
        assert len(values(text, ("goodput_infiniband",))) > 50 and values(
            text, ("goodput_host", "goodput_disk")
        )
        errors = values(text, ("goodput_node_collector_errors_total",))
        assert any(not line.endswith(" 0.0") for line in errors)
        # What is shown of a file that was left alone is what the whole tree has.
        counters = ("goodput_infiniband_packets_total", "goodput_infiniband_congestion_total")
        assert values(text, counters) <= values(shown["whole"][1], counters) | odd(text)


def test_fifos_of_procfs_are_errors_and_not_waited_for(shown):
    """Those of the rank's process too, which the agent itself reads before any collector runs."""
    _, text, output = shown["pipes"]
    assert "goodput_host_cpus 2.0" in text and 'goodput_steps_total{rank="0",run="r1"}' in text
    for name in ("diskstats", "meminfo", "loadavg"):
        assert f"proc/{name}: no regular file" in output


def odd(text: str) -> set[str]:
    """Lines of files whose rubbish is a number indeed."""
    return {line for line in text.splitlines() if line.endswith((" -1.0", " 1.0"))}
