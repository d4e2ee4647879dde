"""The all-reduce between real processes: exact means, equal bits, and every wait bounded.

Each rank is a spawned process; it answers through a pipe of its own, so that killing one cannot damage
another's. What a rank does is a function of this file, `_work_…(group, say, *arguments)`.
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

from goodput.demo.allreduce import ProcessGroup
from goodput.demo.model import Adam, Model, Sizes
from goodput.demo.peak import ONE_THREAD

_WAIT_SECONDS = 20
_SPAWN = multiprocessing.get_context("spawn")


class _Ranks:
    """Processes that each run `work(group, say, *arguments)`, and the pipes on which they answer.

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
        group = ProcessGroup(rank, world_size, directory, timeout_seconds)
        work(group, writer.send, *arguments)
        group.close()
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


def _work_means(group: ProcessGroup, say) -> None:
    for size, dtype in _CASES:
        vector = _vector(group.rank, size, dtype)
        group.mean(vector)
        say(vector)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_mean_equals_numpy_with_equal_bits_everywhere(start, world_size):
    ranks = start(world_size, _work_means)
    for size, dtype in _CASES:
        results = [ranks.answer(rank) for rank in range(world_size)]
        assert len({result.tobytes() for result in results}) == 1
        expected = np.mean([_vector(rank, size, dtype).astype("f8") for rank in range(world_size)], axis=0)
        tolerance = 1e-6 if dtype == "f4" else 1e-14
        np.testing.assert_allclose(results[0], expected, rtol=0, atol=tolerance)
        assert results[0].dtype == dtype


def _work_uneven(group: ProcessGroup, say, calls: int) -> None:
    # Ranks come and go at different times, and each leaves as soon as it has its own result.
    random = np.random.default_rng(group.rank)
    total = 0.0
    for call in range(calls):
        vector = np.full(5000, call + group.rank, np.float32)
        if random.random() < 0.1:
            time.sleep(random.random() * 0.01)
        group.mean(vector)
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
    return Model(Sizes(20, 4, 5, (8,)), extras=1, dtype=np.float64)


def _work_train(group: ProcessGroup, say) -> None:
    tokens, targets = (np.split(part, group.world_size)[group.rank] for part in _rows(24))
    say(_train(_small_model(), (tokens, targets), group.mean))


def test_sharded_training_equals_whole_batch(start):
    ranks = start(3, _work_train)
    results = [ranks.answer(rank) for rank in range(3)]
    alone, alone_loss = _train(_small_model(), _rows(24), lambda message: None)
    assert len({parameters.tobytes() for parameters, _ in results}) == 1
    # Adam divides by the root of the second mean, so rounding in tiny gradients is magnified.
    np.testing.assert_allclose(results[0][0], alone, rtol=0, atol=1e-8)
    assert results[0][1] == pytest.approx(alone_loss, rel=1e-8)


def _work_until_lost(group: ProcessGroup, say, size: int, idle_rank: int) -> None:
    vector = np.ones(size, np.float32)
    try:
        for call in range(1_000_000):
            group.mean(vector)
            if call == 0:
                say("ready")
            if group.rank == idle_rank:
                time.sleep(60)  # The others are left waiting in the middle of `mean`.
    except ConnectionError as error:
        failed_at = time.monotonic()
        with pytest.raises(ConnectionError, match="lost"):
            group.mean(vector)  # It stays lost.
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
        assert 0 <= failed_at - killed_at < 10, "without waiting for the timeout of 15 s"


def _work_wait(group: ProcessGroup, say) -> None:
    vector = np.ones(100_000, np.float32)
    group.mean(vector)
    if group.rank == 0:
        time.sleep(1)
    start_cpu, start = time.process_time(), time.monotonic()
    group.mean(vector)
    say((time.process_time() - start_cpu, time.monotonic() - start))


def test_waiting_ranks_sleep(start):
    ranks = start(3, _work_wait)
    for rank in (1, 2):
        cpu_seconds, wall_seconds = ranks.answer(rank)
        assert wall_seconds > 0.5
        assert cpu_seconds < 0.1 * wall_seconds


def _work_silent(group: ProcessGroup, say) -> None:
    start = time.monotonic()
    try:
        if group.rank == 1:
            time.sleep(30)
        group.mean(np.ones(10, np.float32))
    except OSError as error:
        say((str(error), time.monotonic() - start))


def test_a_silent_rank_ends_in_a_timeout(start):
    ranks = start(3, _work_silent, timeout_seconds=3)
    for rank in (0, 2):
        message, seconds = ranks.answer(rank)
        assert "silent for 3 s" in message
        assert 2.5 < seconds < 15


def test_absent_rank_times_out(tmp_path):
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"rank 1 did not appear within 0\.3 s"):
        ProcessGroup(0, 2, tmp_path, timeout_seconds=0.3)
    assert time.monotonic() - start < 10


def test_files_of_an_earlier_attempt_are_ignored(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as gone:  # Nobody listens on its file any more.
        gone.bind("rank-0.socket")
    (tmp_path / "lost").write_text("rank 7 lost: long ago")
    ranks = start(2, _work_uneven, 3)
    assert [ranks.answer(rank) for rank in range(2)] == [sum(call + 0.5 for call in range(3))] * 2
    assert not (tmp_path / "lost").exists()


def test_one_rank_is_its_own_mean(tmp_path):
    group = ProcessGroup(0, 1, tmp_path, timeout_seconds=1)
    vector = np.arange(5, dtype=np.float32)
    group.mean(vector)
    np.testing.assert_array_equal(vector, np.arange(5))
    group.close()
    assert list(tmp_path.iterdir()) == []


def test_vectors_of_another_kind_are_refused(tmp_path):
    group = ProcessGroup(0, 1, tmp_path, timeout_seconds=1)
    for vector in (np.arange(5), np.zeros((2, 2), np.float32), np.zeros(10, np.float32)[::2]):
        with pytest.raises(TypeError):
            group.mean(vector)
    with pytest.raises(ValueError):
        ProcessGroup(2, 2, tmp_path, timeout_seconds=1)
