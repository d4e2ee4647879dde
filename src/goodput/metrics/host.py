"""Series of a host: processors, memory, pressure, disks, TCP; file systems and their clients; NUMA nodes."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
        ("goodput_host_cpu_seconds_total", "counter", "seconds", "mode", "CPU time of the host by mode."),
        ("goodput_host_cpus", "gauge", "", "", "Processors that are on line."),
        ("goodput_host_load1_ratio", "gauge", "", "", "One-minute load average per processor."),
        ("goodput_host_processes_blocked", "gauge", "", "", "Tasks in uninterruptible sleep, mostly waiting for storage."),
        ("goodput_host_memory_bytes", "gauge", "bytes", "kind",
         "Host memory: total, available, cached, dirty, writeback, shared (/dev/shm and the like), swap_total, swap_free."),
        ("goodput_host_swap_bytes_total", "counter", "bytes", "direction", "Memory swapped in and out."),
        ("goodput_host_major_faults_total", "counter", "", "", "Page faults that had to read from storage."),
        ("goodput_host_oom_kills_total", "counter", "", "", "Processes that the kernel killed for want of memory."),
        ("goodput_host_pressure_seconds_total", "counter", "seconds", "resource kind",
         "Time in which some or all (full) tasks waited for cpu, memory or io (PSI)."),
        ("goodput_host_disk_bytes_total", "counter", "bytes", "device direction", "Bytes read from and written to a disk."),
        ("goodput_host_disk_operations_total", "counter", "", "device direction", "Reads and writes that a disk completed."),
        ("goodput_host_disk_operation_seconds_total", "counter", "seconds", "device direction",
         "Time that completed reads and writes took, summed; over goodput_host_disk_operations_total the mean latency."),
        ("goodput_host_disk_in_flight", "gauge", "", "device", "Requests that the disk has now."),
        ("goodput_host_disk_busy_seconds_total", "counter", "seconds", "device", "Time in which the disk had requests."),
        ("goodput_host_tcp_retransmits_total", "counter", "", "", "TCP segments sent again."),
        # File systems
        ("goodput_filesystem_info", "gauge", "", "mount fstype source",
         "1 for each file system that is watched: those of the network, and those of paths that were asked for."),
        ("goodput_filesystem_up", "gauge", "bool", "mount", "1 if the file system answers, 0 if it fails or does not answer in time."),
        ("goodput_filesystem_response_seconds", "gauge", "seconds", "mount", "How long the last answer (statvfs) took."),
        ("goodput_filesystem_size_bytes", "gauge", "bytes", "mount", "Size of the file system."),
        ("goodput_filesystem_available_bytes", "gauge", "bytes", "mount", "Space that is free for users other than root."),
        ("goodput_filesystem_inodes", "gauge", "", "mount kind", "Inodes: total, free; absent where there is no limit."),
        # Clients of NFS and Lustre
        ("goodput_nfs_bytes_total", "counter", "bytes", "mount direction side",
         "Bytes of files by NFS: side application is what programs read and wrote, server what crossed the network for it."),
        ("goodput_nfs_operations_total", "counter", "", "mount operation", "NFS calls completed."),
        ("goodput_nfs_transmissions_total", "counter", "", "mount operation",
         "Times NFS calls were sent; more than goodput_nfs_operations_total are retransmissions."),
        ("goodput_nfs_timeouts_total", "counter", "", "mount operation", "Major timeouts of NFS calls."),
        ("goodput_nfs_errors_total", "counter", "", "mount operation", "NFS calls that ended with an error."),
        ("goodput_nfs_operation_seconds_total", "counter", "seconds", "mount operation part",
         "Time of NFS calls, summed: queue (waiting to be sent), response (until the answer), total (of the call)."),
        ("goodput_lustre_bytes_total", "counter", "bytes", "filesystem direction",
         "Bytes that programs read from and wrote to Lustre, cached or not."),
        ("goodput_lustre_operations_total", "counter", "", "filesystem operation", "Operations on Lustre by programs."),
        ("goodput_lustre_operation_seconds_total", "counter", "seconds", "filesystem operation",
         "Time of operations on Lustre, summed, where the client measures it."),
        # NUMA
        ("goodput_numa_memory_bytes", "gauge", "bytes", "node kind", "Memory of a NUMA node: total, free, file."),
        ("goodput_numa_cpus", "gauge", "", "node", "Processors of a NUMA node."),
        ("goodput_numa_pages_total", "counter", "", "node kind",
         "Pages that were allocated: hit (as wanted), miss (meant for another node), foreign (meant for this one, got elsewhere), "
         "local and other (by a process running on this node, on another)."),
        ("goodput_numa_device_node", "gauge", "", "device kind",
         "NUMA node of a GPU (kind gpu, by PCI address), a network interface (network) or a port's device (infiniband)."),
        ("goodput_rank_numa_node", "gauge", "", "run rank", "NUMA node of the processor that the rank's main thread ran on last."),
        ("goodput_rank_cpus", "gauge", "", "run rank node", "Processors that the rank may run on, by NUMA node."),
    ],
)  # fmt: skip
