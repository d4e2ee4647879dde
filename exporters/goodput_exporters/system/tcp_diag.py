"""TCP connections of processes with the kernel's TCP_INFO, by sock_diag(7), as `ss -tinp` reads them.

A dump has the connections of one network namespace. Of a process in another one it is taken through a netlink socket
that a short-lived thread opens there (setns(2), needs CAP_SYS_ADMIN). The sockets of a process are those in
/proc/PID/fd, which needs the same user, root or CAP_SYS_PTRACE. A dump takes about 1 us a connection of the namespace, and
4 us each of those that are requested.

    sockets = socket_inodes(pid); found = dump(pid, sockets)    # {inode: Connection}
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Iterator, Set
from typing import NamedTuple

from goodput.rank_page.page import open_now
from goodput_exporters.collector import CollectorError, ParseError

FDS_MAX, DUMP_BYTES_MAX, DUMP_SECONDS_MAX = 4096, 8 << 20, 1.0
# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, include/net/tcp_states.h
_SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, _ERROR, _DONE = 20, 0x301, 2, 3
_NETLINK_SOCK_DIAG, _INET_DIAG_INFO, _ESTABLISHED, _FIN_WAIT1 = 4, 2, 1, 4
_CLONE_NEWNET = 0x40000000
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_MESSAGE_BYTES, _INODE_AT, _INODE = 72, 68, struct.Struct("=I")
# linux/tcp.h, struct tcp_info, as far as Linux 4.10 has it; what later kernels append is not needed.
_INFO = struct.Struct("=6B2x24I4Q6I4Q")
_DUPLICATES_AT, _DUPLICATES = 216, struct.Struct("=I")  # tcpi_dsack_dups, from Linux 4.19 on


class Connection(NamedTuple):
    """A connection since it was opened. Addresses are "10.0.0.1:4711" and "[fd00::1]:4711".

    retransmits      times that the oldest segment was sent again without an answer so far
    unacked          segments sent and not acknowledged
    silent_ms        since the last acknowledgement
    rtt_us           smoothed round trip time
    bytes_acked      sent and acknowledged
    segments         with data, sent; `retransmitted` of these, less those that the peer says it had received
    busy_us          with data to send or to be acknowledged; of that in `limited_us` the peer's window or our buffer was full
    """

    local: str
    remote: str
    retransmits: int
    unacked: int
    silent_ms: int
    rtt_us: int
    bytes_acked: int
    segments: int
    retransmitted: int
    busy_us: int
    limited_us: int


def socket_inodes(pid: int, procfs: str = "/proc") -> set[int]:
    """The inodes of a process's sockets. Raises CollectorError where they cannot be read."""
    folder, found = f"{procfs}/{pid}/fd", set()
    try:
        names = os.listdir(folder)
        for name in names[:FDS_MAX]:
            try:
                target = os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue  # It was closed meanwhile.
            if target.startswith("socket:[") and target[8:-1].isdecimal():
                found.add(int(target[8:-1]))
    except OSError as error:
        raise CollectorError(f"{folder}: {error.strerror}") from None
    return found


def namespace_of(pid: int, procfs: str = "/proc") -> int:
    """The inode of a process's network namespace. Raises CollectorError."""
    try:
        return os.stat(f"{procfs}/{pid}/ns/net").st_ino
    except OSError as error:
        raise CollectorError(f"{procfs}/{pid}/ns/net: {error.strerror}") from None


def dump(pid: int, inodes: Set[int], procfs: str = "/proc") -> dict[int, Connection]:
    """Those of these sockets that are TCP connections in a process's network namespace. Raises CollectorError."""
    found: dict[int, Connection] = {}
    try:
        with _diag_socket(pid, procfs) as diag:
            diag.settimeout(DUMP_SECONDS_MAX)
            for family in (socket.AF_INET, socket.AF_INET6):
                diag.send(_request(family))
                for message in _messages(diag):
                    (inode,) = _INODE.unpack_from(message, _INODE_AT)
                    one = parse(message) if inode in inodes else None
                    if one is not None:
                        found[inode] = one
    except (OSError, ParseError) as error:
        raise CollectorError(f"the TCP connections of process {pid} cannot be read: {error}") from None
    return found


