"""Series of a pipeline's waits, and of the rank with a slow link: values, absence and bounds."""

import pytest
from support.account.account_history import Process, account_of, ns

from goodput.account.attempts import Attempt
from goodput.account.collectives.operation_sums import sums_of
from goodput.aggregator.api.recent_links import EVERY_NS, RANKS_MAX, RecentLinks
from goodput.aggregator.api.run_series import STAGE_WAITS_SHOWN, RunSeries
from goodput.aggregator.ingest.store import Process as StoredProcess
from goodput.metrics import Families
from goodput.slices import result_of
from goodput.wire.connections import ConnectionRow, Connections, pack


def series_of(account, name: str) -> dict[tuple[str, ...], float]:
    """The values of a series by its labels, sorted by name, without the run."""
    families = Families("aggregator")
    result_of(RunSeries(None, None).add_account(families, account))
    return {
        tuple(value for label, value in sorted(one.labels.items()) if label != "run"): one.value
        for family in families
        for one in family.samples
        if one.name == name
    }


def pipeline(stages: int, microbatches: int | None):
    """In 4 steps stage 0 sends for 0.8 s, each other one receives for 2.4 s and sends for 0.4 s."""
    processes = []
    for stage in range(stages):
        spent = {"send": 0.8} if stage == 0 else {"recv": 2.4, "send": 0.4}
        sums = sums_of(("pp", name, 12, 0, ns(seconds), 0) for name, seconds in spent.items())
        one = Process(stage, 1, 0.0, stage=stage, microbatches=microbatches, sums=sums)
        processes.append(one.steps(4, forward=1, communication=0.8).finished())
    return account_of(*processes)


def test_waits_of_stages_per_step_and_microbatch():
    """0.8 s of sends in 4 steps of 2 microbatches are 0.2 s a step and 0.1 s a microbatch."""
    found = series_of(pipeline(2, 2), "goodput_pipeline_wait_seconds")
    assert found == {
        ("send", "step", "0"): pytest.approx(0.2),
        ("send", "microbatch", "0"): pytest.approx(0.1),
        ("recv", "step", "1"): pytest.approx(0.6),
        ("recv", "microbatch", "1"): pytest.approx(0.3),
        ("send", "step", "1"): pytest.approx(0.1),
        ("send", "microbatch", "1"): pytest.approx(0.05),
    }


def test_waits_of_stages_are_bounded_and_absent_where_unknown():
    stages = STAGE_WAITS_SHOWN // 2 + 4
    found = series_of(pipeline(stages, None), "goodput_pipeline_wait_seconds")
    assert len(found) == STAGE_WAITS_SHOWN < 2 * stages - 1
    assert {per for _, per, _ in found} == {"step"}, "the microbatches are not known"
    plain = account_of(Process(0, 1, 0.0).steps(4, forward=1, communication=0.8).finished())
    assert series_of(plain, "goodput_pipeline_wait_seconds") == {}


def address(rank: int) -> str:
    return f"10.0.{rank // 256}.{rank % 256}"


def ring(ranks: int, slow: int | None) -> list[StoredProcess]:
    """What each rank sends the next one: the slow one is busy with it for 0.9 s of a second, others for 0.05 s."""
    made = []
    for rank in range(ranks):
        ends = f"{address(rank)}:4000", f"{address((rank + 1) % ranks)}:5000"
        busy_ns = ns(0.9) if rank == slow else ns(0.05)
        sent = Connections(ns(1), (ConnectionRow(*ends, busy_ns, 10**8, 10**5, 0, 10**6, 0, 0, 0),))
        made.append(StoredProcess(Attempt(rank, 1, 0, host=f"n{rank}"), None, (), connections=pack(sent)))
    return made


def test_slow_link_is_judged_every_ten_seconds():
    links = RecentLinks()
    found = links.of("r1", 0, ring(4, slow=1))
    assert found is not None and (found.rank, found.host, found.address) == (1, "n1", "10.0.0.1")
    assert (found.worst.bytes_per_second, found.usual) == pytest.approx((10**8 / 0.9, 10**8 / 0.05))
    assert links.of("r1", EVERY_NS - 1, ring(4, slow=None)) is found
    assert links.of("r1", EVERY_NS, ring(4, slow=None)) is None
    assert links.of("r2", EVERY_NS, ring(4, slow=2)).rank == 2
    links.keep(["r1"])
    assert links.of("r2", EVERY_NS, ring(4, slow=3)).rank == 3


def test_runs_with_too_many_connections_have_no_slow_link():
    assert RecentLinks().of("r1", 0, ring(RANKS_MAX, slow=1)).rank == 1
    assert RecentLinks().of("r1", 0, ring(RANKS_MAX + 1, slow=1)) is None
