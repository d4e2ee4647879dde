"""The files of an RDMA port: their names, what they count, and parsers of their text. Nothing here reads a file.

`kind` is the name that the kernel's standard counters or mlx5 use; a vendor's counter with the same meaning gets
that name, otherwise its own. Counters that are not in these tables are not exposed.

Sources: Documentation/ABI/stable/sysfs-class-infiniband and drivers/infiniband/core/sysfs.c of the kernel (names,
widths, units); the hw_counters tables of the drivers mlx5, efa, bnxt_re (the kernel's and Broadcom's own, whose
newer names explain the older ones), ionic and hfi1.
"""

from __future__ import annotations

import re

from goodput_exporters.collector import ParseError
from goodput_exporters.system.files import parse_count

ERRORS = "goodput_infiniband_errors_total"
CONGESTION = "goodput_infiniband_congestion_total"
RETRANSMITS = "goodput_infiniband_retransmits_total"
RETRANSMIT_BYTES = "goodput_infiniband_retransmit_bytes_total"
OPERATION_BYTES = "goodput_infiniband_operation_bytes_total"
WAIT = "goodput_infiniband_xmit_wait_ticks_total"

# IBTA: a port's data counters count words of four octets, whatever the width of the link.
DATA_WORD_BYTES = 4
NARROW_MAX = 0xFFFF_FFFF
BYTES_PER_SECOND_PER_GIGABIT = 125_000_000

# Standard error counters and their widths in bits. They stop at their maximum instead of wrapping.
STANDARD_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
}
# A counter of so few bits is taken as full only where it was seen to fill up.
SHORT_BITS = 4
# Not among the kernel's own counters, but some drivers'.
RECEIVE_DISCARDS = "port_rcv_discards"
# In hw_counters: for how many milliseconds the driver answers from its last query of the hardware.
LIFESPAN = "lifespan"
# Exist only beside 64-bit counters: without these, the four of TRAFFIC have 32 bits and stop at their maximum.
WIDE_ONLY = ("unicast_xmit_packets", "unicast_rcv_packets")

# (series, direction): the standard file, its factor, and the vendors' files, which count bytes and packets.
# bnxt_re's rx_good_bytes are included in its rx_bytes.
TRAFFIC = {
    ("goodput_infiniband_bytes_total", "transmit"): (
        "port_xmit_data", DATA_WORD_BYTES, ("tx_bytes", "tx_rdma_ucast_bytes"),
    ),
    ("goodput_infiniband_bytes_total", "receive"): (
        "port_rcv_data", DATA_WORD_BYTES, ("rx_bytes", "rx_rdma_ucast_bytes"),
    ),
    ("goodput_infiniband_packets_total", "transmit"): (
        "port_xmit_packets", 1, ("tx_pkts", "tx_rdma_ucast_pkts", "sent_pkts"),
    ),
    ("goodput_infiniband_packets_total", "receive"): (
        "port_rcv_packets", 1, ("rx_pkts", "rx_rdma_ucast_pkts", "rcvd_pkts"),
    ),
}  # fmt: skip

# (series, direction, cast): the standard file, and that of kernels before 4.5 in counters_ext, which also has TRAFFIC's
# four files in 64 bits under the name with _64.
_BY_CAST = "goodput_infiniband_cast_packets_total"
CASTS = {
    (_BY_CAST, "transmit", "unicast"): ("unicast_xmit_packets", "port_unicast_xmit_packets"),
    (_BY_CAST, "receive", "unicast"): ("unicast_rcv_packets", "port_unicast_rcv_packets"),
    (_BY_CAST, "transmit", "multicast"): ("multicast_xmit_packets", "port_multicast_xmit_packets"),
    (_BY_CAST, "receive", "multicast"): ("multicast_rcv_packets", "port_multicast_rcv_packets"),
}
# Port states by their number in the InfiniBand specification.
LOGICAL_STATES = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}
PHYSICAL_STATES = {
    1: "sleep", 2: "polling", 3: "disabled", 4: "training", 5: "link_up", 6: "link_error_recovery", 7: "phy_test",
}  # fmt: skip
ACTIVE = 4

