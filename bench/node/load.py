"""The simulated node for bench.node.agent: 8 GPUs, 8 InfiniBand ports, 8 interfaces and 8 ranks.

    PYTHONPATH=tests python -m bench.node.load PAGES RATE      # writes 8 rank pages, RATE steps a second each, until killed

It makes sysfs and procfs trees, the tests' stub of libnvidia-ml.so.1 with 8 GPUs and GPM, and rank pages in the SDK's
format with six phases a step. Values hardly change over time.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from support.node import hardware_tree
from support.node.attribution_tree import CONTAINER, UID, add_process
from support.node.network_tree import MLX5, STANDARD, WIDE, counters, port, write
from support.node.node_rank import Rank
from support.node.node_tree import FILES
from support.node.nvml_stub.control import Control, build, uuid

COUNT = 8  # of GPUs, of NICs, of ranks
CPUS = 128  # of two sockets
# Of a step of 50 ms, in proportion for others.
PHASES_MS = {
    "loader": 2, "h2d": 1, "forward": 14, "backward": 24, "communication": 6, "optimizer": 3,
}  # fmt: skip
RUN, PID, TICKS = "bench", 5000, 777
PCI = "0000:{:02x}:00.0"
DISK = " 259       {0} nvme{0}n1 34758 10434 2788474 12132 8599 39515 4573872 12220 0 6760 24666 0 0 0 0\n"


def make_tree(root: Path) -> None:
    """Trees of sysfs and procfs under `root`."""
    files = {name: text for name, text in FILES.items() if name.startswith(("proc/", "sys/kernel/"))}
    files["proc/diskstats"] = "".join(DISK.format(number) for number in range(COUNT))
    others = "".join(f"cpu{cpu} 500 10 150 20000 25 3 4 4 50 0\n" for cpu in range(2, CPUS))
    files["proc/stat"] = FILES["proc/stat"].replace("intr ", f"{others}intr ")
    files["proc/net/softnet_stat"] = "".join(f"{'0000000a ' * 12}{cpu:08x}\n" for cpu in range(CPUS))
    for cpu in range(CPUS):
        files |= {
            f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id": f"{cpu // 64}\n",
            f"sys/devices/system/cpu/cpu{cpu}/topology/core_id": f"{cpu % 64}\n",
            f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count": "0\n",
            f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/package_throttle_count": "0\n",
        }
    files["proc/net/netstat"] = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 0 12\n"
    files["proc/net/dev"] = "Inter-|   Receive\n face |bytes\n"
    for node in range(2):
        at = f"sys/devices/system/node/node{node}"
        files[f"{at}/cpulist"] = f"{64 * node}-{64 * node + 63}\n"
        files[f"{at}/meminfo"] = (
            f"Node {node} MemTotal: 1000 kB\nNode {node} MemFree: 500 kB\nNode {node} FilePages: 9 kB\n"
        )
        files[f"{at}/numastat"] = "numa_hit 10\nnuma_miss 1\nnuma_foreign 1\nlocal_node 9\nother_node 2\n"
    for number in range(COUNT):
        files.update(_interface(number))
        at = f"sys/bus/pci/devices/{PCI.format(0x3B + number)}"
        files |= {
            f"{at}/class": "0x030200\n",
            f"{at}/vendor": "0x10de\n",
            f"{at}/numa_node": f"{number // 4}\n",
        }
        files[f"sys/block/nvme{number}n1/size"] = "1\n"
    hardware_tree.write_tree(root)
    write(root, files, "")
    write(root, _infiniband())
    for rank in range(COUNT):
        group = f"0::/kubepods/pod{UID}/{CONTAINER}\n"
        add_process(root, PID + rank, TICKS, cgroup=group, environ={"POD_NAME": "train-0"}, cpus="0-63")


def _interface(number: int) -> dict[str, str]:
    at = f"sys/class/net/eth{number}"
    files = {"speed": "100000\n", "carrier": "1\n", "carrier_changes": "3\n", "device/vendor": "0x15b3\n"}
    # The rest is what Debian's exporter asks an interface for.
    files |= {
        "operstate": "up\n",
        "mtu": "9000\n",
        "ifindex": f"{number + 2}\n",
        "type": "1\n",
        "flags": "0x1003\n",
    }
    for place, kind in enumerate(("bytes", "packets", "errors", "dropped")):
        files |= {f"statistics/{way}_{kind}": f"{10**9 + place}\n" for way in ("rx", "tx")}
    return {f"{at}/{name}": text for name, text in files.items()}


def _infiniband() -> dict[str, str]:
    files = {}
    for number in range(COUNT):
        device = f"mlx5_{number}"
        files |= port(device) | counters(device, [*STANDARD, *WIDE], number + 1)
        files |= counters(device, MLX5, 1000, "hw_counters")
        # Narrow ones, which a larger number would not fit.
        files |= dict.fromkeys(
            (
                f"{device}/ports/1/counters/{name}"
                for name in ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
            ),
            "7\n",
        )
    return files


def make_gpus(root: Path) -> dict[str, str]:
    """Compile the stub and say what it answers; the environment in which a driver loads it. Needs gcc."""
    library, control = build(root / "lib"), Control(root / "nvml.txt")
    for gpu in range(COUNT):
        control.gpu(
            gpu, nvmlDeviceGetComputeRunningProcesses=str(PID + gpu), nvmlDeviceGetGraphicsRunningProcesses=""
        )
    control.write()
    return {"LD_LIBRARY_PATH": str(library.parent), "GOODPUT_NVML_STUB": str(control.path)}


def write_pages(directory: str, steps_per_second: float) -> None:
    """Until killed, all ranks one step after the other."""
    start_ns, now_ns = time.time_ns(), time.monotonic_ns()
    ranks = [
        Rank(
            directory, run=RUN, rank=rank, world_size=COUNT, pid=PID + rank, pid_start_ticks=TICKS,
            device_uuid=uuid(rank), start_unix_ns=start_ns, start_mono_ns=now_ns,
        )
        for rank in range(COUNT)
    ]  # fmt: skip
    print("ready", flush=True)
    due, step_ns = time.monotonic(), 1e9 / steps_per_second
    phases_ns = {name: step_ns * ms / sum(PHASES_MS.values()) for name, ms in PHASES_MS.items()}
    while True:
        for rank in ranks:
            rank.step(
                {name: int(ns * random.uniform(0.95, 1.05)) for name, ns in phases_ns.items()}, samples=32
            )
        due += 1 / steps_per_second
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    write_pages(sys.argv[1], float(sys.argv[2]))
