"""The token file: JSON with the hash of each token, readable by its owner alone.

In: a path. Out: Tokens; and a changed file, which takes the old one's place at once or not at all. FileError says
what is wrong and in which entry, and never what an entry holds. No secret is in the file; who can write it can let
anybody in, and who can read it learns names and scopes.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import contextmanager

from goodput.access.tokens import ID, Token, check

VERSION = 1
BYTES_MAX = 4 << 20
TOKENS_MAX = 10_000


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
    """What is unsafe about a file with secrets or hashes: None, or that others than its owner may read or change it."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None
    # A group is how a service without a user of its own is let in, as Kubernetes does with its secrets.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path}: others than its owner may change it (mode {stat.S_IMODE(mode):04o}); chmod 600 it"
    if mode & stat.S_IROTH:
        return f"{path}: everybody on this machine may read it (mode {stat.S_IMODE(mode):04o}); chmod 600 it"
    return None


@contextmanager
def changing(path: str):
    """The list of tokens, to be changed; it is written when the block ends without an exception.

    Two of these on one file wait for each other. A file that is not there is an empty list.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FileError(f"token file {path}: {folder}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = read(path) if os.path.exists(path) else []
        yield tokens
        _write(path, tokens)
    finally:
        os.close(lock)


def _write(path: str, tokens: list[Token]) -> None:
    if len(tokens) > TOKENS_MAX:
        raise FileError(f"token file {path}: {TOKENS_MAX} tokens at most")
    text = json.dumps({"version": VERSION, "tokens": [_entry(token) for token in tokens]}, indent=1)
    target = os.path.realpath(path)
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
        os.replace(part, target)
    except OSError as error:
        if part is not None and os.path.exists(part):
            os.unlink(part)
        raise FileError(f"token file {path}: {error.strerror}") from None


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
