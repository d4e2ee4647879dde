"""Whatever a file holds, a Reader answers with a Snapshot or a PageError with its reason, and at once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rank_page.page_maker import HEAD_BYTES, Forgery, Rank, identity

from goodput.rank_page import page
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader

REASONS = {"unreadable", "foreign", "truncated", "version", "identity", "value"}
SLOTS = (0, 3, len(page.PHASES), page.HISTOGRAMS - 1)


@pytest.fixture(autouse=True)
def no_hang():
    """A reader that waits for something ends the test instead."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> bytes:
    return Rank(tmp_path_factory.mktemp("good")).train(30).head()


@pytest.fixture
def forged(head, tmp_path):
    made = Forgery(tmp_path / "forged.page", head)
    yield made
    made.close()


def read(path) -> str:
    """Read everything that a reader can; "good", or the reason of the error. Any other exception fails the test."""
    try:
        with Reader(str(path)) as reader:
            return read_open(reader)
    except PageError as error:
        assert error.reason in REASONS and str(path) in str(error)
        return error.reason


def read_open(reader: Reader) -> str:
    try:
        snapshot = reader.snapshot()
        reader.snapshot(since_step=7, since_event=1)
        reader.alive()
        # What is read apart, and more often, is the same.
        times, running = reader.phase_times(), snapshot.phases.index(snapshot.phase)
        assert times[:3] == (snapshot.phases, snapshot.phase_states, running)
        assert times[3:] == (bool(snapshot.ended), snapshot.last_ns, snapshot.host_totals)
        for slot in SLOTS:
            for first, counts in reader.histogram_blocks(slot):
                assert 0 <= first < page.HISTOGRAM_WORDS and len(counts) == 1024
    except PageError as error:
        return error.reason
    assert len(snapshot.steps) <= page.STEP_RING and len(snapshot.events) <= page.EVENT_RING
    assert len({record.number for record in snapshot.steps}) == len(snapshot.steps)
    # What passed fits the formats it goes into.
    numbers = (snapshot.last_ns, snapshot.end_ns, snapshot.samples, snapshot.step_next, *snapshot.totals)
    assert all(0 <= number < page.NS_MAX for number in numbers)
    json.dumps([snapshot.phases, snapshot.identity, [event.text for event in snapshot.events]])
    return "good"


def test_the_good_page_is_good(forged):
    assert read(forged.path) == "good"


def test_non_files_are_rejected(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)  # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert read(tmp_path / "socket") == "unreadable"
    assert read(tmp_path / "folder") == "foreign"
    assert read(tmp_path / "fifo") == "foreign"
    for name in ("link", "dangling", "missing", "folder/missing", "x" * 300):
        assert read(tmp_path / name) == "unreadable"
    with pytest.raises(PageError) as caught:
        Reader("null\0byte")
    assert caught.value.reason == "unreadable"
    assert read("/dev/null") == "foreign"


def test_a_link_to_a_good_page_is_not_followed(forged, tmp_path):
    (tmp_path / "link.page").symlink_to(forged.path)
    assert read(tmp_path / "link.page") == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_page_that_may_not_be_read(forged):
    os.chmod(forged.path, 0)
    assert read(forged.path) == "unreadable"