# Counters that are exposed under their own name.
_ERROR_KINDS = """
    out_of_sequence duplicate_request rx_icrc_encapsulated resp_local_length_error resp_cqe_error req_cqe_error
    req_remote_invalid_request req_remote_access_errors resp_remote_access_errors resp_cqe_flush_error
    req_cqe_flush_error req_transport_retries_exceeded req_rnr_retries_exceeded
    rx_drops rdma_read_wr_err rdma_write_wr_err unresponsive_remote_events impaired_remote_conn_events
    tx_roce_errors rx_roce_errors tx_roce_discards rx_roce_discards unrecoverable_err bad_resp_err
    local_qp_op_err local_protection_err mem_mgmt_op_err remote_op_err
    res_exceed_max res_exceeds_wqe res_opcode_err res_rx_invalid_rkey res_rx_domain_err res_rx_no_perm
    res_rx_range_err res_tx_invalid_rkey res_tx_domain_err res_tx_no_perm res_tx_range_err res_irrq_oflow
    res_unsup_opcode res_unaligned_atomic res_rem_inv_err res_mem_err res_srq_err res_cmp_err
    res_invalid_dup_rkey res_wqe_format_err res_cq_load_err res_srq_load_err res_tx_pci_err res_rx_pci_err
    req_rx_dup_response req_rx_inval_pkts req_tx_loc_acc_err req_tx_loc_oper_err req_tx_loc_sgl_inv_err
    resp_rx_inval_request resp_rx_loc_oper_err resp_rx_outof_atomic resp_tx_pkt_seq_err
    resp_tx_rmt_inval_req_err resp_tx_rmt_oper_err resp_tx_rnr_retry_err resp_tx_loc_sgl_inv_err
    rx_rdma_mtu_discard_pkts
""".split()  # noqa: SIM905
_CONGESTION_KINDS = """
    out_of_buffer np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored
    roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans
""".split()  # noqa: SIM905
_RETRANSMIT_KINDS = """
    packet_seq_err implied_nak_seq_err local_ack_timeout_err rnr_nak_retry_err
    roce_adp_retrans roce_adp_retrans_to retrans_timeout_events
""".split()  # noqa: SIM905

