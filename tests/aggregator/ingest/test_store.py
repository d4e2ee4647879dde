"""Merging reports: claims of a rank, precedence, and that order and repetition change nothing."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.reports import rank_report, story

from goodput.account import compute
from goodput.aggregator.ingest import store as store_module
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.wire import schema

NOW = ns(2000)


def merged(*reports: schema.RankReport, now_ns: int = NOW) -> Store:
    store = Store()
    for report in reports:
        store.merge(report, now_ns)
    return store


def account(store: Store, run: str = "r1", now_ns: int = NOW):
    found = compute(store.runs[run], now_ns, stale_seconds=30)
    assert_closes(found)
    return found


# ---- One process after another


def test_story_gives_the_expected_account():
    found = account(merged(*(report for push in story() for report in push)))
    assert (found.status, len(found.restarts)) == ("finished", 1)
    assert [(rank.kept_steps, rank.lost_steps) for rank in found.ranks] == [(8 + 8, 4)] * 2
    assert (found.restarts[0].resume_step, found.restarts[0].lost_steps) == (7, 8)
    assert found.straggler.culprit() == (1, "loader")
    assert found.clamped == 0


def test_two_live_processes_cannot_claim_a_rank():
    store, one = Store(), Process().steps(3, forward=1)
    store.merge(rank_report(one), NOW)
    other = rank_report(Process().steps(5, forward=1), host="elsewhere", pid=77)
    with pytest.raises(ReportRejected) as rejected:
        store.merge(other, NOW + ns(29))
    assert rejected.value.reason == "claim"
    text = str(rejected.value)
    assert all(word in text for word in ("'r1'", "rank 0", "attempt 1", "n0", "elsewhere", "77"))
    assert account(store).ranks[0].kept_steps == 3, "nothing of it is merged"
    store.merge(rank_report(one.step(forward=1)), NOW + ns(29))
    assert account(store).ranks[0].kept_steps == 4, "the first continues"


def test_rank_of_a_silent_process_is_free():
    store = merged(rank_report(Process().steps(3, forward=1)))
    store.merge(rank_report(Process(start=10), pid=77), NOW + ns(store_module.OWNED_SECONDS))
    assert sorted(store.runs["r1"].attempts) == [(0, 1), (0, 2)]


@pytest.mark.parametrize("end", ["killed", "failed", "finished"])
def test_process_after_a_dead_one_gets_next_attempt(end):
    first = getattr(Process().steps(3, forward=1), end)()
    store = merged(rank_report(first))
    second, third = Process(start=5).steps(2, forward=1).killed(), Process(start=9).step(forward=1)
    store.merge(rank_report(second, pid=77), NOW)
    store.merge(rank_report(third, pid=78), NOW)
    run = store.runs["r1"]
    assert {key: a.start_ns for key, a in run.attempts.items()} == {(0, 1): 0, (0, 2): ns(5), (0, 3): ns(9)}
    # Each continues under its assigned number.
    store.merge(rank_report(third.step(forward=1), pid=78), NOW)
    assert (len(run.attempts), run.attempts[0, 3].kept_rows()) == (3, 2)


def test_declared_attempt_number_is_used():
    store = merged(rank_report(Process(attempt=4, start=9)), rank_report(Process(attempt=2)))
    assert sorted(store.runs["r1"].attempts) == [(0, 2), (0, 4)]
    with pytest.raises(ReportRejected):
        store.merge(rank_report(Process(attempt=4, start=10), pid=1), NOW)


def test_ranks_and_runs_are_independent():
    store = merged(rank_report(Process(0)), rank_report(Process(1)), rank_report(Process(0), run="r2"))
    assert {name: sorted(run.attempts) for name, run in store.runs.items()} == {
        "r1": [(0, 1), (1, 1)],
        "r2": [(0, 1)],
    }


def test_runs_are_bounded(monkeypatch):
    monkeypatch.setattr(store_module, "RUNS_MAX", 2)
    store = merged(rank_report(Process()), rank_report(Process(), run="r2"))
    with pytest.raises(ReportRejected) as rejected:
        store.merge(rank_report(Process(), run="r3"), NOW)
    assert rejected.value.reason == "runs" and "r3" not in store.runs
    store.merge(rank_report(Process(1), run="r2"), NOW)


def test_rank_processes_are_bounded(monkeypatch):
    monkeypatch.setattr(store_module, "PROCESSES_MAX", 2)
    store = merged(rank_report(Process()), rank_report(Process(1)))
    for report in (rank_report(Process(2)), rank_report(Process(), run="r2")):
        with pytest.raises(ReportRejected) as rejected:
            store.merge(report, NOW)
        assert rejected.value.reason == "ranks"
    assert list(store.runs) == ["r1"] and len(store.runs["r1"].attempts) == 2
    store.merge(rank_report(Process(1)), NOW)


# ---- One process over time


def test_phases_grow():
    one = Process().step(forward=1)
    store = merged(rank_report(one))
    later = Process(user={"augment": "loader"}).step(forward=1).step(augment=2)
    store.merge(rank_report(later), NOW)
    attempt = store.runs["r1"].attempts[0, 1]
    assert (attempt.phases, attempt.phase_states) == (later.phases, {"augment": "loader"})
    store.merge(rank_report(one.step(forward=1), rows=[]), NOW)
    assert attempt.phases == later.phases, "a report from before knows fewer"
    assert account(store).gpu_ns() == account(merged(rank_report(later))).gpu_ns()


def test_ranks_share_what_is_alike():
    """An empty dict takes 64 bytes, and a rank would have three. One that gets something has it alone."""
    plain = [rank_report(Process(rank).step(forward=1)) for rank in range(3)]
    user = [rank_report(Process(rank, user={"augment": "loader"}).step(augment=1)) for rank in range(3, 5)]
    loads = replace(
        plain[2], live=replace(plain[2].live, loader={"wait_ns": 1}), sequence=plain[2].sequence + 1
    )
    store = merged(*plain, *user, loads)
    attempts = [store.runs["r1"].attempts[rank, 1] for rank in range(5)]
    account(store)
    for name in ("rows", "phase_states", "loader"):
        assert getattr(attempts[0], name) is getattr(attempts[1], name) and not getattr(attempts[0], name)
    for name, own in (("rows", attempts[0].rows), ("loader", attempts[0].loader)):
        with pytest.raises(TypeError, match="share"):
            own[name] = 1
        with pytest.raises(TypeError, match="share"):
            own.update({name: 1})
    assert attempts[2].loader == {"wait_ns": 1}
    assert attempts[3].phase_states is attempts[4].phase_states and attempts[3].phase_states


def test_late_phase_state_is_used():
    one = Process(user={"augment": "loader"}).steps(2, augment=1, forward=1).finished()
    store = merged(replace(rank_report(one), phase_states={}))
    run = store.runs["r1"]
    assert compute(run, NOW).gpu_ns()[1] == 0
    store.merge(rank_report(one), NOW)
    assert compute(run, NOW).gpu_ns()[1] == ns(2)


def test_changed_phases_are_rejected():
    one = Process(user={"augment": "loader"}).step(forward=1)
    store = merged(rank_report(one))
    other = Process(user={"tokenize": "loader"}).step(forward=1).step(tokenize=1)
    with pytest.raises(ReportRejected) as rejected:
        store.merge(rank_report(other), NOW)
    assert rejected.value.reason == "phases"
    assert "augment" in str(rejected.value) and "tokenize" in str(rejected.value)
    assert store.runs["r1"].attempts[0, 1].kept_rows() == 1


def test_older_live_part_does_not_replace_newer():
    one = Process().steps(2, forward=1)
    old = rank_report(one)
    new = rank_report(one.step(forward=1).begun(loader=0.5).killed())
    store = merged(new, old)
    attempt = store.runs["r1"].attempts[0, 1]
    assert (attempt.alive, attempt.phase, attempt.last_ns) == (False, "loader", ns(3.5))
    assert attempt.kept_rows() == 3
    same = replace(old, sequence=new.sequence)
    store.merge(same, NOW)
    assert not attempt.alive, "of two with one sequence the first stays"


def test_rows_of_an_older_report_are_merged():
    one = Process().steps(4, forward=1).saved()
    late = rank_report(one, rows=one.rows[:2], events=one.events)
    store = merged(rank_report(one.steps(2, forward=1), rows=one.rows[4:], events=[]), late)
    attempt = store.runs["r1"].attempts[0, 1]
    assert ([row.number for row in attempt.ordered_rows()], sorted(attempt.events)) == ([1, 2, 5, 6], [1, 2])


def test_new_and_repeated_rows_are_counted():
    one = Process().steps(4, forward=1).saved()
    store = merged(rank_report(one))
    assert (store.new, store.repeated) == (6, 0)
    found = store.merge(rank_report(one.step(forward=1)), NOW)
    assert (store.new, store.repeated) == (7, 6)
    assert ([row.number for row in found.rows()], found.events) == ([5], [])
    assert (found.report.steps, found.report.events) == ([], [])


def test_new_records_have_the_assigned_attempt():
    store = merged(rank_report(Process().killed()))
    assert store.merge(rank_report(Process(start=5), pid=77), NOW).report.identity.attempt == 2


def test_reception_time_is_on_our_clock():
    store = merged(rank_report(Process(start=5)), now_ns=ns(70))
    assert store.runs["r1"].attempts[0, 1].received_ns == ns(70)
    store.merge(rank_report(Process(start=5)), ns(60))
    assert store.runs["r1"].attempts[0, 1].received_ns == ns(70)


# ---- Order and repetition


def parts_of(report: schema.RankReport, cuts: list[int]) -> list[schema.RankReport]:
    """The same rows and events over several reports of one sequence."""
    rows, events = report.steps, report.events
    if not cuts:
        return [report]
    at = cuts[0] % (len(rows) + 1)
    rest = replace(report, steps=rows[at:], events=[])
    return [replace(report, steps=rows[:at], events=events), *parts_of(rest, cuts[1:])]


def facts(store: Store):
    """All of an attempt that the account may depend on."""
    found = {}
    for name, run in store.runs.items():
        for key, attempt in run.attempts.items():
            found[name, key] = dataclasses.replace(attempt, late_count=0)
    return found


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_report_order_and_repetition_change_nothing(chance, ranks):
    pushes = [report for push in story(ranks=ranks) for report in push]
    want = merged(*pushes)
    sent = list(pushes)
    for _ in range(chance.randrange(8)):  # A response was lost: the agent repeats the push, with later rows.
        i = chance.randrange(len(pushes))
        key = pushes[i].identity
        later = [report for report in pushes[i:] if report.identity == key]
        steps = [row for report in later for row in report.steps]
        sent.append(replace(later[-1], steps=steps, events=[e for report in later for e in report.events]))
    sent = [part for report in sent for part in parts_of(report, [chance.randrange(9)] * chance.randrange(3))]
    chance.shuffle(sent)
    store = merged(*sent)
    assert facts(store) == facts(want)
    assert account(store) == account(want)


def test_merge_is_idempotent_and_recovers_lost_reports():
    pushes = [report for push in story() for report in push]
    want = merged(*pushes)
    assert facts(merged(*pushes, *pushes)) == facts(want)
    # Every second report is lost, and what it brought comes with the one after it.
    thinned, kept = [], {}
    for i, report in enumerate(pushes):
        waiting = kept.setdefault(report.identity.attempt * 10 + report.identity.rank, ([], []))
        waiting[0].extend(report.steps)
        waiting[1].extend(report.events)
        if i // 2 % 2 or report.live.ended or not report.live.alive:
            thinned.append(replace(report, steps=list(waiting[0]), events=list(waiting[1])))
            waiting[0].clear(), waiting[1].clear()
    assert len(thinned) < len(pushes) * 0.7
    assert account(merged(*thinned)) == account(want)


def test_times_far_ahead_are_rejected():
    store = merged(rank_report(Process(0, 1, 1990, world_size=2).steps(3, forward=1)))
    with pytest.raises(ReportRejected, match="days ahead; check the clock of n") as rejected:
        store.merge(rank_report(Process(1, 1, 1990 + 2 * 86_400, world_size=2).steps(1, forward=1)), NOW)
    assert rejected.value.reason == "time"
    assert account(store).end_ns == NOW


# ---- GPU figures over restarts of the agent


def gpu_reported(store: Store, sequence: int, **hardware) -> tuple[dict, schema.RankReport]:
    """What the store has of the rank's GPU after a report, and what went to the ledger."""
    report = rank_report(Process().steps(3, forward=1))
    report = replace(report, sequence=sequence, live=replace(report.live, hardware=hardware))
    merged = store.merge(report, NOW)
    (attempt,) = store.runs["r1"].attempts.values()
    names = ("compute_ns", "idle_ns", "energy_mj")
    return {name: attempt.hardware[name] for name in names if name in attempt.hardware}, merged.report


