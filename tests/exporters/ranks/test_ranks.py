"""Following rank pages: what a poll reports, liveness and death, hostile pages, removal."""

import os
import stat

import pytest
from support.node.hostile_pages import plant_hostile
from support.node.node_rank import PID, SECOND, START_MONO_NS, START_UNIX_NS, Rank
from support.node.node_tree import MS, collect, samples

from goodput.metrics import Families
from goodput.rank_page import page
from goodput.wire import schema
from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.ranks.collector import Ranks, unlink_same
from goodput_exporters.system.ranks import rank_key


def kill_fixture(tree) -> None:
    (tree / "proc" / str(PID) / "stat").unlink()


# -- what a poll reports


def test_a_look_reports_each_row_and_event_once(tree, ranks, clock):
    rank = Rank(tree / "pages", stage=3, flops_per_step=1e12)
    rank.outside({"restore": 50 * MS})
    rank.step({"loader": 10 * MS, "forward": 20 * MS}, samples=32)
    rank.event("checkpoint_begun", 0)
    clock.seconds = 1.0
    (report,) = ranks.poll()
    schema.check(report)
    assert report.identity == schema.Identity(
        run="r1", rank=0, attempt=1, world_size=16, host="n0", pid=PID, start_ns=START_UNIX_NS,
        device="NVIDIA H100 80GB HBM3", device_uuid="GPU-1", group="dp0", stage=3, flops_per_step=1e12,
    )  # fmt: skip
    loader, forward, restore = (report.phases.index(name) for name in ("loader", "forward", "restore"))
    (row,) = report.steps
    assert (row.number, row.step, row.samples) == (1, 0, 32)
    assert (row.start_ns, row.end_ns) == (START_UNIX_NS + 50 * MS, START_UNIX_NS + 80 * MS)
    assert (row.totals[loader], row.totals[forward], row.totals[restore]) == (10 * MS, 20 * MS, 50 * MS)
    assert (row.outside[restore], sum(row.outside)) == (50 * MS, 50 * MS)
    (event,) = report.events
    assert (event.number, event.kind, event.step, event.time_ns) == (
        1, "checkpoint_begun", 0, START_UNIX_NS + 80 * MS,
    )  # fmt: skip
    assert report.live.alive and report.live.ended == "" and report.live.end_ns == 0
    assert report.live.now_ns == START_UNIX_NS + SECOND and report.live.last_ns == START_UNIX_NS + 80 * MS

    rank.step({"forward": 5 * MS})
    (again,) = ranks.poll()
    assert [row.number for row in again.steps] == [2] and again.events == []
    assert again.sequence > report.sequence
    (idle,) = ranks.poll()
    assert idle.steps == [] and idle.live.totals == again.live.totals


