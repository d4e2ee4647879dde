"""Trees of RDMA devices as their drivers show them: InfiniBand, RoCE, EFA, bnxt_re, ionic, Omni-Path, an old HCA.

In: a directory. Out: files under sys/class/infiniband. The names are those of the kernel and the drivers, the
values are made up, each file's its own, so that a value in the wrong series is seen.

    files = devices(); write(tmp_path, files); files["mlx5_0/ports/1/counters/port_xmit_data"]
"""

from __future__ import annotations

from pathlib import Path

ROOT = "sys/class/infiniband"
GUID = "506b:4b03:005a:5a2a"

STANDARD = """symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
port_rcv_switch_relay_errors port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors
local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped port_xmit_wait port_xmit_data
port_rcv_data port_xmit_packets port_rcv_packets""".split()  # noqa: SIM905
WIDE = """unicast_xmit_packets unicast_rcv_packets multicast_xmit_packets
multicast_rcv_packets""".split()  # noqa: SIM905
MLX5 = """rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer out_of_sequence
duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err
resp_local_length_error resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors
resp_remote_access_errors resp_cqe_flush_error req_cqe_flush_error roce_adp_retrans roce_adp_retrans_to
roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_ignored rp_cnp_handled
np_ecn_marked_roce_packets np_cnp_sent rx_icrc_encapsulated lifespan""".split()  # noqa: SIM905
EFA = """tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs
rdma_read_bytes rdma_read_wr_err rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_wr_err
rdma_write_recv_bytes retrans_bytes retrans_pkts retrans_timeout_events unresponsive_remote_events
impaired_remote_conn_events lifespan""".split()  # noqa: SIM905
BNXT = """active_qps rx_pkts rx_bytes tx_pkts tx_bytes recoverable_errors rx_roce_errors rx_roce_discards
to_retransmits seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd missing_resp unrecoverable_err dup_req
res_mem_err res_tx_pci_err oos_drop_count rx_out_of_buffer rx_roce_good_bytes tx_cnp_pkts rx_cnp_pkts
rx_ecn_marked_pkts""".split()  # noqa: SIM905
IONIC = """tx_rdma_ucast_bytes tx_rdma_ucast_pkts rx_rdma_ucast_bytes rx_rdma_ucast_pkts tx_rdma_cnp_pkts
rx_rdma_cnp_pkts rx_rdma_ecn_pkts req_rx_pkt_seq_err req_rx_rnr_retry_err req_rx_impl_nak_seq_err
tx_rdma_ack_timeout tx_rdma_retx_pkts tx_rdma_retx_bytes req_tx_retry_excd_err resp_rx_outof_buf
resp_rx_outouf_seq""".split()  # noqa: SIM905
HFI1 = "RcResend RcTimeOut RcSeqNak RnrNak RcDupRew TxPkt TxWords".split()  # noqa: SIM905


def counters(
    device: str, names: list[str], first: int, directory: str = "counters", port: int = 1
) -> dict[str, str]:
    """Files of counters, from `first` on upwards."""
    at = f"{device}/ports/{port}/{directory}"
    return {f"{at}/{name}": f"{first + number}\n" for number, name in enumerate(names)}


def port(
    device: str,
    *,
    number: int = 1,
    link_layer: str = "InfiniBand",
    rate: str = "400 Gb/sec (4X NDR)",
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
) -> dict[str, str]:
    """A device's own files and those of one port."""
    at = f"{device}/ports/{number}"
    return {
        f"{device}/fw_ver": "28.39.1002\n",
        f"{device}/board_id": "MT_0000000838\n",
        f"{device}/hca_type": "MT4129\n",
        f"{device}/node_guid": f"{GUID}\n",
        f"{device}/device/numa_node": "1\n",
        f"{at}/link_layer": f"{link_layer}\n",
        f"{at}/rate": f"{rate}\n",
        f"{at}/state": f"{state}\n",
        f"{at}/phys_state": f"{physical}\n",
    }


def devices() -> dict[str, str]:
    """Eight kinds of device. A narrow counter's value must fit its width, so those begin low."""
    roce = {"link_layer": "Ethernet", "rate": "200 Gb/sec (4X HDR)"}
    files = {
        **port("mlx5_0"),
        **counters("mlx5_0", [*STANDARD, *WIDE], 1),
        **counters("mlx5_0", MLX5, 1000, "hw_counters"),
        "mlx5_0/ports/1/counters/port_xmit_data": f"{(1 << 40) + 1}\n",
        "mlx5_0/ports/1/hw_counters/lifespan": "10\n",
        "mlx5_0/device/net/ib0/dev_port": "0\n",
        **port("mlx5_10", **roce),
        **counters("mlx5_10", [*STANDARD, *WIDE], 2),
        **counters("mlx5_10", MLX5, 2000, "hw_counters"),
        "mlx5_10/ports/1/gid_attrs/ndevs/0": "eth2\n",
        **port("rdmap0s31", link_layer="Unspecified", rate="100 Gb/sec (4X EDR)"),
        **counters("rdmap0s31", EFA, 3000, "hw_counters"),
        **port("bnxt_re0", **roce),
        **counters("bnxt_re0", BNXT, 4000, "hw_counters"),
        **port("ionic_0", **roce),
        **counters("ionic_0", IONIC, 5000, "hw_counters"),
        **port("hfi1_0", rate="100 Gb/sec (4X EDR)"),
        **counters("hfi1_0", [*STANDARD, *WIDE], 3),
        **counters("hfi1_0", HFI1, 6000, "hw_counters"),
        # An HCA without the 64-bit counters, its second port down.
        **port("mthca0", rate="10 Gb/sec (4X SDR)"),
        **counters("mthca0", STANDARD, 4),
        **port("mthca0", number=2, rate="2.5 Gb/sec (1X SDR)", state="1: DOWN", physical="2: Polling"),
        **counters("mthca0", STANDARD, 5, port=2),
    }
    # A driver that answers no performance queries, on a kernel that has the files nevertheless.
    files.update(dict.fromkeys(counters("bnxt_re0", STANDARD, 0), "N/A (no PMA)\n"))
    for device in ("mlx5_0", "mlx5_10", "hfi1_0"):
        for name in ("local_link_integrity_errors", "excessive_buffer_overrun_errors"):
            files[f"{device}/ports/1/counters/{name}"] = "7\n"
    for number in (1, 2):
        for name in ("local_link_integrity_errors", "excessive_buffer_overrun_errors"):
            files[f"mthca0/ports/{number}/counters/{name}"] = "6\n"
    return files


def write(directory: Path, files: dict[str, str], root: str = ROOT) -> None:
    for name, text in files.items():
        path = directory / root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
