"""An all-reduce (mean) between the processes of one machine, over Unix sockets.

Rank 0 receives every vector, adds them in order of rank and sends the mean back, so the result has the same bits on
every rank and in every run. No call takes longer than `timeout_seconds`; a waiting rank sleeps in the kernel. When a
process dies, every rank in `mean` gets an error that names it. Rank 0 moves 2 · (world_size - 1) vectors per call; a
ring would spread that over the ranks, which pays off between machines only.

    group = ProcessGroup(rank=0, world_size=4, directory=directory, timeout_seconds=30)
    group.mean(model.message)
    group.close()
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from pathlib import Path
from typing import NoReturn

import numpy as np


class ProcessGroup:
    """The connections of this rank. `directory` is private to one attempt: it has rank 0's socket and its last error.

    The constructor waits for the other ranks, and raises TimeoutError after `timeout_seconds`.
    """

    def __init__(self, rank: int, world_size: int, directory: Path, timeout_seconds: float) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.rank, self.world_size, self.timeout_seconds = rank, world_size, timeout_seconds
        self._directory = Path(directory)
        self._peers: dict[int, socket.socket] = {}  # Of rank 0 all other ranks, of these rank 0.
        self._lost = ""
        if world_size > 1:
            try:
                self._connect_all(time.monotonic() + timeout_seconds)
            except BaseException:
                self.close()
                raise

    def mean(self, vector: np.ndarray) -> None:
        """Replace `vector` (n,), contiguous floats, by its mean over the ranks, which all pass the same n and type.

        Raises ConnectionError("rank R lost: …") when a process is gone, TimeoutError when one sends nothing for
        `timeout_seconds`, TypeError for another kind of vector. After an error the group is closed and the vector's
        content undefined.
        """
        if vector.ndim != 1 or not vector.flags.c_contiguous or vector.dtype.kind != "f":
            raise TypeError("mean takes one contiguous vector of floating-point numbers")
        if self.world_size == 1 or not vector.size:
            return
        if not self._peers:
            raise ConnectionError(self._lost or f"rank {self.rank} has closed its process group")
        try:
            self._reduce(vector, time.monotonic() + self.timeout_seconds)
        except BaseException:
            self.close()  # Half a vector may be on its way.
            raise

    def close(self) -> None:
        """The next `mean` of the others reports this rank as lost."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    def _reduce(self, vector: np.ndarray, deadline: float) -> None:
        if self.rank > 0:
            self._send(0, vector, deadline)
            self._receive({0: vector}, deadline)
            return
        others = np.empty((self.world_size - 1, vector.size), vector.dtype)
        self._receive(dict(enumerate(others, 1)), deadline)
        for other in others:
            vector += other
        vector /= self.world_size
        for rank in self._peers:
            self._send(rank, vector, deadline)

    def _send(self, rank: int, vector: np.ndarray, deadline: float) -> None:
        self._peers[rank].settimeout(max(0.001, deadline - time.monotonic()))
        try:
            self._peers[rank].sendall(vector.data)
        except TimeoutError:
            self._fail(TimeoutError, rank, f"silent for {self.timeout_seconds:g} s")
        except ConnectionError:
            self._fail(ConnectionError, rank, "its connection was closed")

    def _receive(self, vectors: dict[int, np.ndarray], deadline: float) -> None:
        """Fill the vectors, by rank, in whatever order they arrive: a death is noticed while others are awaited."""
        missing = {self._peers[rank]: (rank, v.data.cast("B")) for rank, v in vectors.items()}
        while missing:
            ready, _, _ = select.select(missing, [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = min(rank for rank, _ in missing.values())
                self._fail(TimeoutError, silent, f"silent for {self.timeout_seconds:g} s")
            for peer in ready:
                rank, space = missing.pop(peer)
                try:
                    count = peer.recv_into(space)
                except ConnectionError:
                    count = 0
                if count == 0:
                    self._fail(ConnectionError, rank, "its connection was closed")
                if count < len(space):
                    missing[peer] = rank, space[count:]

    def _fail(self, kind: type[OSError], rank: int, what: str) -> NoReturn:
        """Raise the error about a rank; rank 0 leaves it for the others, who notice only that rank 0 has closed."""
        self._lost, note = f"rank {rank} lost: {what}", self._directory / "lost"
        with contextlib.suppress(OSError):  # The launcher may have removed the directory.
            if self.rank == 0:
                note.write_text(self._lost)
            else:
                self._lost = note.read_text() or self._lost
        raise kind(self._lost)

    def _connect_all(self, deadline: float) -> None:
        # A socket's path has at most 107 bytes; by way of a descriptor the directory's own may be longer.
        folder = os.open(self._directory, os.O_PATH)
        path = f"/proc/self/fd/{folder}/rank-0.socket"
        try:
            if self.rank == 0:
                self._accept_all(path, deadline)
            else:
                self._connect(path, deadline)
        finally:
            os.close(folder)

    def _accept_all(self, path: str, deadline: float) -> None:
        for stale in (Path(path), self._directory / "lost"):
            stale.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(self.world_size)
            while len(self._peers) < self.world_size - 1:
                listener.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    absent = min(set(range(1, self.world_size)) - set(self._peers))
                    self._fail_to_meet(absent)
                peer.settimeout(self.timeout_seconds)
                self._peers[int.from_bytes(peer.recv(4), "little")] = peer

    def _connect(self, path: str, deadline: float) -> None:
        while True:
            peer = self._peers[0] = socket.socket(socket.AF_UNIX)
            try:
                peer.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):  # It does not listen yet.
                peer.close()
                if time.monotonic() > deadline:
                    self._fail_to_meet(0)
                time.sleep(0.005)
        peer.sendall(self.rank.to_bytes(4, "little"))

    def _fail_to_meet(self, rank: int) -> NoReturn:
        raise TimeoutError(f"rank {rank} did not appear within {self.timeout_seconds:g} s") from None
