"""Which local file systems are watched, under which paths, and what each has."""

import os
import tempfile
from pathlib import Path

import pytest
from support.node.node_tree import collect, of

from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.local_filesystems.collector import LocalFilesystems, local_mounts
from goodput_exporters.system.mounts import parse_mountinfo

MOUNTS = (
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro\n"
    "28 27 254:0 /srv /srv/again rw,relatime - ext4 /dev/vda rw\n"
    "29 27 254:1 / /scratch rw,relatime - xfs /dev/nvme0n1 ro,attr2\n"
    "30 27 254:2 / /media ro,relatime - ext4 /dev/sdb rw\n"
    "31 27 254:3 / /var/lib/kubelet/pods/a/volumes/x rw - ext4 /dev/sdc rw\n"
    "32 27 254:4 / /etc/hosts rw - ext4 /dev/vda rw\n"
    "33 27 0:30 / /dev/shm rw - tmpfs tmpfs rw\n"
    "34 27 0:31 / /run rw - tmpfs tmpfs rw\n"
    "35 27 0:32 / /pool rw - zfs tank rw\n"
    "36 27 0:33 / /pool/home rw - zfs tank/home rw\n"
    "37 27 0:40 / /nfs rw - nfs4 server:/x rw\n"
    "38 37 254:5 / /nfs/disk rw - ext4 /dev/sdd rw\n"
    "39 27 0:41 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw\n"
)


def test_which_are_local():
    found = {mount.path: mount for mount in local_mounts(parse_mountinfo(MOUNTS))}
    assert list(found) == ["/", "/pool", "/media", "/dev/shm", "/scratch"]
    # The file system's own options, as the kernel makes it after errors, and not those of a mount.
    assert {path for path, mount in found.items() if mount.is_readonly} == {"/scratch"}


def collector_on(tmp_path, text: str, **given) -> LocalFilesystems:
    path = tmp_path / "proc/self/mountinfo"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return LocalFilesystems(Settings(directory="", procfs=str(tmp_path / "proc"), **given))


@pytest.fixture
def tmp_path():
    """Not below /dev, where no file system on a disk is looked for."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture
def device(tmp_path):
    number = os.stat(tmp_path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_paths_below_the_host_root(tmp_path, device):
    """The agent's own mounts are not the host's, and the host's have the paths that they have there."""
    root = tmp_path / "host"
    root.mkdir()
    mounts = f"27 1 {device} / / rw - ext4 /dev/own rw\n28 27 {device} / {root} ro - ext4 /dev/vda rw\n"
    collector = collector_on(tmp_path, mounts, rootfs=str(root))
    found, usage = collect(collector), os.statvfs(root)
    assert of(found, "goodput_filesystem_info") == {("ext4", "/", "/dev/vda"): 1}
    assert of(found, "goodput_filesystem_readonly") == {("/",): 0}, "only the agent may not write"
    assert of(found, "goodput_filesystem_size_bytes") == {("/",): usage.f_blocks * usage.f_frsize}
    assert of(found, "goodput_filesystem_inodes")[("total", "/")] == usage.f_files


def test_another_file_system_at_the_path(tmp_path, device):
    """The mounts of a recorded tree are another machine's."""
    (tmp_path / "at").mkdir()
    found = collect(collector_on(tmp_path, f"28 27 99:9 / {tmp_path}/at rw - ext4 /dev/vda rw\n"))
    assert found == {}


def test_failing_file_system_is_down(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    found = collect(collector_on(tmp_path, f"28 27 99:9 / {loop} rw - ext4 /dev/vda rw\n"))
    assert found == {("goodput_filesystem_up", (str(loop),)): 0}


def test_configured_paths_are_not_watched_twice(tmp_path, device):
    (tmp_path / "at").mkdir()
    mounts = f"28 27 {device} / {tmp_path}/at rw - ext4 /dev/vda rw\n"
    with pytest.raises(NoData):
        collect(collector_on(tmp_path, mounts, paths=(f"{tmp_path}/at",)))


def test_too_many_file_systems(tmp_path, device):
    lines = []
    for number in range(70):
        (tmp_path / f"at{number:02}").mkdir()
        lines.append(f"28 27 9:{number} / {tmp_path}/at{number:02} rw - btrfs /dev/x{number} rw\n")
    found = collect(collector_on(tmp_path, "".join(lines)), problem="70 local file systems; only 64")
    assert len(of(found, "goodput_filesystem_info")) == 64


def test_malformed_mounts_are_an_error(tmp_path):
    with pytest.raises(NoData):
        LocalFilesystems(Settings(directory="", procfs=str(tmp_path))).collect(None)
    collect(collector_on(tmp_path, "nonsense\n"), problem="no mount in 'nonsense'")
