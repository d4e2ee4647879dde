"""A page that names another user's process: no stack, no samples, no attribution of it, and a reason for each."""

import os
from pathlib import Path

import pytest
from support.node.node_rank import Rank
from support.node.node_tree import MS, collect, wait_until
from support.other_users import ATTACKER, VICTIM, as_root, sleeper_of

from goodput.rank_page import page
from goodput.rank_page.page import process_start_ticks
from goodput.rank_page.reader import Reader
from goodput.stack_samples import sample_file
from goodput.stack_samples.beside_run import living_ranks
from goodput.stack_samples.py_spy import Recording
from goodput.wire import schema
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.attribution.collector import Attribution
from goodput_exporters.collectors.ranks.collector import Ranks
from goodput_exporters.gpu.sample import Gpu
from goodput_exporters.push.stacks import Stacks
from goodput_exporters.stack_sampling import StackSampling

pytestmark = as_root


@pytest.fixture
def victim():
    process = sleeper_of(VICTIM)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def settings(tmp_path):
    return Settings(directory=str(tmp_path))


def page_of(directory, owner: int, pid: int, **given) -> Rank:
    """A page of this user that names this process. Its lock is of this process, which does not see it."""
    rank = Rank(directory, pid=pid, pid_start_ticks=process_start_ticks(pid), **given)
    os.chown(rank.path, owner, -1)
    rank.many(6, {"none": MS, "forward": MS})
    return rank


def dump(ranks: Ranks, process: schema.StackRequest, command) -> tuple[str, dict]:
    """The text and the outcomes of one request."""
    stacks = Stacks(ranks.owns, refusal=ranks.refusal, command=str(command))
    stacks.request([process])
    wait_until(stacks.pending)
    stacks.stop()
    outcomes = {labels[0]: count for (_, labels), count in collect(stacks).items() if count}
    return stacks.pending()[0].text, outcomes


@pytest.fixture
def py_spy(tmp_path):
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\necho the secret stack\n")
    path.chmod(0o755)
    return path


def test_no_stack_of_another_users_process(tmp_path, settings, victim, py_spy):
    ranks = Ranks(settings)
    held = (
        page_of(tmp_path, ATTACKER, victim.pid, run="theft"),
        page_of(tmp_path, VICTIM, victim.pid, run="own"),
    )
    ranks.poll()
    theft, own = (
        schema.StackRequest(run, 0, "n0", victim.pid, held[0].identity["start_unix_ns"])
        for run in ("theft", "own")
    )
    text, outcomes = dump(ranks, theft, py_spy)
    assert text == (
        f"py-spy: refused: its page belongs to user {ATTACKER}, its process {victim.pid} to {VICTIM}"
    )
    assert outcomes == {"refused": 1}
    assert dump(ranks, own, py_spy) == ("the secret stack", {"taken": 1})
    ranks.close()


def test_stack_is_dropped_when_the_process_changed(tmp_path, settings, victim, py_spy):
    """The check before the dump cannot see what the pid becomes during it."""
    ranks = Ranks(settings)
    held = page_of(tmp_path, VICTIM, victim.pid, run="own")
    ranks.poll()
    py_spy.write_text(f"#!/bin/sh\nchown {ATTACKER} {held.path}\necho the secret stack\n")
    request = schema.StackRequest("own", 0, "n0", victim.pid, held.identity["start_unix_ns"])
    text, outcomes = dump(ranks, request, py_spy)
    assert "refused" in text and outcomes == {"refused": 1}
    ranks.close()


def test_no_samples_of_another_users_process(tmp_path, settings, victim, py_spy):
    ranks, sampling = Ranks(settings), StackSampling(command=str(py_spy))
    recorded = []
    sampling._sampler._recorder.record = lambda pid: recorded.append(pid) or Recording("stolen (a.py:1) 9")
    held = page_of(tmp_path, ATTACKER, victim.pid)
    ranks.poll()
    # Its process is not of the page's user: the page is dead, unless the attacker's process locks it.
    assert ranks.followed() == []
    (rank,) = ranks._ranks.values()
    sampling._sampler.choose = lambda snapshots: held.path
    sampling.poll([rank])
    wait_until(lambda: sampling.outcomes()["refused"] == 1)
    assert recorded == []
    found = sample_file.read(held.path, held.identity["start_unix_ns"])
    assert (found.samples, f"belongs to user {ATTACKER}" in found.reason) == (0, True)
    sampling.stop()
    ranks.close()


def test_command_samples_only_its_users_pages(tmp_path):
    own, foreign = (
        page_of(tmp_path, owner, os.getpid(), run=str(owner)) for owner in (os.getuid(), ATTACKER)
    )
    assert list(living_ranks(str(tmp_path), os.getpid())) == [own.path]
    assert os.path.exists(foreign.path)


