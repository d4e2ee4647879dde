"""Rewriting an identity: a reader has the old or the new one, whole, and never that of another process."""

from __future__ import annotations

import itertools
import json
import os

import pytest
from support.rank_page.page_maker import Forgery, Rank, identity

from goodput.rank_page import page
from goodput.rank_page.page import PageError
from goodput.rank_page.reader import Reader

ROUNDS = 10_000


def test_changed_fields_come_with_the_next_snapshot(tmp_path):
    rank = Rank(tmp_path).train(3)
    reported = json.loads(
        bytes(rank.words.cast("B")[page.IDENTITY_OFFSET :][: rank.words[page.W_IDENTITY_BYTES]])
    )
    with Reader(str(rank.path)) as reader:
        first = reader.snapshot().identity
        for number in range(1, 6):
            page.rewrite_identity(
                rank.words, {**reported, "flops_per_step": 10.0**number, "dtype": "x" * number}
            )
            assert reader.identity["flops_per_step"] != 10.0**number, "a snapshot alone takes it"
            snapshot = reader.snapshot()
            assert snapshot.identity == {**first, "flops_per_step": 10.0**number, "dtype": "x" * number}
            assert reader.snapshot().identity is snapshot.identity and len(snapshot.steps) == 3
            with Reader(str(rank.path)) as late:
                assert late.identity == snapshot.identity


def test_oversized_identity_leaves_the_old_one(tmp_path):
    rank, reported = Rank(tmp_path), identity()
    for _ in range(3):
        number = rank.words[page.W_REVISION]
        place = page.IDENTITY_PLACES[((number >> page.REVISION_SHIFT) + 1) % 2]
        with pytest.raises(PageError):
            page.rewrite_identity(rank.words, {**reported, "more": "x" * place[1]})
        assert rank.words[page.W_REVISION] == number
        room = place[1] - len(json.dumps({**reported, "more": ""}, separators=(",", ":")))
        page.rewrite_identity(rank.words, {**reported, "run": "r", "more": "x" * room})
        with Reader(str(rank.path)) as reader:
            assert len(reader.identity["more"]) == room


def test_concurrent_reader_never_sees_half_an_identity(tmp_path):
    """Every identity says one number in three places far from each other; all three agree in whatever was read."""
    rank = Rank(tmp_path)
    reported = {name: value for name, value in identity().items() if name not in ("device", "group")}
    reported = {
        **reported,
        **{name: reported_identity(rank)[name] for name in ("start_unix_ns", "start_mono_ns")},
    }

    def version(number: int) -> dict:
        padding = {f"pad{i}": "y" * (50 * (number % 7)) for i in range(6)}
        return {
            "group": str(number),
            **reported,
            **padding,
            "device": str(number),
            "flops_per_step": float(number + 1),
        }

    page.rewrite_identity(rank.words, version(0))
    enough, tell = os.pipe()
    writer = os.fork()
    if not writer:
        os.close(tell)
        os.set_blocking(enough, False)
        # The reader may have its first turn late.
        for number in itertools.count(1):
            page.rewrite_identity(rank.words, version(number))
            if number >= ROUNDS and has_ended(enough):
                break
        page.rewrite_identity(rank.words, version(ROUNDS - 1))
        os._exit(0)
    os.close(enough)
    found, over = set(), 0
    with Reader(str(rank.path)) as reader, open(tell, "wb") as done_file:
        while not over:
            over, status = os.waitpid(writer, os.WNOHANG)
            read = reader.snapshot().identity
            assert read["group"] == read["device"] == str(int(read["flops_per_step"]) - 1)
            found.add(read["group"])
            if len(found) > 1:
                done_file.close()
        absent = dict.fromkeys(("dtype", "role", "worker"), "")
        assert status == 0 and reader.snapshot().identity == {**version(ROUNDS - 1), **absent}


def has_ended(pipe: int) -> bool:
    """Whether nobody writes to the pipe any more."""
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


def reported_identity(rank: Rank) -> dict:
    with Reader(str(rank.path)) as reader:
        return reader.identity


class Tearing(Reader):
    """The writer comes twice between the reader's look at the revision and its look at the text."""

    def __init__(self, path: str, words, versions: list[dict]):
        self.words, self.versions = words, versions
        super().__init__(path)

    def _read(self, offset: int, length: int) -> bytes:
        if offset in (place[0] for place in page.IDENTITY_PLACES):
            for version in self.versions[:2]:
                page.rewrite_identity(self.words, version)
            del self.versions[:2]
        return super()._read(offset, length)


