"""Whose a process is by its control groups: container, Kubernetes pod, Slurm job and step.

In: the text of /proc/PID/cgroup. Out: `Placement`; what the paths do not say is "". Pure; raises nothing.

Understood are version 1 and 2 of control groups, the cgroupfs and systemd drivers, Docker, containerd, CRI-O and
Podman, and Slurm's plugins for both versions. A path is relative to the reader's own group where the reader has a
namespace of groups (a container without the host's): it then begins with `/..` and may lack the pod; of the reader's
own container it is `/`, which says nothing.

Sources: cgroups(7); the kubelet's cgroup names (pod<UID>, in systemd's names with _ for -); OCI runtimes' scopes
(<runtime>-<64 hex digits>.scope); Slurm's cgroup/v1 and v2 plugins (job_N/step_N/[user/]task_N).

    place(text).pod_uid
"""

from __future__ import annotations

import re
from typing import NamedTuple

from goodput.wire.identity import clean_text

PATH_MAX = 512
LINES_MAX = 64
_CONTAINER = re.compile(r"(?:^|[-:_])([0-9a-f]{64})(?:\.scope)?$")
# A static pod's is the hash of its file, without dashes. Nested kubelets put names of their own in front.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"(?:^|-)pod({_UID})(?:\.slice)?(?=$|:)")
_JOB = re.compile(r"job_(\d{1,20})")
_STEP = re.compile(r"step_([0-9A-Za-z.+]{1,32})")


class Placement(NamedTuple):
    """`path` is the group's path, the longest of them in version 1."""

    path: str = ""
    container_id: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    slurm_step: str = ""


def place(text: str) -> Placement:
    """What the lines `number:controllers:path` say together."""
    found = dict.fromkeys(Placement._fields, "")
    for line in text.splitlines()[:LINES_MAX]:
        path = line.split(":", 2)[-1] if line.count(":") >= 2 else ""
        parts = path.split("/")
        if len(path) > len(found["path"]):
            found["path"] = path
        said = (_container(parts), _pod(parts), *_slurm(parts))
        for name, value in zip(Placement._fields[1:], said, strict=True):
            found[name] = found[name] or value
    found["path"] = clean_text(found["path"], PATH_MAX)
    return Placement(**found)


def _container(parts: list[str]) -> str:
    # The innermost: a container in a container is what the process sees as its own.
    for part in reversed(parts):
        match = _CONTAINER.search(part)
        # CRI-O has a group beside the container's, of the process that watches it.
        if match and "-conmon-" not in part:
            return match[1]
    return ""


def _pod(parts: list[str]) -> str:
    for part in reversed(parts):
        match = _POD.search(part)
        if match:
            return match[1].replace("_", "-")
    return ""


def _slurm(parts: list[str]) -> tuple[str, str]:
    """Job and step: `job_N` somewhere below a group that has Slurm in its name, or right above a step."""
    for at, part in enumerate(parts):
        job, step = _JOB.fullmatch(part), None
        if job and at + 1 < len(parts):
            step = _STEP.fullmatch(parts[at + 1])
        if job and (step or any("slurm" in before for before in parts[:at])):
            return job[1], step[1] if step else ""
    return "", ""
