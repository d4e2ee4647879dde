"""A simulated cluster for the agents: 32 ranks on 4 nodes, and nodes on which hardware fails.

    cluster_world.py make DIRECTORY              # the nodes' trees and GPUs, then exit
    cluster_world.py train DIRECTORY ATTEMPT     # 32 rank pages, written in real time until killed

DIRECTORY gets n0 to n3, each with sysfs, procfs, rank pages and the file that a stub of libnvidia-ml answers from. The
run is a goodput.simulate one; one process writes the pages of all its ranks, as the SDK would, since 32 trainers would
overload the machine. Counters of the nodes grow, a link flaps, a port goes down, a GPU has XIDs. While DIRECTORY/hang
exists, rank CULPRIT computes and the others wait for it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

from bench.node.load import DISK, PCI, make_tree
from support.node.attribution_tree import add_process
from support.node.network_tree import devices, write
from support.node.node_rank import Rank
from support.node.nvml_stub.control import Control
from support.node.storage_tree import LLITE_NEW

from goodput.rank_page import collective_records, deep_look, page
from goodput.rank_page.loader_words import LOADER, WORKER
from goodput.simulate import operations
from goodput.simulate.run import Attempt, SimulatedRun, Span
from goodput.simulate.scenario import AttemptPlan, RunFault, RunPlan, Workload
from goodput.wire.collectives import ReportedOperation

RUN = "cluster/run 1"
NODES, GPUS = 4, 8
RANKS = NODES * GPUS
STRAGGLER, STARVED, CULPRIT, TRACED = 13, 21, 5, 0
WORKLOAD = Workload(
    step=0.3, samples=32, checkpoint=1.5, checkpoint_every=4.5, checkpoint_noise=0, evaluation=1.5, evaluation_every=5.5,
    epoch_every=math.inf, hiccup_every=0,
)  # fmt: skip
FAULTS = [
    RunFault("compute", 0, math.inf, amount=1.5, rank=STRAGGLER),
    RunFault("loader", 0, math.inf, amount=0.2, rank=STARVED),
]
PID, TICKS = 5000, 777
GROUPS = [
    ("0", "default_pg"),
    ("1", "mesh_dp"),
    ("2", "mesh_pp"),
]  # name and description of each process group
STAGE = RANKS // 2  # ranks of each of two stages
UPDATE_SECONDS = 1.0  # between updates of the nodes
# Of the second attempt: when hardware begins to fail, when more of it does, and when the stuck driver continues.
FAILURE_SECONDS = (4.0, 9.0, 11.0)
MS = 1_000_000
IDENTITY = {
    "world_size": RANKS, "device": "NVIDIA H100 80GB HBM3", "microbatches": 8, "dtype": "bf16",
    "flops_per_step": 4e13, "hardware_flops_per_step": 5e13, "peak_flops_per_second": 9.89e14,
    "ideal_samples_per_second": 120.0, "gpu_hour_cost": 2.5, "gpu_power_watts": 500.0,
}  # fmt: skip


def uuid(node: int, gpu: int) -> str:
    return f"GPU-{node}000000{gpu}-aaaa-bbbb-cccc-0123456789ab"


def host(node: int) -> str:
    return f"n{node}"


# -- the nodes


class Node:
    """A node's tree; its counters are a function of the seconds since it was made."""

    def __init__(self, folder: Path, number: int):
        self.root, self.number = folder / host(number), number
        self.gpus = Control(self.root / "nvml.txt")
        self.is_down = self.is_stuck = False

    def make(self) -> None:
        (self.root / "pages").mkdir(parents=True)
        (self.root / "pages" / "broken.0.1.page").write_bytes(b"no page")
        make_tree(self.root)
        if self.number == 3:
            write(self.root, devices())
        for gpu in range(GPUS):
            self._file(f"sys/bus/pci/devices/{PCI.format(0x3B + gpu)}/numa_node", f"{gpu // 4}\n")
        at = os.stat(self.root)
        mount = f"{os.major(at.st_dev)}:{os.minor(at.st_dev)}"
        self._file(
            "proc/self/mountinfo",
            f"27 1 254:0 / / rw - ext4 /dev/vda rw\n40 27 {mount} / {self.root} rw - nfs4 server:/data rw\n",
        )
        self.update(0.0)

    def update(self, seconds: float) -> None:
        """Write all counters."""
        now = int(100 * seconds)
        self._host(now)
        self._links(now, seconds)
        self._gpus(now, seconds)

    def _file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced as a whole, as the kernel's files are read as a whole.
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        new.replace(path)

    def _host(self, now: int) -> None:
        disks = (
            DISK.format(number).replace("34758", str(34758 + now)).replace("12132", str(12132 + 3 * now))
            for number in range(GPUS)
        )
        self._file("proc/diskstats", "".join(disks))
        self._file(
            "proc/stat",
            f"cpu  {1000 + 60 * now} 20 {300 + 8 * now} {40000 + 25 * now} {50 + 3 * now} 6 7 0 0 0\n"
            f"cpu0 500 10 150 20000 25 3 4 4 50 0\nbtime 1700000000\nprocs_running 3\nprocs_blocked 2\n",
        )
        self._file(
            "proc/vmstat",
            f"pswpin {7 + now}\npswpout {9 + now}\npgfault 1\npgmajfault {11 + now}\noom_kill {now // 500}\n",
        )
        for resource in ("cpu", "memory", "io"):
            lines = (f"{kind} avg10=0.00 total={2000 * now}\n" for kind in ("some", "full"))
            self._file(f"proc/pressure/{resource}", "".join(lines))
        self._file(
            "proc/net/snmp", f"Tcp: InSegs OutSegs RetransSegs\nTcp: 9 {1000 + 900 * now} {744 + now // 20}\n"
        )
        self._file("proc/net/netstat", f"TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 0 {12 + now}\n")
        for node in range(2):
            self._file(
                f"sys/devices/system/node/node{node}/numastat",
                f"numa_hit {10 + 9 * now}\nnuma_miss {1 + now}\nnuma_foreign 1\nlocal_node 9\nother_node 2\n",
            )
        calls = "".join(
            f"\t{name}: {10 + now} {10 + now + now // 5} {now // 100} 200 300 {now} {5 * now} {7 * now} {now // 50}\n"
            for name in ("READ", "WRITE", "GETATTR")
        )
        self._file(
            "proc/self/mountstats",
            f"device server:/data mounted on {self.root} with fstype nfs4 statvers=1.1\n"
            f"\tbytes:\t{now} {now} 0 0 {1000 * now} {1000 * now} 0 0\n\tper-op statistics\n{calls}",
        )
        lustre = LLITE_NEW.replace(" 12 samples", f" {12 + now} samples").replace(
            "1000 99", f"{1000 * now} 9"
        )
        lustre = lustre.replace(" 11 samples", f" {11 + now} samples").replace("2500000", f"{2500000 + now}")
        self._file("proc/fs/lustre/llite/scratch-ffff8800deadbeef/stats", lustre)

    def _links(self, now: int, seconds: float) -> None:
        for number in range(2):
            at = f"sys/class/net/eth{number}"
            for way in ("rx", "tx"):
                self._file(f"{at}/statistics/{way}_bytes", f"{10**9 + 9 * 10**7 * now}\n")
                self._file(f"{at}/statistics/{way}_errors", f"{now // 10}\n")
                self._file(f"{at}/statistics/{way}_dropped", f"{now // 10}\n")
            port = f"sys/class/infiniband/mlx5_{number}/ports/1"
            for name, value in {
                "counters/port_xmit_data": 10**7 * now,
                "counters/port_rcv_data": 10**7 * now,
                "counters/port_xmit_wait": 10**4 * now,
                "counters/symbol_error": now // 100,
                "hw_counters/out_of_sequence": now // 50,
                "hw_counters/roce_adp_retrans": now // 50,
                "hw_counters/np_ecn_marked_roce_packets": now,
                "hw_counters/np_cnp_sent": now,
                "hw_counters/rp_cnp_handled": now,
                "counters/local_link_integrity_errors": 15,  # a counter of four bits at its maximum
            }.items():
                self._file(f"{port}/{name}", f"{value}\n")
        if self.number == 3:
            self._file("sys/class/net/eth1/carrier_changes", f"{3 + 2 * int(seconds // 3)}\n")
            is_down = self.is_down
            self._file("sys/class/infiniband/mlx5_7/ports/1/state", "1: DOWN\n" if is_down else "4: ACTIVE\n")
            self._file("sys/class/infiniband/mlx5_7/ports/1/counters/link_downed", f"{9 + is_down}\n")

    def _gpus(self, now: int, seconds: float) -> None:
        for gpu in range(GPUS):
            answers = {
                "uuid": uuid(self.number, gpu),
                "nvmlDeviceGetComputeRunningProcesses": PID + gpu,
                "nvmlDeviceGetGraphicsRunningProcesses": "",
                "nvmlDeviceGetPowerUsage": 500_000 + 1000 * (now % 100),
                "nvmlDeviceGetTotalEnergyConsumption": 10**8 + 5000 * now,
                **{f"nvmlDeviceGetViolationStatus.{kind}": now * 10**6 for kind in (0, 1, 2, 4, 10, 11)},
                "field.94.0": f"{now // 500} 1",
                **{f"field.{number}.0": f"{now // 50} 3" for number in (3, 5, 38, 45, 52, 59)},
                **{f"field.{number}.{0xFFFFFFFF}": f"{1000 * now} 3" for number in (138, 139)},
            }
            if (self.number, gpu) != (0, 1):
                answers |= {"nvmlDeviceGetCurrPcieLinkGeneration": 5, "nvmlDeviceGetCurrPcieLinkWidth": 16}
            if (self.number, gpu) != (0, 2):
                answers |= {f"nvmlDeviceGetViolationStatus.{kind}": 0 for kind in (1, 11)}
                answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x4  # its power cap, as usual
            if self.is_stuck and gpu == 0:
                answers["nvmlDeviceGetPowerUsage"] = "block"
            if (self.number, gpu) == (0, 3):
                answers["nvmlDeviceGetMemoryInfo"] = "!999"
            if (self.number, gpu) == (2, 4):
                answers |= {"field.4.0": f"{1 + now // 500} 3", "field.144.0": "1 1"}
            if (self.number, gpu) == (2, 6):
                answers |= {
                    "field.230.0": "1 1",
                    "field.29.0": "1 1",
                    "field.30.0": "1 1",
                    "field.31.0": "1 1",
                }
            self.gpus.gpu(gpu, **answers)
        self.gpus.write()


