"""`goodput ledger`: what it prints, finds, copies and deletes, and its exit statuses."""

import json
import os
import subprocess
import time
from contextlib import closing

import pytest
from support.account.account_history import Process
from support.aggregator.ledgers import account, aggregator, bodies, contents, database, records_of, take
from support.aggregator.old_ledgers import identity_of, report_of, rows_of
from support.aggregator.reports import body_of, rank_report, story
from support.servers.postgresql_server import programs

from goodput.aggregator.ingest.ingest import Ingest
from goodput.aggregator.ingest.store import Store
from goodput.aggregator.ledger import closed_runs
from goodput.aggregator.ledger.ledger import Ledger
from goodput.cli import main


@pytest.fixture
def filled(ledger):
    """A ledger with a run of two ranks and some pushes of a third process."""
    take(aggregator(ledger), *bodies(*story()))
    rows = list(rows_of(identity_of(0, "long"), 900))
    for at in range(0, 900, 100):
        report = report_of(identity_of(0, "long"), at, rows[at].end_ns)
        ledger.append([records_of(report, rows[at : at + 100])])
    return ledger


def test_show_prints_size_growth_and_tiers(filled, url, capsys):
    assert main(["ledger", "show", "--ledger", url]) == 0
    text = capsys.readouterr().out
    assert "2 runs (0 closed), 5 rank processes" in text
    (steps,) = [line.split() for line in text.splitlines() if line.startswith("steps")]
    assert steps[2] == "940" and "\x1b" not in text
    assert "940 steps are older than 7 days and not thinned" in text
    assert max(map(len, text.splitlines()[1:])) <= 80, "below the address"
    assert main(["ledger", "show", "--ledger", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["processes"], found["steps_kept_longer"]) == (2, 5, 940)
    assert [(tier["name"], tier["rows"]) for tier in found["tiers"]] == [
        ("steps", 940),
        ("minutes", 0),
        ("hours", 0),
    ]
    assert found["bytes"] > found["tiers"][0]["bytes"] > 900 * 20


@pytest.mark.parametrize(
    ("backend", "hours", "rate"), [("sqlite", 0.01, None), ("sqlite", 3, 8.0), ("sqlite", 48, 1.0)]
)
def test_growth_is_that_of_a_day(ledger, url, capsys, hours, rate):
    """Of a younger ledger the rate is that of its hours, of an older one that of the last day."""
    rows = list(rows_of(identity_of(0, "long"), int(hours * 3600)))
    for at in range(0, len(rows), 1000):
        some = rows[at : at + 1000]
        ledger.append([records_of(report_of(identity_of(0, "long"), at, some[-1].end_ns), some)])
    assert main(["ledger", "show", "--ledger", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    if rate is None:
        assert (found["bytes_per_day"], found["growth_seconds"]) == (None, 35)
    else:
        of_day = found["tiers"][0]["bytes"] * min(24 / hours, 1)
        assert found["bytes_per_day"] == pytest.approx(rate * of_day, rel=0.02)
    assert main(["ledger", "show", "--ledger", url]) == 0
    over = {None: "unknown", 8.0: "at the rate of the last 3.0 h", 1.0: "at the rate of the last day"}[rate]
    assert over in capsys.readouterr().out


def test_compact_merges_and_reports(filled, url, capsys):
    assert main(["ledger", "compact", "--ledger", url]) == 0
    assert "merged 40 small blocks" not in capsys.readouterr().out
    assert list(filled.rows(identity_of(0, "long"))) == list(rows_of(identity_of(0, "long"), 900))
    assert main(["ledger", "compact", "--ledger", url, "--vacuum"]) == 0
    assert "merged 0 small blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("update blocks set block = 'garbage' where first = 101", "rows 101 to 200): it cannot be decoded"),
        ("update blocks set last = 201 where first = 101", "last is 201"),
        ("update blocks set digest = 5 where first = 101", "the digest is another one"),
        ("delete from processes where run = 'r1' and rank = 1", "belong to no process"),
    ],
)
def test_check_names_what_is_damaged(filled, url, backend, damage, words, capsys):
    assert main(["ledger", "check", "--ledger", url]) == 0
    assert "is whole" in capsys.readouterr().out
    with database(url) as connection:
        if backend == "postgresql":
            connection.exec_driver_sql("alter table blocks drop constraint blocks_process_fkey")
        connection.exec_driver_sql(damage)
    assert main(["ledger", "check", "--ledger", url]) == 1
    printed = capsys.readouterr()
    assert words in printed.out and "damaged places" in printed.err


