"""One of two ranks that completes collectives by their futures; run by test_collective_futures.py.

Rank 1 enters each of WAITED late by LATE_SECONDS. Writes `futures-RANK.json`: by name of a way, whether its records have
an exit, their flags, and the time in `communication` meanwhile.
"""

import goodput.auto  # isort: skip
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import goodput
from goodput.rank_page.reader import Reader

LATE_SECONDS = 0.25
rank = int(os.environ["RANK"])


def started():
    return dist.all_reduce(torch.ones(8), async_op=True)


def waited() -> None:
    started().get_future().wait()


def waited_after_then() -> None:
    total = (
        started().get_future().then(lambda done: done.value()[0].sum()).then(lambda done: done.value() + 1)
    )
    assert total.wait() == 17


def polled() -> None:
    work = started()
    while not work.is_completed():
        time.sleep(0.001)


def future_polled() -> None:
    future = started().get_future()
    while not future.done():
        time.sleep(0.001)


def called_back() -> None:
    is_done = threading.Event()
    started().get_future().add_done_callback(lambda done: is_done.set())
    assert is_done.wait(60)


def collected() -> None:
    torch.futures.wait_all([started().get_future() for _ in range(2)])


def work_waited() -> None:
    work = started()
    work.get_future().then(lambda done: None)
    work.wait()


def other_future() -> None:
    """One that no collective made, where the objects of collectives were."""
    for _ in range(20):
        dist.all_reduce(torch.ones(8), async_op=True).wait()
        future = torch.futures.Future()
        future.set_result(1)
        assert future.wait() == 1 and future.then(lambda done: 2).wait() == 2


def raising() -> None:
    future = started().get_future().then(lambda done: 1 / 0)
    try:
        future.wait()
    except RuntimeError as error:
        assert "ZeroDivisionError" in str(error)


def hooked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    parallel = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        parallel(torch.ones(4, 64)).sum().backward()


WAITED = (waited, waited_after_then, polled, future_polled, called_back, collected, work_waited, raising)


def read(since: int):
    session = goodput._session
    with Reader(session.writer.path, os.dup(session.writer.fd)) as reader:
        snapshot = reader.snapshot()
        spent = dict(zip(snapshot.phases, snapshot.totals, strict=True))["communication"]
        return reader.collectives(since=since).records, spent / 1e9


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.barrier()
    result = {}
    for way in (*WAITED, other_future, hooked):
        dist.barrier()
        before, spent_before = read(0)
        time.sleep(LATE_SECONDS * rank * (way in WAITED))
        way()
        records, spent = read(before[-1].number)
        left = [bool(record.exit_ns) for record in records]
        flags = sorted({flag for record in records for flag in record.flags})
        result[way.__name__] = {"left": left, "flags": flags, "communication": spent - spent_before}
    (directory / f"futures-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


main(Path(sys.argv[1]))
