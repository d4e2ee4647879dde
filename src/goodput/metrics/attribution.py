"""Info series to join others with: the owners of processes, and the ranks on GPUs."""

SERIES = """
goodput_rank_process_known{run rank}: 1 if a living rank's process was found on this node, 0 if it is hidden
    or in another PID namespace.
goodput_rank_process_info{run rank pid host user comm container container_id pod namespace pod_uid slurm_job
    slurm_step cgroup}: 1 for each living rank's process, with its owner; a label that is unknown or does not
    apply is empty.
goodput_gpu_process_info{gpu pid user comm container container_id pod namespace pod_uid slurm_job slurm_step}:
    1 for each process on a GPU, with its owner.
goodput_gpu_pod_info{gpu pod namespace container}: 1 for each pod that has the GPU allocated, by the kubelet's
    pod-resources API or a dcgm-exporter, also where no process on it is a rank's.
goodput_gpu_rank_info{gpu run rank}: 1 for each GPU that a living rank uses, as declared by the rank or found
    in the driver's list of processes.
"""
