"""The token file: JSON with the hash of each token, readable by its owner alone.

In: a path. Out: Tokens; and a changed file, which takes the old one's place at once or not at all; and in the same way
a file with one token's text, for whoever brings it. FileError says
what is wrong and in which entry, and never what an entry holds. No secret is in the token file; who can write it can let
anybody in, and who can read it learns names and scopes.
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

from goodput.access.tokens import ID, Token, check

VERSION = 1
BYTES_MAX = 4 << 20
TOKENS_MAX = 10_000
LOCK_SECONDS_MAX = 5.0


class FileError(Exception):
    """A token file that cannot be used; the text says what and where."""


def read(path: str) -> list[Token]:
    """The tokens in a file. Raises FileError."""
    try:
        with open(path, "rb") as file:
            body = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise FileError(f"token file {path}: {error.strerror}") from None
    if len(body) > BYTES_MAX:
        raise FileError(f"token file {path}: over {BYTES_MAX} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise FileError(f"token file {path}: no JSON; `goodput token create` makes one") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise FileError(f"token file {path}: no token file of version {VERSION}")
    entries = document.get("tokens")
    if not isinstance(entries, list) or len(entries) > TOKENS_MAX:
        raise FileError(f"token file {path}: want a list of at most {TOKENS_MAX} tokens")
    found = [_token(entry, f"token file {path}: token {i + 1}") for i, entry in enumerate(entries)]
    if len({token.id for token in found}) < len(found):
        raise FileError(f"token file {path}: two tokens have one id")
    return found


def warning(path: str) -> str | None:
    """What is unsafe about a file with secrets or hashes: None, or that others may read, change or replace it."""
    target = os.path.realpath(path)
    try:
        found, folder = os.stat(target), os.stat(os.path.dirname(target))
    except OSError:
        return None
    mode = found.st_mode
    if found.st_uid not in (0, os.geteuid()):
        return f"{path}: it belongs to user {found.st_uid}, who may change it; chown it to who runs this, or to root"
    # In a sticky folder, as /tmp and those that Kubernetes mounts, nobody can replace what is another's.
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
        return (
            f"{path}: others may replace it, since they may write into its folder {os.path.dirname(target)} "
            f"(mode {stat.S_IMODE(folder.st_mode):04o}); chmod go-w that"
        )
    # A group is how a service without a user of its own is let in, as Kubernetes does with its secrets.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path}: others than its owner may change it (mode {stat.S_IMODE(mode):04o}); chmod 600 it"
    if mode & stat.S_IROTH:
        return f"{path}: everybody on this machine may read it (mode {stat.S_IMODE(mode):04o}); chmod 600 it"
    return None


@contextmanager
def changing(path: str):
    """The list of tokens, to be changed; it is written when the block ends without an exception.

    Two of these on one file wait for each other, LOCK_SECONDS_MAX at most. A file that is not there is an empty list.
    """
    name = f"{os.path.realpath(path)}.lock"
    lock = _locked(path, name)
    try:
        tokens = read(path) if os.path.exists(path) else []
        yield tokens
        _write(path, tokens)
    finally:
        with suppress(OSError):
            os.unlink(name)
        os.close(lock)


def _locked(path: str, name: str) -> int:
    """The lock beside the token file, held. The folder would not do: everybody who can read it could lock it."""
    until = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            number = _lock(name)
        except OSError as error:
            raise FileError(f"token file {path}: its lock {name}: {error.strerror}") from None
        if number is not None:
            return number
        if time.monotonic() >= until:
            raise FileError(
                f"token file {path}: {name} is locked by another process (fuser {name} says which)"
            )
        time.sleep(0.02)


def _lock(name: str) -> int | None:
    """One try; None where somebody else has it. It is gone when they are done, so ours must be the one that is there."""
    number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(number), os.stat(name, follow_symlinks=False)):
            return number
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(number)
        raise
    os.close(number)
    return None


def _write(path: str, tokens: list[Token]) -> None:
    if len(tokens) > TOKENS_MAX:
        raise FileError(f"token file {path}: {TOKENS_MAX} tokens at most")
    text = json.dumps({"version": VERSION, "tokens": [_entry(token) for token in tokens]}, indent=1)
    with replacing(path, text):
        pass


@contextmanager
def replacing(path: str, text: str):
    """A file with this text and mode 0600, which takes the place of `path` when the block ends without an exception.

    One that was there keeps its owner and group, and of its mode what the group may. Raises FileError.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise FileError(f"token file {path}: it is no plain file")
    part = None
    try:
        # Made with mode 0600, so that there is no moment in which others may read it.
        number, part = tempfile.mkstemp(prefix=".tokens-", dir=os.path.dirname(target))
        with os.fdopen(number, "w") as file:
            if os.path.exists(target):
                _keep_owner(target, file.fileno())
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


def _keep_owner(path: str, number: int) -> None:
    """The new file for whom the old one was: root changes what a service reads."""
    before, now = os.stat(path), os.fstat(number)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.fchown(number, before.st_uid, before.st_gid)
    os.fchmod(number, stat.S_IMODE(before.st_mode) & 0o640)


def _entry(token: Token) -> dict:
    return {
        "id": token.id,
        "name": token.name,
        "scope": token.scope,
        "runs": list(token.runs),
        "tenant": token.tenant,
        "created": token.created,
        "expires": token.expires,
        "sha256": token.sha256.hex(),
    }


def _token(entry, where: str) -> Token:
    if not isinstance(entry, dict):
        raise FileError(f"{where}: no object")

    def field(name: str, is_right: Callable[[object], bool], default=None):
        value = entry.get(name, default)
        if not is_right(value):
            raise FileError(f"{where}: {name} is missing or wrong")
        return value

    number = field("id", lambda value: isinstance(value, str) and bool(ID.fullmatch(value)))
    name, scope = (field(key, lambda value: isinstance(value, str)) for key in ("name", "scope"))
    runs = field(
        "runs", lambda value: isinstance(value, list) and all(isinstance(run, str) for run in value), ["*"]
    )
    tenant = field("tenant", lambda value: value is None or isinstance(value, str))
    created, expires = (
        field("created", _is_time, 0.0),
        field("expires", lambda value: value is None or _is_time(value)),
    )
    try:
        sha256 = bytes.fromhex(field("sha256", lambda value: isinstance(value, str) and len(value) == 64))
        check(name, scope, runs, tenant)
    except ValueError as error:
        raise FileError(f"{where}: {'sha256 is wrong' if 'fromhex' in str(error) else error}") from None
    return Token(number, name, scope, sha256, tuple(runs), tenant, created, expires)


def _is_time(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
