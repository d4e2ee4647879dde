"""The ring between real processes: exact means, equal bits, and every wait bounded.

Each rank is a spawned process; it answers through a pipe of its own, so that killing one cannot damage
another's. What a rank does is a function of this file, `_work_…(ring, say, *arguments)`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from goodput.demo.allreduce import Ring
from goodput.demo.model import Adam, Model
from goodput.demo.peak import ONE_THREAD

_WAIT_SECONDS = 20
_SPAWN = multiprocessing.get_context("spawn")


class _Ranks:
    """Processes that each run `work(ring, say, *arguments)`, and the pipes on which they answer.

    `absent` ranks are not started: the test plays them itself.
    """

    def __init__(self, world_size, directory, work, *arguments, timeout_seconds=15, absent=()) -> None:
        self.answers, self.processes = {}, {}
        for rank in set(range(world_size)) - set(absent):
            self.answers[rank], writer = _SPAWN.Pipe(duplex=False)
            parameters = (rank, world_size, directory, timeout_seconds, writer, work, arguments)
            self.processes[rank] = _SPAWN.Process(target=_run, args=parameters, daemon=True)
            self.processes[rank].start()
            writer.close()

    def answer(self, rank: int):
        """The next thing that a rank says, within a bound. An unexpected exception there is raised here."""
        assert self.answers[rank].poll(_WAIT_SECONDS), f"rank {rank} gave no answer"
        answer = self.answers[rank].recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join(_WAIT_SECONDS)


def _run(rank, world_size, directory: Path, timeout_seconds, writer, work, arguments) -> None:
    try:
        ring = Ring(rank, world_size, directory, timeout_seconds)
        work(ring, writer.send, *arguments)
        ring.close()
    except Exception as error:
        writer.send(error)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start(world_size, work, *arguments): the ranks, which do not outlive the test."""
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:

        def _start(world_size: int, work, *arguments, **options) -> _Ranks:
            ranks = _Ranks(world_size, tmp_path, work, *arguments, **options)
            stack.callback(ranks.stop)
            return ranks

        yield _start


def _vector(rank: int, size: int, dtype: str) -> np.ndarray:
    return np.random.default_rng([rank, size]).standard_normal(size).astype(dtype)


# Empty, smaller than the number of ranks, not divisible by it, the demo's, and 5 MB: beyond socket buffers.
_CASES = [
    (0, "f4"), (1, "f4"), (2, "f4"), (3, "f4"), (7, "f4"), (1001, "f8"), (166_531, "f4"), (1_310_721, "f4")
]  # fmt: skip


def _work_means(ring: Ring, say) -> None:
    for size, dtype in _CASES:
        vector = _vector(ring.rank, size, dtype)
        ring.mean(vector)
        say(vector)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_mean_is_numpys_and_the_same_bits_on_every_rank(start, world_size):
    ranks = start(world_size, _work_means)
    for size, dtype in _CASES:
        results = [ranks.answer(rank) for rank in range(world_size)]
        assert len({result.tobytes() for result in results}) == 1
        expected = np.mean([_vector(rank, size, dtype).astype("f8") for rank in range(world_size)], axis=0)
        tolerance = 1e-6 if dtype == "f4" else 1e-14
        np.testing.assert_allclose(results[0], expected, rtol=0, atol=tolerance)
        assert results[0].dtype == dtype


def _work_uneven(ring: Ring, say, calls: int) -> None:
    # Ranks come and go at different times, and each leaves as soon as it has its own result.
    random = np.random.default_rng(ring.rank)
    total = 0.0
    for call in range(calls):
        vector = np.full(5000, call + ring.rank, np.float32)
        if random.random() < 0.1:
            time.sleep(random.random() * 0.01)
        ring.mean(vector)
        total += float(vector.mean())
    say(total)


def test_many_uneven_calls_and_an_orderly_end(start):
    ranks = start(4, _work_uneven, 300)
    # The mean of ranks 0 to 3 is 1.5 above the call's number.
    assert [ranks.answer(rank) for rank in range(4)] == [sum(call + 1.5 for call in range(300))] * 4
    for process in ranks.processes.values():
        process.join(_WAIT_SECONDS)
        assert process.exitcode == 0


def _rows(batch: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 20, (batch, 4)), random.integers(0, 20, batch)


def _train(model: Model, rows, average) -> tuple[np.ndarray, float]:
    """The parameters (size,) and the last mean loss after five steps."""
    adam = Adam(model.parameters.size, dtype=np.float64)
    for _ in range(5):
        model.extras[0] = model.forward(*rows)
        model.backward()
        average(model.message)
        adam.update(model.parameters, model.gradient)
    return model.parameters.copy(), float(model.extras[0])


def _small_model() -> Model:
    return Model(20, 4, 5, (8,), seed=0, extras=1, dtype=np.float64)


def _work_train(ring: Ring, say) -> None:
    tokens, targets = (np.split(part, ring.world_size)[ring.rank] for part in _rows(24))
    say(_train(_small_model(), (tokens, targets), ring.mean))


