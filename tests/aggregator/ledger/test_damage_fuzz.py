"""Random flipped bits in a ledger's values and files: an aggregator starts and tells, or refuses with one line."""

import lzma
import random
import shutil
from pathlib import Path

import pytest
from support.account.account_history import Process
from support.aggregator import damaged_ledgers
from support.aggregator.damaged_ledgers import Served, served
from support.aggregator.full_ledgers import RUNS
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.seeds import cases

from goodput.aggregator.api.app import create_app
from goodput.aggregator.ledger import migrations, write_ahead_log

RELEASE = Path(__file__).parent / "releases" / f"version-{migrations.HEAD}.db.xz"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A ledger with a row in every table, and what an aggregator serves of it."""
    path = tmp_path_factory.mktemp("whole") / "ledger.db"
    path.write_bytes(lzma.decompress(RELEASE.read_bytes()))
    copied = path.with_name("copy.db")
    damaged_ledgers.copy(path, copied)
    found = served(copied)
    assert (found.outcome, found.log) == ("served", ())
    return path, found


def check_start(found: Served, what: object) -> None:
    assert found.outcome in ("served", "partly", "refused"), (what, found)
    if found.outcome == "refused":
        assert "\n" not in found.text, (what, found)


def check_value(whole, file: Path, column: tuple[str, str, str], seed: object) -> None:
    """The runs of other rows have the same account."""
    path, before = whole
    rng = random.Random(f"{seed} {column}")
    damaged_ledgers.copy(path, file)
    run = damaged_ledgers.flip_value(file, *column, rng)
    if run is None:
        return
    found = served(file)
    check_start(found, (column, seed))
    if found.outcome != "refused":
        others = [one for one in RUNS if one != run]
        assert [found.accounts[one] for one in others] == [before.accounts[one] for one in others], (
            column,
            seed,
            found.log,
        )


@pytest.mark.parametrize("seed", cases(24))
def test_flipped_bit_of_a_value(whole, tmp_path, seed):
    columns = damaged_ledgers.columns(whole[0])
    check_value(whole, tmp_path / "ledger.db", random.Random(seed).choice(columns), seed)


@pytest.mark.more_seeds
@pytest.mark.parametrize("seed", range(100, 102))
def test_flipped_bit_in_every_column(whole, tmp_path, seed):
    for column in damaged_ledgers.columns(whole[0]):
        check_value(whole, tmp_path / "ledger.db", column, seed)


@pytest.mark.parametrize("seed", cases(18))
def test_flipped_bits_of_the_file(whole, tmp_path, seed):
    file = tmp_path / "ledger.db"
    damaged_ledgers.copy(whole[0], file)
    places = damaged_ledgers.flip_bytes(file, random.Random(seed))
    found = served(file)
    check_start(found, places)
    if found.outcome == "refused":
        assert "the last backup in its place" in found.text, (places, found)


@pytest.fixture(scope="module")
def killed(whole, tmp_path_factory):
    """The files of an aggregator that was killed after some pushes: they are in the write-ahead log alone."""
    folder = tmp_path_factory.mktemp("killed")
    file = folder / "running.db"
    damaged_ledgers.copy(whole[0], file)
    with serving(create_app(f"sqlite:///{file}")) as client:
        process = Process(0, 1, 1000)
        for _ in range(5):
            process.steps(4, forward=1)
            push(client, rank_report(process, "logged", rows=process.rows[-4:]))
        for suffix in ("", "-wal"):
            shutil.copy(f"{file}{suffix}", folder / f"ledger.db{suffix}")
    return folder / "ledger.db"


@pytest.mark.parametrize("seed", cases(12))
def test_flipped_bits_of_the_write_ahead_log(killed, tmp_path, seed):
    """SQLite ignores what follows the first flipped bit; that is told where it was committed."""
    file = tmp_path / "ledger.db"
    damaged_ledgers.copy(killed, file)
    log = Path(f"{file}-wal")
    shutil.copy(f"{killed}-wal", log)
    places = damaged_ledgers.flip_bytes(log, random.Random(seed)) if seed else [0]
    found = served(file)
    check_start(found, places)
    told = [line for line in found.log if "write-ahead log (-wal)" in line]
    if not seed:
        assert not told and found.outcome == "served"
    elif min(places) < log_bytes_before_last_commit(killed):
        assert told and "The last backup" in told[0], (places, found)


def log_bytes_before_last_commit(file: Path) -> int:
    """Where the last transaction but one ends in the write-ahead log."""
    data = Path(f"{file}-wal").read_bytes()
    page = int.from_bytes(data[8:12], "big")
    frames = range(32, len(data), 24 + page)
    commits = [at + 24 + page for at in frames if int.from_bytes(data[at + 4 : at + 8], "big")]
    return commits[-3]


def test_torn_end_of_the_write_ahead_log_is_no_damage(killed, tmp_path):
    """As a power failure leaves it, at any byte of the last transaction, or before anything was synchronised."""
    file, whole_log = tmp_path / "ledger.db", Path(f"{killed}-wal").read_bytes()
    damaged_ledgers.copy(killed, file)
    for size in range(log_bytes_before_last_commit(killed), len(whole_log), 1000):
        Path(f"{file}-wal").write_bytes(whole_log[:size])
        assert write_ahead_log.problem(str(file)) == ""
        Path(f"{file}-wal").write_bytes(whole_log[:size] + bytes(len(whole_log) - size))
        assert write_ahead_log.problem(str(file)) == ""