# -- the ranks


class Trainer(Rank):
    """A rank whose page also has the SDK's own cost, the device clock, the loader and its workers."""

    def __init__(self, folder: Path, rank: int, attempt: int, start_unix_ns: int, start_mono_ns: int):
        node, gpu = divmod(rank, GPUS)
        super().__init__(
            folder / host(node) / "pages", **IDENTITY, run=RUN, rank=rank, attempt=attempt, host=host(node),
            pid=PID + gpu, pid_start_ticks=TICKS + attempt, device_uuid=uuid(node, gpu), stage=rank // STAGE,
            group=f"dp{rank % 2}", start_unix_ns=start_unix_ns, start_mono_ns=start_mono_ns,
            submit_time=start_unix_ns / 1e9 - 30,
        )  # fmt: skip
        self.rank, self.attempt = rank, attempt
        self.has_device = node < 2
        self.device = [0] * page.PHASE_SLOTS
        self.define("augment", "loader")
        if self.has_device:
            self.words[page.W_DEVICE_STATE] = page.DEVICE_STATES.index("active")
        self._sampling(phases_measured=1, budget_ppm=5000)
        for slot, (name, description) in enumerate(GROUPS):
            backend = "gloo" if description == "mesh_dp" else "nccl"  # Of gloo, what is hidden is known.
            ranks = range(rank % STAGE, RANKS, STAGE) if description == "mesh_pp" else range(RANKS)
            collective_records.write_group(self.words, slot, name, description, backend, rank, ranks)

    def train(self, phases: dict[str, int], step: int) -> None:
        before = list(self.words[page.W_TOTALS : page.W_TOTALS + page.PHASE_SLOTS])
        ns = sum(phases.values())
        augment_ns = phases["none"] // 2
        phases = phases | {"augment": augment_ns, "none": phases["none"] - augment_ns}
        self.step(phases, step, samples=WORKLOAD.samples)
        self._device(before, ns)
        self._collectives()
        self._others(ns)

    def _device(self, before: list[int], ns: int) -> None:
        """The step on the device's clock: half of what the host spent in the optimizer is backward there."""
        words = self.words
        spent = [words[page.W_TOTALS + i] - before[i] for i in range(page.PHASE_SLOTS)]
        backward, optimizer = self.names.index("backward"), self.names.index("optimizer")
        spent[backward], spent[optimizer] = (
            spent[backward] + spent[optimizer] // 2,
            spent[optimizer] - spent[optimizer] // 2,
        )
        outside = [words[page.W_OUTSIDE + i] for i in range(page.PHASE_SLOTS)]
        if not self.has_device:
            return
        self.device = [self.device[i] + spent[i] for i in range(page.PHASE_SLOTS)]
        at = page.W_DEVICE_RING + (self.steps - 1) % page.DEVICE_RING * page.DEVICE_WORDS
        words[at + page.D_SEAL] = 0
        words[at + page.D_NUMBER] = self.steps
        words[at + page.D_DEVICE_NS] = ns + (
            words[at - page.DEVICE_WORDS + page.D_DEVICE_NS] if self.steps > 1 else 0
        )
        for i in range(page.PHASE_SLOTS):
            words[at + page.D_TOTALS + i] = self.device[i] + outside[i]
        words[at + page.D_SEAL] = words[page.W_DEVICE_DONE] = words[page.W_DEVICE_STEPS] = self.steps

    def _collectives(self) -> None:
        """Sums without records of calls, so that a hang is judged by its phases."""
        spent = self.words[page.W_TOTALS + page.PHASES.index("communication")]
        slots = {collective_records.group_label(*names): slot for slot, names in enumerate(GROUPS)}
        name = "send" if self.rank < STAGE else "recv"
        stages = ReportedOperation(
            "mesh_pp", name, 8 * self.steps, 8_000_000 * self.steps, spent // 10, 0, 0, 2, 0, 0
        )
        for place, row in enumerate((*operations.rows(spent - spent // 10, self.steps), stages)):
            operation = collective_records.OPERATIONS.index(row.operation)
            at = slots[row.group] * collective_records.OPERATION_SLOTS + operation
            hidden = collective_records.AT_HIDDEN + place * collective_records.HIDDEN_WORDS
            for i, value in enumerate((at + 1, row.calls, row.hidden_ns, row.hidden_max_ns)):
                self.words[page.W_COLLECTIVES + hidden + i] = value
            at = page.W_COLLECTIVES + collective_records.AT_SUMS + at * collective_records.SUM_WORDS
            for i, value in enumerate((row.calls, row.bytes, row.exposed_ns, row.before_ns)):
                self.words[at + i] = value

    def _others(self, ns: int) -> None:
        words, steps = self.words, self.steps
        words[page.W_COST] += ns // 500
        words[page.W_DROPS + page.DROPS.index("phase")] = steps // 4
        self._sampling(
            micro_batches=4 * steps, skipped_steps=steps // 9, compilations=3, unmeasured_steps=steps // 10
        )
        loader = self.names.index("loader")
        words[page.W_BACKGROUND] = steps
        words[page.W_BACKGROUND_TOTALS + loader] += ns // 10
        waited = self.words[page.W_TOTALS + loader]
        batches = {
            "batches": steps, "ready": 2 * steps, "starved": steps // 2, "starts": 1, "start_ns": 100 * MS, "left_out": 1,
            "wait_ns": waited, "wait_storage_ns": waited // 2, "wait_decode_ns": waited // 5,
            "wait_queue_ns": waited // 10, "workers": 2, "main": 1,
        }  # fmt: skip
        for name, value in batches.items():
            words[page.W_LOADER + LOADER.index(name)] = value
        worked = {
            "starts": 1, "startup_ns": 10 * MS, "batches": steps // 2, "idle_ns": waited // 9, "dataset_ns": waited,
            "cpu_ns": waited // 3, "delay_ns": waited // 9, "collate_ns": waited // 9, "waited_ns": waited // 2,
        }  # fmt: skip
        for slot in range(2):
            for name, value in {"place": 1 << 32 | slot << 16 | 1, **worked}.items():
                words[page.W_WORKERS + slot * page.WORKER_WORDS + WORKER.index(name)] = value

    def _sampling(self, **values: int) -> None:
        for name, value in values.items():
            self.words[page.W_SAMPLING + page.SAMPLING.index(name)] = value

    def write_traced_step(self) -> None:
        ns = 400 * MS
        states = {
            "compute": ns // 2,
            "communication": ns // 8,
            "copy": ns // 8,
            "loader": ns // 8,
            "host": ns // 8,
            "idle": 0,
        }
        seen = {
            "unix_ns": time.time_ns(), "step": self.steps, "device": "H100", "wall_ns": ns, "states_ns": states,
            "communication_ns": ns // 4, "copy_ns": ns // 8, "communication_hidden_ns": ns // 8, "copy_hidden_ns": 0,
            "kernel_ns": ns // 2, "gaps": 1, "late_gaps": 0, "late_gaps_ns": 0, "top": [], "cause": None,
            "cost_ns": 10 * MS, "slowdown_ns": MS, "analysis_ns": MS,
        }  # fmt: skip
        document = {
            "version": 1, "run": RUN, "rank": self.rank, "attempt": self.attempt, "unix_ns": time.time_ns(),
            "looks": self.steps, "skipped": 0, "failed": 0, "why": "", "cost_ns": 2 * MS * self.steps,
            "every_ns": 10**9, "seen": seen,
        }  # fmt: skip
        deep_look.write(str(self.path), document)


class World:
    """All ranks of one attempt, and the nodes below them."""

    def __init__(self, folder: Path, attempt: int):
        self.folder, self.attempt = folder, attempt
        self.nodes = [Node(folder, number) for number in range(NODES)]
        if attempt == 1:
            (folder / "began").write_text(str(time.monotonic()))
        self.began = float((folder / "began").read_text())
        self.updated, self.failures, self.events = 0.0, 0, 0
        for node in self.nodes:
            for gpu in range(GPUS):
                add_process(
                    node.root, PID + gpu, TICKS + attempt, cpus="0-63", environ={"POD_NAME": "train-0"}
                )
        times = {"start_unix_ns": time.time_ns(), "start_mono_ns": time.monotonic_ns()}
        self.started = times["start_mono_ns"] / 1e9
        self.ranks = [Trainer(folder, rank, attempt, **times) for rank in range(RANKS)]
        # Of another run, which no token of the agents may report.
        self.stranger = Rank(
            folder / "n0" / "pages", run="stranger", rank=0, world_size=1, host="n0", pid=PID,
            pid_start_ticks=TICKS + attempt, attempt=attempt, **times,
        )  # fmt: skip
        places = [(host(rank // GPUS), rank % GPUS) for rank in range(RANKS)]
        plan = AttemptPlan(0, math.inf, places, startup=0.2, restore=0.5, compile=1.0)
        committed_step = int((folder / "checkpoint").read_text()) if attempt > 1 else 0
        self.run = SimulatedRun(RunPlan(RUN, [plan], WORKLOAD, faults=FAULTS), committed_step, self.charge)

    def train(self) -> None:
        while True:
            self.run.advance(time.monotonic() - self.started)
            attempt = self.run.attempt
            self.write_events(attempt)
            for rank, (phase, _, _) in zip(self.ranks, attempt.live, strict=True):
                rank.enter(phase)
            self.update_nodes()
            if (self.folder / "hang").exists() and attempt.span.is_step:
                self.hang(attempt)
            time.sleep(0.1)

    def charge(self, attempt: Attempt, span: Span) -> None:
        """Write a step or another span of work into the pages."""
        self.write_events(attempt, len(attempt.events) - bool(span.event))
        for rank in self.ranks:
            phases = {phase: int(by_rank[rank.rank]) for phase, by_rank in span.parts}
            if span.is_step:
                rank.train(phases, attempt.step - 1)
            else:
                rank.outside(phases)
        self.write_events(attempt)
        if span.event:
            (self.folder / "checkpoint").write_text(str(attempt.step))
        self.ranks[TRACED].write_traced_step()

    def write_events(self, attempt: Attempt, end: int | None = None) -> None:
        for event in attempt.events[self.events : end]:
            for rank in self.ranks:
                rank.event(event.kind, event.step)
        self.events = len(attempt.events[:end])

    def hang(self, attempt: Attempt) -> None:
        began_ns = time.monotonic_ns()
        for rank in self.ranks:
            rank.enter("forward" if rank.rank == CULPRIT else "communication")
        while (self.folder / "hang").exists():
            self.update_nodes()
            time.sleep(0.2)
        attempt.lengthen_step(CULPRIT, "forward", time.monotonic_ns() - began_ns)

    def update_nodes(self) -> None:
        seconds = time.monotonic() - self.began
        if seconds - self.updated < UPDATE_SECONDS:
            return
        self.updated = seconds
        self.stranger.beat()
        self._fail_hardware(time.monotonic() - self.started)
        for node in self.nodes:
            node.update(seconds)

    def _fail_hardware(self, seconds: float) -> None:
        """The failures of the second attempt, in order, each once."""
        done = len(FAILURE_SECONDS)
        if self.attempt < 2 or self.failures == done or seconds < FAILURE_SECONDS[self.failures]:
            return
        self.failures += 1
        self.nodes[3].is_down = True
        (self.nodes[1].root / "proc" / "loadavg").write_text("nonsense\n")
        self.nodes[2].is_stuck = self.failures < done
        xids = {1: ((2, 79), (3, 31), (3, 94)), 2: ((5, 48),)}
        for gpu, number in xids.get(self.failures, ()):
            self.nodes[1].gpus.xid(gpu, number)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        for number in range(NODES):
            Node(folder, number).make()
        return
    World(folder, int(sys.argv[3])).train()


if __name__ == "__main__":
    main()