def test_backup_is_a_whole_ledger(filled, url, backend, tmp_path, capsys):
    path = str(tmp_path / "copy.db")
    if backend == "postgresql":
        assert main(["ledger", "backup", path, "--ledger", url]) == 2
        assert "pg_dump" in capsys.readouterr().err
        return
    assert main(["ledger", "backup", path, "--ledger", url]) == 0
    assert contents(f"sqlite:///{path}") == contents(url)
    assert sorted(os.listdir(tmp_path))[0] == "copy.db" and not os.path.exists(f"{path}.part")
    assert main(["ledger", "backup", path, "--ledger", url]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["ledger", "backup", str(tmp_path / "no" / "copy.db"), "--ledger", url]) == 1


def test_restored_backup_has_the_same_accounts(filled, url, backend, new_url, tmp_path):
    """The original is lost; the copy takes its place, is whole, and gives every run's account as before."""
    lost, copy = accounts_in(url), tmp_path / "copy"
    if backend == "postgresql":
        server = programs()
        subprocess.run([server / "pg_dump", "--format=custom", f"--file={copy}", url], check=True)
        restored = new_url()
        subprocess.run([server / "pg_restore", "--exit-on-error", f"--dbname={restored}", copy], check=True)
    else:
        assert main(["ledger", "backup", str(copy), "--ledger", url]) == 0
        filled.close()
        for path in tmp_path.glob("ledger.db*"):
            path.unlink()
        copy.rename(tmp_path / "ledger.db")
        restored = url
    assert main(["ledger", "check", "--ledger", restored]) == 0
    assert accounts_in(restored) == lost and len(lost) == 2


def accounts_in(url: str) -> dict[str, dict]:
    """Each run's account at one moment, as a program that opens the ledger computes it."""
    with closing(Ledger(url)) as ledger:
        served = aggregator(ledger)
        return {run: account(served, run) for run in ledger.runs()}


def test_delete_asks_and_removes_one_run(filled, url, capsys):
    assert main(["ledger", "delete", "r1", "--ledger", url]) == 1
    assert "nothing was deleted" in capsys.readouterr().err and filled.runs() == ["r1", "long"]
    assert main(["ledger", "delete", "r1", "--yes", "--ledger", url]) == 0
    assert "deleted run r1: 40 blocks" in capsys.readouterr().out
    assert filled.runs() == ["long"]
    assert main(["ledger", "check", "--ledger", url]) == 0
    assert {row[0] for row in contents(url)["events"]} <= {"long"}
    assert main(["ledger", "delete", "r1", "--yes", "--ledger", url]) == 1
    assert "no run 'r1'" in capsys.readouterr().err


@pytest.fixture
def many(ledger):
    """Runs of two tenants, of this month and older, and one that reports."""
    now = time.time()
    ages = {"vision/a-1": 40, "vision/a-2": 2, "vision/b-1": 40, "speech/a-1": 40, "a-1": 40}
    ranks = [Process(0, 1, now - days * 86_400).steps(2, forward=1).finished() for days in ages.values()]
    ranks = [rank_report(one, run) for one, run in zip(ranks, ages, strict=True)]
    ranks.append(rank_report(Process(0, 1, now - 3).steps(2, forward=1), "vision/a-live"))
    ingest = Ingest(Store(), ledger)
    take(ingest, body_of(*ranks))
    return ledger


@pytest.mark.parametrize(
    ("words", "deleted"),
    [
        (["--match", "*a-*"], {"vision/a-1", "vision/a-2", "speech/a-1", "a-1"}),
        (["--tenant", "vision"], {"vision/a-1", "vision/a-2", "vision/b-1"}),
        (["--tenant", "vision", "--match", "a-*", "--older-than", "30"], {"vision/a-1"}),
        (["--older-than", "30"], {"vision/a-1", "vision/b-1", "speech/a-1", "a-1"}),
        (["--match", "nothing"], set()),
    ],
)
def test_delete_by_pattern_tenant_and_age(many, url, capsys, words, deleted):
    """First they are listed; nothing is deleted without a yes, and never a run that reports."""
    command = ["ledger", "delete", "--ledger", url, *words]
    before = set(many.runs())
    assert len(before) == 6 and main([*command, "--dry-run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in listed[:-1] if "kept" not in line} == deleted
    assert listed[-1].startswith(f"would delete {len(deleted)} runs" if deleted else "no run to delete")
    assert set(many.runs()) == before
    if deleted:
        assert main(command) == 1 and set(many.runs()) == before
        assert "nothing was deleted; --yes does not ask" in capsys.readouterr().err
    assert main([*command, "--yes"]) == 0
    assert set(many.runs()) == before - deleted
    assert "vision/a-live" in many.runs()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["r1", "--match", "r*"], "exclude each other"),
        ([], "name a RUN"),
        (["--match", "*a*a*a*a*a*"], "at most 4 stars"),
        (["--tenant", "a/b"], "tenant 'a/b'"),
    ],
)
def test_delete_that_chooses_wrongly_deletes_nothing(many, url, capsys, words, complaint):
    before = many.runs()
    assert main(["ledger", "delete", "--yes", "--ledger", url, *words]) == 2
    assert complaint in capsys.readouterr().err and many.runs() == before


