"""Process groups over the ranks of a probe, which end without breaking off what another rank is still doing."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator

# A rank may wait so long for another one.
WAIT = datetime.timedelta(hours=1)


class Ranks:
    """The ranks that the environment names (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE; a launcher's store, if it has one).

    Raises RuntimeError of torch.distributed if a rank is missing.
    """

    def __init__(self) -> None:
        from torch.distributed.rendezvous import rendezvous

        self._store, self.rank, self.size = next(iter(rendezvous("env://", timeout=WAIT)))

    @contextlib.contextmanager
    def group(self, name: str, backend: str) -> Iterator[None]:
        """The default process group. Only when all ranks are done with it does one of them close its connections."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        store = PrefixStore(name, self._store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=WAIT)
        try:
            yield
            self._all(f"{name} done")
        finally:
            dist.destroy_process_group()

    def leave(self) -> None:
        """Wait until all ranks are here. The store's process waits until they have seen it, too."""
        self._all("leaving")
        self._store.set(f"left {self.rank}", "")
        if self.rank == 0:
            self._store.wait([f"left {rank}" for rank in range(self.size)], WAIT)

    def _all(self, what: str) -> None:
        self._store.set(f"{what} {self.rank}", "")
        self._store.wait([f"{what} {rank}" for rank in range(self.size)], WAIT)
