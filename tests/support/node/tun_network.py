"""A network of processes, each in a network namespace of its own, whose links lose, delay or limit what is sent.

The packets are those of the kernel's own TCP: each namespace has a TUN interface, and a thread here moves packets between
them, as netem does in kernels that have it. Needs root and /dev/net/tun. Namespaces and interfaces end with the processes.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass

NAME, MTU = "link0", 9000
_CLONE_NEWNET, _TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x40000000, 0x400454CA, 0x1, 0x1000
QUEUE_SECONDS_MAX = 0.5  # what a link of limited rate holds before it drops


def is_possible() -> bool:
    return os.geteuid() == 0 and os.path.exists("/dev/net/tun") and shutil.which("ip") is not None


@dataclass
class Link:
    """What happens to the packets that a member sends."""

    loss: float = 0.0
    delay_seconds: float = 0.0
    bytes_per_second: float = 0.0  # 0: not limited
    free_at: float = 0.0


def address_of(member: int) -> str:
    return f"10.77.0.{member + 1}"


def enter(member: int, sender: socket.socket) -> None:
    """Move this process, which has one thread, into a namespace of its own and give its interface to the network."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH14x", NAME.encode(), _IFF_TUN | _IFF_NO_PI))
    for command in (
        "link set lo up",
        f"addr add {address_of(member)}/24 dev {NAME}",
        f"link set {NAME} mtu {MTU} up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [tun]))]
    sender.sendmsg([bytes([member])], ancillary)
    os.close(tun)


class TunNetwork:
    """`links` may be changed at any time. `enter` of a member gets `sender`."""

    def __init__(self, members: int, seed: int = 0):
        self.links = [Link() for _ in range(members)]
        self.receiver, self.sender = socket.socketpair()
        self._tuns: dict[int, int] = {}
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network")

    def start(self) -> None:
        """Take the interfaces of all members, which have been forked, and begin to move packets."""
        while len(self._tuns) < len(self.links):
            message, fds, *_ = socket.recv_fds(self.receiver, 1, 1)
            self._tuns[message[0]] = fds[0]
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for tun in self._tuns.values():
            os.close(tun)
        self.receiver.close()
        self.sender.close()

    def _run(self) -> None:
        members = {tun: member for member, tun in self._tuns.items()}
        while not self._over.is_set():
            pause = self._waiting[0][0] - time.monotonic() if self._waiting else 0.1
            ready, _, _ = select.select(list(members), [], [], max(min(pause, 0.1), 0))
            for tun in ready:
                self._read(members[tun], tun)
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, to, packet = heapq.heappop(self._waiting)
                self._write(to, packet)

    def _read(self, member: int, tun: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(tun, MTU + 100)
            except (BlockingIOError, OSError):
                return
            to = packet[19] - 1 if packet[0] >> 4 == 4 else -1
            link = self.links[member]
            if to not in self._tuns or self._random.random() < link.loss:
                continue
            due = self._due(link, len(packet))
            if due is not None:
                self._number += 1
                heapq.heappush(self._waiting, (due, self._number, to, packet))

    def _due(self, link: Link, size: int) -> float | None:
        """When a packet arrives; None where the link's queue is full."""
        now = time.monotonic()
        if link.bytes_per_second:
            begins = max(now, link.free_at)
            if begins - now > QUEUE_SECONDS_MAX:
                return None
            link.free_at = now = begins + size / link.bytes_per_second
        return now + link.delay_seconds

    def _write(self, to: int, packet: bytes) -> None:
        try:
            os.write(self._tuns[to], packet)
        except OSError:
            pass  # The member has ended, or its queue is full.
