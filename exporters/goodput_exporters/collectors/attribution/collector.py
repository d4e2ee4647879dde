"""Whose the ranks and the processes on GPUs are: user, container, pod, Slurm job and step.

In: the living ranks of collectors/ranks.py and the GPUs of the drivers, both handed over by `follow`; procfs. Out:
`goodput_rank_process_info`, `goodput_gpu_process_info` and `goodput_gpu_rank_info`, to join others with. No other
series of hardware carries a label of a job.

Guarantee: a process that cannot be told for sure (hidden, or in a PID namespace that this agent does not see)
gives `goodput_rank_process_known` 0 and no labels, never those of a process that happens to have its pid. At most
GPU_PROCESSES_MAX processes on GPUs are exposed. A look at 8 known ranks takes about 0.5 ms; the first look at a
process about 0.2 ms more.

What is not read: the kubelet's pod-resources API (pods.py says why), Docker's and containerd's sockets, Slurm's
controller, the command line and all but a few variables of the environment (processes.py says which). The pids of
GPUs are taken as they come: that they are of this PID namespace is for the driver to see to.

    attribution = Attribution(settings); attribution.follow(ranks, gpus=lambda: [gpu]); attribution.collect(families)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from goodput.wire.identity import clean_text
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collectors.attribution.pods import Pods
from goodput_exporters.gpu.sample import Gpu
from goodput_exporters.system.processes import Owner, Processes
from goodput_exporters.system.ranks import RankProcess

GPU_PROCESSES_MAX = 1024
UUID_MAX = 255


class Attribution:
    name = "attribution"

    def __init__(self, settings: Settings, processes: Processes | None = None):
        self._processes = processes or Processes(settings.procfs, Pods(settings.container_logs))
        self._ranks = None
        self._gpus: Callable[[], Iterable[Gpu]] = tuple

    def follow(self, ranks, gpus: Callable[[], Iterable[Gpu]] = tuple) -> None:
        """Take the ranks from `ranks.processes()`, and the GPUs with their pids from `gpus()`."""
        self._ranks, self._gpus = ranks, gpus

    def collect(self, families) -> None:
        ranks = self._ranks.processes() if self._ranks is not None else []
        gpus = list(self._gpus())
        if not ranks and not gpus:
            raise NoData("no rank and no GPU")
        found = self._processes.find(ranks)
        for rank in ranks:
            self._add_rank(families, rank, found.get(rank))
        _add_gpu_ranks(families, gpus, ranks, found)
        self._add_gpu_processes(families, gpus)

    def processes_info(self, pids: Iterable[int]) -> dict[int, Owner]:
        """Whose these processes are; those that are gone are left out."""
        owners = {pid: self._processes.owner(pid) for pid in pids}
        return {pid: owner for pid, owner in owners.items() if owner is not None}

    def _add_rank(self, families, rank: RankProcess, pid: int | None) -> None:
        of_rank = {"run": rank.run, "rank": str(rank.rank)}
        owner = self._processes.owner(pid) if pid is not None else None
        families.add("goodput_rank_process_known", of_rank, float(owner is not None))
        if owner is not None:
            labels = {**of_rank, "pid": str(pid), "host": rank.host, **owner._asdict()}
            families.add("goodput_rank_process_info", labels, 1)

    def _add_gpu_processes(self, families, gpus: list[Gpu]) -> None:
        at = sorted({(_uuid(gpu.uuid), pid) for gpu in gpus for pid in gpu.pids or ()})
        owners = self.processes_info({pid for _, pid in at[:GPU_PROCESSES_MAX]})
        for gpu, pid in at[:GPU_PROCESSES_MAX]:
            if pid in owners:
                labels = owners[pid]._asdict()
                del labels["cgroup"]
                families.add("goodput_gpu_process_info", {"gpu": gpu, "pid": str(pid), **labels}, 1)
        if len(at) > GPU_PROCESSES_MAX:
            raise CollectorError(f"{len(at)} processes on GPUs, of which {GPU_PROCESSES_MAX} are exposed")


def _add_gpu_ranks(
    families, gpus: list[Gpu], ranks: list[RankProcess], found: dict[RankProcess, int]
) -> None:
    """A rank's own word, and the driver's: a rank may use a GPU that it has not named."""
    uses = {(_uuid(rank.device_uuid), rank.run, rank.rank) for rank in ranks if rank.device_uuid}
    of_pid = {pid: rank for rank, pid in found.items()}
    for gpu in gpus:
        on_it = [of_pid[pid] for pid in gpu.pids or () if pid in of_pid]
        uses.update((_uuid(gpu.uuid), rank.run, rank.rank) for rank in on_it)
    for gpu, run, rank in sorted(uses):
        families.add("goodput_gpu_rank_info", {"gpu": gpu, "run": run, "rank": str(rank)}, 1)


def _uuid(uuid: str) -> str:
    return clean_text(uuid, UUID_MAX)
