"""The scoring of bench/detection/score.py: what is right, what is discarded, and that kept results are not made again."""

import json
from dataclasses import replace

import pytest
from bench.detection import score
from bench.detection.score import is_right, is_uneven, main, markdown, run_evenly
from bench.detection.training import PLACES, Case, Fault, case_of


def row_of(case: Case, **others) -> dict:
    """The result of a training in which what was planted is found."""
    named = {"named": case.culprit, "phase": case.place, "state": "productive", "ranked": [case.culprit]}
    if case.place == "outside":
        named.update(state="unattributed", phase=None)
    measured = {
        "commit": "abc",
        "slowdown": 1.2,
        "own_ms": [50.0] * case.world,
        "delay_ms": [1.0] * case.world,
    }
    return {**vars(case), **named, **measured, "discarded": [], **others}


@pytest.mark.parametrize("seed", range(1, 7))
def test_right_needs_rank_and_phase(seed):
    case = case_of(seed, True)
    assert case.place == PLACES[seed % 6]
    assert is_right(row_of(case)) == (True, True)
    assert is_right(row_of(case, named=None, phase=None, state=None)) == (False, False)
    assert is_right(row_of(case, named=(case.culprit + 1) % case.world)) == (False, False)
    assert is_right(row_of(case, phase="h2d", state="h2d")) == (True, False)


def test_innocent_training_must_name_nobody():
    case = case_of(3, False)
    assert case.place is None and case.culprit is None
    assert is_right(row_of(case)) == (True, True)
    assert is_right(row_of(case, named=0)) == (False, True)


def test_fault_sleeps_once_a_step_on_its_rank(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    case = case_of(1, True)
    for rank in range(case.world):
        fault = Fault(case, rank)
        for _ in range(2):
            fault.at("loader")
            fault.at(case.place)
            fault.at(case.place)
            fault.next_step()
    assert slept == [case.seconds] * 2


def test_uneven_waits_for_a_core_discard_a_training(monkeypatch):
    """5 % of a step is the border: what all ranks wait alike slows nobody."""
    case = case_of(1, False)
    step_ms = 2e3 * case.device_seconds * case.accumulation
    waits = [[0.06 * step_ms] + [0.0] * (case.world - 1), [0.5 * step_ms] * case.world]
    assert [is_uneven(row_of(case, delay_ms=one)) for one in waits] == [True, False]
    rows = [row_of(case, delay_ms=one, named=0) for one in waits]
    monkeypatch.setattr(score, "run", lambda *_: rows.pop(0))
    monkeypatch.setattr(score, "AGAIN_SECONDS", 0.0)
    assert [one["named"] for one in run_evenly(case)["discarded"]] == [0] and rows == []


def test_fault_may_exceed_uneven_waits_by_far():
    case = replace(case_of(1, True), seconds=1.0)
    waits = [[share * 1e3 * case.seconds] + [0.0] * (case.world - 1) for share in (0.2, 0.3)]
    assert [is_uneven(row_of(case, delay_ms=one)) for one in waits] == [False, True]


@pytest.fixture
def made(monkeypatch) -> list[tuple]:
    """The trainings that are made, without training, at the commit abc."""
    made = []

    def run(case, pages):
        made.append((case.seed, case.place))
        return row_of(case)

    monkeypatch.setattr(score, "run", run)
    monkeypatch.setattr(score, "commit", lambda: "abc")
    return made


def test_kept_results_are_not_made_again(tmp_path, made, capsys):
    kept = tmp_path / "results.jsonl"
    main(["--seeds", "2", "--first", "1", "--results", str(kept)])
    assert made == [(1, "forward"), (1, None), (2, "backward"), (2, None)]
    main(["--seeds", "3", "--first", "1", "--results", str(kept), "--places", "nothing"])
    assert made[4:] == [(3, None)]
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) == 5 and all(row["commit"] for row in rows)
    assert "| nobody is named in a training without a fault | 3 | 3 | 3 |" in capsys.readouterr().out


def test_results_of_another_commit_are_refused(tmp_path, made, monkeypatch):
    kept = tmp_path / "results.jsonl"
    main(["--seeds", "1", "--results", str(kept)])
    monkeypatch.setattr(score, "commit", lambda: "def")
    with pytest.raises(SystemExit, match="has trainings of abc, this is def"):
        main(["--seeds", "2", "--results", str(kept)])


def test_score_is_of_one_commit_and_of_new_seeds(tmp_path, made, monkeypatch):
    written = tmp_path / "score.md"
    with pytest.raises(SystemExit, match="seeds from 1001 on"):
        main(["--seeds", "1", "--first", "50", "--write", str(written)])
    main(["--seeds", "1", "--write", str(written)])
    assert "Seeds 1001. 0 trainings of 2 were discarded." in written.read_text()
    monkeypatch.setattr(score, "commit", lambda: "abc+")
    with pytest.raises(SystemExit, match="a score is of one commit"):
        main(["--seeds", "1", "--write", str(written)])


def test_document_counts_what_was_discarded():
    """The first tries are scored, too: discarding changes nothing unseen."""
    case = case_of(2, True)
    tries = [row_of(case), row_of(case, named=None, phase=None, state=None, ranked=[])]
    rows = [row_of(case, discarded=tries), row_of(case_of(2, False), named=1)]
    rows[1]["discarded"] = [row_of(case_of(2, False))]
    text = markdown(rows)
    assert "3 trainings of 5 were discarded; 1 of them named another rank" in text
    assert "| the rank is named | 1 | 1 | 1 |" in text
    assert "| nobody is named in a training without a fault | 1 | 0 | 1 |" in text
    rows[0]["discarded"].reverse()
    assert "| the rank is named | 1 | 1 | 0 |" in markdown(rows)


def test_spans_of_seeds():
    assert score.spans([1, 2, 3, 5, 8, 9]) == "1 to 3, 5, 8 to 9"


def test_document_lists_misses():
    rows = [row_of(case_of(seed, True)) for seed in range(1, 7)]
    assert markdown(rows).endswith("## Misses\n\nNone.\n")
    rows[3].update(named=None, phase=None, state=None, ranked=[])
    case = case_of(4, True)
    assert f"| 4 | rank {case.culprit}, communication | {1e3 * case.seconds:.0f} ms |" in markdown(rows)
    assert "| communication | 1 | 0 | 0 |" in markdown(rows)
    assert "| the rank is named | 6 | 5 | 5 |" in markdown(rows)
