"""Finds the processes of ranks in procfs, and reads the owner of a process.

A page's pid counts in its trainer's PID namespace, which need not be the agent's, and any user may write a page that
names another user's process. A pid is therefore accepted only if its start time and its user are the page's: first the process that locks the page (the kernel reports it in the agent's
namespace), then the page's own pid, then, at most once per SCAN_SECONDS for all pages together, the one process
whose innermost pid (NSpid) and start time match. Two that match count as none.

A file that cannot be read belongs to another user, is hidden or its process has ended: that is no error. A malformed one
is added to the problems of the `files` that a caller passes.

Of a process's environment, which may hold secrets, only the variables in ENVIRONMENT are read; nothing else is
kept, logged or exposed. Another user's environment needs root; the control groups are still readable.
Reading an owner takes 0.2 ms, once per process; after that a call reads one small file.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import struct
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from goodput.rank_page.process_owner import owner_problem
from goodput.wire.identity import clean_text
from goodput_exporters.collector import CollectorError, ParseError
from goodput_exporters.system.cgroup import Placement, parse_cgroup
from goodput_exporters.system.files import COUNTER_BYTES_MAX, CounterFiles, parse_count, read_text
from goodput_exporters.system.interval import Interval
from goodput_exporters.system.ranks import RankProcess

T = TypeVar("T")

CACHED_MAX = 1024
SCANNED_MAX = 65_536
SCAN_SECONDS = 60.0
UNNAMED_SECONDS = 60.0
STATUS_BYTES_MAX = 1 << 16
OPTIONAL = ("NSpid",)  # lines of /proc/PID/status that kernels before 4.1 do not have
TEXT_MAX = 255
PARENTS_MAX = 64  # above a process, up to its slurmstepd
_PARENT = re.compile(r".*\) \S (\d{1,10}) ", re.DOTALL)  # in /proc/PID/stat
_STEPD_TITLE = re.compile(r"slurmstepd: \[(\d{1,20})[.+]")  # the job of "slurmstepd: [4711.batch]"
ENVIRONMENT_BYTES_MAX = 1 << 20
# Variables by what they hold; the first that is set counts. Those of pods are the names commonly given to the
# downward API. HOSTNAME is missing on purpose: in a job, a set or on the host's network it is not the pod's name.
ENVIRONMENT = {
    "pod": ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "KUBERNETES_POD_NAME"),
    "namespace": ("POD_NAMESPACE", "K8S_POD_NAMESPACE", "K8S_NAMESPACE_NAME", "MY_POD_NAMESPACE", "KUBERNETES_NAMESPACE"),
    "pod_uid": ("POD_UID", "K8S_POD_UID", "MY_POD_UID", "KUBERNETES_POD_UID"),
    "container": ("K8S_CONTAINER_NAME",),
    "slurm_job": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "slurm_sluid": ("SLURM_JOB_SLUID",),
    "slurm_step": ("SLURM_STEP_ID", "SLURM_STEPID"),
    "slurm_user": ("SLURM_JOB_USER",),
}  # fmt: skip


class Owner(NamedTuple):
    """The owner of a process, as labels; "" is unknown or does not apply."""

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


class ProcessStat(NamedTuple):
    """From /proc/PID/stat: name, start time in ticks since boot, and the processor it last ran on (-1: unknown)."""

    comm: str
    start_ticks: int
    processor: int


class Processes:
    """`pods` returns (pod, namespace, container) of a container id, or None."""

    def __init__(
        self,
        procfs: str,
        pods: Callable[[str], tuple[str, str, str] | None] = lambda container_id: None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ):
        self._procfs, self._pods, self._monotonic_ns = procfs, pods, monotonic_ns
        self._found: dict[RankProcess, int] = {}
        self._scan_interval = Interval(SCAN_SECONDS, monotonic_ns)
        self._owners: dict[tuple[int, int], tuple[Owner, int]] = {}  # and when it was read
        self._users: dict[int, str] = {}

    def find(self, ranks: list[RankProcess], files: CounterFiles | None = None) -> dict[RankProcess, int]:
        """The pid of each rank that can be found. Raises nothing."""
        found, files = {}, files or CounterFiles()
        for rank in ranks:
            for pid in (self._found.get(rank, 0), rank.holder, rank.pid):
                if pid and self._is_of(rank, pid, files):
                    found[rank] = pid
                    break
        missing = [rank for rank in ranks if rank not in found and rank.start_ticks is not None]
        if missing and self._scan_interval.is_due():
            found.update(self._scan(missing, files))
        self._found = found
        return found

    def problem(self, rank: RankProcess, pid: int) -> str:
        """Why a pid is not the process of a rank's page, "" if it is."""
        return "" if rank.owner is None else owner_problem(rank.owner, pid, rank.start_ticks, self._procfs)

    def _is_of(self, rank: RankProcess, pid: int, files: CounterFiles) -> bool:
        stat = self.stat(pid, files)
        return stat is not None and stat.start_ticks == rank.start_ticks and not self.problem(rank, pid)

    def stat(self, pid: int, files: CounterFiles) -> ProcessStat | None:
        """None for a process that is gone, a zombie, or unparsable."""
        text = self._read(pid, "stat", COUNTER_BYTES_MAX)
        return files.parse(f"{self._procfs}/{pid}/stat", text, parse_stat) if text else None

    def status(self, pid: int, name: str, parse: Callable[[str], T], files: CounterFiles) -> T | None:
        """A line of /proc/PID/status; None where there is none, it cannot be read or is malformed."""
        text = self._read(pid, "status", STATUS_BYTES_MAX)
        values = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:"))
        value = next(values, None)
        path = f"{self._procfs}/{pid}/status"
        if value is not None:
            return files.parse(f"{path}: {name}", value, parse)
        if text and (name not in OPTIONAL or "Name:" not in text):
            files.problems.append(f"{path}: no line {name}")
        return None

    def owner(self, pid: int, files: CounterFiles) -> Owner | None:
        """The owner of a process; None where it is gone. Raises nothing."""
        stat = self.stat(pid, files)
        if stat is None:
            return None
        key, now_ns = (pid, stat.start_ticks), self._monotonic_ns()
        owner, read_ns = self._owners.get(key, (None, 0))
        # A container without a name may get one later: the kubelet links its log when it gets to it.
        unnamed = owner is not None and owner.container_id and not owner.pod
        if owner is None or (unnamed and now_ns - read_ns >= UNNAMED_SECONDS * 1e9):
            own = CounterFiles()
            owner = self._read_owner(pid, stat, own)
            files.problems += own.problems
            after = self.stat(pid, files)
            if after is None or after.start_ticks != stat.start_ticks:
                return None  # It ended meanwhile, and the pid may be another process's.
            if not own.problems:  # Else it is read again, which counts again.
                _remember(self._owners, key, (owner, now_ns))
        return owner

    def _read(self, pid: int, name: str, bytes_max: int = ENVIRONMENT_BYTES_MAX) -> str:
        try:
            return read_text(f"{self._procfs}/{pid}/{name}", bytes_max) or ""
        except CollectorError:
            return ""

    def _scan(self, missing: list[RankProcess], files: CounterFiles) -> dict[RankProcess, int]:
        """The ranks that match exactly one process, by start time and innermost pid."""
        start_times = {rank.start_ticks for rank in missing}
        matching: dict[tuple[int, int], list[int]] = {}
        for pid in self._pids():
            stat = self.stat(pid, files)
            if stat is None or stat.start_ticks not in start_times:
                continue
            inner = self.status(pid, "NSpid", parse_innermost_pid, files)
            if inner is not None:
                matching.setdefault((inner, stat.start_ticks), []).append(pid)
        found = {rank: matching.get((rank.pid, rank.start_ticks or 0), []) for rank in missing}
        return {r: pids[0] for r, pids in found.items() if len(pids) == 1 and not self.problem(r, pids[0])}

    def _pids(self) -> list[int]:
        try:
            names = os.listdir(self._procfs)
        except OSError:
            return []
        return [int(name) for name in names if name.isascii() and name.isdecimal()][:SCANNED_MAX]

    def _read_owner(self, pid: int, stat: ProcessStat, files: CounterFiles) -> Owner:
        cgroup = self._read(pid, "cgroup")
        group = parse_cgroup(cgroup)
        if cgroup.strip() and not group.path:
            files.problems.append(f"{self._procfs}/{pid}/cgroup: no control group in {cgroup[:40]!r}")
        declared = parse_environment(self._read(pid, "environ"))
        declared |= self._slurm_of(pid, group, declared)
        pod = self._pods(group.container_id) if group.container_id else None
        name, namespace, container = pod or (declared["pod"], declared["namespace"], declared["container"])
        return Owner(
            user=self._user(self.status(pid, "Uid", parse_uid, files), declared["slurm_user"]),
            comm=clean_text(stat.comm, 64),
            container=container,
            container_id=group.container_id,
            pod=name,
            namespace=namespace,
            pod_uid=group.pod_uid or declared["pod_uid"],
            slurm_job=declared["slurm_job"],
            slurm_step=declared["slurm_step"],
            cgroup=group.path,
        )

    def _slurm_of(self, pid: int, group: Placement, declared: dict[str, str]) -> dict[str, str]:
        """Job, step and user as Slurm has them. Its control groups are the kernel's; a variable may be inherited from
        another job, and then none of them counts."""
        if group.slurm_job:
            is_own = group.slurm_job == declared["slurm_job"]
        elif group.slurm_sluid:
            is_own = group.slurm_sluid == declared["slurm_sluid"]
        else:
            return {}
        names = ("slurm_job", "slurm_step", "slurm_user")
        found = {name: declared[name] if is_own else "" for name in names}
        found["slurm_job"] = group.slurm_job or found["slurm_job"] or self._stepd_job(pid, group.slurm_sluid)
        found["slurm_step"] = group.slurm_step or found["slurm_step"]
        return found

    def _stepd_job(self, pid: int, sluid: str) -> str:
        """The job's number in the title of the slurmstepd above a process, in the job's group; "" where there is none."""
        for _ in range(PARENTS_MAX):
            title = self._read(pid, "cmdline", COUNTER_BYTES_MAX).partition("\0")[0]
            match = _STEPD_TITLE.match(title)
            if match and parse_cgroup(self._read(pid, "cgroup")).slurm_sluid == sluid:
                return match[1]
            parent = _PARENT.search(self._read(pid, "stat", COUNTER_BYTES_MAX))
            pid = int(parent[1]) if parent else 0
            if pid <= 1:
                break
        return ""

    def _user(self, uid: int | None, otherwise: str) -> str:
        if uid is None:
            return otherwise
        if uid not in self._users:
            try:
                name = clean_text(pwd.getpwuid(uid).pw_name, 64)
            except (KeyError, OverflowError):
                name = ""
            _remember(self._users, uid, name)
        return self._users.get(uid) or otherwise or str(uid)