def _request(family: int) -> bytes:
    states = 1 << _ESTABLISHED | 1 << _FIN_WAIT1
    body = struct.pack("=4BI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, states)
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + body


def _messages(diag: socket.socket) -> Iterator[memoryview]:
    """The inet_diag_msg of each connection, with its attributes. Raises OSError and ParseError."""
    received = 0
    while received < DUMP_BYTES_MAX:
        part = memoryview(diag.recv(1 << 16))
        received += len(part)
        while len(part) >= _HEADER.size:
            length, kind, *_ = _HEADER.unpack_from(part)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError(
                    -struct.unpack_from("=i", part, _HEADER.size)[0], "the kernel refused to list them"
                )
            if not _HEADER.size + _MESSAGE_BYTES <= length <= len(part):
                raise ParseError(f"a message of sock_diag of {length} bytes")
            yield part[_HEADER.size : length]
            part = part[length + 3 & ~3 :]
    raise ParseError(f"over {DUMP_BYTES_MAX >> 20} MiB of connections")


def parse(message: memoryview) -> Connection | None:
    """An inet_diag_msg with its attributes; None without a TCP_INFO of the length that Linux 4.10 has."""
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return None
        size = min(length, len(message) - at) - _ATTRIBUTE.size
        if kind == _INET_DIAG_INFO and size >= _INFO.size:
            return _connection(message, message[at + _ATTRIBUTE.size :][:size])
        at += length + 3 & ~3
    return None


def _connection(message: memoryview, raw: memoryview) -> Connection:
    info, duplicates = _INFO.unpack_from(raw), 0
    if len(raw) >= _DUPLICATES_AT + _DUPLICATES.size:
        (duplicates,) = _DUPLICATES.unpack_from(raw, _DUPLICATES_AT)
    ports = struct.unpack_from("!HH", message, 4)
    size = 4 if message[0] == socket.AF_INET else 16
    local, remote = (
        _address(bytes(message[start : start + size]), port)
        for start, port in ((8, ports[0]), (24, ports[1]))
    )
    counts, sums, later, last = info[6:30], info[30:34], info[34:40], info[40:44]
    return Connection(
        local,
        remote,
        retransmits=info[2],
        unacked=counts[4],
        silent_ms=counts[12],
        rtt_us=counts[15],
        bytes_acked=sums[2],
        segments=later[5],
        retransmitted=max(counts[23] - duplicates, 0),
        busy_us=last[1],
        limited_us=last[2] + last[3],
    )


def _address(raw: bytes, port: int) -> str:
    found = ipaddress.ip_address(raw)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    return f"{found}:{port}" if found.version == 4 else f"[{found}]:{port}"


def is_loopback(connection: Connection) -> bool:
    """Whether it does not leave its host."""
    local, remote = (host_of(one) for one in (connection.local, connection.remote))
    return local == remote or ipaddress.ip_address(local).is_loopback


def host_of(address: str) -> str:
    """The IP address of an address with a port."""
    return address.rpartition(":")[0].strip("[]")


def _diag_socket(pid: int, procfs: str) -> socket.socket:
    """A netlink socket in the network namespace of a process. Raises OSError, CollectorError."""
    if namespace_of(pid, procfs) == os.stat("/proc/self/ns/net").st_ino:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    made: list[socket.socket | OSError] = []

    def make() -> None:
        """In a thread, which alone changes its namespace, and ends."""
        try:
            with open(f"{procfs}/{pid}/ns/net", "rb", opener=open_now) as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "its network namespace cannot be entered")
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make, name="network namespace")
    thread.start()
    thread.join()
    (one,) = made
    if isinstance(one, OSError):
        raise one
    return one