# Vendors' names with the same meaning. bnxt_re's recoverable_errors is left out: the kernel's driver fills it
# with broadcast packets.
_SYNONYMS = {
    ERRORS: {
        # bnxt_re
        "oos_drop_count": "out_of_sequence",
        "dup_req": "duplicate_request",
        "max_retry_exceeded": "req_transport_retries_exceeded",
        "remote_invalid_req_err": "req_remote_invalid_request",
        "remote_access_err": "req_remote_access_errors",
        "res_length_mismatch": "resp_local_length_error",
        # ionic
        "resp_rx_outouf_seq": "out_of_sequence",
        "resp_rx_dup_request": "duplicate_request",
        "req_tx_retry_excd_err": "req_transport_retries_exceeded",
        "req_rx_rmt_req_err": "req_remote_invalid_request",
        "req_rx_rmt_acc_err": "req_remote_access_errors",
        "req_rx_oper_err": "remote_op_err",
        "req_rx_cqe_err": "req_cqe_error",
        "req_rx_cqe_flush": "req_cqe_flush_error",
        "req_tx_mem_mgmt_err": "mem_mgmt_op_err",
        "resp_rx_loc_len_err": "resp_local_length_error",
        "resp_rx_cqe_err": "resp_cqe_error",
        "resp_rx_cqe_flush": "resp_cqe_flush_error",
        "resp_tx_rmt_acc_err": "resp_remote_access_errors",
        # hfi1
        "RcDupRew": "duplicate_request",
        "RdmaSeq": "rdma_seq",
        "SeqNak": "seq_nak",
        "OtherNak": "other_nak",
        "PktDrop": "packet_drops",
    },
    CONGESTION: {
        # bnxt_re
        "rx_out_of_buffer": "out_of_buffer",
        "tx_cnp_pkts": "np_cnp_sent",
        "rx_cnp_pkts": "rp_cnp_handled",
        "rx_ecn_marked_pkts": "np_ecn_marked_roce_packets",
        # ionic
        "resp_rx_outof_buf": "out_of_buffer",
        "tx_rdma_cnp_pkts": "np_cnp_sent",
        "rx_rdma_cnp_pkts": "rp_cnp_handled",
        "rx_rdma_ecn_pkts": "np_ecn_marked_roce_packets",
    },
    RETRANSMITS: {
        # EFA, ionic and hfi1 count retransmitted packets.
        "retrans_pkts": "packets",
        "tx_rdma_retx_pkts": "packets",
        "RcResend": "packets",
        # bnxt_re
        "to_retransmits": "local_ack_timeout_err",
        "seq_err_naks_rcvd": "packet_seq_err",
        "missing_resp": "implied_nak_seq_err",
        "rnr_naks_rcvd": "rnr_nak_retry_err",
        # ionic
        "tx_rdma_ack_timeout": "local_ack_timeout_err",
        "req_rx_pkt_seq_err": "packet_seq_err",
        "req_rx_impl_nak_seq_err": "implied_nak_seq_err",
        "req_rx_rnr_retry_err": "rnr_nak_retry_err",
        # hfi1
        "RcTimeOut": "local_ack_timeout_err",
        "RcSeqNak": "packet_seq_err",
        "RnrNak": "rnr_nak_retry_err",
    },
    # EFA
    OPERATION_BYTES: {
        "send_bytes": "send",
        "recv_bytes": "receive",
        "rdma_read_bytes": "read",
        "rdma_read_resp_bytes": "read_response",
        "rdma_write_bytes": "write",
        "rdma_write_recv_bytes": "write_receive",
    },
    RETRANSMIT_BYTES: {"retrans_bytes": "", "tx_rdma_retx_bytes": ""},
}
# File in hw_counters: (series, its label besides device and port, the label's value).
HARDWARE: dict[str, tuple[str, str, str]] = {
    **{name: (ERRORS, "kind", name) for name in _ERROR_KINDS},
    **{name: (CONGESTION, "kind", name) for name in _CONGESTION_KINDS},
    **{name: (RETRANSMITS, "kind", name) for name in _RETRANSMIT_KINDS},
    **{
        name: (series, {OPERATION_BYTES: "operation", RETRANSMIT_BYTES: ""}.get(series, "kind"), kind)
        for series, kinds in _SYNONYMS.items()
        for name, kind in kinds.items()
    },
}

_RATE = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))? Gb/sec\b")
_STATE = re.compile(r"([0-9]{1,3}):")


def parse_counter(text: str) -> int | None:
    """A counter file's number, None where the device has no such counter. Raises ParseError."""
    # "N/A (no PMA)": the driver does not answer performance queries.
    return None if "N" in text and text.strip().startswith("N/A") else parse_count(text)


def parse_rate(text: str) -> float | None:
    """Bytes per second from "400 Gb/sec (4X NDR)", None for 0. Raises ParseError.

    This is the nominal rate: QDR and slower carry 8 bits of data in each 10 bits of it.
    """
    found = _RATE.match(text.strip())
    if found is None:
        raise ParseError(f"{text[:40]!r} is not a rate in Gb/sec")
    whole, fraction = found.groups("0")
    return (int(whole) + int(fraction) / 10 ** len(fraction)) * BYTES_PER_SECOND_PER_GIGABIT or None


def parse_state(text: str) -> int:
    """The number in a state such as "4: ACTIVE". Raises ParseError."""
    found = _STATE.match(text.strip())
    if found is None:
        raise ParseError(f"{text[:40]!r} is not a port state")
    return int(found.group(1))


def is_saturated(name: str, value: int) -> bool:
    """Whether a standard counter is at its maximum. A larger value comes from a device with wider counters."""
    return value == (1 << STANDARD_BITS[name]) - 1