def test_a_page_that_may_not_be_read_as_another_user(forged, tmp_path):
    """As root: in a child that has given up its rights."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    os.chmod(forged.path, 0)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        with contextlib.suppress(OSError):
            os.chmod(folder, os.stat(folder).st_mode | 0o755)
    child = os.fork()
    if child == 0:
        answer = 1
        try:
            os.setuid(65534)
            answer = 0 if read(forged.path) == "unreadable" else 2
        finally:
            os._exit(answer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "length",
    [0, 1, 7, 8, 31, 32, 63, 64, 65, 500, 4095, 4096, 4097, 8191, 8192, 8 * page.W_TOTALS + 4, 8 * page.W_EVENT_RING,
     8 * page.W_STEP_RING + 100, HEAD_BYTES - 1, HEAD_BYTES, page.FILE_BYTES // 2, page.FILE_BYTES - 1],
)  # fmt: skip
def test_truncated_at_every_interesting_length(forged, length):
    os.truncate(forged.path, length)
    assert read(forged.path) == "truncated"


@pytest.mark.parametrize(
    "length", [0, 31, 64, 4096, 8192, 8 * page.W_STEP_RING + 100, HEAD_BYTES, page.FILE_BYTES - 1]
)
def test_truncated_while_it_is_open(forged, length):
    with Reader(str(forged.path)) as reader:
        assert read_open(reader) == "good"
        os.truncate(forged.path, length)
        # The reader need not notice what it does not read, but it must not fail by anything else.
        assert read_open(reader) in ("truncated", "good" if length >= HEAD_BYTES else "truncated")
        os.truncate(forged.path, page.FILE_BYTES)
        forged.restore()
        assert read_open(reader) == "good"


def test_removed_and_replaced_while_it_is_open(forged, tmp_path):
    with Reader(str(forged.path)) as reader:
        os.unlink(forged.path)
        forged.path.write_bytes(b"something else")
        assert read_open(reader) == "good"


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        (page.W_MAGIC, 0, "foreign"), (page.W_MAGIC, page.MAGIC ^ 1, "foreign"), (page.W_MAGIC, (1 << 64) - 1, "foreign"),
        (page.W_VERSION, 0, "version"), (page.W_VERSION, page.VERSION + 1, "version"), (page.W_VERSION, (1 << 64) - 1, "version"),
        (page.W_SIZE, 0, "truncated"), (page.W_SIZE, page.FILE_BYTES + 1, "truncated"), (page.W_SIZE, 1 << 63, "truncated"),
        (page.W_IDENTITY_BYTES, 0, "identity"), (page.W_IDENTITY_BYTES, 20, "identity"),
        (page.W_IDENTITY_BYTES, page.IDENTITY_BYTES_MAX, "identity"),
        (page.W_IDENTITY_BYTES, page.IDENTITY_BYTES_MAX + 1, "identity"), (page.W_IDENTITY_BYTES, 1 << 63, "identity"),
        (page.W_PHASE, len(page.PHASES) + 1, "value"), (page.W_PHASE, 1 << 63, "value"),
        (page.W_ENDED, len(page.END_REASONS), "value"), (page.W_LAST, page.NS_MAX, "value"),
        (page.W_STEPS, page.NS_MAX, "value"), (page.W_EVENTS, page.NS_MAX, "value"), (page.W_END, page.NS_MAX, "value"),
        (page.W_SAMPLES, page.NS_MAX, "value"), (page.W_COST, 1 << 63, "value"), (page.W_BACKGROUND, 1 << 63, "value"),
        (page.W_STEP_START, 1 << 63, "value"), (page.W_STEP_NEXT, 0, "value"), (page.W_STEP_NEXT, (1 << 64) - 1, "value"),
        (page.W_USER_PHASES, page.USER_PHASES_MAX + 1, "value"), (page.W_USER_PHASES, 2, "value"),  # an empty name
        (page.W_TOTALS, page.NS_MAX, "value"), (page.W_TOTALS + len(page.PHASES), 1 << 63, "value"),
        (page.W_BACKGROUND_TOTALS + 3, page.NS_MAX, "value"), (page.W_DROPS + 5, page.NS_MAX, "value"),
        (page.W_EVENT_RING + 2, page.NS_MAX, "value"), (page.W_EVENT_RING + 3, 0, "value"),
        # More was counted than the rings hold: what is not there is left out.
        (page.W_STEPS, page.NS_MAX - 1, "good"), (page.W_EVENTS, page.NS_MAX - 1, "good"), (page.W_STEPS, 31, "good"),
        (page.W_STEPS, 0, "good"), (page.W_TOTALS + page.PHASE_SLOTS - 1, 1 << 63, "good"),  # of no phase that is defined
    ],
)  # fmt: skip
def test_each_word_of_the_head(forged, word, value, reason):
    forged.word(word, value)
    assert read(forged.path) == reason


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"tokenize".ljust(32, b"\0") + b"loader".ljust(32, b"\0"), "value"),  # twice
        (b"forward".ljust(32, b"\0") + b"loader".ljust(32, b"\0"), "value"),  # one of the built-in
        (bytes(64), "value"),
        (b"\xff" * 64, "good"),  # no text, but a name
        (b"\0name".ljust(64, b"\0"), "good"),
    ],
    ids=["repeated", "built in", "empty", "no text", "begins with nul"],
)
def test_user_phases(forged, entry, reason):
    forged.put(page.USER_OFFSET + page.USER_ENTRY_BYTES, entry)
    forged.word(page.W_USER_PHASES, 2)
    assert read(forged.path) == reason


def wrong(**given) -> bytes:
    return json.dumps(identity(**given)).encode()


@pytest.mark.parametrize(
    "blob",
    [
        b"", b"{", b"null", b"[]", b"5", b'"text"', b"{}", b"\xff\xfe", b"\x80", b"[" * 4000, b'{"a":' * 600, b"9" * 4000,
        b"{" + b'"a":1,' * 600 + b'"b":2}', b"NaN", b"1e999", b"\0",
        wrong(rank=2), wrong(rank=-1), wrong(rank=1.0), wrong(rank=True), wrong(rank=None), wrong(rank="0"),
        wrong(rank=10**30), wrong(world_size=0), wrong(world_size=1 << 25), wrong(attempt=0), wrong(attempt=1 << 21),
        wrong(pid=0), wrong(pid=1 << 40), wrong(devices=0), wrong(run=""), wrong(run="x" * 129), wrong(run="a\nb"),
        wrong(run=None), wrong(run="\ud800"), wrong(host="\x1b[31m"), wrong(host=5),
        wrong(start_unix_ns=-1), wrong(start_unix_ns=1 << 63),
        wrong(start_mono_ns=1.5), wrong(pid_start_ticks=-1), wrong(pid_start_ticks="x"), wrong(pid_start_ticks=1 << 62),
    ],
)  # fmt: skip
def test_invalid_identities_are_rejected(forged, blob):
    forged.word(page.W_IDENTITY_BYTES, len(blob))
    forged.put(page.IDENTITY_OFFSET, blob)
    assert read(forged.path) == "identity"


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("group", None, ""), ("device", ["x"], ""), ("dtype", "a\nb", ""), ("stage", -1, None), ("stage", True, None),
        ("stage", 2.0, 2), ("tensor", 2.5, None), ("flops_per_step", 0, None), ("flops_per_step", 1e31, None),
        ("flops_per_step", "much", None), ("peak_flops_per_second", True, None), ("gpu_hour_cost", float("nan"), None),
        ("gpu_hour_cost", float("inf"), None),
    ],
)  # fmt: skip
def test_wrong_descriptive_field_loses_no_rank(forged, field, value, kept):
    blob = wrong(**{field: value})
    forged.word(page.W_IDENTITY_BYTES, len(blob))
    forged.put(page.IDENTITY_OFFSET, blob)
    with Reader(str(forged.path)) as reader:
        assert reader.snapshot().identity == {
            **dict.fromkeys(("dtype", "role", "worker"), ""),
            **json.loads(blob),
            field: kept,
        }


def test_an_identity_with_more_fields_is_kept(forged):
    blob = json.dumps(identity(new_field={"a": [1, None]}, run="☃" * 128), ensure_ascii=False).encode()
    forged.word(page.W_IDENTITY_BYTES, len(blob))
    forged.put(page.IDENTITY_OFFSET, blob)
    with Reader(str(forged.path)) as reader:
        assert reader.identity["new_field"] == {"a": [1, None]} and reader.identity["run"] == "☃" * 128


# -- step records and events: a torn one is left out, alone


def steps_without(forged) -> list[int]:
    """Numbers of the 30 steps that the reader leaves out."""
    with Reader(str(forged.path)) as reader:
        numbers = [record.number for record in reader.snapshot().steps]
    assert numbers == sorted(set(numbers))
    return sorted(set(range(1, 31)) - set(numbers))


def record_word(number: int, word: int) -> int:
    return page.W_STEP_RING + (number - 1) % page.STEP_RING * page.STEP_WORDS + word


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (page.R_SEAL, 0), (page.R_SEAL, 11), (page.R_SEAL, (1 << 64) - 1), (page.R_NUMBER, 0), (page.R_NUMBER, 11),
        (page.R_STEP, 0), (page.R_STEP, (1 << 64) - 1), (page.R_START, (1 << 64) - 1), (page.R_END, 0),
        (page.R_END, page.NS_MAX), (page.R_SAMPLES, page.NS_MAX), (page.R_TOTALS, page.NS_MAX),
        (page.R_OUTSIDE + 3, 1 << 61), (page.R_OUTSIDE + len(page.PHASES), 1 << 63),
    ],
)  # fmt: skip
def test_implausible_record_is_left_out(forged, word, value):
    forged.word(record_word(10, word), value)
    assert steps_without(forged) == [10]
    assert read(forged.path) == "good"


@pytest.mark.parametrize(("word", "bit"), [(page.R_END, 60), (page.R_END, 43), (page.R_START, 50)])
def test_record_outside_of_the_page_s_time_is_left_out(forged, word, bit):
    """One flipped bit would be years of stall."""
    at = 8 * record_word(10, word)
    time_ns = int.from_bytes(forged.good[at : at + 8], "little")
    forged.word(record_word(10, word), time_ns ^ (1 << bit))
    assert steps_without(forged) == [10]


def test_record_with_another_number_is_left_out(forged):
    for word in (page.R_NUMBER, page.R_SEAL):
        forged.word(record_word(10, word), 12)
        forged.word(record_word(20, word), 20 + page.STEP_RING)
    assert steps_without(forged) == [10, 20]


def test_an_event_that_is_torn_is_left_out(forged):
    for word, value in ((0, 2), (page.EVENT_WORDS - 1, 0), (1, 0), (1, 99)):
        forged.restore()
        forged.word(page.W_EVENT_RING + word, value)
        with Reader(str(forged.path)) as reader:
            (event,) = reader.snapshot().events
        assert (event.number, event.kind, event.step, event.text) == (2, "mark", 30, "here ☃")


def test_text_of_an_event_may_be_anything(forged):
    anything = (bytes(range(192, 256)) * 4)[: page.EVENT_TEXT_BYTES]
    forged.put(8 * (page.W_EVENT_RING + page.EVENT_WORDS + page.E_TEXT), anything)
    with Reader(str(forged.path)) as reader:
        assert reader.snapshot().events[1].text == anything.decode("utf-8", "replace")


# -- random bytes


REGIONS = {
    "header": (0, 32), "identity": (page.IDENTITY_OFFSET, 400), "live": (8 * page.LIVE, 1300),
    "user phases": (page.USER_OFFSET, 1100), "events": (8 * page.W_EVENT_RING, 600),
    "steps": (8 * page.W_STEP_RING, 30 * 512), "anywhere": (0, HEAD_BYTES), "histograms": (HEAD_BYTES, 1 << 20),
}  # fmt: skip
ODD = [
    0,
    1,
    2,
    31,
    255,
    1 << 31,
    1 << 32,
    1 << 53,
    page.NS_MAX - 1,
    page.NS_MAX,
    1 << 63,
    (1 << 64) - 1,
    page.STEP_BIAS - 1,
]


@pytest.mark.parametrize("region", REGIONS)
def test_random_bytes_and_odd_words_in_every_region(forged, region):
    rng, (start, length) = random.Random(region), REGIONS[region]
    seen = set()
    for _ in range(150):
        for _ in range(rng.choice((1, 1, 3, 20))):
            at = start + rng.randrange(length)
            if rng.random() < 0.5:
                forged.put(at, rng.randbytes(rng.choice((1, 8, 100))))
            else:
                forged.word(at // 8, rng.choice(ODD))
        seen.add(read(forged.path))
        forged.restore()
    assert seen != {"good"} or region not in ("header", "identity", "live")


@settings(
    max_examples=200, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    patches=st.lists(
        st.tuples(st.integers(0, HEAD_BYTES - 1), st.binary(min_size=1, max_size=40)), max_size=8
    )
)
def test_any_patches(forged, patches):
    forged.restore()
    for at, data in patches:
        forged.put(min(at, HEAD_BYTES - len(data)), data)
    read(forged.path)


@settings(max_examples=100, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=5000), whole=st.booleans())
def test_any_file(tmp_path, data, whole):
    path = tmp_path / "any.page"
    path.write_bytes(data)
    if whole:
        os.truncate(path, page.FILE_BYTES)
    assert (
        read(path) in REASONS
    )  # and never good: hypothesis may have found the magic in our source, but no page
