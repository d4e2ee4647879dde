"""What workers of a running training wait for: the arithmetic by hand, and real workers behind a lock and a slow file."""

import os
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from support.probe import planted
from support.servers.servers import wait_until

from goodput.probe.loader.live_waits import SAMPLES_MIN, kind_of_function, sampled, shares, workers_of
from goodput.probe.loader.recorded import Record, predict
from goodput.probe.loader.recorded_text import render


def record(workers: int, seconds: float, lock_share: float | None = None) -> Record:
    """Workers that are always busy and blocked, of a training that takes 1 ms a batch."""
    parts = {"cpu": 0.0, "blocked": seconds, "collate": 0.0}
    return Record(f"w{workers}", 0, 1, workers, 2, 100, seconds, workers, parts, 0.0, 0.0, 0.001, lock_share)


def figures(**ms) -> dict[str, int]:
    return {
        f"worker_{name}": count if name == "batches" else count * 10**6
        for name, count in {"batches": 50, **ms}.items()
    }


def test_shares_of_blocked_time_by_hand():
    """Of 10 s of workers 2 idle and 1 on a core; 400 samples, of the polls 2 of 10 s are idleness, the rest the network."""
    grown = figures(idle_ns=2000, dataset_ns=8000, cpu_ns=900, delay_ns=100)
    counts = Counter(cpu=40, poll=120, lock=180, storage=40, sleep=20)
    found = shares({}, grown, counts)
    # Waits are 0.45 lock, 0.1 storage, 0.05 sleep and 0.3 - 0.2 of polling: 0.25 of 0.7.
    assert found == {"storage": pytest.approx(0.25 / 0.7), "lock": pytest.approx(0.45 / 0.7)}
    before = {name: 7 * value for name, value in grown.items()}
    assert shares(before, {name: 8 * value for name, value in grown.items()}, counts) == found


BUSY = figures(dataset_ns=10_000, cpu_ns=1000)


@pytest.mark.parametrize(
    "grown, counts, why",
    [
        (figures(dataset_ns=10_000, batches=4), Counter(lock=500), "4 batches were made"),
        (BUSY, Counter(lock=99), "too few to tell"),
        ({}, Counter(lock=500), "0 batches were made"),
        (figures(dataset_ns=8000, collate_ns=2000), Counter(lock=500), "collate function may wait too"),
        (BUSY, Counter(unknown=500), "does not show it to this user"),
        (BUSY, Counter(cpu=400, lock=100), "20% of the samples are waits, 90% of the recorded time"),
        (BUSY, Counter(cpu=500), "0% of the samples are waits, 90% of the recorded time"),
    ],
)
def test_waits_that_do_not_agree_with_the_records_are_not_known(grown, counts, why):
    found = shares({}, grown, counts)
    assert isinstance(found, str) and why in found


def test_polling_of_workers_that_are_never_idle_is_the_network():
    assert shares({}, BUSY, Counter(poll=450, cpu=50)) == {"storage": 1.0, "lock": 0.0}


@pytest.mark.parametrize(
    "name, state, kind",
    [
        ("futex_wait_queue", "S", "lock"),
        ("flock_lock_inode_wait", "S", "lock"),
        ("hrtimer_nanosleep", "S", "sleep"),
        ("poll_schedule_timeout.constprop.0", "S", "poll"),
        ("folio_wait_bit_common", "D", "storage"),
        ("unix_stream_read_generic", "S", "storage"),
        ("rwsem_down_read_slowpath", "D", "unknown"),  # maybe a page fault, maybe memory of another thread
        ("0", "S", "unknown"),
        ("0", "R", "cpu"),
    ],
)
def test_kind_of_a_kernel_function(name, state, kind):
    assert kind_of_function(name, state) == kind


def test_workers_are_found_below_a_fork_server(tmp_path):
    processes = {
        10: ("python", 1),
        11: ("pt_data_worker", 10),
        12: ("fork (server)", 10),
        13: ("pt_data_worker", 12),
        14: ("pt_data_worker", 1),
        15: ("QueueFeeder", 11),
    }
    for pid, (name, parent) in processes.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0")
    (tmp_path / "self").mkdir()
    (tmp_path / "16").mkdir()
    assert workers_of(10, str(tmp_path)) == [11, 13]
    assert workers_of(99, str(tmp_path)) == [] == workers_of(10, str(tmp_path / "none"))


@pytest.mark.parametrize(
    "few, many, limit",
    [
        # Alone 50 ms, of five workers 150 ms: 100 ms more.
        (None, 0.7, "lock"),  # 105 ms of lock, of which one worker alone waits for 21 at most
        (None, 0.0, "storage"),
        (None, 0.3, "storage"),  # 45 ms
        (None, 0.4, "blocked"),  # 60 ms, or 48 more than alone
        (None, None, "blocked"),
        (0.0, 0.4, "lock"),
        (1.0, 0.6, "storage"),  # 90 ms, 40 more than alone
    ],
)
def test_growth_is_of_storage_or_of_a_lock(few, many, limit):
    found = predict([record(1, 0.050, few), record(5, 0.150, many)])
    assert (found["limit"]["name"], found["knee"]) == (limit, 2)
    assert ("as sampled now" in found["limit"]["text"]) == (limit != "blocked")


def test_lock_of_one_number_of_workers_gives_the_knee():
    """By hand: 5 workers of 150 ms, of which 100 wait for the lock: 33 batches/s, which 2 workers of 50 ms make."""
    found = predict([record(5, 0.150, 2 / 3)])
    assert (found["limit"]["name"], found["knee"]) == ("lock", 2)
    assert "of the 150 ms that a batch takes a worker, it waits 100 ms for a lock" in found["limit"]["text"]
    assert "150 (lock 100)" in render(found)
    assert "150 (storage 150)" in render(predict([record(5, 0.150, 0.0)]))
    assert predict([record(5, 0.150, 0.0)])["knee"] is None, "storage may be shared or not"
    assert predict([record(1, 0.150, 0.9)])["knee"] is None, "whose lock one worker waits for is not known"
    idle = replace(record(5, 0.150, 2 / 3), busy=3.0)
    assert predict([idle])["limit"]["name"] != "lock"


@pytest.mark.parametrize("by", ["lock", "flock", "server"])
def test_real_workers_wait_for_what_was_planted(by):
    """Three workers that take turns: two wait for the lock while the third sleeps, or all three for the server."""
    plant = planted.Plant("turns", "storage" if by == "server" else "lock", by, 0.0, 0.005)
    loader = planted.loader(plant, num_workers=3, prefetch_factor=8)
    batches, over = iter(loader), threading.Event()

    def train():
        for _ in batches:
            if over.is_set():
                return

    training = threading.Thread(target=train)
    training.start()
    try:
        pids = sorted(worker.pid for worker in batches._workers)
        # A worker has its name once it has begun.
        wait_until(lambda: set(workers_of(os.getpid())) >= set(pids), 60, "three workers")
        counts, until = Counter(), time.monotonic() + 60
        while counts.total() < SAMPLES_MIN and time.monotonic() < until:
            counts += sampled(pids, 3, 0.2)
    finally:
        over.set()
        training.join()
        batches._shutdown_workers()
        loader.dataset.close()
    waits = {"lock": counts["lock"], "storage": counts["storage"]}
    assert max(waits, key=waits.__getitem__) == plant.limit, counts
    assert min(waits.values()) < counts.total() / 4 < max(waits.values()), counts
