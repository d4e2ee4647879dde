"""Tokens, the token file and the token cache."""

import json
import os
import stat
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.tokens import add, refusal

from goodput.access import token_file
from goodput.access.responses import Refusal
from goodput.access.token_cache import TokenCache
from goodput.access.tokens import TEXT, TOKEN_CHARS_MAX, digest, make


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


# ---- One token


def test_only_the_token_hash_is_stored(path):
    texts = {add(path, f"n{number}") for number in range(20)}
    assert len(texts) == 20 and all(TEXT.fullmatch(text) and len(text) <= TOKEN_CHARS_MAX for text in texts)
    kept = path.read_text()
    for text in texts:
        secret = text.rpartition("_")[2]
        assert secret not in kept and digest(text.encode()).hex() in kept
    assert len({text.rpartition("_")[2] for text in texts}) == 20


@pytest.mark.parametrize(
    ("runs", "tenant", "may", "may_not"),
    [
        (("*",), None, ["a", "a/b", "ü", ""], []),
        (("exp-1",), None, ["exp-1"], ["exp-10", "exp", "Exp-1", "exp-1\n", "x/exp-1"]),
        (("exp-*", "base?"), None, ["exp-", "exp-1/2", "base1"], ["base", "base12", "aexp-1"]),
        (("*",), "vision", ["vision/a", "vision/a/b"], ["vision", "vision2/a", "a", "x/vision/a"]),
        (("a*",), "vision", ["vision/a1"], ["vision/b", "a1"]),
        (("a.c",), None, ["a.c"], ["abc"]),
        (("[ab]1",), None, ["a1", "b1"], ["c1", "[ab]1"]),
    ],
)
def test_token_covers_matching_runs(runs, tenant, may, may_not):
    access = make("n", "read", runs=runs, tenant=tenant)[1].access()
    assert [run for run in may if not access.may(run)] == []
    assert [run for run in may_not if access.may(run)] == []
    assert access.is_of_all == (runs == ("*",) and tenant is None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "two words"}, {"name": "x" * 65}, {"name": "a\n"}, {"scope": "admin"},
        {"tenant": "a/b"}, {"tenant": "*"}, {"tenant": ""}, {"runs": ()}, {"runs": ("",)}, {"runs": ("a\n",)},
        {"scope": "metrics", "runs": ("a",)}, {"scope": "metrics", "tenant": "a"}, {"runs": ("x" * 129,)}, {"runs": ("*a*a*a*a*",)}, {"runs": ("a",) * 65},
    ],
)  # fmt: skip
def test_invalid_token_fields_raise_value_error(wrong):
    arguments = {"name": "n", "scope": "read", **wrong}
    with pytest.raises(ValueError):
        make(arguments.pop("name"), arguments.pop("scope"), **arguments)


def test_pathological_patterns_match_in_bounded_time():
    access = make("n", "read", runs=("*a*a*a*b",))[1].access()
    began = time.perf_counter()
    assert not access.may("a" * 128)
    assert not access.may("a" * 10**7 + "b")
    assert time.perf_counter() - began < 5, "with backtracking it would be years"


# ---- The cache


def test_only_known_tokens_are_accepted(path):
    mine, other = add(path, "mine"), add(path, "other", "ingest")
    cache = TokenCache(path)
    assert cache.lookup(mine.encode()).name == "mine" and cache.lookup(other.encode()).scopes == ("ingest",)
    number = mine.split("_")[2]
    for text, reason in {
        "": "malformed",
        "goodput": "malformed",
        mine[:-1]: "malformed",
        mine + "0": "malformed",
        mine + "\n": "malformed",
        mine.upper(): "malformed",
        mine[:-1] + ("0" if mine[-1] != "0" else "1"): "unknown",
        f"goodput_read_{number}_{other.rpartition('_')[2]}": "unknown",
        mine.replace("read", "ingest"): "unknown",
        mine.replace(number, "0" * 12): "unknown",
        "x" * 100_000: "malformed",
        "\xff\xfe": "malformed",
    }.items():
        assert refusal(cache, text.encode("latin-1")) == reason, text[:100]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "tokens.json"
    add(path)
    return TokenCache(path)


