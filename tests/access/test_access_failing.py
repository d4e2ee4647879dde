"""Token and certificate files that are unreadable, deleted, locked or owned by others."""

import errno
import fcntl
import os
import shutil
import ssl
import stat
import threading
import time

import pytest
from support.servers.certificates import Authority
from support.servers.served import served
from support.servers.tokens import add, refusal

from goodput.access import token_file
from goodput.access.certificate import Certificate
from goodput.access.reloading import file_mark
from goodput.access.token_cache import TokenCache


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


# ---- Transient failures


def test_revocation_survives_a_transient_read_failure(path, monkeypatch, caplog):
    text = add(path, "gone")
    cache = TokenCache(path)
    with token_file.changing(path) as tokens:
        tokens.clear()

    def failing(name, *_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    with monkeypatch.context() as patched:
        patched.setattr(token_file, "open", failing, raising=False)
        for _ in range(3):
            cache.reload()
    assert cache.lookup(text.encode()) and cache.is_failing
    assert cache.errors == 1 and len(caplog.records) == 1, "a repeated failure is logged once"
    assert "Too many open files" in caplog.text
    cache.reload()
    assert refusal(cache, text.encode()) == "unknown" and not cache.is_failing
    assert cache.errors == 1 and "usable again" in caplog.text


def test_deleted_token_file_keeps_tokens_until_restored(path, caplog):
    text = add(path)
    cache = TokenCache(path)
    os.rename(path, path.with_name("away"))
    cache.reload(), cache.reload()
    assert cache.is_failing and cache.errors == 1 and cache.lookup(text.encode())
    assert "No such file" in caplog.text and "stays in use" in caplog.text
    # The same file, as when a volume is mounted again.
    os.rename(path.with_name("away"), path)
    cache._marks = (file_mark(path),)
    cache.reload()
    assert not cache.is_failing and cache.lookup(text.encode())


def test_broken_file_is_not_reread_per_request(path, monkeypatch):
    text = add(path)
    cache = TokenCache(path)
    path.write_text("{")
    reads = []
    real = token_file.read
    monkeypatch.setattr(token_file, "read", lambda name: reads.append(name) or real(name))
    for _ in range(20):
        assert refusal(cache, text[:-4].encode() + b"0000") in ("unknown",)
    assert len(reads) == 1
    cache.reload()
    assert len(reads) == 2, "`reload` tries it again"


def test_certificate_reload_retries_after_a_failure(tmp_path, monkeypatch, caplog):
    authority = Authority(tmp_path)
    cert, key = tmp_path / "cert", tmp_path / "key"
    for name in ("one", "two"):
        for source, target in zip(authority.issue(name), (cert, key), strict=True):
            shutil.copy(source, target)
        if name == "one":
            kept = Certificate(str(cert), str(key))
    real = ssl.SSLContext.load_cert_chain

    def failing(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", failing)
    kept.reload(), kept.reload()
    assert kept.is_failing and kept.errors == 1 and len(caplog.records) == 1
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", real)
    assert served(kept) == "one"
    kept.reload()
    assert served(kept) == "two" and not kept.is_failing and kept.errors == 1


# ---- The lock


def test_folder_flock_does_not_block_revocation(path):
    add(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        began = time.monotonic()
        with token_file.changing(path) as tokens:
            tokens.clear()
            assert stat.S_IMODE(path.with_name("tokens.json.lock").stat().st_mode) == 0o600
    finally:
        os.close(folder)
    assert token_file.read(path) == [] and time.monotonic() - began < 2
    assert os.listdir(path.parent) == ["tokens.json"], "the holder deletes its lock"


def test_held_lock_is_reported_after_a_timeout(path, monkeypatch):
    add(path)
    monkeypatch.setattr(token_file, "LOCK_SECONDS_MAX", 0.2)
    lock = path.with_name("tokens.json.lock")
    held = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    before = len(os.listdir("/proc/self/fd"))
    with (
        pytest.raises(token_file.FileError, match=rf"{lock} is locked by another process"),
        token_file.changing(path),
    ):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(token_file, "LOCK_SECONDS_MAX", 30.0)
    threading.Timer(0.2, os.close, (held,)).start()
    add(path, "waited")
    assert {token.name for token in token_file.read(path)} == {"one", "waited"}


def test_lock_deleted_by_its_holder_is_retaken(path, monkeypatch):
    """A waiting process would hold the deleted file while another one creates and locks a new one."""
    real, removed = token_file.fcntl.flock, []

    def late(number, how):
        real(number, how)
        if not removed:
            removed.append(os.unlink(f"{path}.lock"))

    monkeypatch.setattr(token_file.fcntl, "flock", late)
    with token_file.changing(path) as tokens:
        assert tokens == [] and removed and os.path.exists(f"{path}.lock")


def test_lock_refuses_symlinks_and_follows_token_file_links(path, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    lock = path.with_name("tokens.json.lock")
    lock.symlink_to(precious)
    with pytest.raises(token_file.FileError, match=rf"lock file {lock}: "), token_file.changing(path):
        pass
    assert precious.read_text() == "mine" and not path.exists()
    lock.unlink()
    add(path)
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / "link.json"
    link.symlink_to(path)
    with token_file.changing(link) as tokens:
        assert len(tokens) == 1 and lock.exists() and os.listdir(link.parent) == ["link.json"], (
            "one lock for one file"
        )


# ---- Warnings


def test_foreign_owner_and_writable_folder_give_warnings(path, monkeypatch):
    add(path)
    assert token_file.permission_problem(path) is None
    for mode, is_warned in ((0o775, True), (0o702, True), (0o755, False), (0o1777, False)):
        os.chmod(path.parent, mode)
        assert bool(token_file.permission_problem(path)) == is_warned, oct(mode)
        assert not is_warned or "may replace it" in token_file.permission_problem(path)
    os.chmod(path.parent, 0o700)
    owner = os.stat(path).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert ("belongs to user" in (token_file.permission_problem(path) or "")) == (owner != 0)
    real = os.stat
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def of_another(name, **given):
        found = list(real(name, **given))
        found[4] = 1234
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", of_another)
    assert "belongs to user 1234" in token_file.permission_problem(path)
