"""Certificates and tokens: what is there and valid is kept, the rest is made."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from goodput.access.certificate_expiry import earliest_expiry
from goodput.access.token_file import changing, replacing
from goodput.access.tokens import TEXT, Token, digest, make
from goodput.provision.hosts import Host, Inventory, ProvisionError

RENEW_SECONDS = 30 * 86_400  # before a certificate expires


@dataclass(frozen=True)
class Secret:
    """A token to be: its name and scope, the file of its text, and the tenant whose runs it is for (None: all)."""

    name: str
    scope: str
    path: Path
    tenant: str | None = None


def ensure_certificates(script: Path, folder: Path, hosts: Iterable[Host], inventory: Inventory) -> list[str]:
    """Make the certificates in `folder` that are missing, have other names or expire within 30 days.

    Those of another authority, put there before, are used as they are. Returns the names of the hosts whose certificates
    were made. `script` is deploy/certificates.sh. Raises ProvisionError.
    """
    now = time.time()
    wanted = [
        host
        for host in hosts
        if inventory.certified.get(host.name, host) != host
        or not (folder / f"{host.name}.key").exists()
        or (earliest_expiry(str(folder / f"{host.name}.crt")) or 0.0) < now + RENEW_SECONDS
    ]
    if not wanted:
        return []
    command = ["sh", str(script), str(folder), *map(str, wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ProvisionError(f"cannot run sh: {error.strerror}") from None
    if done.returncode:
        names = ", ".join(host.name for host in wanted[:5]) + (", ..." if len(wanted) > 5 else "")
        problem = done.stderr.strip() or f"{script} ended with status {done.returncode}"
        raise ProvisionError(f"no certificate for {names}: {problem}")
    inventory.certified |= {host.name: host for host in wanted}
    return [host.name for host in wanted]


def ensure_tokens(file: Path, secrets: Iterable[Secret]) -> list[str]:
    """Make the tokens whose file is missing, or whose token is no longer valid in the token file.

    Returns their names. Raises FileError, and ProvisionError for a valid token of another tenant.
    """
    made = []
    with changing(str(file)) as tokens:
        valid = {token.id: token for token in tokens if token.expires is None or token.expires > time.time()}
        for secret in secrets:
            if _is_valid(secret, valid):
                continue
            text, token = make(secret.name, secret.scope, tenant=secret.tenant, created=round(time.time()))
            tokens.append(token)
            made.append((secret, text))
    for secret, text in made:
        with replacing(str(secret.path), text):
            pass
    return [secret.name for secret, _ in made]


def revoke_tokens(file: Path, names: Iterable[str]) -> None:
    """Revoke the ingest tokens with these names. Raises FileError."""
    gone = set(names)
    with changing(str(file)) as tokens:
        tokens[:] = [token for token in tokens if token.scope != "ingest" or token.name not in gone]


def _is_valid(secret: Secret, valid: dict[str, Token]) -> bool:
    """Whether the file has the text of a valid token of this scope."""
    try:
        text = secret.path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    found = TEXT.fullmatch(text)
    token = valid.get(found[2]) if found else None
    if token is None or token.sha256 != digest(text.encode()) or token.scope != secret.scope:
        return False
    if secret.tenant is not None and token.tenant != secret.tenant:
        runs = f"runs of tenant {token.tenant}" if token.tenant else "all runs"
        raise ProvisionError(
            f"{secret.name} has a token for {runs}; revoke it first (goodput token revoke --id {token.id}), "
            "or leave out --tenant"
        )
    return True


def set_owner(path: Path, mode: int, group: int | None) -> None:
    """Root owns the file, and the group may read it; with None the owner stays."""
    if group is not None:
        os.chown(path, 0, group)
    os.chmod(path, mode)
