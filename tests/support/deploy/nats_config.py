"""A shipped configuration of nats-server, with its files in a folder of the test, as the real nats-server reads it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.servers.certificates import Authority
from support.servers.servers import require

USERS = 'authorization { users: [{user: goodput, password: "secret"}] }\n'


def checked_config(text: str, folder: Path, users: str = USERS) -> subprocess.CompletedProcess:
    """What `nats-server -t` says of a configuration."""
    require("nats-server")
    authority = Authority(folder)
    cert, key = authority.issue("server")
    files = {"cert_file": cert, "key_file": key, "ca_file": authority.cert, "store_dir": folder / "store"}
    for name, path in files.items():
        assert (folder / name).name in text, name
        text = re.sub(rf'(?m)^( *{name}: )"[^"]*"', rf'\1"{path}"', text)
    text, count = re.subn(r'(?m)^include "[^"]*"', 'include "users.conf"', text)
    assert count == 1
    (folder / "users.conf").write_text(users)
    (folder / "nats.conf").write_text(text)
    command = ["nats-server", "-t", "-c", str(folder / "nats.conf")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
