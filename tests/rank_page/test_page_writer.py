"""The writer's side of a page: how it appears, who owns it, and that both sides agree on the layout."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
from support.other_users import ATTACKER, VICTIM, as_root, run_as
from support.rank_page.page_maker import Rank, identity

from goodput.rank_page import own_pages, page
from goodput.rank_page.reader import Reader


def test_the_regions_of_the_layout_do_not_overlap():
    regions = sorted(
        [
            (0, 4), (page.IDENTITY_OFFSET // 8, page.IDENTITY_BYTES_MAX // 8), (page.LIVE, 12),
            (page.W_DROPS, len(page.DROPS)), (page.W_TOTALS, page.PHASE_SLOTS), (page.W_OUTSIDE, page.PHASE_SLOTS),
            (page.W_BACKGROUND_TOTALS, page.PHASE_SLOTS),
            (page.USER_OFFSET // 8, page.USER_PHASES_MAX * page.USER_ENTRY_BYTES // 8),
            (page.W_EVENT_RING, page.EVENT_RING * page.EVENT_WORDS),
            (page.W_STEP_RING, page.STEP_RING * page.STEP_WORDS),
            (page.W_HISTOGRAMS, page.HISTOGRAMS * page.HISTOGRAM_WORDS),
            (page.W_COLLECTIVES, page.COLLECTIVES_WORDS),
        ]
    )  # fmt: skip
    ends = [start + length for start, length in regions]
    assert all(end <= start for end, (start, _) in zip(ends, regions[1:], strict=False))
    assert 8 * ends[-1] == page.FILE_BYTES and page.W_HISTOGRAMS % 1024 == 0
    assert page.R_OUTSIDE + page.PHASE_SLOTS <= page.R_SEAL and page.EVENT_TEXT_BYTES == 216
    # A reader takes the live words in one read of 512.
    assert page.W_BACKGROUND_TOTALS + page.PHASE_SLOTS <= page.LIVE + 512


def test_a_page_appears_whole_and_leaves_no_draft(tmp_path):
    rank = Rank(tmp_path).train(3)
    assert os.listdir(tmp_path) == ["r.0.1.page"] and rank.path.stat().st_size == page.FILE_BYTES
    with Reader(str(rank.path)) as reader:
        snapshot = reader.snapshot()
    assert (snapshot.steps_done, snapshot.samples, snapshot.step_next) == (3, 9, 3)
    assert snapshot.phase_states == {"tokenize": "loader"}
    assert [(event.kind, event.text) for event in snapshot.events] == [
        ("checkpoint_committed", ""),
        ("mark", "here ☃"),
    ]


def test_unix_time_is_anchored_at_the_start(tmp_path):
    rank = Rank(tmp_path, start_unix_ns=10**18, start_mono_ns=500)
    with Reader(str(rank.path)) as reader:
        assert reader.snapshot().unix_ns(1_500) == 10**18 + 1_000


def test_a_page_in_memory_can_be_read_by_its_descriptor():
    writer = page.Writer(None, identity())
    reader = Reader("mine", writer.fd)
    assert reader.snapshot().steps_done == 0 and reader.alive()
    writer.close()
    writer.close()


@pytest.mark.parametrize("bad", [{"run": "x", "note": "y" * 5000}, {"flops_per_step": float("nan")}])
def test_an_identity_that_cannot_be_written_leaves_nothing(tmp_path, bad):
    gc.collect()  # Files that other tests left would be closed meanwhile.
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises((page.PageError, ValueError)):
        page.Writer(str(tmp_path), identity(**bad))
    assert os.listdir(tmp_path) == [] and len(os.listdir("/proc/self/fd")) == files


OWNER = """
import sys
sys.path[:0] = sys.argv[2:]
from support.rank_page.page_maker import Rank
rank = Rank(sys.argv[1])
print(rank.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that owns the page r.0.1; killed by calling it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()

    def kill():
        process.kill()
        process.communicate()

    yield kill
    kill()


def test_page_of_a_live_process_counts_the_claim(tmp_path, owner):
    with pytest.raises(page.Claimed) as claimed:
        page.Writer(str(tmp_path), identity())
    assert claimed.value.reason == "claim" and page.is_locked(claimed.value.path)
    assert own_pages.next_attempt(str(tmp_path), identity()) == 1
    page.bump_drop(claimed.value.path, "claim")
    with Reader(claimed.value.path) as reader:
        assert reader.alive() and reader.snapshot().drops["claim"] == 1
    assert os.listdir(tmp_path) == ["r.0.1.page"]


def test_page_of_a_dead_process_is_replaced(tmp_path, owner):
    path = str(tmp_path / "r.0.1.page")
    with Reader(path) as reader:
        owner()
        assert not reader.alive() and not page.is_locked(path)
        assert own_pages.next_attempt(str(tmp_path), identity()) == 2
        inode = os.stat(path).st_ino
        writer = page.Writer(str(tmp_path), identity())
        assert os.stat(path).st_ino != inode and os.listdir(tmp_path) == ["r.0.1.page"]
        assert reader.snapshot().steps_done == 0  # The old one is still there for who had it open.
        writer.close()


@pytest.mark.parametrize(
    ("attempts", "next"),
    [([], 3), ([1], 3), ([3], 4), ([7, 3, 5], 8), ([(1 << 20) - 1], 1 << 20)],
)
def test_the_next_attempt(tmp_path, attempts, next):
    for attempt in attempts:
        page.Writer(str(tmp_path), identity(attempt=attempt)).close()
    assert own_pages.next_attempt(str(tmp_path), identity(attempt=3)) == next


@pytest.mark.parametrize(
    "name",
    [
        *("r.0.x.page", "r.0..page", "r.0.page", "r.0.-9.page", "r.0.٣.page", "r.0.²2.page", "r.0.9"),
        *("r.0.1048576.page", "r.0.99999999999999999999.page", ".r.0.9.page", "r.0.9.9.page"),
        *("r.0.9.page", "r.0.9~0.page"),  # of another rank, by what is in them
    ],
)
def test_only_pages_of_the_rank_move_its_attempt(tmp_path, name):
    writer = page.Writer(str(tmp_path), identity(rank=1, attempt=9))
    writer.close()
    os.rename(writer.path, tmp_path / name)
    assert own_pages.next_attempt(str(tmp_path), identity(attempt=3)) == 3


@pytest.mark.parametrize("content", [b"", b"no page", b"\0" * page.FILE_BYTES])
def test_file_that_is_no_page_moves_no_attempt(tmp_path, content):
    (tmp_path / "r.0.3.page").write_bytes(content)
    (tmp_path / "r.0.5.page").write_bytes(content)
    assert own_pages.next_attempt(str(tmp_path), identity(attempt=3)) == 3
    writer = page.Writer(str(tmp_path), identity(attempt=3))
    assert writer.path == str(tmp_path / "r.0.3.page")
    writer.close()


@pytest.mark.parametrize("state", ["Z", "X", "R", "S", "D"])
def test_a_zombie_has_no_start_time(tmp_path, state):
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) b ( c) {state} {fields}\n")
    assert page.process_start_ticks(7, str(tmp_path)) == (None if state in "ZX" else 22)
    assert page.process_start_ticks(8, str(tmp_path)) is None


