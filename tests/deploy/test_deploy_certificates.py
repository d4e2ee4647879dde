"""deploy/certificates.sh makes what aggregator, agents and clients take, and renews it."""

import shutil
import ssl
import stat
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.deploy.deploy_words import DEPLOY

from goodput.access.certificate import Certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("not installed: openssl")
    folder = tmp_path_factory.mktemp("authority")

    def make(*names: str):
        command = [DEPLOY / "certificates.sh", folder / "a", *names]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return folder / "a"

    make("head=10.0.0.1,head.example", "goodput-node")
    return make


def test_names_and_modes_are_as_requested(made):
    folder = made()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {
        f"{n}.{e}": 0o644 if e == "crt" else 0o600
        for n in ("ca", "head", "goodput-node")
        for e in ("crt", "key")
    }
    command = ["openssl", "x509", "-in", folder / "head.crt", "-noout", "-ext", "subjectAltName"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in (
        "DNS:head,",
        "DNS:localhost",
        "IP Address:127.0.0.1",
        "IP Address:10.0.0.1",
        "DNS:head.example",
    ):
        assert name in text


def test_certificates_work_and_renew_with_the_same_authority(made):
    folder = made()
    kept = Certificate(*map(str, (folder / "head.crt", folder / "head.key", folder / "ca.crt")))
    authority, before = (folder / "ca.crt").read_bytes(), (folder / "head.crt").read_bytes()
    made("head")
    kept.reload()
    assert kept.errors == 0 and (folder / "head.crt").read_bytes() != before
    assert (folder / "ca.crt").read_bytes() == authority
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    assert len(context.get_ca_certs()) == 1
    command = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        folder / "ca.crt",
        folder / "head.crt",
        folder / "goodput-node.crt",
    ]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_shellcheck_passes():
    linter = Path(sysconfig.get_path("scripts")) / "shellcheck"
    if not linter.exists():
        pytest.skip("not installed: shellcheck")
    scripts = (DEPLOY / "packages" / "scripts").glob("*.sh")
    subprocess.run([linter, DEPLOY / "certificates.sh", *scripts], check=True)


def test_missing_key_of_the_authority_is_an_error(made, tmp_path):
    """It may be kept elsewhere; a new authority in its place would be one that no host knows."""
    shutil.copy(made() / "ca.crt", tmp_path)
    done = subprocess.run([DEPLOY / "certificates.sh", tmp_path, "head"], capture_output=True, text=True)
    assert done.returncode == 1 and f"{tmp_path}/ca.key is missing: put it back" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ca.crt"]
