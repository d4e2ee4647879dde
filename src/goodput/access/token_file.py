"""The token file: JSON with the SHA-256 of each token, mode 0600.

It contains no secret: a writer of the file can grant access, a reader learns names and scopes. A change replaces the
file atomically. Error texts name the file and entry, never the entry's content.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

from goodput.access.tokens import ID, SHA256, Token

VERSION = 1
BYTES_MAX = 4 << 20
TOKENS_MAX = 10_000
LOCK_SECONDS_MAX = 5.0


class FileError(ValueError):
    """A token file that cannot be used; the text names the file, the entry and the problem."""


def read(path: str) -> list[Token]:
    """The tokens of a file. Raises FileError."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(f"token file {path}: no regular file")
            body = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise FileError(f"token file {path}: {error.strerror}") from None
    if len(body) > BYTES_MAX:
        raise FileError(f"token file {path}: larger than {BYTES_MAX} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise FileError(f"token file {path}: not JSON; `goodput token create` makes one") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise FileError(f"token file {path}: not a token file of version {VERSION}")
    entries = document.get("tokens")
    if not isinstance(entries, list) or len(entries) > TOKENS_MAX:
        raise FileError(f"token file {path}: expected a list of at most {TOKENS_MAX} tokens")
    tokens = [_token(entry, f"token file {path}: token {i + 1}") for i, entry in enumerate(entries)]
    if len({token.id for token in tokens}) < len(tokens):
        raise FileError(f"token file {path}: two tokens have the same id")
    return tokens


def _open_without_waiting(path: str, flags: int) -> int:
    """For a FIFO in the file's place: servers read the file again while they serve."""
    return os.open(path, flags | os.O_NONBLOCK)


def permission_problem(path: str) -> str | None:
    """Why a file with secrets or hashes is unsafe: others may read, change or replace it. None if it is safe."""
    target = os.path.realpath(path)
    try:
        status, folder = os.stat(target), os.stat(os.path.dirname(target))
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        return f"{path}: belongs to user {status.st_uid}, who may change it; chown it to this user or root"
    # In a sticky folder (/tmp, Kubernetes mounts) no user can replace another one's file.
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
        return (
            f"{path}: others may replace it, because its folder {os.path.dirname(target)} is writable for them "
            f"(mode {stat.S_IMODE(folder.st_mode):04o}); chmod go-w the folder"
        )
    # Group read is allowed: Kubernetes gives a service access to its secrets by group.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path}: others may change it (mode {mode:04o}); chmod 600 it"
    if mode & stat.S_IROTH:
        return f"{path}: every user of this machine may read it (mode {mode:04o}); chmod 600 it"
    return None


@contextmanager
def changing(path: str):
    """The list of tokens, to be modified; written when the block ends without an exception.

    Concurrent changes wait for each other, at most LOCK_SECONDS_MAX. A missing file is an empty list.
    """
    lock_path = f"{os.path.realpath(path)}.lock"
    lock = _wait_for_lock(path, lock_path)
    try:
        tokens = read(path) if os.path.exists(path) else []
        yield tokens
        if len(tokens) > TOKENS_MAX:
            raise FileError(f"token file {path}: at most {TOKENS_MAX} tokens")
        entries = [_entry(token) for token in tokens]
        with replacing(path, json.dumps({"version": VERSION, "tokens": entries}, indent=1)):
            pass
    finally:
        with suppress(OSError):
            os.unlink(lock_path)
        os.close(lock)


def _wait_for_lock(path: str, lock_path: str) -> int:
    """The descriptor of the held lock. A lock file, since anyone who can read the folder could flock the folder."""
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            lock = _try_lock(lock_path)
        except OSError as error:
            raise FileError(f"token file {path}: lock file {lock_path}: {error.strerror}") from None
        if lock is not None:
            return lock
        if time.monotonic() >= deadline:
            raise FileError(
                f"token file {path}: {lock_path} is locked by another process (find it with fuser {lock_path})"
            )
        time.sleep(0.02)


def _try_lock(lock_path: str) -> int | None:
    """One attempt; None if another process holds it.

    The holder deletes the file, so the locked file must still be the one at this path.
    """
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(lock_path, follow_symlinks=False)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


@contextmanager
def replacing(path: str, text: str):
    """Write a file of mode 0600 that replaces `path` when the block ends without an exception.

    An existing file keeps its owner, group and group read permission. Raises FileError.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise FileError(f"token file {path}: not a regular file")
    part = None
    try:
        # mkstemp creates it with mode 0600: others can read it at no moment.
        number, part = tempfile.mkstemp(prefix=".tokens-", dir=os.path.dirname(target))
        with os.fdopen(number, "w") as file:
            if os.path.exists(target):
                _copy_owner(target, file.fileno())
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        yield
        os.replace(part, target)
    except OSError as error:
        raise FileError(f"token file {path}: {error.strerror}") from None
    finally:
        if part is not None and os.path.exists(part):
            os.unlink(part)


def _copy_owner(path: str, number: int) -> None:
    """Root may change a file that a service reads: keep it readable for that service."""
    before, now = os.stat(path), os.fstat(number)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.fchown(number, before.st_uid, before.st_gid)
    os.fchmod(number, stat.S_IMODE(before.st_mode) & 0o640)


def _entry(token: Token) -> dict:
    return {**vars(token), "runs": list(token.runs), "sha256": token.sha256.hex()}


def _token(entry: object, where: str) -> Token:
    if not isinstance(entry, dict):
        raise FileError(f"{where}: not an object")
    values = {**_DEFAULTS, **{name: entry[name] for name in _FIELDS if name in entry}}
    for name, is_valid in _FIELDS.items():
        if not is_valid(values.get(name)):
            raise FileError(f"{where}: {name} is missing or wrong")
    values["runs"], values["sha256"] = tuple(values["runs"]), bytes.fromhex(values["sha256"])
    try:
        return Token(**values)
    except ValueError as error:
        raise FileError(f"{where}: {error}") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


_DEFAULTS = {"runs": ["*"], "tenant": None, "created": 0.0, "expires": None, "gpus": None}
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "id": lambda value: _is_text(value) and bool(ID.fullmatch(value)),
    "name": _is_text,
    "scope": _is_text,
    "sha256": lambda value: _is_text(value) and bool(SHA256.fullmatch(value)),
    "runs": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "tenant": lambda value: value is None or _is_text(value),
    "created": _is_time,
    "expires": lambda value: value is None or _is_time(value),
    "gpus": lambda value: value is None or (isinstance(value, int) and not isinstance(value, bool)),
}
