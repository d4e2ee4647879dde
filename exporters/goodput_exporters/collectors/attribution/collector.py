"""The user, container, pod and Slurm job of each rank and of each process on a GPU, as info series to join with.

A process that cannot be identified for sure (hidden, or in a PID namespace the agent cannot see) has
`goodput_rank_process_known` 0 and no labels, never those of a process that happens to have its pid. About 0.5 ms
with 8 known ranks, and 0.2 ms more for each new process.

Not used: container runtimes' sockets, Slurm's controller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from goodput.wire.identity import clean_text
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.attribution.pods import Pods
from goodput_exporters.gpu.merge import MergedGpu
from goodput_exporters.system.files import CounterFiles
from goodput_exporters.system.processes import Owner, Processes
from goodput_exporters.system.ranks import RankProcess

GPU_PROCESSES_MAX = 1024
UUID_MAX = 255


class Attribution:
    """`ranks` returns the living rank processes, `gpus` the GPUs with the pids on them."""

    name = "attribution"

    def __init__(self, settings: Settings, processes: Processes | None = None):
        self._processes = processes or Processes(settings.procfs, Pods(settings.container_logs))
        self.ranks: Callable[[], list[RankProcess]] = list
        self.gpus: Callable[[], Iterable[MergedGpu]] = tuple

    def collect(self, families) -> None:
        ranks, gpus = self.ranks(), list(self.gpus())
        if not ranks and not gpus:
            raise NoData("no rank and no GPU")
        files = CounterFiles()
        pids = self._processes.find(ranks, files)
        # Most processes on GPUs are those of ranks.
        owner_of = functools.cache(lambda pid: self._processes.owner(pid, files))
        for rank in ranks:
            _add_rank(families, rank, pids.get(rank), owner_of)
        _add_gpu_ranks(families, gpus, ranks, pids)
        _add_gpu_processes(families, gpus, owner_of, files)
        files.raise_problems()


def _add_rank(families, rank: RankProcess, pid: int | None, owner_of: Callable[[int], Owner | None]) -> None:
    of_rank = {"run": rank.run, "rank": str(rank.rank)}
    owner = owner_of(pid) if pid is not None else None
    families.add("goodput_rank_process_known", of_rank, float(owner is not None))
    if owner is not None:
        labels = {**of_rank, "pid": str(pid), "host": rank.host, **owner._asdict()}
        families.add("goodput_rank_process_info", labels, 1)


def _add_gpu_processes(
    families, gpus: list[MergedGpu], owner_of: Callable[[int], Owner | None], files: CounterFiles
) -> None:
    pairs = sorted({(_uuid(gpu.uuid), pid) for gpu in gpus for pid in gpu.pids or ()})
    for gpu, pid in pairs[:GPU_PROCESSES_MAX]:
        owner = owner_of(pid)
        if owner is not None:
            labels = owner._asdict()
            del labels["cgroup"]
            families.add("goodput_gpu_process_info", {"gpu": gpu, "pid": str(pid), **labels}, 1)
    if len(pairs) > GPU_PROCESSES_MAX:
        files.problems.append(f"{len(pairs)} processes on GPUs; only {GPU_PROCESSES_MAX} are exposed")


def _add_gpu_ranks(
    families, gpus: list[MergedGpu], ranks: list[RankProcess], pids: dict[RankProcess, int]
) -> None:
    """From the GPU that a rank declares, and from the driver's pids: a rank may use a GPU it did not declare.

    A page may declare another user's GPU: where the driver sees those that declare it, others do not count.
    """
    declared: dict[str, set[RankProcess]] = {}
    for rank in ranks:
        if rank.device_uuid:
            declared.setdefault(rank.device_uuid, set()).add(rank)
    rank_of = {pid: rank for rank, pid in pids.items()}
    for gpu in gpus:
        seen = {rank_of[pid] for pid in gpu.pids or () if pid in rank_of}
        users = declared.get(gpu.uuid, set())
        declared[gpu.uuid] = seen if users & seen else users | seen
    uses = {(_uuid(uuid), rank.run, rank.rank) for uuid, users in declared.items() for rank in users}
    for gpu, run, rank in sorted(uses):
        families.add("goodput_gpu_rank_info", {"gpu": gpu, "run": run, "rank": str(rank)}, 1)


def _uuid(uuid: str) -> str:
    return clean_text(uuid, UUID_MAX)
