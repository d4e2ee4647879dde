"""Certificates for tests, by the openssl program: an authority of their own, and what it signs.

In: a folder. Out: PEM files in it. Elliptic keys, so that one takes some milliseconds.

    authority = Authority(tmp_path); cert, key = authority.issue("server")
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HOSTS = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Authority:
    def __init__(self, folder: Path, name: str = "ca"):
        if shutil.which("openssl") is None:
            pytest.skip("not installed: openssl")
        self._folder = folder
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        self._openssl(self.cert, self.key, name, "-addext", "basicConstraints=critical,CA:TRUE",
                      "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for loopback, for servers and clients alike, and its key."""
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        signed = ("-CA", self.cert, "-CAkey", self.key, "-addext", HOSTS)
        self._openssl(cert, key, name, *signed, "-addext", "basicConstraints=CA:FALSE")
        return cert, key

    def _openssl(self, cert: Path, key: Path, name: str, *more) -> None:
        new = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2")
        command = ["openssl", "req", *new, "-subj", f"/CN={name}", "-keyout", key, "-out", cert, *more]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