def test_delete_refuses_a_run_that_reports(ledger, url, capsys):
    running = Process(start=time.time() - 60).steps(2, forward=1)
    report = rank_report(running)
    ledger.append([records_of(report, report.steps)])
    assert main(["ledger", "delete", "r1", "--yes", "--ledger", url]) == 1
    assert "run r1 is running: 1 ranks reported recently (0)" in capsys.readouterr().err
    take(aggregator(ledger), body_of(rank_report(running.finished(), rows=[])))


def test_export_says_that_a_run_was_thinned(filled, url, capsys):
    assert main(["export", "long", "--ledger", url]) == 0
    assert "thinned" not in capsys.readouterr().err
    state = closed_runs.state_of(filled, "long")
    closed_runs.close_run(filled, "long", state, closed_runs.newest_ns(filled, "long"), {})
    assert main(["ledger", "compact", "--ledger", url, "--keep-minutes", "36000"]) == 0
    assert "thinned 9 blocks" in capsys.readouterr().out
    assert main(["export", "long", "--ledger", url]) == 0
    assert "one row per 60 s" in capsys.readouterr().err


def test_a_missing_ledger_and_wrong_calls(tmp_path, capsys):
    assert main(["ledger", "show", "--ledger", f"sqlite:///{tmp_path}/none.db"]) == 1
    assert "there is no ledger" in capsys.readouterr().err and not list(tmp_path.iterdir())
    for arguments in (["ledger"], ["ledger", "show", "--keep-steps", "-1"]):
        with pytest.raises(SystemExit) as status:
            main(arguments)
        assert status.value.code == 2
    Ledger(f"sqlite:///{tmp_path}/new.db").close()


def test_run_of_a_ledger_is_replayed(filled, url, capsys):
    assert main(["whatif", "long", "--ledger", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == "long" and found["steps"]
    assert main(["whatif", "other", "--ledger", url]) == 1
    assert "no run 'other': looked in the ledger (the last runs there: r1, long)" in capsys.readouterr().err


def test_runs_of_a_ledger_are_compared(filled, url, capsys):
    assert main(["compare", "long@..100", "long@100..", "--ledger", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in (*found["base"], *found["new"])] == ["long @..100", "long @100.."]
    assert main(["compare", "long", "other", "--ledger", url]) == 1
    assert "no run 'other': looked in the ledger (the last runs there: r1, long)" in capsys.readouterr().err
    state = closed_runs.state_of(filled, "long")
    closed_runs.close_run(filled, "long", state, closed_runs.newest_ns(filled, "long"), {})
    assert main(["ledger", "compact", "--ledger", url, "--keep-minutes", "36000"]) == 0
    assert main(["compare", "long@..100", "long@100..", "--ledger", url]) == 1
    assert "run 'long': 0 steps that can be compared in ..100" in (found := capsys.readouterr().err)
    assert "steps before 900 were thinned" in found
    assert main(["whatif", "long", "--ledger", url]) == 1
    assert "old steps of run 'long' were thinned" in capsys.readouterr().err


def test_thinned_run_that_goes_on_is_compared_from_then_on(filled, url, tmp_path, capsys):
    state = closed_runs.state_of(filled, "long")
    closed_runs.close_run(filled, "long", state, closed_runs.newest_ns(filled, "long"), {})
    assert main(["ledger", "compact", "--ledger", url, "--keep-minutes", "36000"]) == 0
    rows, whole = list(rows_of(identity_of(0, "long"), 1200)), f"sqlite:///{tmp_path}/whole.db"
    with closing(Ledger(whole)) as other:
        for to, at in ((filled, 900), (other, 0)):
            to.append([records_of(report_of(identity_of(0, "long"), at + 1, rows[-1].end_ns), rows[at:])])
    capsys.readouterr()
    for given, cut, new in (
        ("@950..1050", "@950..1050", "@1050.."),
        ("", "@900..", "@1050.."),
        ("@..1050", "@900..1050", "@1050.."),
    ):
        assert main(["compare", f"long{cut}", f"long{new}", "--ledger", whole, "--json"]) == 0
        want = json.loads(capsys.readouterr().out)
        assert main(["compare", f"long{given}", f"long{new}", "--ledger", url, "--json"]) == 0
        printed = capsys.readouterr()
        found = json.loads(printed.out)
        assert ("compared from step 900 on" in printed.err) == (given != cut)
        assert found["base"][0]["run"] == f"long {given or cut}"
        for one in (found, want):
            del one["base"][0]["run"]
        assert found["base"] == want["base"] and found["step"] == want["step"]