def test_a_phase_defined_later_widens_the_next_report(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    (before,) = ranks.poll()
    rank.define("tokenize", "loader")
    rank.step({"tokenize": 2 * MS})
    (after,) = ranks.poll()
    assert after.phases == (*before.phases, "tokenize") and after.phase_states == {"tokenize": "loader"}
    assert after.steps[0].totals[-1] == 2 * MS
    schema.check(after)


def test_a_ring_that_went_round_keeps_the_sums(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    (first,) = ranks.poll()
    rank.many(3000, {"forward": MS})
    (second,) = ranks.poll()
    assert [row.number for row in second.steps] == list(range(3002 - page.STEP_RING, 3002))
    forward = second.phases.index("forward")
    assert second.steps[-1].totals[forward] - first.steps[-1].totals[forward] == 3000 * MS


def test_looks_come_sooner_when_a_ring_could_be_overrun(tree, ranks, clock):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    clock.seconds = 1.0
    ranks.poll()
    assert ranks.wait_seconds == 1.0  # one step a second: the interval
    rank.many(512, {"forward": MS})
    clock.seconds = 2.0
    ranks.poll()
    assert ranks.wait_seconds == pytest.approx(0.5)  # 512 a second: a quarter of 1024 after half a second
    rank.many(20_000, {"forward": MS})
    clock.seconds = 2.5
    ranks.poll()
    assert ranks.wait_seconds == pytest.approx(0.125)  # no more than the ring's 1024 can be seen to be new
    clock.seconds = 3.5
    ranks.poll()
    assert ranks.wait_seconds == 1.0


def test_an_event_ring_that_went_round_is_counted(tree, ranks):
    rank = Rank(tree / "pages")
    rank.event("mark", 0, "first")
    ranks.poll()
    for number in range(page.EVENT_RING + 1):
        rank.event("mark", 0, str(number))
    (report,) = ranks.poll()
    assert len(report.events) == page.EVENT_RING
    assert collect(ranks)["goodput_node_page_errors_total", ("overrun",)] == 1


def test_no_directory_is_no_data_until_it_appears(tree, settings, clock):
    (tree / "pages").rmdir()
    ranks = Ranks(settings)
    with pytest.raises(NoData):
        ranks.poll()
    families = Families("node")
    with pytest.raises(NoData):
        ranks.collect(families)
    assert samples(families)["goodput_node_pages", ("live",)] == 0
    (tree / "pages").mkdir()
    Rank(tree / "pages").step({"forward": MS})
    assert [len(report.steps) for report in ranks.poll()] == [1]
    ranks.close()


def test_totals_never_go_backwards_while_a_rank_writes_at_full_speed(tmp_path, processes):
    process = processes(tmp_path)
    process.forever({"loader": 1000, "forward": 3000, "backward": 5000})
    ranks = Ranks(Settings(directory=str(tmp_path)))
    totals, numbers, scraped = (0,) * len(page.PHASES), [0], {}
    for _ in range(60):
        (report,) = ranks.poll()
        schema.check(report)
        assert all(new >= old for new, old in zip(report.live.totals, totals, strict=True))
        totals = report.live.totals
        for row in report.steps:
            assert row.number > numbers[-1]
            numbers.append(row.number)
            assert sum(row.totals) == 9000 * row.number
        now = collect(ranks)
        for key, value in scraped.items():
            if key[0].endswith(("_total", "_bucket", "_sum", "_count")):
                assert now[key] >= value, key
        scraped = now
    assert len(numbers) > 60
    ranks.close()


# -- liveness and death


def test_a_killed_process_is_dead_within_one_look(tmp_path, processes):
    """A real SIGKILL: the last rows are harvested, and the end lies between the last live poll and the next."""
    process = processes(tmp_path)
    ranks = Ranks(Settings(directory=str(tmp_path)))
    process.do("step", {"forward": MS})
    (alive,) = ranks.poll()
    assert alive.live.alive and alive.live.ended == ""
    process.do("step", {"forward": 2 * MS})
    process.kill()
    (dead,) = ranks.poll()
    assert [row.number for row in dead.steps] == [2]
    assert not dead.live.alive and dead.live.ended == ""
    assert alive.live.now_ns <= dead.live.end_ns <= dead.live.now_ns
    assert dead.live.end_ns >= dead.live.last_ns
    assert ranks.poll() == []  # reported once
    assert collect(ranks)["goodput_rank_alive", ("0", "r1")] == 0
    ranks.close()


def test_rank_that_died_before_the_agent_came(tree, ranks, clock):
    """It ends at its last boundary."""
    rank = Rank(tree / "pages")
    rank.step({"forward": 7 * MS})
    kill_fixture(tree)
    clock.seconds = 30.0
    (report,) = ranks.poll()
    assert not report.live.alive and report.live.end_ns == START_UNIX_NS + 7 * MS


def test_a_recorded_end_is_taken_as_it_is(tree, ranks, clock):
    rank = Rank(tree / "pages")
    rank.step({"forward": 7 * MS})
    rank.end("finished")
    clock.seconds = 30.0
    (report,) = ranks.poll()
    assert (report.live.alive, report.live.ended, report.live.end_ns) == (
        True,
        "finished",
        START_UNIX_NS + 7 * MS,
    )
    kill_fixture(tree)
    (report,) = ranks.poll()
    assert (report.live.alive, report.live.end_ns) == (False, START_UNIX_NS + 7 * MS)


def test_a_page_that_moves_without_a_visible_process_is_alive(tree, ranks, clock):
    """A lock that was lost, a pid in another namespace: what moves lives."""
    rank = Rank(tree / "pages")
    kill_fixture(tree)
    rank.step({"forward": MS})
    assert not ranks.poll()[0].live.alive
    rank.step({"forward": MS})
    (report,) = ranks.poll()
    assert report.live.alive and report.live.end_ns == 0
    assert not ranks.poll()[0].live.alive


def test_a_page_whose_file_was_removed_is_followed_to_its_end(tree, ranks):
    rank = Rank(tree / "pages")
    ranks.poll()
    os.unlink(rank.path)
    os.rmdir(tree / "pages")
    rank.step({"forward": MS})
    (report,) = ranks.poll()
    assert len(report.steps) == 1


# -- hostile pages


def test_hostile_pages_are_counted_and_the_good_one_is_served(tree, ranks, caplog):
    planted = plant_hostile(tree / "pages")
    Rank(tree / "pages", run="good").step({"forward": MS})
    for _ in range(2):
        (report,) = ranks.poll()
        assert report.identity.run == "good"
        schema.encode(report)
    found = collect(ranks)
    for reason in set(planted.values()):
        count = sum(other == reason for other in planted.values())
        assert found["goodput_node_page_errors_total", (reason,)] == 2 * count, reason
    assert found["goodput_node_pages", ("rejected",)] == len(planted)
    assert found["goodput_node_pages", ("live",)] == 1
    assert found["goodput_steps_total", ("0", "good")] == 1
    for name in planted:
        assert sum(name in record.message for record in caplog.records) <= 1, name
    assert len(caplog.records) == len(planted)


def test_a_page_truncated_while_it_is_followed(tree, ranks):
    good, bad = Rank(tree / "pages", rank=1), Rank(tree / "pages", rank=2)
    good.step({"forward": MS})
    assert len(ranks.poll()) == 2
    os.truncate(bad.path, 4096)
    (report,) = ranks.poll()
    assert report.identity.rank == 1
    found = collect(ranks)
    assert found["goodput_node_pages", ("rejected",)] == 1
    assert found["goodput_node_page_errors_total", ("truncated",)] >= 1
    assert found["goodput_steps_total", ("1", "r1")] == 1


def test_impossible_histogram_counts_cost_only_the_histogram(tree, ranks):
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    for bin in range(3):
        rank.words[page.W_HISTOGRAMS + bin] = (1 << 64) - 1
    ranks.poll()
    found = collect(ranks)
    assert found["goodput_steps_total", ("0", "r1")] == 1
    assert found["goodput_node_page_errors_total", ("value",)] == 1
    assert not any(name == "goodput_step_duration_seconds_count" for name, _ in found)


def test_pages_are_bounded(tree, clock):
    bounded = Settings(directory=str(tree / "pages"), procfs=str(tree / "proc"), pages_max=3)
    for rank in range(5):
        Rank(tree / "pages", rank=rank)
    ranks = Ranks(bounded)
    assert len(ranks.poll()) == 3 and len(ranks.poll()) == 3
    assert collect(ranks)["goodput_node_page_errors_total", ("excess",)] == 4
    ranks.close()


# -- several processes of one rank


def test_of_two_attempts_both_are_reported_and_the_newest_is_shown(tree, ranks):
    old, new = Rank(tree / "pages", attempt=1), Rank(tree / "pages", attempt=2)
    old.many(9, {"forward": MS})
    new.step({"forward": MS})
    assert sorted(report.identity.attempt for report in ranks.poll()) == [1, 2]
    found = collect(ranks)
    assert found["goodput_steps_total", ("0", "r1")] == 1
    assert next(labels for name, labels in found if name == "goodput_rank_info")[0] == "2"


def test_a_page_replaced_under_its_name_is_a_new_process(tree, ranks):
    first = Rank(tree / "pages")
    first.many(5, {"forward": MS})
    ranks.poll()
    first.step({"forward": MS})
    second = Rank(tree / "pages", start_unix_ns=START_UNIX_NS + 1, start_mono_ns=START_MONO_NS + 1)
    second.step({"forward": MS})
    reports = {report.identity.start_ns: report for report in ranks.poll()}
    assert [row.number for row in reports[START_UNIX_NS].steps] == [6]
    assert [row.number for row in reports[START_UNIX_NS + 1].steps] == [1]
    assert collect(ranks)["goodput_steps_total", ("0", "r1")] == 1


# -- removal


def test_dead_page_is_removed_after_the_grace(tree, ranks, clock):
    """And only when all of it is acknowledged."""
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    ranks.poll()
    kill_fixture(tree)
    (report,) = ranks.poll()
    key = rank_key(report.identity)
    clock.seconds = 59.0
    ranks.poll()
    assert ranks.sweep(lambda key: True) == [] and os.path.exists(rank.path)
    clock.seconds = 61.0
    ranks.poll()
    requested = []
    assert ranks.sweep(lambda key: requested.append(key)) == [] and os.path.exists(rank.path)
    assert requested == [key]
    assert collect(ranks)["goodput_node_pages", ("dead",)] == 1
    assert ranks.sweep(lambda key: True) == [key] and not os.path.exists(rank.path)
    assert collect(ranks)["goodput_node_pages", ("dead",)] == 0
    assert os.listdir(tree / "pages") == []


def test_a_page_that_is_never_acknowledged_is_removed_after_a_day(tree, ranks, clock):
    rank = Rank(tree / "pages")
    kill_fixture(tree)
    ranks.poll()
    clock.seconds = 86_399.0
    assert ranks.sweep(lambda key: False) == [] and os.path.exists(rank.path)
    clock.seconds = 86_400.0
    assert len(ranks.sweep(lambda key: False)) == 1 and not os.path.exists(rank.path)


def test_a_live_page_and_a_foreign_file_are_never_removed(tree, ranks, clock):
    rank = Rank(tree / "pages")
    (tree / "pages" / "other.page").write_bytes(b"somebody else's")
    ranks.poll()
    clock.seconds = 1e6
    ranks.poll()
    assert ranks.sweep(lambda key: True) == []
    assert os.path.exists(rank.path) and (tree / "pages" / "other.page").exists()


def test_stale_drafts_are_removed_and_young_or_locked_ones_are_not(tmp_path, processes):
    for name, age_seconds in (("stale", 100), ("young", 0), ("locked", 100)):
        path = tmp_path / f".1.{name}.page"
        path.write_bytes(b"")
        written = os.stat(path).st_mtime - age_seconds
        os.utime(path, (written, written))
    process = processes(tmp_path)
    os.unlink(tmp_path / ".1.locked.page")
    os.link(process.path, tmp_path / ".1.locked.page")
    os.utime(tmp_path / ".1.locked.page", (1, 1))
    (tmp_path / ".1.link.page").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / ".1.fifo.page")
    ranks = Ranks(Settings(directory=str(tmp_path), grace_seconds=60.0))
    ranks.poll()
    ranks.sweep(lambda key: True)
    left = sorted(name for name in os.listdir(tmp_path) if name.startswith("."))
    assert left == [".1.fifo.page", ".1.link.page", ".1.locked.page", ".1.young.page"]
    ranks.close()


def test_removal_spares_a_page_published_under_the_name_in_the_meantime(tmp_path):
    (tmp_path / "x.page").write_text("new")
    inode = (tmp_path / "x.page").stat().st_ino
    unlink_same(str(tmp_path), "x.page", inode + 1)
    assert (tmp_path / "x.page").read_text() == "new"
    unlink_same(str(tmp_path), "x.page", inode)
    unlink_same(str(tmp_path), "x.page", inode)  # gone already
    assert os.listdir(tmp_path) == []


def test_removal_gives_the_name_back_when_the_page_changed_in_between(tmp_path, monkeypatch):
    (tmp_path / "x.page").write_text("old")
    inode = (tmp_path / "x.page").stat().st_ino
    rename = os.rename

    def rename_after_a_restart(source, target):
        (tmp_path / "fresh").write_text("new")
        os.replace(tmp_path / "fresh", source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_after_a_restart)
    unlink_same(str(tmp_path), "x.page", inode)
    assert os.listdir(tmp_path) == ["x.page"] and (tmp_path / "x.page").read_text() == "new"


def test_page_that_cannot_be_removed_is_retired(tree, ranks, clock, monkeypatch):
    """It is not reported again."""
    rank = Rank(tree / "pages")
    rank.step({"forward": MS})
    kill_fixture(tree)
    ranks.poll()
    clock.seconds = 61.0

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "rename", refuse)
    assert len(ranks.sweep(lambda key: True)) == 1
    assert ranks.poll() == [] and ranks.sweep(lambda key: True) == []
    assert not any(name == "goodput_steps_total" for name, _ in collect(ranks))
    monkeypatch.undo()
    os.unlink(rank.path)
    ranks.poll()
    Rank(tree / "pages").step({"forward": MS})
    assert len(ranks.poll()) == 1


def test_files_of_the_directory_that_are_no_pages_are_left_alone(tree, ranks):
    (tree / "pages" / "notes.txt").write_text("x")
    (tree / "pages" / ".agent.lock").write_text("")
    assert ranks.poll() == []
    ranks.sweep(lambda key: True)
    assert stat.S_ISREG(os.stat(tree / "pages" / ".agent.lock").st_mode)
    assert collect(ranks)["goodput_node_pages", ("rejected",)] == 0
