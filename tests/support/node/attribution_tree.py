"""Processes of a fixture procfs, in every place that attribution knows."""

from __future__ import annotations

import os

CONTAINER, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
UID = "12345678-9abc-def0-1234-56789abcdef0"
_UID = UID.replace("-", "_")
STATIC_UID = "0123456789abcdef0123456789abcdef"

# name: (text of /proc/PID/cgroup, container, pod's uid, Slurm job, Slurm step)
PLACES = {
    "v2 systemd containerd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_UID}.slice/cri-containerd-{CONTAINER}.scope\n",
        CONTAINER, UID, "", "",
    ),
    "v2 cgroupfs guaranteed": (f"0::/kubepods/pod{UID}/{CONTAINER}\n", CONTAINER, UID, "", ""),
    "v2 CRI-O, a group inside": (
        f"0::/kubepods.slice/kubepods-pod{_UID}.slice/crio-{CONTAINER}.scope/container\n", CONTAINER, UID, "", "",
    ),
    "CRI-O's watcher": (f"0::/kubepods.slice/kubepods-pod{_UID}.slice/crio-conmon-{CONTAINER}.scope\n", "", UID, "", ""),
    "v2 static pod": (f"0::/kubepods/besteffort/pod{STATIC_UID}/{CONTAINER}\n", CONTAINER, STATIC_UID, "", ""),
    "nested kubelet": (
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{_UID}.slice/cri-containerd-{CONTAINER}.scope\n",
        CONTAINER, UID, "", "",
    ),
    "containerd with systemd names in one part": (
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{_UID}.slice:cri-containerd:{CONTAINER}\n",
        CONTAINER, UID, "", "",
    ),
    "from another container's namespace of groups": (
        f"0::/../../kubepods-burstable-pod{_UID}.slice/cri-containerd-{CONTAINER}.scope\n", CONTAINER, UID, "", "",
    ),
    "the same pod's": (f"0::/../cri-containerd-{CONTAINER}.scope\n", CONTAINER, "", "", ""),
    "the same container's": ("0::/\n", "", "", "", ""),
    "v1 cgroupfs docker": (
        f"12:pids:/kubepods/burstable/pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/burstable/pod{UID}/{CONTAINER}\n0::/\n",
        CONTAINER, UID, "", "",
    ),
    "v1 systemd docker": (
        f"3:cpuset:/kubepods.slice/kubepods-pod{_UID}.slice/docker-{CONTAINER}.scope\n", CONTAINER, UID, "", "",
    ),
    "docker, v1": (f"4:memory:/docker/{CONTAINER}\n0::/system.slice/containerd.service\n", CONTAINER, "", "", ""),
    "docker, v2": (f"0::/system.slice/docker-{CONTAINER}.scope\n", CONTAINER, "", "", ""),
    "docker in docker": (f"0::/docker/{OTHER}/docker/{CONTAINER}\n", CONTAINER, "", "", ""),
    "podman of a user": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{CONTAINER}.scope/container\n",
        CONTAINER, "", "", "",
    ),
    "Slurm v1": (
        "5:memory:/slurm/uid_1000/job_4711/step_0/task_3\n4:cpuset:/slurm/uid_1000/job_4711/step_0\n0::/\n",
        "", "", "4711", "0",
    ),
    "Slurm v1, several daemons": ("5:memory:/slurm_node7/uid_1000/job_4711/step_batch\n", "", "", "4711", "batch"),
    "Slurm v2": (
        "0::/system.slice/slurmstepd.scope/job_4711/step_interactive/user/task_0\n", "", "", "4711", "interactive",
    ),
    "Slurm v2, several daemons": ("0::/system.slice/n7_slurmstepd.scope/job_4711/step_2/user/task_1\n", "", "", "4711", "2"),
    "Slurm, job alone": ("5:devices:/slurm/uid_1000/job_4711\n", "", "", "4711", ""),
    "Slurm, a container in a step": (
        f"0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/libpod-{CONTAINER}.scope\n",
        CONTAINER, "", "4711", "0",
    ),
    "Slurm 26.05": ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_3\n", "", "", "", "0"),
    "Slurm 26.05, several daemons": (
        "0::/system.slice/n7_slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_0\n", "", "", "", "batch",
    ),
    "Slurm 26.05, from another namespace of groups": ("0::/../../sEKNKTV3WPV500/step_extern/user/task_0\n", "", "", "", "extern"),
    "Slurm 26.05, the step's daemon": ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_7/slurm\n", "", "", "", "7"),
    "Slurm 26.05, job numbers in paths": (
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "", "", "4711", "0",
    ),
    "Slurm's own scope": ("0::/system.slice/slurmstepd.scope/system\n", "", "", "", ""),
    "somebody else's job": ("0::/condor/job_12/x\n", "", "", "", ""),
    "a shell": ("0::/user.slice/user-1000.slice/session-2.scope\n", "", "", "", ""),
    "a short hash": ("0::/docker/0123456789ab\n", "", "", "", ""),
}  # fmt: skip


def add_process(root, pid: int, ticks: int, **given) -> None:
    """Write a process into the procfs at `root`: comm, state, parent, uid, cgroup, environ, cmdline, pids, cpus, processor."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    output = {
        "comm": "python (x) y", "state": "S", "uid": os.getuid(), "cgroup": "0::/\n", "environ": {}, "pids": (pid,), "parent": 1,
        "cpus": "0-1", "processor": 0, **given,
    }  # fmt: skip
    zeros = "0 " * 16
    (folder / "stat").write_text(
        f"{pid} ({output['comm']}) {output['state']} {output['parent']} 1 {zeros}{ticks} {zeros}{output['processor']} 0 0\n"
    )
    if output["uid"] != os.getuid():
        os.chown(folder, output["uid"], -1)
    uid, pids = output["uid"], "\t".join(map(str, output["pids"]))
    (folder / "status").write_text(
        f"Name:\t{output['comm']}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pids}\n"
        f"Cpus_allowed:\tff\nCpus_allowed_list:\t{output['cpus']}\n"
    )
    (folder / "cgroup").write_text(output["cgroup"])
    environ = b"".join(f"{name}={value}\0".encode() for name, value in output["environ"].items())
    (folder / "environ").write_bytes(environ)
    if "cmdline" in output:
        (folder / "cmdline").write_bytes(output["cmdline"].encode())
