"""Series of network interfaces and InfiniBand ports."""

SERIES = """
goodput_network_bytes_total{device direction}: Bytes through a network interface.
goodput_network_packets_total{device direction}: Packets through a network interface.
goodput_network_errors_total{device direction}: Errors of a network interface.
goodput_network_drops_total{device direction}: Packets dropped by a network interface.
goodput_network_speed_bytes_per_second{device}: Line rate of a network interface, where known.
goodput_network_up{device}: 1 if the interface has carrier.
goodput_network_carrier_changes_total{device}: Times the link went up or down.
goodput_network_devices_filtered: Network interfaces of kinds that the agent does not read, as those of
    containers.
goodput_network_devices_left_out: Network interfaces beyond the agent's limit, which are not read.
goodput_network_tcp_timeouts_total: Expired TCP retransmission timers.
# From ethtool, where the driver counts it
goodput_network_pause_frames_total{device direction priority}: Pause frames; priority is 0 to 7 (PFC), all
    (whole link), or pfc where the driver does not say which.
goodput_network_pause_seconds_total{device direction priority}: Time paused by the peer (receive), or in which
    the peer was requested to pause (transmit).
goodput_network_hardware_drops_total{device direction kind}: Packets dropped by the hardware: out_of_buffer,
    discard, link_down, steering.
goodput_network_hardware_errors_total{device kind}: Errors of the hardware: crc, symbol, fec_uncorrectable,
    link_down, pause_storm_warning, pause_storm.
goodput_network_allowance_exceeded_total{device kind}: Packets queued or dropped because a limit of the cloud
    instance was exceeded: bandwidth_receive, bandwidth_transmit, packets, connections, link_local.
goodput_network_ecn_marked_packets_total{device}: Packets received with a congestion mark.
# InfiniBand, RoCE, EFA, Omni-Path
goodput_infiniband_info{device port link_layer driver netdev pci numa firmware board node_guid}: 1 for each
    port of an RDMA device.
goodput_infiniband_up{device port}: 1 if the port's logical state is ACTIVE.
goodput_infiniband_state{device port kind state}: 1 for the port's current state; kind is logical or physical.
goodput_infiniband_rate_bytes_per_second{device port}: Line rate of the port.
goodput_infiniband_bytes_total{device port direction}: Bytes through the port.
goodput_infiniband_packets_total{device port direction}: Packets through the port.
goodput_infiniband_cast_packets_total{device port direction cast}: Packets through the port: unicast, multicast.
goodput_infiniband_lifespan_seconds{device port}: For how long the driver's own counters are answered from
    its last query of the hardware.
goodput_infiniband_operation_bytes_total{device port operation}: Bytes by operation: send, receive, read,
    read_response, write, write_receive.
goodput_infiniband_xmit_wait_ticks_total{device port}: Ticks in which the port had data to send and could not
    send; the length of a tick depends on the device.
goodput_infiniband_errors_total{device port kind}: Port errors, named as in the kernel or mlx5.
goodput_infiniband_congestion_total{device port kind}: Congestion indicators: out_of_buffer, np_cnp_sent,
    np_ecn_marked_roce_packets, rp_cnp_handled and others.
goodput_infiniband_retransmits_total{device port kind}: Causes of retransmission: local_ack_timeout_err,
    packet_seq_err, rnr_nak_retry_err and others; kind packets counts retransmitted packets.
goodput_infiniband_retransmit_bytes_total{device port}: Bytes retransmitted.
goodput_infiniband_saturated{device port kind}: 1 for each narrow counter at its maximum, where it stays until
    it is cleared; absent for the others, and for those of 4 bits that were there from the start, as on healthy
    ports.
goodput_infiniband_saturated_counters{device port}: Narrow counters of the port at their maximum.
goodput_infiniband_devices_left_out: RDMA devices beyond the agent's limit, which are not read.
"""