def test_hardware_figures_continue_after_agent_restart():
    store = Store()
    assert gpu_reported(store, 1, since_ns=1, compute_ns=10, idle_ns=4)[0] == {"compute_ns": 10, "idle_ns": 4}
    assert gpu_reported(store, 2, since_ns=1, compute_ns=20, idle_ns=5)[0] == {"compute_ns": 20, "idle_ns": 5}
    assert gpu_reported(store, 3)[0] == {"compute_ns": 20, "idle_ns": 5}
    # Another agent, which has counted more already than the first one had.
    assert gpu_reported(store, 4, since_ns=2, compute_ns=30, energy_mj=7)[0] == {
        "compute_ns": 50, "idle_ns": 5, "energy_mj": 7,
    }  # fmt: skip
    assert gpu_reported(store, 2, since_ns=1, compute_ns=20, idle_ns=5)[0]["compute_ns"] == 50
    found, kept = gpu_reported(store, 5, since_ns=2, compute_ns=31, idle_ns=1, energy_mj=9)
    assert found == {"compute_ns": 51, "idle_ns": 6, "energy_mj": 9}
    # The aggregator is restarted: it has what the ledger has.
    store = Store()
    store.merge(kept, 0)
    assert gpu_reported(store, 6, since_ns=2, compute_ns=33, idle_ns=1, energy_mj=9)[0]["compute_ns"] == 53
    assert gpu_reported(store, 7, since_ns=3, compute_ns=1)[0] == {
        "compute_ns": 54,
        "idle_ns": 6,
        "energy_mj": 9,
    }
    # Without `since_ns` a falling figure means a new count.
    assert gpu_reported(store, 8, compute_ns=5)[0]["compute_ns"] == 59
    assert gpu_reported(store, 9, compute_ns=2)[0]["compute_ns"] == 61