def test_torn_identity_is_left_for_the_next_snapshot(tmp_path):
    rank = Rank(tmp_path)
    reported = reported_identity(rank)
    # Of the same length, so that a text of the other revision would be read as good.
    versions = [{**reported, "dtype": f"d{number:03d}"} for number in range(100, 140)]
    torn = Tearing(str(rank.path), rank.words, versions[:2])
    assert torn.identity["dtype"] == "d101"
    torn.versions = versions[2:22]
    page.rewrite_identity(rank.words, versions[39])
    assert torn.snapshot().identity["dtype"] == "d101", "it changes too fast: the old one stands"
    torn.versions = []
    assert torn.snapshot().identity["dtype"] != "d101"
    torn.close()
    with pytest.raises(PageError) as refused:
        Tearing(str(rank.path), rank.words, versions)
    assert refused.value.reason == "identity"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "other"), ("rank", 1), ("attempt", 2), ("pid", 1), ("pid_start_ticks", 5), ("host", "n9"),
        ("start_unix_ns", 5), ("start_mono_ns", 5), ("world_size", 0),
    ],
)  # fmt: skip
def test_changed_identity_or_invalid_field_is_rejected(tmp_path, field, value):
    """The identity read before stays in effect."""
    rank = Rank(tmp_path)
    with Reader(str(rank.path)) as reader:
        before = dict(reader.identity)
        page.rewrite_identity(rank.words, {**before, "dtype": "bf16", field: value})
        for _ in range(2):
            with pytest.raises(PageError) as refused:
                reader.snapshot()
            assert refused.value.reason == "identity" and reader.identity == before
        page.rewrite_identity(rank.words, {**before, "dtype": "bf16"})
        assert reader.snapshot().identity == {**before, "dtype": "bf16"}


@pytest.mark.parametrize(
    "revision",
    [
        1, 1 << 12, (1 << 12) | 4095, (2 << 12) | 4033, (1 << 12) | 3073, (1 << 64) - 1, 1 << 63, (3 << 12) | 20,
        (2 << 12) | 20, 5,
    ],
)  # fmt: skip
def test_invalid_revision_is_rejected(tmp_path, revision):
    head = Rank(tmp_path / "good").train(2).head()
    forged = Forgery(tmp_path / "forged.page", head)
    try:
        with Reader(str(forged.path)) as reader:
            forged.word(page.W_REVISION, revision)
            with pytest.raises(PageError) as refused:
                reader.snapshot()
            assert refused.value.reason == "identity"
            with pytest.raises(PageError):
                Reader(str(forged.path))
            forged.word(page.W_REVISION, 0)
            assert reader.snapshot().steps_done == 2
    finally:
        forged.close()


def test_identity_is_written_before_its_revision(tmp_path):
    rank = Rank(tmp_path)
    reported = reported_identity(rank)
    seen = []

    class Words:
        """The page's words, which look at what lies there whenever a revision is published."""

        cast, __getitem__ = rank.words.cast, rank.words.__getitem__

        def __setitem__(self, word, value):
            rank.words[word] = value
            if word == page.W_REVISION:
                seen.append(reported_identity(rank)["dtype"])

    for dtype in ("a", "b", "c"):
        page.rewrite_identity(Words(), {**reported, "dtype": dtype})
    assert seen == ["a", "b", "c"]


def test_identity_longer_than_its_place_is_rejected(tmp_path):
    rank = Rank(tmp_path / "good")
    offset, most = page.IDENTITY_PLACES[1]
    forged = Forgery(tmp_path / "forged.page", rank.head())
    try:
        for length in (most, most + 1):
            forged.put(offset, json.dumps(reported_identity(rank)).encode().ljust(length))
            forged.word(page.W_REVISION, 1 << page.REVISION_SHIFT | length)
            if length > most:
                with pytest.raises(PageError):
                    Reader(str(forged.path))
            else:
                Reader(str(forged.path)).close()
    finally:
        forged.close()


def test_second_identity_place_overlaps_nothing():
    (first, first_bytes), (second, second_bytes) = page.IDENTITY_PLACES
    assert first + first_bytes <= 8 * page.LIVE
    assert second >= page.USER_OFFSET + page.USER_PHASES_MAX * page.USER_ENTRY_BYTES
    assert second + second_bytes <= 8 * page.W_EVENT_RING
    assert max(first_bytes, second_bytes) < 1 << page.REVISION_SHIFT
    assert page.W_REVISION < page.W_DROPS
