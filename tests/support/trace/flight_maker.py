"""Builds dumps of PyTorch's Flight Recorder as ProcessGroupNCCL writes them: one pickle a rank, with all its fields."""

from __future__ import annotations

import pickle
from pathlib import Path

MS = 1_000_000
BEGAN = 1_795_446_062_000_000_000
VERSION = "2.10"
STATES = ("scheduled", "started", "completed")


class Recorder:
    """One rank's recorder; each call of a method records one call of the process group `group`."""

    def __init__(
        self, rank: int, groups: dict[str, tuple[str, list[int]]] | None = None, timing: bool = True
    ):
        self.rank, self.timing = rank, timing
        self.groups = groups or {"0": ("default_pg", [0, 1, 2])}
        self.entries: list[dict] = []
        self._collectives: dict[str, int] = {}
        self._p2p: dict[str, int] = {}

    def collective(self, operation: str, *shape: int, state="completed", group="0", dtype="Float", late=0):
        """A collective of one tensor."""
        self._collectives[group] = self._collectives.get(group, 0) + 1
        return self._record(f"nccl:{operation}", [list(shape or (256,))], state, group, dtype, late=late)

    def coalesced(self, parts: list[tuple[str, int]], end="nccl:coalesced", state="completed", group="0"):
        """Several operations under one number; each is a collective, or `send 0->1`."""
        is_p2p = "->" in parts[0][0] or "<-" in parts[0][0]
        numbers = self._p2p if is_p2p else self._collectives
        numbers[group] = numbers.get(group, 0) + 1
        for operation, length in parts:
            self._record(f"nccl:{operation}", [[length]], "scheduled", group, "Float", is_p2p)
        return self._record(end, [], state, group, "Float", is_p2p)

    def transfer(self, operation: str, length: int, state="started", group="0", dtype="Float"):
        """A send or receive by itself: `send 0->1`, `recv 1<-0`."""
        self._p2p[group] = self._p2p.get(group, 0) + 1
        return self._record(f"nccl:{operation}", [[length]], state, group, dtype, True)

    def dump(self) -> dict:
        configured = {
            name: {"name": name, "desc": desc, "ranks": str(ranks)}
            for name, (desc, ranks) in self.groups.items()
        }
        return {"version": VERSION, "entries": self.entries, "pg_config": configured}

    def _record(self, name, shapes, state, group, dtype, is_p2p=False, late=0) -> Recorder:
        created = BEGAN + 10 * MS * len(self.entries) + late
        begun, over = STATES.index(state) > 0 and self.timing, state == "completed"
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": 0,
                "process_group": (group, self.groups[group][0]),
                "collective_seq_id": self._collectives.get(group, 0),
                "p2p_seq_id": self._p2p.get(group, 0),
                "op_id": len(self.entries),
                "profiling_name": name,
                "time_created_ns": created,
                "input_sizes": shapes,
                "input_dtypes": [dtype] * len(shapes),
                "output_sizes": shapes,
                "output_dtypes": [dtype] * len(shapes),
                "state": state,
                "time_discovered_started_ns": created + MS if begun else None,
                "time_discovered_completed_ns": BEGAN + 10 * MS * len(self.entries) + 5 * MS
                if over
                else None,
                "retired": over,
                "timeout_ms": 600_000,
                "is_p2p": is_p2p,
                "frames": [],
            }
        )
        return self


def written(directory: Path, recorders: list[Recorder]) -> Path:
    directory.mkdir(exist_ok=True)
    for one in recorders:
        (directory / f"nccl_trace_rank_{one.rank}").write_bytes(pickle.dumps(one.dump(), 2))
    return directory