def test_sharded_training_equals_whole_batch(start):
    ranks = start(3, _work_train)
    results = [ranks.answer(rank) for rank in range(3)]
    alone, alone_loss = _train(_small_model(), _rows(24), lambda message: None)
    assert len({parameters.tobytes() for parameters, _ in results}) == 1
    # Adam divides by the root of the second mean, so rounding in tiny gradients is magnified.
    np.testing.assert_allclose(results[0][0], alone, rtol=0, atol=1e-8)
    assert results[0][1] == pytest.approx(alone_loss, rel=1e-8)


def _work_until_lost(ring: Ring, say, size: int, idle_rank: int) -> None:
    vector = np.ones(size, np.float32)
    try:
        for call in range(1_000_000):
            ring.mean(vector)
            if call == 0:
                say("ready")
            if ring.rank == idle_rank:
                time.sleep(60)  # The others are left waiting in the middle of `mean`.
    except ConnectionError as error:
        failed_at = time.monotonic()
        with pytest.raises(ConnectionError, match="lost"):
            ring.mean(vector)  # It stays lost.
        say((str(error), failed_at))


@pytest.mark.parametrize(
    ("world_size", "victim", "size", "idle"),
    [(2, 1, 1000, False), (4, 2, 166_528, True), (5, 0, 1_310_720, False)],
    ids=["two ranks", "while others wait for it", "in the middle of 5 MB"],
)
def test_killed_rank_is_named_on_all_others(start, world_size, victim, size, idle):
    ranks = start(world_size, _work_until_lost, size, victim if idle else -1)
    for rank in range(world_size):
        assert ranks.answer(rank) == "ready"
    time.sleep(0.2)
    killed_at = time.monotonic()
    os.kill(ranks.processes[victim].pid, signal.SIGKILL)
    for rank in set(range(world_size)) - {victim}:
        message, failed_at = ranks.answer(rank)
        assert message.startswith(f"rank {victim} lost")
        assert 0 <= failed_at - killed_at < 2


def _work_wait(ring: Ring, say) -> None:
    vector = np.ones(100_000, np.float32)
    ring.mean(vector)
    if ring.rank == 0:
        time.sleep(1)
    start_cpu, start = time.process_time(), time.monotonic()
    ring.mean(vector)
    say((time.process_time() - start_cpu, time.monotonic() - start))


def test_waiting_ranks_sleep(start):
    ranks = start(3, _work_wait)
    for rank in (1, 2):
        cpu_seconds, wall_seconds = ranks.answer(rank)
        assert wall_seconds > 0.5
        assert cpu_seconds < 0.1 * wall_seconds


def _work_silent(ring: Ring, say) -> None:
    start = time.monotonic()
    try:
        if ring.rank == 1:
            time.sleep(30)
        ring.mean(np.ones(10, np.float32))
    except OSError as error:
        say((str(error), time.monotonic() - start))


def test_a_silent_rank_ends_in_a_timeout(start):
    ranks = start(3, _work_silent, timeout_seconds=3)
    for rank in (0, 2):
        message, seconds = ranks.answer(rank)
        assert "silent for 3 s" in message
        assert 2.5 < seconds < 6


def test_absent_rank_times_out(tmp_path):
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"rank 1 did not appear within 0\.3 s"):
        Ring(0, 2, tmp_path, timeout_seconds=0.3)
    assert time.monotonic() - start < 2


def test_foreign_connections_and_stale_files_are_ignored(start, tmp_path):
    # A port file of an earlier attempt: nobody listens there any more, until rank 1 writes its own.
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    (tmp_path / "rank-1.port").write_text(f"{port} {'00' * 16}")
    (tmp_path / "rank-0.lost").write_text("rank 7 lost: long ago")
    # Rank 0 alone, so that a stranger can reach it before rank 1 does.
    ranks = start(2, _work_uneven, 3, absent=[1])
    deadline = time.monotonic() + _WAIT_SECONDS
    while not (tmp_path / "rank-0.port").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    port = int((tmp_path / "rank-0.port").read_text().split()[0])
    with socket.create_connection(("127.0.0.1", port), _WAIT_SECONDS) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\nlonger than a greeting")
        ring = Ring(1, 2, tmp_path, timeout_seconds=15)
        for call in range(3):
            vector = np.full(5000, call + 1, np.float32)
            ring.mean(vector)
            assert (vector == call + 0.5).all()
        ring.close()
    assert ranks.answer(0) == sum(call + 0.5 for call in range(3))
    assert not (tmp_path / "rank-0.lost").exists()


def test_one_rank_is_its_own_mean(tmp_path):
    ring = Ring(0, 1, tmp_path, timeout_seconds=1)
    vector = np.arange(5, dtype=np.float32)
    ring.mean(vector)
    np.testing.assert_array_equal(vector, np.arange(5))
    ring.close()
    assert list(tmp_path.iterdir()) == []


def test_vectors_of_another_kind_are_refused(tmp_path):
    ring = Ring(0, 1, tmp_path, timeout_seconds=1)
    for vector in (np.arange(5), np.zeros((2, 2), np.float32), np.zeros(10, np.float32)[::2]):
        with pytest.raises(TypeError):
            ring.mean(vector)
    with pytest.raises(ValueError):
        Ring(2, 2, tmp_path, timeout_seconds=1)