def test_a_page_directory_that_is_full_says_so(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert page.reserve(fd, 8192, 8192) and os.stat(tmp_path / "file").st_blocks >= 16
    os.close(fd)


def test_directory_that_root_made_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "SYSTEM_DIRECTORY", str(tmp_path))
    assert page.default_directory({}) == str(tmp_path)
    assert page.default_directory({"GOODPUT_DIR": "/x"}) == "/x"
    monkeypatch.setattr(page, "SYSTEM_DIRECTORY", str(tmp_path / "none"))
    assert page.default_directory({}) != str(tmp_path / "none")


@as_root
@pytest.mark.parametrize("is_page", [False, True])
def test_files_of_other_users_move_no_attempt(tmp_path, is_page):
    """Another user may put anything under the names of this rank's pages, and keeps it from being replaced."""
    page.make_directory(str(tmp_path / "pages"))
    directory, mine = str(tmp_path / "pages"), identity(attempt=1)
    numbers = (1, 2, 4, page.ATTEMPT_MAX - 1)
    names = [page.file_name(mine["run"], mine["rank"], number) for number in numbers]
    names.append(f"r.0.2~{VICTIM}.page")

    def squat() -> None:
        for number in numbers if is_page else ():
            page.Writer(".", mine | {"attempt": number}).close()
        for name in names[is_page * len(numbers) :]:
            open(name, "x").close()

    run_as(ATTACKER, squat, directory)
    paths = []

    def start() -> None:
        for attempt in (1, 2, 3):
            given = mine | {"attempt": own_pages.next_attempt(".", mine)}
            assert given["attempt"] == attempt
            writer = page.Writer(".", given)
            with Reader(writer.path) as reader:
                assert (reader.owner, reader.identity["attempt"]) == (VICTIM, attempt)
            writer.close()
        paths.extend(own_pages.paths_of(".", "r").items())
        assert [of for of, _ in sorted(paths)] == [(0, 1), (0, 2), (0, 3)]
        assert not own_pages.paths_of(".", "r.0")

    run_as(VICTIM, start, directory)
    found = set(os.listdir(directory)) - set(names)
    assert {"r.0.1~54322.page", "r.0.3.page"} < found and len(found) == 3
    assert next(name for name in found if name.startswith(f"r.0.2~{VICTIM}-"))


@as_root
def test_second_process_of_a_rank_is_refused_beside_a_foreign_file(tmp_path):
    page.make_directory(str(tmp_path / "pages"))
    directory = str(tmp_path / "pages")
    run_as(ATTACKER, lambda: open("r.0.1.page", "x").close(), directory)

    def start() -> None:
        first = page.Writer(".", identity())
        ready, is_ready = os.pipe()
        child = os.fork()
        if not child:  # The lock is the parent's: a process does not see its own.
            try:
                page.Writer(".", identity(attempt=own_pages.next_attempt(".", identity())))
            except page.Claimed:
                os.write(is_ready, b"claimed")
            os._exit(0)
        os.close(is_ready)
        assert os.read(ready, 7) == b"claimed"
        os.waitpid(child, 0)
        first.close()

    run_as(VICTIM, start, directory)