@given(body=st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(cache, body):
    assert refusal(cache, body) in ("malformed", "unknown")


def test_expired_token_is_refused(path):
    text = add(path, expires=1000.0)
    now = [999.0]
    cache = TokenCache(path, clock=lambda: now[0])
    access = cache.lookup(text.encode())
    assert (cache.count_by_scope(), cache.next_expiry()) == ({"ingest": 0, "read": 1, "metrics": 0}, 1000.0)
    now[0] = 1000.0
    assert refusal(cache, text.encode()) == "expired" and cache.count_by_scope()["read"] == 0
    assert cache.next_expiry() is None
    with pytest.raises(Refusal):
        cache.refresh(access)


def test_token_file_reload_ignores_broken_files(path, caplog):
    first = add(path, "first")
    cache = TokenCache(path)
    second = add(path, "second")
    access = cache.lookup(second.encode())
    for content in (b"{", b"[]", b'{"version": 1, "tokens": [{}]}', b"\xff", b"[" * 100_000, b""):
        path.write_bytes(content)
        cache.reload()
        assert cache.lookup(first.encode()).name == "first"
    assert cache.errors == 6 and len(caplog.records) == 6
    cache.reload()
    assert (cache.errors, cache.is_failing) == (6, True), "each broken file is logged once"
    os.unlink(path)
    cache.reload()
    cache.reload()
    assert cache.errors == 7 and cache.lookup(first.encode())
    third = add(path, "third")
    assert cache.is_failing
    cache.reload()
    cache.reload()
    assert (cache.errors, cache.is_failing) == (7, False)
    assert [r.getMessage() for r in caplog.records[7:]] == [f"{path}: usable again and in use"]
    assert cache.lookup(third.encode()) and refusal(cache, first.encode()) == "unknown"
    with pytest.raises(Refusal) as refused:
        cache.refresh(access)
    assert refused.value.reason == "session"
    for text in (first, second, third):
        assert text not in caplog.text and text.rpartition("_")[2] not in caplog.text


# ---- The file


def test_token_file_mode(path):
    previous = os.umask(0)
    try:
        add(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and token_file.permission_problem(path) is None
        os.chmod(path, 0o640)
        add(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o640 and token_file.permission_problem(path) is None
        for mode, words in ((0o644, "may read"), (0o660, "may change"), (0o602, "may change")):
            os.chmod(path, mode)
            assert words in token_file.permission_problem(path)
        os.chmod(path, 0o666)
        add(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    finally:
        os.umask(previous)
    assert os.listdir(path.parent) == ["tokens.json"]


def test_exception_leaves_the_file_unchanged(path):
    add(path)
    before = path.read_text()
    with pytest.raises(RuntimeError), token_file.changing(path) as tokens:
        tokens.clear()
        raise RuntimeError
    assert path.read_text() == before and os.listdir(path.parent) == ["tokens.json"]


def test_concurrent_changes_lose_nothing(path):
    threads = [threading.Thread(target=add, args=(path, f"n{number}")) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.name for token in token_file.read(path)} == {f"n{number}" for number in range(16)}


def test_token_round_trips_through_the_file(path):
    add(path, "n", "ingest", runs=("a*", "ü[bc]"), tenant="t", created=5.0, expires=7.5, gpus=64)
    (token,) = token_file.read(path)
    assert (token.name, token.scope, token.runs, token.tenant) == ("n", "ingest", ("a*", "ü[bc]"), "t")
    assert (token.created, token.expires) == (5.0, 7.5)
    assert token.gpus == TokenCache(path).gpus_max(token.id) == 64


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": "xyz"}, "token 1: id is"), ({"sha256": "00"}, "sha256 is"), ({"sha256": "zz" * 32}, "sha256 is"),
        ({"scope": "root"}, "scope 'root'"), ({"runs": "*"}, "runs is"), ({"runs": [1]}, "runs is"),
        ({"runs": []}, "0 run patterns"), ({"expires": "soon"}, "expires is"), ({"expires": float("nan")}, "expires is"),
        ({"expires": True}, "expires is"), ({"name": 5}, "name is"), ({"tenant": 5}, "tenant is"),
        ({"gpus": "8"}, "gpus is"), ({"gpus": True}, "gpus is"), ({"gpus": 8}, "gpus 8: expected"),
        ({"tenant": "*"}, "tenant '*'"),
    ],
)  # fmt: skip
def test_invalid_entries_are_named_without_content(path, change, complaint):
    add(path)
    document = json.loads(path.read_text())
    stored_digest = document["tokens"][0]["sha256"]
    document["tokens"][0] |= change
    path.write_text(json.dumps(document))
    with pytest.raises(token_file.FileError, match=r"tokens\.json") as error:
        token_file.read(path)
    assert complaint in str(error.value) and stored_digest not in str(error.value)


def test_unusable_files_raise_file_error(path):
    with pytest.raises(token_file.FileError, match="No such file"):
        token_file.read(path)
    os.mkfifo(path)
    with pytest.raises(token_file.FileError, match="no regular file"):
        token_file.read(path)
    os.unlink(path)
    for content, complaint in (
        ('{"version": 2, "tokens": []}', "version 1"),
        ('{"version": 1}', "expected a list"),
        ('{"version": 1, "tokens": [5]}', "token 1: not an object"),
    ):
        path.write_text(content)
        with pytest.raises(token_file.FileError, match=complaint):
            token_file.read(path)
    os.unlink(path)
    add(path)
    document = json.loads(path.read_text())
    document["tokens"] *= 2
    path.write_text(json.dumps(document))
    with pytest.raises(token_file.FileError, match="the same id"):
        token_file.read(path)
