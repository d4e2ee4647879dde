"""How many ranks of a process group are on this node, and what the node's links carry at most to its other ranks.

Between nodes that is, for NCCL, the sum of the rates of all active RDMA ports, or without one of all interfaces; for other
backends, which use one interface, the rate of the fastest. Nothing is known where one of them does not tell its rate, as of
virtual machines. Within a node it is known of GPUs whose data sheet has it, for NCCL. Rates are read every READ_NS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from goodput.rank_page.collective_records import Group
from goodput.wire.schema import Identity
from goodput_exporters.collector import NETWORK_KINDS
from goodput_exporters.system import infiniband
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.network import parse_carrier, parse_speed

READ_NS = 60 * 10**9
DEVICES_MAX = 64
PHYSICAL, BOND = NETWORK_KINDS[:2]
_GIGABYTE = 10**9
# One way, half of what NVIDIA's data sheets give for both, by a part of the device's name: modules with NVSwitches.
NVLINK_RATES = {
    "V100-SXM2": 150 * _GIGABYTE,
    "A100-SXM4": 300 * _GIGABYTE,
    "H100 80GB HBM3": 450 * _GIGABYTE,
    "B200": 900 * _GIGABYTE,
}


class NodeLinks:
    """`of(identity, group)` is what an OperationRow has in `local` and `link_rate`, for a rank on this node."""

    def __init__(self, sysfs: str, monotonic_ns: Callable[[], int]):
        self._sysfs, self._monotonic_ns = sysfs, monotonic_ns
        self._local: dict[tuple[str, int], set[int]] = {}
        self._read_ns: int | None = None
        self._all = self._fastest = 0

    def poll(self, identities: Iterable[Identity]) -> None:
        """Take the rank processes of this node."""
        self._local = {}
        for one in identities:
            self._local.setdefault((one.run, one.attempt), set()).add(one.rank)

    def of(self, identity: Identity, group: Group) -> tuple[int, int]:
        local = sum(_has(group.ranks, rank) for rank in self._local.get((identity.run, identity.attempt), ()))
        if not local or group.size < 2:
            return local, 0
        is_nccl = "nccl" in group.backend
        if local < group.size:
            self._read()
            return local, self._all if is_nccl else self._fastest
        return local, _nvlink_rate(identity.device) if is_nccl and identity.devices == 1 else 0

    def _read(self) -> None:
        now_ns = self._monotonic_ns()
        if self._read_ns is not None and now_ns - self._read_ns < READ_NS:
            return
        self._read_ns, files = now_ns, CounterFiles()
        interfaces = _interface_rates(f"{self._sysfs}/class/net", files)
        all_rates = _port_rates(f"{self._sysfs}/class/infiniband", files) or interfaces[PHYSICAL]
        self._all = 0 if None in all_rates else round(sum(filter(None, all_rates)))
        rates = interfaces[PHYSICAL] + interfaces[BOND]
        self._fastest = 0 if None in rates else max(filter(None, rates), default=0)


def _port_rates(root: str, files: CounterFiles) -> list[float | None]:
    """Bytes a second of each active port, None where it is not known; of physical functions alone."""
    found = []
    for device in files.names(root)[:DEVICES_MAX]:
        if os.path.exists(f"{root}/{device}/device/physfn"):
            continue
        for port in files.names(f"{root}/{device}/ports")[:DEVICES_MAX]:
            path = f"{root}/{device}/ports/{port}"
            if files.read(f"{path}/state", infiniband.parse_state) == infiniband.ACTIVE:
                found.append(files.read(f"{path}/rate", infiniband.parse_rate))
    return found


def _interface_rates(root: str, files: CounterFiles) -> dict[str, list[int | None]]:
    """Bytes a second of each interface with carrier, None where it is not known: of those with hardware, and bonds."""
    found: dict[str, list[int | None]] = {PHYSICAL: [], BOND: []}
    for device in files.names(root):
        path = f"{root}/{device}"
        kind = PHYSICAL if os.path.exists(f"{path}/device") else BOND
        if (kind == BOND and not os.path.exists(f"{path}/bonding")) or os.path.exists(
            f"{path}/device/physfn"
        ):
            continue
        if len(found[kind]) < DEVICES_MAX and files.read(f"{path}/carrier", parse_carrier):
            found[kind].append(files.read(f"{path}/speed", parse_speed))
    return found


def _has(runs: Iterable[tuple[int, int, int]], rank: int) -> bool:
    """Whether the rank is in one of the runs (first, step, count)."""
    return any(
        first <= rank <= first + step * (count - 1) and (rank - first) % max(step, 1) == 0
        for first, step, count in runs
    )


def _nvlink_rate(device: str) -> int:
    return next((rate for name, rate in NVLINK_RATES.items() if name in device), 0)
