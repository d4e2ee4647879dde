"""Series that say whose a process, a GPU or a container is, to join others with."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
        ("goodput_rank_process_known", "gauge", "bool", "run rank",
         "1 if a living rank's process was found on this node, 0 if it is hidden or in another PID namespace."),
        ("goodput_rank_process_info", "gauge", "",
         "run rank pid host user comm container container_id pod namespace pod_uid slurm_job slurm_step cgroup",
         "1 for each living rank's process, with whose it is; a label that does not apply or is not known is empty."),
        ("goodput_gpu_process_info", "gauge", "",
         "gpu pid user comm container container_id pod namespace pod_uid slurm_job slurm_step",
         "1 for each process on a GPU, with whose it is."),
        ("goodput_gpu_rank_info", "gauge", "", "gpu run rank",
         "1 for each GPU that a living rank uses, by what the rank says and by the driver's list of processes."),
    ],
)  # fmt: skip
