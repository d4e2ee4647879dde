"""Series of GPUs and their drivers, and of GPU activity by phase.

`gpu` is the UUID as the driver writes it, the same as `gpu_uuid` of goodput_rank_info.
"""

SERIES = """
goodput_gpu_info{gpu index model pci numa driver parent profile}: 1 for each GPU and each MIG instance; parent
    and profile are those of a MIG instance.
goodput_gpu_up{gpu}: 1 while a driver reaches the GPU; 0 after it was reached once and is lost, or its driver
    does not answer.
goodput_gpus{kind}: GPUs of this node: expected (on the PCI bus, or as configured), seen (by a driver), lost
    (seen before, but a driver that answers cannot reach it now), unknown (seen before, but its driver does
    not answer).
goodput_gpu_sample_age_seconds{gpu}: Time since the GPU's last sample.
goodput_gpu_activity_ratio{gpu unit}: Share of the last sample's time in which the unit was active:
    utilization (any kernel), engine, sm, sm_occupancy, tensor, dram, fp64, fp32, fp16, integer,
    memory_controller; tensor_hmma, tensor_imma and tensor_dfma are the tensor cores with 16-bit floats,
    integers and fp64; encoder, decoder, jpeg and ofa (optical flow) are fixed engines; so is video, which AMD's
    GPUs have for encoder and decoder together, the mean of a GPU's.
goodput_gpu_false_zero{gpu}: 1 where the engine's activity reads 0 at full utilization: the profiling counters
    are invalid.
goodput_gpu_link_bytes_total{gpu link direction}: Bytes over the GPU's links (pcie, nvlink, c2c, xgmi);
    direction is transmit or receive.
goodput_gpu_link_bytes_per_second{gpu link direction}: Rate over the GPU's links, where the driver has a rate
    but no total; direction is transmit, receive, or both where it has only their sum.
goodput_gpu_clock_hertz{gpu clock}: Clock of the GPU: sm, memory, video.
goodput_gpu_clock_limit_hertz{gpu clock kind}: Limit of a clock: max (of the device), application (as set).
goodput_gpu_performance_state{gpu}: Performance state (P-state), 0 the fastest to 15.
goodput_gpu_fan_speed_ratio{gpu}: Speed that the fan is set to, of its maximum.
goodput_gpu_temperature_celsius{gpu sensor}: Temperature: core, memory, junction (the hottest spot).
goodput_gpu_temperature_limit_celsius{gpu limit}: Temperature at which the GPU slows down (slowdown) or is shut
    down (shutdown), and the highest for work (core_max, memory_max).
goodput_gpu_temperature_margin_celsius{gpu}: Degrees below the nearest limit at which clocks are throttled.
goodput_gpu_temperature_limit_margin_celsius{gpu limit}: The same limits as margins, on GPUs that have them only so:
    the margin at which each is reached.
goodput_gpu_power_watts{gpu}: Power drawn.
goodput_gpu_power_instant_watts{gpu}: Power drawn now, where the other is an average over the last second.
goodput_gpu_power_limit_watts{gpu}: Enforced power limit.
goodput_gpu_power_setting_watts{gpu kind}: Power limit as requested, by default, and the least and the highest
    that can be requested (min, max).
goodput_gpu_energy_joules_total{gpu}: Energy used since the driver was loaded.
goodput_gpu_memory_bytes{gpu kind}: Memory of the GPU: total, used, free, reserved.
goodput_gpu_bar1_bytes{gpu kind}: Memory of the GPU that is mapped for the host and other devices: total, used,
    free.
goodput_gpu_throttled{gpu reason}: 1 while clocks are throttled for this reason: idle, app_clocks, power,
    hw_slowdown, sync_boost, thermal, hw_thermal, hw_power_brake, display_clocks; of AMD also memory_thermal,
    regulator_thermal, current.
goodput_gpu_throttle_seconds_total{gpu reason}: Time in which clocks were throttled: power, thermal,
    sync_boost, board_limit, low_utilization, reliability, app_clocks, base_clocks and others that the driver
    counts.
goodput_gpu_ecc_errors_total{gpu kind scope}: Memory errors: correctable, uncorrectable, of AMD also deferred
    (uncorrectable, found before the data was used); volatile since the driver was loaded, aggregate over the
    GPU's life. Of AMD those of all blocks, links too.
goodput_gpu_ecc_location_errors_total{gpu kind scope location}: The same errors by place: device (DRAM), sram, l1,
    l2, register, texture, shm, cbu; the total is goodput_gpu_ecc_errors_total. Of AMD by block: umc (memory),
    gfx, sdma, mmhub, xgmi_wafl (links) and others.
goodput_gpu_ecc_threshold_exceeded{gpu}: 1 where uncorrectable errors of the SRAM exceed the threshold for
    replacing the GPU.
goodput_gpu_ecc_enabled{gpu kind}: 1 where ECC is on: current, pending (after the next reset).
goodput_gpu_row_remap_banks{gpu spare}: Memory banks by how many spare rows they have left: max (all), high,
    partial, low, none.
goodput_gpu_rows_remapped{gpu kind}: Remapped memory rows: correctable, uncorrectable; pending and failure are
    1 or 0.
goodput_gpu_pages_retired{gpu kind}: Retired memory pages: single_bit, double_bit; pending is 1 or 0. Of AMD
    pages that are retired, pending, or unreservable (bad and still in use).
goodput_gpu_recovery_action{gpu action}: 1 for the recovery action that the driver recommends: none,
    gpu_reset, node_reboot, drain_p2p, drain_and_reset, recover_imex_domain, bus_reset, system_reboot,
    unknown.
goodput_gpu_xid_errors_total{gpu xid class}: XID errors since the agent started, by number and class; class
    link_fatal is an NVLink error that needs a reset by its sub-code.
goodput_gpu_pcie_replays_total{gpu}: PCIe packets retransmitted.
goodput_gpu_pcie_errors_total{gpu kind}: PCIe errors: correctable (in all), non_fatal, fatal; by kind receiver,
    bad_tlp, bad_dllp, lcrc, lane, naks_received, naks_sent, unsupported_request, l0_to_recovery.
goodput_gpu_pcie_generation{gpu kind}: PCIe generation of the link: current, max.
goodput_gpu_pcie_lanes{gpu kind}: PCIe lanes of the link: current, max.
goodput_gpu_nvlink_errors_total{gpu kind}: NVLink errors of all links: crc_flit, crc_data, crc, replay,
    recovery, ecc_data; since NVLink 5 malformed_packets, buffer_overruns, receive, receive_remote,
    receive_general, local_link_integrity, transmit_discards, recovery_events, recovery_successful,
    recovery_failed, effective, symbol.
goodput_gpu_nvlink_bit_error_ratio{gpu kind}: Bit error ratio of the NVLinks: effective (after correction),
    symbol.
goodput_gpu_nvlink_up{gpu link}: 1 while this NVLink is active, 0 where it is not.
goodput_gpu_nvlink_link_errors_total{gpu link kind}: NVLink errors of one link; kinds as in
    goodput_gpu_nvlink_errors_total, since NVLink 5 those of a link about to fail.
goodput_gpu_nvlink_link_bytes_total{gpu link direction}: Bytes over one NVLink: transmit, receive.
goodput_gpu_nvlink_link_bytes_per_second{gpu link direction}: Rate over one NVLink, where the driver has a rate but
    no total: transmit, receive.
goodput_gpu_c2c_links{gpu kind}: Chip-to-chip links to the CPU: present, active.
goodput_gpu_c2c_errors_total{gpu kind}: Errors of all chip-to-chip links: crc, replay, replay_back_to_back.
goodput_gpu_fabric_state{gpu state}: 1 for the state of the GPU in the NVLink fabric, as its fabric manager set it:
    not_supported, not_started, in_progress, completed, failed, unknown.
goodput_gpu_fabric_problem{gpu problem}: 1 where the NVLink fabric has this problem: degraded_bandwidth,
    route_recovery, route_unhealthy, access_timeout, misconfigured.
goodput_gpu_vgpu_license{gpu kind}: 1 where the GPU needs a vGPU licence (supported) and has one (licensed).
goodput_gpu_xgmi_links{gpu state}: XGMI links between AMD GPUs: up, down.
goodput_gpu_dcgm_field{gpu field}: Value of a further field of DCGM, in DCGM's unit (goodput node --dcgm-fields).
goodput_gpu_processes{gpu}: Processes that compute on the GPU.
goodput_gpu_activity_seconds_total{gpu phase unit}: Time the unit was active, by the phase of the GPU's rank;
    phase none is outside any phase, idle is without a rank.
goodput_gpu_phase_seconds_total{gpu phase}: Time covered by samples, by the phase of the GPU's rank: the
    denominator for activity and energy.
goodput_gpu_phase_energy_joules_total{gpu phase}: Energy used, by the phase of the GPU's rank.
goodput_gpu_phase_mixed_seconds_total{gpu}: Part of the covered time in which a sample spanned several phases,
    whose shares are estimated.
# NVSwitches, and NVIDIA's own CPUs
goodput_nvswitch_temperature_celsius{nvswitch}: Temperature.
goodput_nvswitch_temperature_limit_celsius{nvswitch limit}: Temperature at which it slows down (slowdown) or is
    shut down (shutdown).
goodput_nvswitch_power_watts{nvswitch rail}: Power drawn from each rail: vdd, dvdd, hvdd.
goodput_nvswitch_last_sxid{nvswitch class}: Number of the last error (SXid), 0 for none: fatal, non_fatal.
goodput_nvswitch_reset_required{nvswitch}: 1 where it has to be reset.
goodput_nvswitch_link_up{nvswitch link}: 1 while this link is active, 0 where it is off, in safe mode or in error.
goodput_nvswitch_link_errors_total{nvswitch link kind}: Errors of one link: fatal, non_fatal, replay, recovery, flit,
    crc, ecc.
goodput_cpu_activity_ratio{cpu mode}: Share of time in which the cores of an NVIDIA CPU were busy: total, user, nice,
    system, irq.
goodput_cpu_temperature_celsius{cpu}: Temperature of an NVIDIA CPU.
goodput_cpu_temperature_limit_celsius{cpu limit}: Temperature at which it warns (warning) and slows down (critical).
goodput_cpu_power_watts{cpu part}: Power drawn: cpu, sysio (the rest of the chip), module (with its GPUs).
goodput_cpu_power_limit_watts{cpu}: Power limit of an NVIDIA CPU.
# Worker processes of drivers
goodput_driver_up{driver}: 1 while the driver's process answers in time; absent without such a driver.
goodput_driver_sample_age_seconds{driver}: Time since the driver's last sample.
goodput_driver_restarts_total{driver reason}: Times the driver's process was replaced: stuck, died, garbled
    (malformed output), memory (too large).
goodput_driver_samples_total{driver}: Samples received.
goodput_driver_samples_dropped_total{driver}: Samples that were due but not taken or not read.
goodput_driver_problems_total{driver}: Failed driver calls.
goodput_driver_implausible_readings_total{driver quantity}: Readings that the driver answered with values no device
    can have, by quantity (power, temperature, clock, memory and others); they are absent.
goodput_driver_cpu_seconds_total{driver}: CPU time of the driver's process.
goodput_driver_processes_unkillable{driver}: Killed processes of the driver that have not ended, such as in
    uninterruptible sleep.
goodput_driver_memory_bytes{driver}: Resident memory of the driver's process.
"""
