"""Series of a host: processors, memory, pressure, disks, packets, clock, its health; file systems and their clients; NUMA nodes."""

SERIES = """
goodput_host_cpu_seconds_total{mode}: CPU time of the host by mode.
goodput_host_cpus: Processors online.
goodput_host_load1_ratio: One-minute load average per processor.
goodput_host_processes_blocked: Tasks in uninterruptible sleep, mostly waiting for storage.
goodput_host_processor_seconds_total{cpu kind}: Time of each processor: busy (neither idle nor iowait), and
    interrupt, which is part of it.
goodput_host_boot_timestamp_seconds: When the host was booted, in Unix time.
goodput_host_memory_bytes{kind}: Host memory: total, free, available, buffers, cached, reclaimable (of the
    kernel's own), dirty, writeback, shared (/dev/shm and similar), swap_total, swap_free.
goodput_host_huge_pages{page_bytes kind}: Huge pages of each size: total, free, reserved, surplus.
goodput_host_swap_bytes_total{direction}: Memory swapped in and out.
goodput_host_major_faults_total: Page faults that had to read from storage.
goodput_host_oom_kills_total: Processes killed by the kernel for lack of memory.
goodput_host_pressure_seconds_total{resource kind}: Time in which some or all (full) tasks were stalled on
    cpu, memory or io (PSI).
goodput_host_disk_bytes_total{device direction}: Bytes read from and written to a disk.
goodput_host_disk_operations_total{device direction}: Reads and writes that a disk completed.
goodput_host_disk_operation_seconds_total{device direction}: Total duration of completed reads and writes;
    divided by goodput_host_disk_operations_total it is the mean latency.
goodput_host_disk_in_flight{device}: Requests in flight.
goodput_host_disk_busy_seconds_total{device}: Time in which the disk had requests in flight.
goodput_host_tcp_retransmits_total: TCP segments retransmitted.
goodput_host_softnet_packets_total: Packets that processors took from network devices, of all network
    namespaces.
goodput_host_softnet_dropped_total: Packets dropped since a processor's backlog was full.
goodput_host_softnet_squeezed_total: Times that packets were left for later since a processor had used up its
    budget.
goodput_host_clock_synchronised: 1 if a time daemon keeps the clock synchronised, by the kernel.
goodput_host_clock_correction_seconds: What the kernel has still to add to the clock.
goodput_host_clock_error_seconds{kind}: Error of the clock by the time daemon: estimated, maximum.
# Health of the machine
goodput_host_memory_errors_total{controller kind}: Errors of the host's memory: correctable, uncorrectable (EDAC).
goodput_host_memory_module_errors_total{controller module slot kind}: The same by memory module, with its slot
    where that is named; errors of no known module are only in goodput_host_memory_errors_total.
goodput_host_temperature_celsius{chip device sensor}: Temperatures by hwmon and thermal zones.
goodput_host_temperature_limit_celsius{chip device sensor kind}: Limits of a sensor: max, crit.
goodput_host_temperature_alarm{chip device sensor}: 1 if the chip says that the temperature is beyond a limit.
goodput_host_cpu_throttles_total{package kind}: Times that heat throttled a processor: package, or core, summed
    over the package's cores.
goodput_host_nvme_up{device}: 1 if the NVMe controller works (its state is live).
goodput_host_nvme_info{device model firmware state}: 1 for each NVMe controller.
goodput_host_nvme_warning{device warning}: 1 if the controller's health log warns: spare (few spare blocks),
    temperature, reliability, read_only, backup (what is in its cache is lost with the power), persistent_memory.
goodput_host_nvme_spare_ratio{device}: Share of the spare blocks that is left.
goodput_host_nvme_wear_ratio{device}: Share of the life that the manufacturer expects, by writes; may exceed 1.
goodput_host_nvme_media_errors_total{device}: Times that the controller could not read or write data correctly.
# File systems
goodput_filesystem_info{mount fstype source}: 1 for each monitored file system: network file systems, those of
    local disks, /dev/shm and /tmp in memory, and those of configured paths.
goodput_filesystem_up{mount}: 1 if the file system answers, 0 if it fails or does not answer in time.
goodput_filesystem_readonly{mount}: 1 if the file system refuses writes, as a local one does after errors.
goodput_filesystem_response_seconds{mount}: Duration of the last statvfs call.
goodput_filesystem_size_bytes{mount}: Size of the file system.
goodput_filesystem_available_bytes{mount}: Space available to users other than root.
goodput_filesystem_inodes{mount kind}: Inodes: total, free; absent where they are not limited.
# Clients of NFS and Lustre
goodput_nfs_bytes_total{mount direction side}: File bytes through NFS: side application is what programs read
    and wrote, server what crossed the network.
goodput_nfs_operations_total{mount operation}: NFS calls completed.
goodput_nfs_transmissions_total{mount operation}: Transmissions of NFS calls; those above
    goodput_nfs_operations_total are retransmissions.
goodput_nfs_timeouts_total{mount operation}: Major timeouts of NFS calls.
goodput_nfs_errors_total{mount operation}: NFS calls that ended with an error.
goodput_nfs_operation_seconds_total{mount operation part}: Total duration of NFS calls: queue (before
    sending), response (until the reply), total.
goodput_lustre_bytes_total{filesystem direction}: Bytes that programs read from and wrote to Lustre, cached or
    not.
goodput_lustre_operations_total{filesystem operation}: Lustre operations by programs.
goodput_lustre_operation_seconds_total{filesystem operation}: Total duration of Lustre operations, where the
    client measures it.
# What `goodput probe` last measured here
goodput_probe_age_seconds: Time since `goodput probe` measured this node; absent without a kept probe (--probe).
goodput_probe_flops_per_second{figure index device}: FLOP/s of matrix products by dtype (figure gemm_bf16, ...);
    index is the GPU's number, empty for the CPU.
goodput_probe_bytes_per_second{figure index device}: Copies to and from GPUs (h2d_pinned, d2h_pageable, ...),
    memory, storage, and the bus bandwidth of all-reduce by size.
goodput_probe_files_per_second{figure index device}: Small files read (small_files, small_files_8_readers).
# NUMA
goodput_numa_memory_bytes{node kind}: Memory of a NUMA node: total, free, file.
goodput_numa_cpus{node}: Processors of a NUMA node.
goodput_numa_pages_total{node kind}: Pages allocated: hit (as intended), miss (intended for another node),
    foreign (intended for this node, allocated elsewhere), local and other (by a process running on this node,
    or on another).
goodput_numa_device_node{device kind}: NUMA node of a GPU (kind gpu, by PCI address), a network interface
    (network) or a port's device (infiniband).
goodput_rank_numa_node{run rank}: NUMA node of the processor that last ran the rank's main thread.
goodput_rank_cpus{run rank node}: Processors that the rank may run on, by NUMA node.
"""
