"""Processes of this node as procfs has them: which one a rank page means, and whose it is.

In: a procfs root, `RankProcess`es, pids. Out: the pid in that procfs, or None; and `Owner`, the labels of a process.

A page's pid counts in the PID namespace of its trainer, which need not be the agent's. So a pid is believed only
where its start time is the page's: first that of the process that holds the page's lock, which the kernel tells in
the agent's own numbers, then the page's own, then, at most once in SCAN_SECONDS for all pages together, the one
process whose innermost pid (NSpid) and start time are the page's. Two that fit are none.

Of a process's environment, which may hold secrets, only the variables of ENVIRONMENT are ever looked for; nothing
else is kept, logged or exposed. Where this user may not read it (another user's process, for an agent that is not
root), the control groups still say much. An owner is read once for each process: about 0.2 ms; afterwards a look
costs one small file. It knows no rank pages and no GPUs.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from goodput.wire.identity import clean_text
from goodput_exporters.collector import CollectorError, ParseError, parse_count, read_text
from goodput_exporters.system.cgroup import Placement, place
from goodput_exporters.system.ranks import RankProcess

CACHED_MAX = 1024
SCANNED_MAX = 65_536
SCAN_SECONDS = 60.0
UNNAMED_SECONDS = 60.0
TEXT_MAX = 255
ENVIRONMENT_BYTES_MAX = 1 << 20
# What is known by each variable; the first that is set counts. Those of pods are what the downward API is commonly
# told to set. HOSTNAME is not among them: it is not the pod's name in a job, a set or on the host's network.
ENVIRONMENT = {
    "pod": ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "KUBERNETES_POD_NAME"),
    "namespace": ("POD_NAMESPACE", "K8S_POD_NAMESPACE", "K8S_NAMESPACE_NAME", "MY_POD_NAMESPACE", "KUBERNETES_NAMESPACE"),
    "pod_uid": ("POD_UID", "K8S_POD_UID", "MY_POD_UID", "KUBERNETES_POD_UID"),
    "container": ("K8S_CONTAINER_NAME",),
    "slurm_job": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "slurm_step": ("SLURM_STEP_ID", "SLURM_STEPID"),
    "slurm_user": ("SLURM_JOB_USER",),
}  # fmt: skip


class Owner(NamedTuple):
    """Labels of a process; "" is what does not apply or is not known."""

    user: str = ""
    comm: str = ""
    container: str = ""
    container_id: str = ""
    pod: str = ""
    namespace: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    cgroup: str = ""


class Stat(NamedTuple):
    """Of /proc/PID/stat: name, start time in ticks since boot, and the processor it ran on last."""

    comm: str
    start_ticks: int
    processor: int


class Processes:
    """`pods` gives (pod, namespace, container) of a container id, or None; see pods.py."""

    def __init__(
        self,
        procfs: str,
        pods: Callable[[str], tuple[str, str, str] | None] = lambda container_id: None,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._procfs, self._pods, self._monotonic = procfs, pods, monotonic
        self._found: dict[RankProcess, int] = {}
        self._scanned: float | None = None
        self._owners: dict[tuple[int, int], tuple[Owner, float]] = {}
        self._users: dict[int, str] = {}

    def find(self, ranks: list[RankProcess]) -> dict[RankProcess, int]:
        """The pid of each rank that can be found. Raises nothing."""
        found = {}
        for rank in ranks:
            for pid in (self._found.get(rank, 0), rank.holder, rank.pid):
                if pid and self._is(pid, rank):
                    found[rank] = pid
                    break
        missing = [rank for rank in ranks if rank not in found and rank.start_ticks is not None]
        if missing and self._may_scan():
            found.update(self._scan(missing))
        self._found = found
        return found

    def stat(self, pid: int) -> Stat | None:
        """None for a process that is gone, a zombie, or not to be understood."""
        try:
            text = read_text(f"{self._procfs}/{pid}/stat")
            return None if text is None else parse_stat(text)
        except (CollectorError, ParseError):
            return None

    def status(self, pid: int) -> dict[str, str]:
        """/proc/PID/status by name; empty where it cannot be had."""
        try:
            text = read_text(f"{self._procfs}/{pid}/status") or ""
        except CollectorError:
            return {}
        return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}

    def owner(self, pid: int) -> Owner | None:
        """Whose a process is; None where it is gone. Raises nothing."""
        stat = self.stat(pid)
        if stat is None:
            return None
        at, now = (pid, stat.start_ticks), self._monotonic()
        owner, read = self._owners.get(at, (None, 0.0))
        # A container without a name may get one: the kubelet makes its links when it comes to it.
        unnamed = owner is not None and owner.container_id and not owner.pod
        if owner is None or (unnamed and now - read >= UNNAMED_SECONDS):
            owner = self._read_owner(pid, stat)
            after = self.stat(pid)
            if after is None or after.start_ticks != stat.start_ticks:
                return None  # It ended meanwhile, and the pid may be another's.
            _remember(self._owners, at, (owner, now))
        return owner

    # -- below here: parts

    def _is(self, pid: int, rank: RankProcess) -> bool:
        stat = self.stat(pid)
        return stat is not None and stat.start_ticks == rank.start_ticks

    def _may_scan(self) -> bool:
        now = self._monotonic()
        if self._scanned is not None and now - self._scanned < SCAN_SECONDS:
            return False
        self._scanned = now
        return True

    def _scan(self, missing: list[RankProcess]) -> dict[RankProcess, int]:
        """The ranks that exactly one process can be, by start time and innermost pid."""
        wanted = {rank.start_ticks for rank in missing}
        fitting: dict[tuple[int, int], list[int]] = {}
        for pid in self._pids():
            stat = self.stat(pid)
            if stat is None or stat.start_ticks not in wanted:
                continue
            inner = self.status(pid).get("NSpid", "").split()[-1:]
            if inner and inner[0].isdecimal():
                fitting.setdefault((int(inner[0]), stat.start_ticks), []).append(pid)
        found = {rank: fitting.get((rank.pid, rank.start_ticks), []) for rank in missing}
        return {rank: pids[0] for rank, pids in found.items() if len(pids) == 1}

    def _pids(self) -> list[int]:
        try:
            names = os.listdir(self._procfs)
        except OSError:
            return []
        return [int(name) for name in names if name.isascii() and name.isdecimal()][:SCANNED_MAX]

    def _read_owner(self, pid: int, stat: Stat) -> Owner:
        placed = self._place(pid)
        said = self._environment(pid)
        # The groups are the kernel's word; a variable may be inherited from somewhere else.
        if placed.slurm_job and placed.slurm_job != said["slurm_job"]:
            said["slurm_step"] = ""
        pod = self._pods(placed.container_id) if placed.container_id else None
        name, namespace, container = pod or (said["pod"], said["namespace"], said["container"])
        return Owner(
            user=self._user(self.status(pid).get("Uid", ""), said["slurm_user"]),
            comm=clean_text(stat.comm, 64),
            container=container,
            container_id=placed.container_id,
            pod=name,
            namespace=namespace,
            pod_uid=placed.pod_uid or said["pod_uid"],
            slurm_job=placed.slurm_job or said["slurm_job"],
            slurm_step=placed.slurm_step or said["slurm_step"],
            cgroup=placed.path,
        )

    def _place(self, pid: int) -> Placement:
        try:
            return place(read_text(f"{self._procfs}/{pid}/cgroup") or "")
        except CollectorError:
            return Placement()

    def _environment(self, pid: int) -> dict[str, str]:
        try:
            fd = os.open(f"{self._procfs}/{pid}/environ", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                text = b""
                while len(text) < ENVIRONMENT_BYTES_MAX and (part := os.read(fd, 1 << 16)):
                    text += part
            finally:
                os.close(fd)
        except OSError:
            text = b""
        return parse_environment(text)

    def _user(self, uids: str, otherwise: str) -> str:
        first = uids.split()[:1]
        if not first or not first[0].isdecimal() or len(first[0]) > 10:
            return otherwise
        uid = int(first[0])
        if uid not in self._users:
            try:
                name = clean_text(pwd.getpwuid(uid).pw_name, 64)
            except (KeyError, OverflowError):
                name = ""
            _remember(self._users, uid, name)
        return self._users.get(uid) or otherwise or str(uid)


def parse_stat(text: str) -> Stat:
    """/proc/PID/stat, fields 2, 22 and 39 (proc(5)). Raises ParseError; also for a process that has ended."""
    before, bracket, after = text.rpartition(")")
    fields = after.split()
    if not bracket or "(" not in before or len(fields) < 20:
        raise ParseError(f"no process in {text[:40]!r}")
    if fields[0] in ("Z", "X"):
        raise ParseError("the process has ended")
    processor = parse_count(fields[36]) if len(fields) > 36 else -1
    return Stat(before.partition("(")[2], parse_count(fields[19]), processor)


def parse_environment(text: bytes) -> dict[str, str]:
    """What the variables of ENVIRONMENT say, by what is known by them; "" where none is set."""
    names = {variable.encode() for variables in ENVIRONMENT.values() for variable in variables}
    said = {}
    for entry in text.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in names:
            said.setdefault(name.decode(), clean_text(value.decode("utf-8", "replace"), TEXT_MAX))
    return {
        what: next((said[variable] for variable in variables if said.get(variable)), "")
        for what, variables in ENVIRONMENT.items()
    }


def lock_holder(fd: int) -> int:
    """The pid that holds the owner's lock of an open page, in this process's PID namespace; 0 where unknown."""
    probe = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, probe))
    except OSError:
        return 0  # A file system without locks.
    return pid if kind != fcntl.F_UNLCK and pid > 0 else 0


def _remember(known: dict, key, value) -> None:
    """Keep at most CACHED_MAX; the oldest goes."""
    while key not in known and len(known) >= CACHED_MAX:
        known.pop(next(iter(known)), None)
    known[key] = value