def parse_stat(text: str) -> ProcessStat | None:
    """/proc/PID/stat, fields 2, 22 and 39 (proc(5)); None for a process that has ended. Raises ParseError."""
    before, bracket, after = text.rpartition(")")
    fields = after.split()
    if not bracket or "(" not in before or len(fields) < 20:
        raise ParseError(f"no process in {text[:40]!r}")
    if fields[0] in ("Z", "X"):
        return None
    processor = parse_count(fields[36]) if len(fields) > 36 else -1
    return ProcessStat(before.partition("(")[2], parse_count(fields[19]), processor)


def parse_innermost_pid(text: str) -> int:
    """The last of the pids in a line NSpid. Raises ParseError."""
    return parse_count((text.split() or [""])[-1])


def parse_uid(text: str) -> int:
    """The real user id in a line Uid. Raises ParseError."""
    uid = parse_count((text.split() or [""])[0])
    if uid >= 1 << 32:
        raise ParseError(f"{uid} is no user id")
    return uid


def parse_environment(text: str) -> dict[str, str]:
    """The values of the variables in ENVIRONMENT, by what they hold; "" where none is set."""
    names = {variable for variables in ENVIRONMENT.values() for variable in variables}
    values: dict[str, str] = {}
    for entry in text.split("\0"):
        name, _, value = entry.partition("=")
        if name in names:
            values.setdefault(name, clean_text(value, TEXT_MAX))
    return {
        what: next((values[variable] for variable in variables if values.get(variable)), "")
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


def _remember(cache: dict, key, value) -> None:
    """Add to a cache of at most CACHED_MAX entries; the oldest is dropped."""
    while key not in cache and len(cache) >= CACHED_MAX:
        cache.pop(next(iter(cache)), None)
    cache[key] = value
