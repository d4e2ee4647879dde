"""Whatever lies in procfs and sysfs, the host's collectors add series or say what is wrong, and raise nothing else."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.node.attribution_tree import PLACES, add_process
from support.node.broken_files import exposition
from support.node.host_tree import FILES
from support.node.node_rank import PID, TICKS, Rank
from support.node.node_tree import samples, write_tree

from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.attribution.collector import Attribution
from goodput_exporters.collectors.host.collector import Host
from goodput_exporters.collectors.numa.collector import Numa
from goodput_exporters.collectors.ranks.collector import Ranks
from goodput_exporters.collectors.storage.collector import Storage
from goodput_exporters.collectors.storage.filesystem_probe import FilesystemProbe
from goodput_exporters.gpu.sample import Gpu

OTHERS = [
    *(
        "proc/stat",
        "proc/vmstat",
        "proc/meminfo",
        "proc/diskstats",
        "proc/loadavg",
        "proc/pressure/io",
        "proc/net/snmp",
    ),
    *(f"proc/{PID}/{name}" for name in ("stat", "status", "cgroup", "environ")),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tree in which everything is there; its ranks are followed."""
    root = tmp_path_factory.mktemp("whole")
    write_tree(root)
    (root / "pages").mkdir()
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    add_process(root, PID, TICKS, cgroup=PLACES["v2 systemd containerd"][0], environ={"POD_NAME": "a"})
    rank = Rank(root / "pages")
    rank.step({"forward": 1000})
    ranks = Ranks(Settings(directory=str(root / "pages"), procfs=str(root / "proc")))
    ranks.poll()
    yield root, ranks
    ranks.close()


def refuse(paths):
    raise OSError(1, "not here")


def collected(root, ranks) -> tuple[set, list[str]]:
    """The names of the series, and what was wrong."""
    given = Settings(directory="", procfs=f"{root}/proc", sysfs=f"{root}/sys", container_logs=f"{root}/logs")
    attribution, numa = Attribution(given), Numa(given)
    attribution.ranks, attribution.gpus = ranks.processes, lambda: [Gpu(uuid="GPU-1", pids=[PID])]
    numa.ranks = ranks.processes
    found, problems = set(), []
    for collector in (Host(given), numa, Storage(given, FilesystemProbe(start=refuse)), attribution):
        families = Families("node")
        try:
            collector.collect(families)
        except (CollectorError, NoData) as error:
            problems.append(f"{collector.name}: {error}")
        found |= {name for name, _ in samples(families)}
        exposition(families)
    return found, problems


def test_the_whole_tree_has_every_kind_of_series(whole):
    found, problems = collected(*whole)
    assert len(found) >= 34 and [problem.split(":")[0] for problem in problems] == ["storage"]


@given(
    st.dictionaries(
        st.sampled_from([*FILES, *OTHERS]),
        st.one_of(st.none(), st.just("directory"), st.binary(max_size=200), st.integers(0, 300)),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree(whole, changes):
    """None takes a file away, a number cuts it short."""
    root, ranks = whole
    before = {name: (root / name).read_bytes() for name in changes}
    try:
        for name, change in changes.items():
            path = root / name
            path.unlink()
            if change == "directory":
                path.mkdir()
            elif change is not None:
                path.write_bytes(before[name][:change] if isinstance(change, int) else change)
        collected(root, ranks)
    finally:
        for name, text in before.items():
            path = root / name
            if path.is_dir():
                shutil.rmtree(path)
            path.write_bytes(text)