def test_present_gpu_figures_are_the_last_ones():
    store = Store()

    def present(sequence: int, **hardware) -> dict:
        gpu_reported(store, sequence, **hardware)
        (attempt,) = store.runs["r1"].attempts.values()
        return {name: value for name, value in attempt.hardware.items() if name in ("busy_ppm", "power_mw")}

    assert present(1, since_ns=1, compute_ns=10, busy_ppm=900, power_mw=7) == {"busy_ppm": 900, "power_mw": 7}
    assert present(2, since_ns=1, compute_ns=10, busy_ppm=100, power_mw=5) == {"busy_ppm": 100, "power_mw": 5}
    assert present(3, since_ns=1, compute_ns=11, power_mw=6) == {"power_mw": 6}
    assert present(4) == {}, "the agent has no sample any more"
    assert gpu_reported(store, 5, since_ns=1, compute_ns=12)[0] == {"compute_ns": 12}


# ---- Ranks that are expected


def test_largest_worlds_leave_room_for_others():
    """A world size is a claim of one report: what nobody has reported takes no room."""
    runs = [
        rank_report(Process().steps(1, forward=1), f"r{n}", world_size=schema.WORLD_SIZE_MAX)
        for n in range(8)
    ]
    store = merged(*runs)
    found = [account(store, run) for run in store.runs]
    assert [len(one.ranks) for one in found] == [2] * 8
    assert {one.rank_count() for one in found} == {schema.WORLD_SIZE_MAX}


def test_run_starts_with_its_first_process():
    starts = [
        rank_report(Process(0, 1, start=1000.0), "a"),
        rank_report(Process(0, 2, start=900.0), "a"),
        rank_report(Process(0, 3, start=1100.0), "a"),
    ]
    assert merged(*starts).starts == {"a": ns(900)}
