"""A tar archive with all files of a node: as root, `tar -xf NAME.tar -C /` puts them into place with owner and mode."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

NODE_OPTIONS = (
    "--aggregator https://{head}:9471 --token-file /etc/goodput/ingest-token --ca-file /etc/goodput/ca.crt "
    "--listen 0.0.0.0:9470 --tokens /etc/goodput/node-tokens.json "
    "--tls-cert /etc/goodput/node.crt --tls-key /etc/goodput/node.key"
)


def write_archive(path: Path, folder: Path, node: str, head: str, node_tokens: Path) -> None:
    """Write `path` with mode 0600: token, certificate and options of the node. `folder` has what they are made from."""
    defaults = (
        "# /etc/default/goodput-node, by `goodput provision`. Restart goodput-node after a change.\n"
        f'GOODPUT_DIR=/run/goodput\nGOODPUT_NODE_OPTIONS="{NODE_OPTIONS.format(head=head)}"\n'
    )
    part = path.with_suffix(".tar.new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        _add(tar, "etc/goodput", None, 0o755)
        _add(tar, "etc/goodput/ca.crt", (folder / "ca.crt").read_bytes(), 0o644)
        _add(tar, "etc/goodput/node.crt", (folder / f"{node}.crt").read_bytes(), 0o644)
        secrets = {"node.key": folder / f"{node}.key", "ingest-token": folder / f"{node}.token"}
        for name, source in {**secrets, "node-tokens.json": node_tokens}.items():
            _add(tar, f"etc/goodput/{name}", source.read_bytes(), 0o640, "goodput")
        _add(tar, "etc/default/goodput-node", defaults.encode(), 0o644)
    part.replace(path)


def _add(tar: tarfile.TarFile, name: str, content: bytes | None, mode: int, group: str = "root") -> None:
    """A file, or a folder where `content` is None. tar finds the group's id by its name on the machine that extracts."""
    member = tarfile.TarInfo(name)
    member.mode, member.mtime, member.uname, member.gname = mode, int(time.time()), "root", group
    if content is None:
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
        return
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
