"""Mounts of a fixture tree, and file systems that answer as scripted."""

from __future__ import annotations

import os
import subprocess

MOUNTINFO = (
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n"
    "40 27 0:50 / /data rw,relatime shared:2 - nfs4 server:/export/data rw,vers=4.2,addr=10.0.0.1\n"
    "41 27 0:50 /part /var/lib/kubelet/pods/a/volumes/data rw - nfs4 server:/export/data rw\n"
    "42 27 0:51 / /my\\040scratch rw - lustre 10.0.0.2@o2ib:/scratch rw,flock\n"
    "43 27 0:52 / /bucket ro,nosuid shared:9 - fuse.gcsfuse https://me:secret@host/bucket ro\n"
    "44 27 0:53 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw\n"
    "45 27 0:54 / /net rw - autofs systemd-1 rw,fd=31\n"
)
NFS_OPERATIONS = (
    "\t        NULL: 1 1 0 44 24 0 0 0 0\n"
    "\t        READ: 1298 1301 2 207680 106788460 7000 79386 79407 3\n"
    "\t       WRITE: 10 10 0 100 200 1 20 30 0\n"
    "\t     GETATTR: 5 5 0 1 1 1 1 1\n"
)
MOUNTSTATS = (
    "device proc mounted on /proc with fstype proc\n"
    "device server:/export/data mounted on /data with fstype nfs4 statvers=1.1\n"
    "\topts:\trw,vers=4.2,rsize=1048576,sec=sys,clientaddr=10.0.0.9\n"
    "\tage:\t13968\n"
    "\tcaps:\tcaps=0xfff7,wtmult=512,dtsize=32768,bsize=0,namlen=255\n"
    "\tsec:\tflavor=6,pseudoflavor=390003\n"
    "\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0\n"
    "\tbytes:\t1207640230 50 2000 7 1210214218 55 295483 12\n"
    "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
    "\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726\n"
    "\tper-op statistics\n" + NFS_OPERATIONS + "\n"
    "device server:/export/data mounted on /var/lib/kubelet/pods/a/volumes/data with fstype nfs4 statvers=1.1\n"
    "\tbytes:\t1207640230 50 2000 7 1210214218 55 295483 12\n"
    "\tper-op statistics\n" + NFS_OPERATIONS
)
LLITE_OLD = (
    "snapshot_time             1523008010.817348638 secs.nsecs\n"
    "read_bytes                25673 samples [bytes] 1 3366225 145121869\n"
    "write_bytes               13641 samples [bytes] 1 3366225 468230469\n"
    "open                      91 samples [regs]\n"
    "getattr                   405 samples [regs]\n"
)
LLITE_NEW = (
    "snapshot_time             1636.53 secs.nsecs\nstart_time 1.0 secs.nsecs\nelapsed_time 1.0 secs.nsecs\n"
    "read_bytes                12 samples [bytes] 4096 1048576 1000 99\n"
    "read                      11 samples [usecs] 12 300 2500000 9\n"
    "open                      4 samples [usecs] 12 30 80 1764\n"
)


class ScriptedProbes:
    """Starts processes that answer for each path from `answers`, and hang where it has none."""

    def __init__(self):
        self.answers: dict[str, str] = {}
        self.started: list[list[str]] = []
        self.processes: list[subprocess.Popen] = []

    def __call__(self, paths: list[str]) -> subprocess.Popen:
        self.started.append(paths)
        lines = [f"{at} {self.answers[path]}\n" for at, path in enumerate(paths) if path in self.answers]
        script = 'printf "%s" "$1"; test -z "$2" || exec sleep 600'
        hangs = "hangs" if len(lines) < len(paths) else ""
        command = ["sh", "-c", script, "sh", "".join(lines), hangs]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return self.processes[-1]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Unkillable:
    """A process in uninterruptible sleep: it writes nothing and cannot be killed."""

    def __init__(self):
        fd, self.other_end = os.pipe()
        self.stdout = os.fdopen(fd, "rb", 0)
        self.kills, self.returncode = 0, None

    def kill(self) -> None:
        self.kills += 1

    def wait(self) -> int:
        """Called only once it has ended."""
        return self.returncode

    def end(self) -> None:
        """The server answers, and the process dies of the signal."""
        self.returncode = -9
        os.close(self.other_end)
