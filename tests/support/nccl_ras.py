"""A server of recorded answers of NCCL's RAS, which may be slow or close the connection early."""

from __future__ import annotations

import json
import socket
import threading

STATUS = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def rank(number: int, calls: int = 40, **status) -> dict:
    counts = {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": calls}
    place = {
        "rank": number,
        "host": "172.16.64.245",
        "pid": 1524344 + number,
        "cuda_dev": number,
        "nvml_dev": number,
    }
    return {**place, "status": {**STATUS, **status}, "collective_counts": counts}


def missing(number: int, dead: bool) -> dict:
    """As in NVIDIA's documentation."""
    status = {"unresponsive": True, "considered_dead": dead}
    return {"rank": number, "host": "172.16.64.246", "pid": 7, "cuda_dev": 1, "nvml_dev": 1, "status": status}


def answer(*ranks: dict, gone: tuple = ()) -> dict:
    one = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(gone),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(gone),
        "ranks": list(ranks),
        "missing_ranks": list(gone),
    }
    head = {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "timestamp": "2025-12-19 13:06:53"}
    ras = {"collection_time_sec": 0.0, "timeouts_count": 0}
    return {**head, "communicators_count": 1, "communicators": [one], "ras": ras}


def recorded(*documents: dict) -> list[bytes]:
    return [b"OK\n" + json.dumps(one, indent=2).encode() for one in documents]


class RasServer:
    """Serves these answers, one a connection, and ends with them. `pause_seconds` comes after each 100 bytes.

    `requests` has what it received.
    """

    def __init__(self, *answers: bytes, pause_seconds: float = 0.0):
        self._server = socket.create_server(("127.0.0.1", 0))
        self._pause_seconds = pause_seconds
        self._over = threading.Event()
        self.requests: list[bytes] = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, args=(answers,))
        self._thread.start()

    def close(self) -> None:
        """End it, also while it waits for a connection."""
        self._over.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._server.close()

    def _run(self, answers: tuple[bytes, ...]) -> None:
        for one in answers:
            try:
                connection, _ = self._server.accept()
                with connection:
                    self._serve(connection, one)
            except OSError:
                return  # It was closed, or the other side has gone.

    def _serve(self, connection: socket.socket, answer: bytes) -> None:
        received = b""
        while received.count(b"\n") < 2:
            received += connection.recv(1000)
        self.requests.append(received)
        parts = (
            [answer]
            if not self._pause_seconds
            else [answer[at : at + 100] for at in range(0, len(answer), 100)]
        )
        for part in parts:
            connection.sendall(part)
            if self._over.wait(self._pause_seconds):
                return