def test_page_of_another_users_process_is_dead(tmp_path, victim):
    page_of(tmp_path, ATTACKER, victim.pid)
    held = page_of(tmp_path, VICTIM, victim.pid, run="own")
    with Reader(held.path) as own, Reader(str(tmp_path / "r1.0.1.page")) as theft:
        assert (own.alive(), theft.alive()) == (True, False)


def test_attribution_leaves_another_users_process_out(tmp_path, settings, victim):
    ranks = Ranks(settings)
    held = [page_of(tmp_path, owner, victim.pid, run=str(owner)) for owner in (ATTACKER, VICTIM)]
    ranks.poll()
    # As if a process of the attacker locked the page.
    for rank in ranks._ranks.values():
        rank.alive = True
    attribution = Attribution(settings)
    attribution.ranks = ranks.processes
    attribution.gpus = lambda: [Gpu(uuid="GPU-1", pids=[victim.pid])]
    found = collect(attribution)
    assert found["goodput_rank_process_known", ("0", str(ATTACKER))] == 0
    assert found["goodput_rank_process_known", ("0", str(VICTIM))] == 1
    users = [labels for name, labels in found if name == "goodput_gpu_rank_info"]
    assert users == [("GPU-1", "0", str(VICTIM))], "both pages declare it, the driver sees one"
    assert [one.pid for one in ranks.now()] == [0, victim.pid], "no pid to join with GPUs"
    assert held
    ranks.close()


def refused(ranks: Ranks) -> float:
    return collect(ranks)["goodput_node_page_errors_total", ("owner",)]


def test_no_page_takes_a_run_from_another_user(tmp_path):
    """Whoever writes first: the other user's ranks are reported too, as a run of their own, and mixed with none."""
    ranks = Ranks(Settings(directory=str(tmp_path), grace_seconds=0.0))
    held = [page_of(tmp_path, ATTACKER, os.getpid(), attempt=9)]
    assert [report.identity.run for report in ranks.poll()] == ["r1"]
    held.append(page_of(tmp_path, VICTIM, os.getpid()))
    held.append(page_of(tmp_path, VICTIM, os.getpid(), rank=1))
    name = f"r1 (user {VICTIM})"

    def found(reports):
        return sorted((one.identity.run, one.identity.rank, one.identity.attempt) for one in reports)

    assert found(ranks.poll()) == [(name, 0, 1), (name, 1, 1)]
    assert refused(ranks) == 2, "once a page"
    shown = collect(ranks)
    assert shown["goodput_rank_step", ("0", name)] == shown["goodput_rank_step", ("0", "r1")] == 5
    # It keeps that name: the ranks of a run are not divided when the other's pages are removed.
    assert len(ranks.sweep(settled=lambda key: key.run == "r1")) == 1
    held.append(page_of(tmp_path, VICTIM, os.getpid(), rank=2))
    assert (name, 2, 1) in found(ranks.poll())
    assert len(ranks.sweep(settled=lambda key: True)) == 3
    held.append(page_of(tmp_path, VICTIM, os.getpid(), rank=3))
    assert found(ranks.poll()) == [("r1", 3, 1)] and held
    ranks.close()


def test_name_apart_fits_the_longest_run(tmp_path):
    ranks = Ranks(Settings(directory=str(tmp_path)))
    held = [
        page_of(tmp_path, owner, os.getpid(), run="r" * 128, rank=owner % 2) for owner in (ATTACKER, VICTIM)
    ]
    apart = [report for report in ranks.poll() if report.identity.run != "r" * 128]
    names = {rank % 2: f"{'r' * 115} (user {rank})" for rank in (ATTACKER, VICTIM)}
    assert (
        [one.identity.run for one in apart] == [names[one.identity.rank] for one in apart]
        and len(apart) == 1
        and held
    )
    for report in apart:
        schema.check(report)
    ranks.close()


@pytest.mark.parametrize("damaged_first", [True, False])
def test_copy_of_a_page_is_not_followed(tmp_path, damaged_first):
    """A copy that lost its steps is reported under the same rank; what its process locks, or has its name, counts."""
    rank = page_of(tmp_path, os.getuid(), os.getpid())
    copy = tmp_path / ("a.page" if damaged_first else "z.page")
    damaged = bytearray(Path(rank.path).read_bytes())
    damaged[8 * page.W_STEPS : 8 * page.W_STEPS + 8] = bytes(8)
    ranks = Ranks(Settings(directory=str(tmp_path)))
    if damaged_first:
        os.rename(rank.path, tmp_path / "aside")
        copy.write_bytes(damaged)
        ranks.poll()
        os.rename(tmp_path / "aside", rank.path)
    else:
        copy.write_bytes(damaged)
    reports = ranks.poll()
    assert [one.live.steps_done for one in reports] == [6]
    errors = collect(ranks)["goodput_node_page_errors_total", ("identity",)]
    assert errors >= 1
    ranks.close()
