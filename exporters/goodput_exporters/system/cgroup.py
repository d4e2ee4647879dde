"""Container, Kubernetes pod, Slurm job and step of a process, parsed from /proc/PID/cgroup.

Understands control groups v1 and v2, the cgroupfs and systemd drivers, Docker, containerd, CRI-O and Podman, and
both of Slurm's cgroup plugins, by job number and, since Slurm 26.05, by SLUID. Paths are relative to the reader's own group where the reader has a cgroup
namespace (a container without the host's): they then begin with `/..` and may lack the pod.

Sources: cgroups(7); the kubelet's cgroup names (pod<UID>, with _ for - in systemd's names); OCI runtimes' scopes
(<runtime>-<64 hex digits>.scope); Slurm's cgroup/v1 and v2 plugins (job_N/step_N/[user/]task_N; SLUID/step_N/… unless cgroup.conf has CgroupJobIdPaths).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput.wire.identity import clean_text

PATH_MAX = 512
LINES_MAX = 64
_CONTAINER = re.compile(r"(?:^|[-:_])([0-9a-f]{64})(?:\.scope)?$")
# A static pod's UID is the hash of its file, without dashes. Nested kubelets put their own names in front.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"(?:^|-)pod({_UID})(?:\.slice)?(?=$|:)")
_JOB = re.compile(r"job_(\d{1,20})")
# "s" and 64 bits in Crockford's base 32.
_SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
_STEP = re.compile(r"step_([0-9A-Za-z.+]{1,32})")


class Placement(NamedTuple):
    """What a process belongs to; "" where unknown. `path` is the group's path, in v1 the longest of them."""

    path: str = ""
    container_id: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    slurm_sluid: str = ""  # in place of the job's number
    slurm_step: str = ""


def parse_cgroup(text: str) -> Placement:
    """Combine the lines `number:controllers:path`. Raises nothing."""
    paths = [line.split(":", 2)[-1] for line in text.splitlines()[:LINES_MAX] if line.count(":") >= 2]
    found = dict.fromkeys(Placement._fields, "")
    for path in paths:
        parts = path.split("/")
        values = (_container(parts), _pod(parts), *_slurm(parts))
        for name, value in zip(Placement._fields[1:], values, strict=True):
            found[name] = found[name] or value
    found["path"] = clean_text(max(paths, key=len, default=""), PATH_MAX)
    return Placement(**found)


def _container(parts: list[str]) -> str:
    # The innermost: in a container in a container, the process sees this one as its own.
    for part in reversed(parts):
        match = _CONTAINER.search(part)
        # CRI-O has a group beside the container's, for the process that monitors it.
        if match and "-conmon-" not in part:
            return match[1]
    return ""


def _pod(parts: list[str]) -> str:
    matches = filter(None, map(_POD.search, reversed(parts)))
    return next((match[1].replace("_", "-") for match in matches), "")


def _slurm(parts: list[str]) -> tuple[str, str, str]:
    """Job, SLUID and step: `job_N` or a SLUID below a group with Slurm in its name, or directly above a step."""
    for at, part in enumerate(parts):
        job, sluid = _JOB.fullmatch(part), _SLUID.fullmatch(part)
        found = job or sluid
        step = _STEP.fullmatch(parts[at + 1]) if found and at + 1 < len(parts) else None
        if found and (step or any("slurm" in before for before in parts[:at])):
            return job[1] if job else "", sluid[0] if sluid else "", step[1] if step else ""
    return "", "", ""
